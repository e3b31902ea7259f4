"""`augury run`: continue one or more prompts."""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augury.cli import request_flags
from augury.cli.drafter_flags import warn_of_synthetic
from augury.cli.log_output import TokenWriter
from augury.cli.model_flags import FIRST_FLAGS, add_model_flags, load_engine
from augury.cli.prompts import Prompt, add_prompt_flags, read_prompts
from augury.cli.report import as_json, drafting_lines, engine_line, print_json, run_line, say, show_in_brief
from augury.cli.request_flags import add_sampling_flags, request_params
from augury.cli.text_file import check_writable
from augury.errors import AuguryError, OptionError
from augury.files.atomic_file import write_atomically
from augury.registry import Registry
from augury.types import Result, TokenLogprob

if TYPE_CHECKING:
    from augury.engine.engine import Engine
    from augury.engine.running import Running


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("run", description="Continue a prompt, or several at once.")
    add_prompt_flags(parser)
    request_flags.add_system_flags(parser, "a system prompt before each prompt, which implies --chat")
    request_flags.add_template_flags(parser)
    add_model_flags(parser, registry, argv, n_slots=1)
    add_sampling_flags(parser, registry)
    parser.flag("--json", "print one JSON object per prompt")
    parser.flag("--echo", "with --json: tell each prompt's tokens and text beside its answer")
    parser.flag(
        "--receipt FILE", "write a receipt of each text there, by which augury verify can check that the model wrote it", Path
    )
    parser.flag("--stats", "colour tokens by who proposed them, and show drafting figures")
    parser.flag(
        "--prompt-cache FILE",
        "take up what an earlier run has saved there, as far as the prompt begins like it, and save what this one came to",
        Path,
    )
    parser.flag("--prompt-cache-ro", "with --prompt-cache: leave the file as it is")
    parser.show_first(f"-p -f --chat -sys {FIRST_FLAGS} -n --temp -s --json-schema --json --stats", words=("model", "prompt"))
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    params = request_params(args) | {"echo": args.echo, "receipt": args.receipt is not None}
    if args.echo and not args.json:
        raise OptionError("--echo tells prompts beside their answers in JSON; add --json")
    prompts = [prompt.with_kwargs(args.chat_template_kwargs) for prompt in read_prompts(args)]
    if all(prompt.error for prompt in prompts):
        prompts[0].arguments()  # which says so, before a model is loaded for nothing
    cache: Path | None = args.prompt_cache
    if cache is not None and (len(prompts), args.parallel) != (1, 1):
        raise OptionError("--prompt-cache is for one prompt and one sequence; run several one by one, without -np")
    if cache is not None and not args.prompt_cache_ro:
        check_writable(cache, "--prompt-cache")
    if args.receipt is not None:
        check_writable(args.receipt, "--receipt", over=("file of receipts", b'"augury_receipt"'))
    warn_of_synthetic(args)
    template = request_flags.template_of(args)
    with load_engine(args, args.spec_type, args.model_draft) as engine:
        request_flags.use_template(engine, template, parse_special=args.parse_special)
        show_in_brief(engine)
        if engine.chat_template is not None and all(prompt.text is not None for prompt in prompts) and sys.stderr.isatty():
            say("the text is continued as it is; --chat asks the model, and augury chat talks with it")
        if cache is not None and cache.exists():
            engine.load_slot(0, cache)
        writer = TokenWriter(has_tokenizer=engine.tokenizer is not None, is_coloured=args.stats)
        results = []
        for prompt, running in _submitted(engine, prompts, params, n_ahead=2 * args.parallel):
            try:
                if isinstance(running, AuguryError):
                    raise running
                results.append(_print_json(engine, prompt, running) if args.json else _print_text(writer, running))
            except AuguryError as error:
                if not prompt.where:
                    raise
                _print_failure(prompt, error, args)
        if cache is not None and not args.prompt_cache_ro and results:
            engine.save_slot(0, cache)
    _write_and_print(engine, writer, results, args)
    return 0 if len(results) == len(prompts) else AuguryError.exit_code


def _write_and_print(engine: Engine, writer: TokenWriter, results: Sequence[Result], args: argparse.Namespace) -> None:
    if args.receipt is not None:
        lines = [json.dumps(result.receipt.as_json()) for result in results if result.receipt is not None]
        write_atomically(args.receipt, "".join(f"{line}\n" for line in lines))
    if writer.legend:
        say(writer.legend)
    for line in (line for result in results if args.stats for line in drafting_lines(result.stats)):
        say(line)
    say(run_line([result.stats for result in results]))
    if args.verbose:
        say(engine_line(engine.stats()))


def _submitted(
    engine: Engine, prompts: Iterable[Prompt], params: Mapping[str, Any], n_ahead: int
) -> Iterator[tuple[Prompt, Running | AuguryError]]:
    """Yield each prompt with its request, or its error; `n_ahead` at most run or wait beside the one that is shown."""
    ahead: deque[tuple[Prompt, Running | AuguryError]] = deque()
    for prompt in prompts:
        try:
            named = {"id": prompt.id} if isinstance(prompt.id, str) and prompt.id else {}
            ahead.append((prompt, engine.submit(**{**params, **prompt.arguments(), **named})))
        except AuguryError as error:
            ahead.append((prompt, error))
        if len(ahead) > n_ahead:
            yield ahead.popleft()
    yield from ahead


def _print_json(engine: Engine, prompt: Prompt, running: Running) -> Result:
    result = running.result()
    print_json({"id": result.id if prompt.id is None else prompt.id, **as_json(engine, result)})
    return result


def _print_text(writer: TokenWriter, running: Running) -> Result:
    """Write an answer as it is generated. Others run meanwhile, and follow in the order of their prompts."""
    try:
        for piece in running:
            writer.write(piece)
    finally:
        writer.end()
    result = running.result()
    _print_logprobs(result)
    return result


def _print_failure(prompt: Prompt, error: AuguryError, args: argparse.Namespace) -> None:
    """Report which line has no answer, and why; the others go on."""
    message = f"{prompt.where}: {str(error).removeprefix(f'{prompt.where}: ')}"
    say(f"augury: {message}")
    if args.json:
        print_json({"id": prompt.id, "error": message})


def _print_logprobs(result: Result) -> None:
    for piece in result.pieces:
        if piece.logprob is not None:
            own, *top = (
                f"{each.token} {each.text!r} {each.logprob:.4f}"
                if each.bytes is not None
                else f"{each.token} {each.logprob:.4f}"
                for each in (TokenLogprob(piece.token, piece.logprob, piece.bytes), *piece.top_logprobs)
            )
            say(f"{own}: {', '.join(top)}" if top else own)
