"""`augury bench prompts`: another engine answers the same prompts, in turns with augury."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from augury import Engine, Registry, cli
from augury.plugins.bench.abba import MIN_PAIRS, Answer, AnswerPairs, compare_answers
from augury.plugins.bench.commands.passes import WIDE, add_peer_flag, peer, trip_text
from augury.plugins.bench.machine import facts_as_json, run_facts
from augury.plugins.bench.paired_runs import check_drafters
from augury.plugins.bench.ping_pong import round_trip_ns
from augury.plugins.bench.workload import DEFAULT, add_length_flag, add_workload_flag, prompts_to_compare, with_answers
from augury.text.chat_template import prompt_ids


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
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
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Answer all prompts with both, and print ratios by category."""
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
        cli.print_lines([*_lines(found), *_notes(answers, found), *marks])
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


def _lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
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


def _notes(answers: Sequence[AnswerPairs], found: Sequence[Mapping[str, Any]]) -> list[str]:
    counts = ", ".join(f"{each.category} {len(each.pairs)}" for each in answers)
    notes = [f"greedy; a ratio is the median of the pairs' ratios (pairs: {counts})"]
    notes.append("same text: share of the tokens before both first differ; engines round differently")
    if any(each[what]["interval"][1] > WIDE * each[what]["interval"][0] for each in found for what in ("prompt", "generation")):
        notes.append(
            "wide intervals: the prompts differ, or this machine was busy or changed its speed; repeat when it is quiet"
        )
    return notes
