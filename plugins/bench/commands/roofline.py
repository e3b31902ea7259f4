"""`augury bench --roofline`: where the time of passes goes, and how near each kernel is to the machine's limits."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from attrs import asdict

from augury.cli import ProgressDisplay, align_rows, loaded_model, print_json, print_lines
from augury.errors import UnsupportedError
from augury.plugins.bench.model_runner import ModelRunner
from augury.plugins.bench.ping_pong import round_trip_ns
from augury.plugins.bench.roofline import Roofline, measure_roofline
from augury.profile import KernelTime, Limits, Profiled

_SIZES = (1, 8)


def run_roofline(args: argparse.Namespace) -> int:
    """Profile the passes of `--curve` at the depths of `-d`.

    Raises:
        UnsupportedError: The backend cannot profile its kernels.
    """
    sizes, depths = args.curve or _SIZES, args.depth or (0,)
    with loaded_model(args, max(sizes) + max(depths)) as (model, _), ProgressDisplay() as progress:
        if not isinstance(model, Profiled):
            raise UnsupportedError(f"backend {args.backend} cannot profile its kernels; choose another with --backend")
        runner = ModelRunner(model, progress)
        trips = [round_trip_ns()]
        found = [measure_roofline(model, runner, n, depth) for depth in depths for n in sizes]
        trips.append(round_trip_ns())
        threads = model.n_threads
    if args.json:
        rooflines = [asdict(each) for each in found]
        print_json({"model": args.model, "threads": threads, "round_trip_ns": trips, "rooflines": rooflines})
        return 0
    for roofline in found:
        print_lines(_lines(roofline, threads))
    known = [f"{trip:.0f} ns" for trip in trips if trip is not None]
    print_lines([f"core-to-core round trip before and after: {' and '.join(known) or 'not known'}"])
    return 0


def _lines(roofline: Roofline, threads: int) -> Iterator[str]:
    limits, total = roofline.limits, roofline.seconds
    yield f"pass of {roofline.n} after {roofline.depth} tokens, {threads} thread{'s' * (threads > 1)}: {total * 1e3:.2f} ms"
    head = ["kernel", "steps", "ms", "of pass", "GB/s", "of limit", "GMAC/s", "of limit"]
    rows = [_row(kernel, roofline) for kernel in roofline.kernels]
    python = total - sum(kernel.seconds for kernel in roofline.kernels)
    n_bytes, n_multiply_adds = (
        sum(getattr(each, name) for each in roofline.kernels) for name in ("n_bytes", "n_multiply_adds")
    )
    rows.append(["(around the kernels)", "", f"{python * 1e3:.2f}", f"{python / total:.1%}", "", "", "", ""])
    rows.append(["all", "", f"{total * 1e3:.2f}", "", *_rates(total, n_bytes, n_multiply_adds, limits)])
    rows.append(["limit", "", "", "", f"{limits.bytes_per_s / 1e9:.1f}", "", f"{limits.multiply_adds_per_s / 1e9:.0f}", ""])
    yield from align_rows([head, *rows], is_right=(False, *[True] * 7))
    yield ""


def _row(kernel: KernelTime, roofline: Roofline) -> list[str]:
    first = [kernel.name, str(kernel.n_steps), f"{kernel.seconds * 1e3:.2f}", f"{kernel.seconds / roofline.seconds:.1%}"]
    return [*first, *_rates(kernel.seconds, kernel.n_bytes, kernel.n_multiply_adds, roofline.limits)]


def _rates(seconds: float, n_bytes: int, n_multiply_adds: int, limits: Limits) -> list[str]:
    """10^9 of each per second, and the share of the limit; nothing where there are none."""
    cells = []
    for n, limit, digits in ((n_bytes, limits.bytes_per_s, ".1f"), (n_multiply_adds, limits.multiply_adds_per_s, ".0f")):
        rate = n / seconds if seconds > 0 else 0.0
        cells += [format(rate / 1e9, digits), f"{rate / limit:.0%}"] if rate else ["", ""]
    return cells
