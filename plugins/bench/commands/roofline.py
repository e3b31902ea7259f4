"""`augury bench roofline`: where the time of passes goes, and how near each kernel is to the machine's limits."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import asdict, frozen

from augury import Registry, cli
from augury.errors import UnsupportedError
from augury.plugins.bench.machine import round_trip_ns
from augury.plugins.bench.timing import Measurement, ModelRunner
from augury.profile import KernelTime, Limits, Profiled

_SIZES = (1, 8)
_N_WINDOWS = 5  # in each the limits are probed once, between passes


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "roofline",
        help="show the time of each kernel of a pass, against the machine's limits",
        description="Time every kernel of a pass that verifies drafts, and probe the machine's limits between passes.",
    )
    cli.add_model_flags(parser, registry, argv, n_slots=None, has_drafters=False)
    group = parser.add_argument_group("passes")
    group.flag("--curve 1,8", "tokens of a pass (default: 1,8)", cli.counts(least=1), default=_SIZES)
    group.flag("-d --depth 0,4096", "tokens already in the slot (default: 0)", cli.counts(least=0), default=(0,))
    parser.flag("--json", "print one JSON object")
    parser.show_first("-m -t --backend --curve -d --json", words=("model",))
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    sizes, depths = args.curve, args.depth
    with cli.loaded_model(args, max(sizes) + max(depths)) as (model, _), cli.ProgressDisplay() as progress:
        if not isinstance(model, Profiled):
            raise UnsupportedError(f"backend {args.backend} cannot profile its kernels; choose another with --backend")
        runner = ModelRunner(model, progress)
        trips = [round_trip_ns()]
        found = [measure_roofline(model, runner, n, depth) for depth in depths for n in sizes]
        trips.append(round_trip_ns())
        threads = model.n_threads
    if args.json:
        about = {"model": args.model, "threads": threads, "round_trip_ns": trips}
        cli.print_json(about | {"rooflines": [asdict(each) for each in found]})
        return 0
    for roofline in found:
        cli.print_lines(_lines(roofline, threads))
    known = [f"{trip:.0f} ns" for trip in trips if trip is not None]
    cli.print_lines([f"core-to-core round trip before and after: {' and '.join(known) or 'not known'}"])
    return 0


@frozen
class Roofline:
    """Passes of `n` tokens after `depth`.

    `seconds` is the median; `kernels` are those of the median profile, the steps of one name summed.
    """

    n: int
    depth: int
    seconds: float
    kernels: tuple[KernelTime, ...]
    limits: Limits


def measure_roofline(model: Profiled, runner: ModelRunner, n: int, depth: int, repetitions: int = 4) -> Roofline:
    """Profile passes with the logits of all tokens, and probe the limits between them.

    The time of a pass of `n` tokens after `depth` is measured without profiling it, in turns, and with the choice of the best
    tokens. There are so many `repetitions` between two probes.
    """
    runner.prepare(depth)
    measurement = Measurement("curve", n, depth)
    batch = runner.batch(depth, n, n_rows=n)
    model.profile(batch)
    passes: list[Sequence[KernelTime]] = []
    seconds, limits = [], []
    for _ in range(_N_WINDOWS):
        limits.append(model.limits())
        for _ in range(repetitions):
            runner.seconds(measurement)  # to follow a pass, as in a text, not the reckoning of a profile
            seconds.append(runner.seconds(measurement))
            passes.append(model.profile(batch))
    passes.sort(key=lambda steps: sum(step.seconds for step in steps))
    kernels: dict[str, KernelTime] = {}
    for step in passes[len(passes) // 2]:  # a pass that was: medians of its steps would come to less
        before = kernels.get(step.name, KernelTime(step.name, 0.0, 0, 0, 0))
        kernels[step.name] = KernelTime(
            step.name,
            before.seconds + step.seconds,
            before.n_bytes + step.n_bytes,
            before.n_multiply_adds + step.n_multiply_adds,
            before.n_steps + 1,
        )
    found = Limits(
        statistics.median(each.bytes_per_s for each in limits), statistics.median(each.multiply_adds_per_s for each in limits)
    )
    return Roofline(n, depth, statistics.median(seconds), tuple(kernels.values()), found)


def _lines(roofline: Roofline, threads: int) -> Iterator[str]:
    limits, total = roofline.limits, roofline.seconds
    yield f"pass of {roofline.n} after {roofline.depth} tokens, {threads} thread{'s' * (threads > 1)}: {total * 1e3:.2f} ms"
    rows = [["kernel", "steps", "ms", "of pass", "GB/s", "of limit", "GMAC/s", "of limit"]]
    for each in roofline.kernels:
        first = [each.name, str(each.n_steps), f"{each.seconds * 1e3:.2f}", f"{each.seconds / total:.1%}"]
        rows.append([*first, *_rates(each.seconds, each.n_bytes, each.n_multiply_adds, limits)])
    python = total - sum(kernel.seconds for kernel in roofline.kernels)
    n_bytes, n_multiply_adds = (
        sum(getattr(each, name) for each in roofline.kernels) for name in ("n_bytes", "n_multiply_adds")
    )
    rows.append(["(around the kernels)", "", f"{python * 1e3:.2f}", f"{python / total:.1%}", "", "", "", ""])
    rows.append(["all", "", f"{total * 1e3:.2f}", "", *_rates(total, n_bytes, n_multiply_adds, limits)])
    rows.append(["limit", "", "", "", f"{limits.bytes_per_s / 1e9:.1f}", "", f"{limits.multiply_adds_per_s / 1e9:.0f}", ""])
    yield from cli.align_rows(rows, is_right=(False, *[True] * 7))
    yield ""


def _rates(seconds: float, n_bytes: int, n_multiply_adds: int, limits: Limits) -> list[str]:
    """10^9 of each per second, and the share of the limit; nothing where there are none."""
    cells = []
    for n, limit, digits in ((n_bytes, limits.bytes_per_s, ".1f"), (n_multiply_adds, limits.multiply_adds_per_s, ".0f")):
        rate = n / seconds if seconds > 0 else 0.0
        cells += [format(rate / 1e9, digits), f"{rate / limit:.0%}"] if rate else ["", ""]
    return cells
