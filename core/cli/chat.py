"""`augury chat`: talk with a model."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from augury.cli.drafter_flags import warn_of_synthetic
from augury.cli.model_flags import add_model_flags, load_engine
from augury.cli.report import drafting_lines, run_line, say, show_in_brief
from augury.cli.sampling_flags import add_sampling_flags, request_params
from augury.cli.writer import Writer
from augury.errors import AuguryError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from augury.engine import Engine
    from augury.registry import Registry
    from augury.types import Summary

__all__ = ["add_parser"]

_HELP = """/stats  figures of the last answer
/reset  forget the conversation
/help   this list
/exit   leave; so does Ctrl-D. Ctrl-C ends an answer"""


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("chat", help="talk with a model", description="Talk with a model; /help lists commands.")
    add_model_flags(parser, registry, argv, has_slots=False)
    add_sampling_flags(parser)
    parser.add_argument("--stats", action="store_true", help="colour tokens by who proposed them, and show figures per answer")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    params = request_params(args)
    warn_of_synthetic(args)
    with load_engine(args, args.spec_type, args.model_draft) as engine:
        show_in_brief(engine)
        if sys.stdin.isatty():
            say("/help lists commands")
        conversation = Conversation(engine, params, has_stats=args.stats)
        for line in _lines():
            if not conversation.hear(line):
                break
    return 0


def _lines() -> Iterator[str]:
    """What the user types, or pipes in, line by line."""
    if not sys.stdin.isatty():
        yield from (line.strip() for line in sys.stdin)
        return
    import readline  # noqa: F401 - gives input() editing and a history

    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            say("")
            return


class Conversation:
    """The messages so far, and the commands that a line may be instead of one."""

    def __init__(self, engine: Engine, params: dict[str, Any], *, has_stats: bool) -> None:
        self.messages: list[dict[str, str]] = []
        self.summary: Summary | None = None  # of the last answer
        self._engine = engine
        self._params = params
        self._has_stats = has_stats

    def hear(self, line: str) -> bool:
        """Answer a line; false where the user wants to leave."""
        match line:
            case "":
                pass
            case "/exit":
                return False
            case "/help":
                say(_HELP)
            case "/reset":
                self.messages.clear()
                self.summary = None
                say("the conversation is forgotten")
            case "/stats":
                for text in [run_line([self.summary]), *drafting_lines(self.summary)] if self.summary else ["no answer yet"]:
                    say(text)
            case _ if line.startswith("/"):
                say(f"there is no command {line.split(maxsplit=1)[0]}; /help lists those that there are")
            case _:
                self._answer(line)
        return True

    def _answer(self, text: str) -> None:
        asked = [*self.messages, {"role": "user", "content": text}]
        writer = Writer(has_tokenizer=True, is_coloured=self._has_stats)
        try:
            running = self._engine.submit(messages=asked, **self._params)
            with contextlib.suppress(KeyboardInterrupt):  # which ends the answer: an iterator that is given up cancels
                for piece in running:
                    writer.write(piece)
            result = running.result()
        except AuguryError as error:
            say(f"augury: {error}; /reset starts anew")
            return
        writer.end()
        self.summary = result.stats
        if self._has_stats:
            say(run_line([self.summary]))
        self.messages = [*asked, {"role": "assistant", "content": result.text}]
