"""`augury bench passes`: how fast passes are, below the engine, alone or in turns with llama.cpp."""

from __future__ import annotations

import argparse
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from augury import Registry, cli
from augury.errors import OptionError
from augury.files.models import resolve
from augury.interfaces import Progress
from augury.plugins.bench.machine import machine_facts, round_trip_ns
from augury.plugins.bench.server_runner import ServerRunner
from augury.plugins.bench.timing import (
    MIN_PAIRS,
    Measurement,
    MeasurementKind,
    ModelRunner,
    PairedTiming,
    Timing,
    compare_passes,
    sweep,
)

_MARGIN = 8
_PREFILL, _DECODE = 512, 128  # tokens, as in llama-bench
_WIDE = 1.5  # highest over lowest of an interval: beyond, the ratios of most rows could not be told apart


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "passes",
        help="time passes, prompts and decoding, alone or against llama.cpp",
        description="Time the model's passes, below the engine and its drafters: prompts (-p) and decoding (-n) as llama-bench "
        "does, and passes that verify drafts (--curve). Each flag takes several counts; 0 is none.",
    )
    cli.add_model_flags(parser, registry, argv, n_slots=None, has_drafters=False)
    group = parser.add_argument_group("passes")
    group.flag(
        "--curve 1,2,4",
        "time passes over so many tokens with the logits of all, as for verifying drafts",
        cli.counts(least=1),
        default=(),
    )
    for flags, what, default in (("-p --n-prompt", "of a prompt", _PREFILL), ("-n --n-gen", "to decode", _DECODE)):
        text = f"tokens {what}; repeats (default: {default}, with --curve none)"
        group.flag(f"{flags} N,N", text, cli.counts(least=0), action="extend")
    group.flag("-d --depth 0,4096", "tokens already in the slot (default: 0)", cli.counts(least=0), default=(0,))
    group.flag(
        "-r --turns --repetitions N",
        f"runs of each (default: 5 at least), with --vs turns of each (default and least: {MIN_PAIRS})",
        cli.count(least=1),
    )
    group.flag(
        "--vs COMMAND",
        "take turns with a llama-server, and print ratios: its path, or path and flags in quotation marks, such as "
        '"PATH/llama-server -fa off"',
        cli.expecting("the path of a llama-server, with or without flags for it", shlex.split, bool),
    )
    parser.flag("--json", "print one JSON object")
    parser.show_first("-m -t --curve -p -n -d -r --vs --json", words=("model",))
    parser.set_defaults(run=_run)


def _measurements_of(args: argparse.Namespace) -> list[Measurement]:
    """The measurements that the command line asks for, in the order of its figures.

    Raises:
        OptionError: There is nothing to measure.
    """
    prefills, decodes = (
        ([] if args.curve else [default]) if given is None else [n for n in given if n]
        for given, default in ((args.n_prompt, _PREFILL), (args.n_gen, _DECODE))
    )
    sizes: dict[MeasurementKind, Sequence[int]] = {"curve": args.curve, "prefill": prefills, "decode": decodes}
    measurements = [Measurement(kind, n, depth) for kind in sizes for depth in args.depth for n in sizes[kind]]
    if not measurements:
        raise OptionError("there is nothing to time; give --curve 1,2,4,8, -p 512 or -n 64")
    return list(dict.fromkeys(measurements))


def _run(args: argparse.Namespace) -> int:
    measurements = _measurements_of(args)
    if args.vs and args.turns is not None and args.turns < MIN_PAIRS:
        raise OptionError(f"-r is {args.turns}, expected at least {MIN_PAIRS} with --vs: fewer say nothing about the median")
    with (
        cli.loaded_model(args, max(each.depth + each.n for each in measurements)) as (model, backend),
        cli.ProgressDisplay() as progress,
    ):
        runner = ModelRunner(model, progress)
        about: dict[str, Any] = {"model": args.model, "threads": model.n_threads}
        loaded = {"model": model.info.name, "backend": backend, "isa": model.isa, "threads": model.n_threads}
        facts = machine_facts() | loaded
        if args.vs is None:
            timings = sweep(runner, measurements, progress=progress, n_repetitions=args.turns)
            lines = _lines(timings)
        else:
            pairs = args.turns or MIN_PAIRS
            # room for one token more than augury needs: the last one generated is stored, too
            n_ctx = model.state_spec.n_ctx + _MARGIN
            with _peer(args, runner.tokens, model.info.n_vocab, model.n_threads, n_ctx) as server:
                ratios = compare_passes(runner, server, measurements, pairs, round_trip_ns, progress)
            timings = [ratio.ours for ratio in ratios]
            about["vs"] = {"peer": args.vs[0], "pairs": pairs, "ratios": [_ratio_as_json(ratio) for ratio in ratios]}
            lines = [*_ratio_lines(ratios), *_notes(ratios, pairs)]
    rows: dict[str, list[dict[str, Any]]] = {"curve": [], "prefill": [], "decode": []}
    for timing in timings:
        figures = {"ms": timing.ms, "tok_s": timing.tok_s, "spread_ms": list(timing.spread_ms)}
        rows[timing.measurement.kind].append({"n": timing.measurement.n, "depth": timing.measurement.depth} | figures)
    if args.json:
        cli.print_json(about | {"machine": facts} | rows)
    else:
        cli.print_lines(lines)
    return 0


