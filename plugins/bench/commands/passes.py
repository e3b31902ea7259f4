"""`augury bench passes` and `prompts`: how fast passes are, below the engine, and answers, alone or in turns with llama.cpp."""

from __future__ import annotations

import argparse
import shlex
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from augury import Engine, Registry, cli
from augury.errors import OptionError
from augury.files.models import resolve
from augury.interfaces import Progress
from augury.plugins.bench.abba import MIN_PAIRS, Answer, AnswerPairs, PairedTiming, compare_answers, compare_passes
from augury.plugins.bench.machine import facts_as_json, machine_facts, round_trip_ns, run_facts
from augury.plugins.bench.paired_runs import check_drafters
from augury.plugins.bench.server_runner import ServerRunner
from augury.plugins.bench.timing import Measurement, MeasurementKind, ModelRunner, Timing, sweep
from augury.plugins.bench.workload import DEFAULT, add_length_flag, add_workload_flag, prompts_to_compare, with_answers
from augury.text.chat_template import prompt_ids

_MARGIN = 8
_PREFILL, _DECODE = 512, 128  # tokens, as in llama-bench
WIDE = 1.5  # highest over lowest of an interval: beyond, the ratios of most rows could not be told apart


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
    add_peer_flag(group)
    parser.flag("--json", "print one JSON object")
    parser.show_first("-m -t --curve -p -n -d -r --vs --json", words=("model",))
    parser.set_defaults(run=_run)


def add_peer_flag(group: Any, *, is_required: bool = False) -> None:
    """Add the flag that names another engine to take turns with."""
    group.flag(
        "--vs COMMAND",
        "take turns with a llama-server, and print ratios: its path, or path and flags in quotation marks, such as "
        '"PATH/llama-server --spec-type ngram-simple"',
        cli.expecting("the path of a llama-server, with or without flags for it", shlex.split, bool),
        required=is_required,
    )


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
            with peer(args, runner.tokens, model.info.n_vocab, model.n_threads, n_ctx) as server:
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


def peer(args: argparse.Namespace, tokens: np.ndarray, n_vocab: int, threads: int, n_ctx: int) -> ServerRunner:
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
        rows.append([*ratio.ours.measurement.cells, *speeds, interval, trip_text(ratio.round_trips_ns)])
    return cli.align_rows(rows, is_right=(False, *[True] * 7))


def trip_text(trips_ns: Sequence[float]) -> str:
    """The median of round trips between cores, with the least and the longest."""
    return f"{statistics.median(trips_ns):.0f} ns ({min(trips_ns):.0f} to {max(trips_ns):.0f})" if trips_ns else "not known"


def _notes(ratios: Sequence[PairedTiming], pairs: int) -> list[str]:
    notes = [f"medians of {pairs} pairs of turns; a ratio is the median of the pairs' ratios"]
    notes.append("round trip: between two cores, before each pair; memory is faster or slower with it on some virtual machines")
    if any(ratio.interval[1] > WIDE * ratio.interval[0] for ratio in ratios):
        notes.append("wide intervals: this machine was busy with something else, or changed its speed; repeat when it is quiet")
    if any(ratio.ours.measurement.kind == "curve" for ratio in ratios):
        notes.append("passes: augury computes the logits of all n tokens, the peer those of the last")
    return notes


def add_prompts_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "prompts",
        help="answer prompts in turns with llama.cpp",
        description="Answer prompts greedily, in turns with a llama-server that is started here, and print ratios by "
        "category. Neither drafts unless told to: by --spec-type here, and among the flags of --vs there.",
    )
    cli.add_prompt_flags(parser, DEFAULT)
    cli.add_model_flags(parser, registry, argv, n_slots=None)
    group = parser.add_argument_group("answers compared")
    add_workload_flag(group)
    add_peer_flag(group, is_required=True)
    add_length_flag(group, 128, least=2)  # the first token is timed with the prompt
    group.flag(
        "-r --turns N",
        f"answers of each to the prompts of a category, at least (default and least: {MIN_PAIRS})",
        cli.count(least=MIN_PAIRS),
        default=MIN_PAIRS,
    )
    parser.flag("--json", "print one JSON object")
    parser.show_first(f"-p -f {cli.FIRST_FLAGS} -n --workload --vs --turns --json", words=("model",))
    parser.set_defaults(run=_answer_prompts)


