"""`augury run`: continue one or more prompts."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from augury.cli.drafter_flags import warn_of_synthetic
from augury.cli.model_flags import add_model_flags, load_engine
from augury.cli.prompts import add_prompt_flags, read_prompts
from augury.cli.report import as_json, drafting_lines, run_line, say, show_in_brief
from augury.cli.sampling_flags import add_sampling_flags, request_params
from augury.cli.writer import Writer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from augury.engine import Engine
    from augury.registry import Registry
    from augury.running import Running
    from augury.types import Result

__all__ = ["add_parser"]


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("run", help="continue a prompt, or several at once", description="Continue prompts.")
    add_prompt_flags(parser)
    add_model_flags(parser, registry, argv, has_slots=True)
    add_sampling_flags(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per prompt")
    parser.add_argument("--stats", action="store_true", help="colour tokens by who proposed them, and show drafting figures")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    params = request_params(args)
    prompts = read_prompts(args)
    warn_of_synthetic(args)
    with load_engine(args, args.spec_type, args.model_draft) as engine:
        show_in_brief(engine)
        runnings = [engine.submit(**(params | prompt.arguments())) for prompt in prompts]
        if args.json:
            results = [_print_json(engine, running, has_logprobs=args.logprobs is not None) for running in runnings]
        else:
            results = _print_texts(engine, runnings, args)
    if args.stats:
        for result in results:
            for line in drafting_lines(result.stats):
                say(line)
    say(run_line([result.stats for result in results]))
    return 0


def _print_json(engine: Engine, running: Running, *, has_logprobs: bool) -> Result:
    result = running.result()
    sys.stdout.write(json.dumps(as_json(engine, result, has_logprobs=has_logprobs), ensure_ascii=False) + "\n")
    sys.stdout.flush()
    return result


def _print_texts(engine: Engine, runnings: Sequence[Running], args: argparse.Namespace) -> list[Result]:
    """Write the first as it comes; the others, which run meanwhile, follow in the order of the prompts."""
    writer = Writer(has_tokenizer=engine.tokenizer is not None, is_coloured=args.stats)
    results = []
    for running in runnings:
        for piece in running:
            writer.write(piece)
        writer.end()
        results.append(running.result())
        if args.logprobs is not None:
            _print_logprobs(results[-1])
    if writer.legend:
        say(writer.legend)
    return results


def _print_logprobs(result: Result) -> None:
    for piece in result.pieces:
        top = " ".join(f"{token}:{logprob:.4f}" for token, logprob in piece.top_logprobs)
        say(f"{piece.token} {piece.logprob:.4f} {piece.text!r} {top}".rstrip())