def _peer(args: argparse.Namespace, tokens: np.ndarray, n_vocab: int, threads: int, n_ctx: int) -> ServerRunner:
    """The program of `--vs`, with the same model, threads, context, cache types and metadata; see `ServerRunner`."""
    path = resolve(args.model, args.registry, Progress())
    words: list[object] = ["-m", path, "-t", threads, "-tb", threads, "-c", n_ctx, "-np", 1]
    words += ["-ctk", args.cache_type_k, "-ctv", args.cache_type_v, *cli.override_words(args), *args.vs[1:]]
    return ServerRunner(Path(args.vs[0]), words, tokens, n_vocab)


def _lines(timings: Sequence[Timing]) -> list[str]:
    single = {
        each.measurement.depth: each.ms for each in timings if (each.measurement.kind, each.measurement.n) == ("curve", 1)
    }
    rows = [["measure", "n", "depth", "ms", "quartiles", "tok/s", "against n=1"]]
    for timing in timings:
        spread = "{:.2f} to {:.2f}".format(*timing.spread_ms)
        alone_ms = single.get(timing.measurement.depth) if timing.measurement.kind == "curve" else None
        against = "" if alone_ms is None else f"{timing.ms / alone_ms:.2f}x"
        rows.append([*timing.measurement.cells, f"{timing.ms:.2f}", spread, f"{timing.tok_s:.1f}", against])
    return cli.align_rows(rows, is_right=(False, *[True] * 6))


def _ratio_as_json(ratio: PairedTiming) -> dict[str, Any]:
    measurement = ratio.ours.measurement
    return {
        "kind": measurement.kind,
        "n": measurement.n,
        "depth": measurement.depth,
        "tok_s": ratio.ours.tok_s,
        "peer_tok_s": ratio.theirs.tok_s,
        "ratio": ratio.ratio,
        "interval": list(ratio.interval),
        "pairs_ms": [[a * 1e3, b * 1e3] for a, b in zip(ratio.ours.seconds, ratio.theirs.seconds, strict=True)],
        "round_trip_ns": list(ratio.round_trips_ns),
    }


def _ratio_lines(ratios: Sequence[PairedTiming]) -> list[str]:
    rows = [["measure", "n", "depth", "tok/s", "peer's tok/s", "ratio", "95 % interval", "round trip"]]
    for ratio in ratios:
        speeds = [f"{ratio.ours.tok_s:.1f}", f"{ratio.theirs.tok_s:.1f}", f"{ratio.ratio:.2f}x"]
        interval = "{:.2f} to {:.2f}".format(*ratio.interval)
        rows.append([*ratio.ours.measurement.cells, *speeds, interval, _trip_text(ratio.round_trips_ns)])
    return cli.align_rows(rows, is_right=(False, *[True] * 7))


def _trip_text(trips_ns: Sequence[float]) -> str:
    """The median of round trips between cores, with the least and the longest."""
    return f"{statistics.median(trips_ns):.0f} ns ({min(trips_ns):.0f} to {max(trips_ns):.0f})" if trips_ns else "not known"


def _notes(ratios: Sequence[PairedTiming], pairs: int) -> list[str]:
    notes = [f"medians of {pairs} pairs of turns; a ratio is the median of the pairs' ratios"]
    notes.append("round trip: between two cores, before each pair; memory is faster or slower with it on some virtual machines")
    if any(ratio.interval[1] > _WIDE * ratio.interval[0] for ratio in ratios):
        notes.append("wide intervals: this machine was busy with something else, or changed its speed; repeat when it is quiet")
    if any(ratio.ours.measurement.kind == "curve" for ratio in ratios):
        notes.append("passes: augury computes the logits of all n tokens, the peer those of the last")
    return notes