def _answer_prompts(args: argparse.Namespace) -> int:
    cli.warn_of_synthetic(args)
    prompts, n_predict = prompts_to_compare(args), args.n_predict
    facts: dict[str, Any] = {}
    ids: dict[str, list[int]] = {}
    spec_type = tuple(args.spec_type) or ("auto" if args.model_draft else "none",)  # plain against plain, unless asked for more

    @contextmanager
    def sides() -> Iterator[tuple[Callable[[cli.Prompt], Answer], Callable[[cli.Prompt], Answer]]]:
        with cli.load_engine(args, spec_type, args.model_draft) as engine:
            facts.update(run_facts({**engine.config, "model": engine.info.name}, prompts, n_predict))
            if not ids:
                ids.update(_token_ids(engine, prompts, n_predict))
            sizes = (engine.info.n_vocab, int(engine.config["threads"]), int(engine.config["n_ctx"]))
            with peer(args, np.empty(0, np.int32), *sizes) as server:
                yield (
                    lambda prompt: _answer(engine, ids[prompt.id], n_predict),
                    lambda prompt: server.answer(ids[prompt.id], n_predict),
                )

    is_drafting = bool(args.spec_type or args.model_draft or args.vs[1:])
    answers = compare_answers(prompts, sides, args.turns, is_fresh=is_drafting, probe=round_trip_ns)
    found = [each.as_json() for each in answers]
    if args.json:
        vs = {"peer": args.vs[0], "args": list(args.vs[1:]), "pairs": args.turns, "texts": found}
        cli.print_json(facts_as_json(facts) | {"vs": vs})
    else:
        marks = [f"acceptance is {facts['acceptance']} by position: texts are not the model's"] if "acceptance" in facts else []
        cli.print_lines([*_answer_lines(found), *_answer_notes(answers, found), *marks])
    return 0


def _token_ids(engine: Engine, prompts: Sequence[cli.Prompt], n_predict: int) -> dict[str, list[int]]:
    """Token ids by the prompts' ids: the same for both programs, however each would tokenize the text."""
    plain: dict[str, Any] = {"max_tokens": n_predict, "temperature": 0.0, "speculative": {"type": "none"}}
    found = {}
    for prompt in prompts:
        given = prompt.arguments()
        context = {"tools": given.get("tools"), "kwargs": given.get("chat_template_kwargs")}
        if (messages := given.get("messages")) is not None:
            messages = with_answers(messages, lambda before: engine.generate(messages=before, **plain).text)
        found[prompt.id] = list(prompt_ids(given.get("prompt"), messages, engine.tokenizer, engine.chat_template, **context))
    return found


def _answer(engine: Engine, prompt: Sequence[int], n_predict: int) -> Answer:
    result = engine.generate(
        np.array(prompt, np.int32), max_tokens=n_predict, temperature=0.0, ignore_eos=True, cache_prompt=False
    )
    check_drafters(result)
    timings = result.stats.timings
    return Answer(
        tokens=result.tokens,
        prompt_per_second=timings.prompt_per_second,
        per_second=timings.predicted_per_second,
        n_drafted=result.stats.n_drafted,
        n_accepted=result.stats.n_accepted,
    )


def _answer_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        ["category", "what", "tok/s", "peer's tok/s", "ratio", "95 % interval", "drafted", "peer's", "same text", "round trip"]
    ]
    for each in found:
        for what in ("prompt", "generation"):
            figures = each[what]
            speeds = [f"{figures['tok_s']:.1f}", f"{figures['peer_tok_s']:.1f}", f"{figures['ratio']:.2f}x"]
            row = [each["category"], what, *speeds, "{:.2f} to {:.2f}".format(*figures["interval"])]
            if what == "generation":
                row += [f"{a} of {n}" for a, n in zip(each["accepted"], each["drafted"], strict=True)]
                row += [f"{each['same']:.0%}", trip_text(each["round_trip_ns"])]
            rows.append(row if what == "generation" else [*row, *[""] * 4])
    return cli.align_rows(rows, is_right=(False, False, *(True,) * 8))


def _answer_notes(answers: Sequence[AnswerPairs], found: Sequence[Mapping[str, Any]]) -> list[str]:
    counts = ", ".join(f"{each.category} {len(each.pairs)}" for each in answers)
    notes = [f"greedy; a ratio is the median of the pairs' ratios (pairs: {counts})"]
    notes.append("same text: share of the tokens before both first differ; engines round differently")
    if any(each[what]["interval"][1] > WIDE * each[what]["interval"][0] for each in found for what in ("prompt", "generation")):
        notes.append(
            "wide intervals: the prompts differ, or this machine was busy or changed its speed; repeat when it is quiet"
        )
    return notes
