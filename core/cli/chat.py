"""`augury chat`: talk with a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from augury.cli.chat_flags import add_system_flags, add_template_flags, system_prompt_of, template_of, use_template, with_system
from augury.cli.conversation import Conversation, read_messages
from augury.cli.drafter_flags import warn_of_synthetic
from augury.cli.foreign_flags import FOREIGN_FLAGS_IN_CHAT
from augury.cli.model_flags import FIRST_FLAGS, add_cache_flags, add_model_flags, load_engine
from augury.cli.report import say, show_in_brief
from augury.cli.sampling_flags import add_sampling_flags, request_params
from augury.cli.text_file import check_writable, read_lines
from augury.errors import AuguryError
from augury.registry import Registry

_N_PREDICT = 1024  # small models repeat themselves until the context is full


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("chat", help="talk with a model", description="Talk with a model; /help lists commands.")
    add_model_flags(parser, registry, argv, n_slots=None)
    add_cache_flags(parser)
    parser.foreign = FOREIGN_FLAGS_IN_CHAT
    add_sampling_flags(parser, registry, n_predict=_N_PREDICT)
    add_system_flags(parser, "a system prompt, in place of the one that a session has; /system changes it")
    add_template_flags(parser)
    parser.flag("--stats", "colour tokens by who proposed them, and show figures per answer")
    parser.flag("--session FILE", "continue the conversation in this file, and save it there after every answer", Path)
    parser.show_first(f"{FIRST_FLAGS} -n --temp -s -sys --session --stats", words=("model",))
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    params = request_params(args)
    if args.chat_template_kwargs is not None:
        params["chat_template_kwargs"] = args.chat_template_kwargs
    warn_of_synthetic(args)
    messages, system, template = _session_of(args.session), system_prompt_of(args), template_of(args)
    if system is not None:
        messages = with_system(messages, system)
    is_terminal = sys.stdin.isatty() and (sys.stdout.isatty() or sys.stderr.isatty())
    with load_engine(args, args.spec_type, args.model_draft) as engine:
        use_template(engine, template, parse_special=args.parse_special)
        show_in_brief(engine)
        if is_terminal:
            say("/help lists commands" + (f"; {len(messages)} messages from {args.session}" if messages else ""))
        conversation = Conversation(
            engine, params, has_stats=args.stats, is_stoppable=is_terminal, session=args.session, messages=messages
        )
        try:
            for text in _typed() if is_terminal else map(str.strip, read_lines(sys.stdin)):
                if not conversation.respond(text):
                    break
        finally:
            conversation.save_session()
    return AuguryError.exit_code if conversation.has_failed and not is_terminal else 0


def _session_of(path: Path | None) -> list[dict[str, Any]]:
    """Read the messages of a session, and check that it can be saved, before a model is loaded for nothing."""
    if path is None:
        return []
    check_writable(path, "--session")
    return read_messages(path) if path.exists() else []


def _typed() -> Iterator[str]:
    """Yield what a person types, with editing and a history; pasted text of any number of lines is one message."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.output import create_output

    with create_app_session(output=create_output(always_prefer_tty=True)):  # standard output may be a file
        editor: PromptSession[str] = PromptSession()
        is_leaving = False
        while True:
            try:
                text = editor.prompt("> ").strip()
            except KeyboardInterrupt:
                if is_leaving and not editor.default_buffer.text:
                    raise
                is_leaving = True
                say("(Ctrl-C again leaves, as /exit does)")
            except EOFError:
                return
            else:
                is_leaving = False
                yield text
