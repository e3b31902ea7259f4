"""`augury chat`: talk with a model; commands may be typed in place of messages, and a file stores the conversation."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import Factory, define, field

from augury.cli import request_flags
from augury.cli.drafter_flags import warn_of_synthetic
from augury.cli.foreign_flags import FOREIGN_FLAGS_IN_CHAT
from augury.cli.log_output import TokenWriter
from augury.cli.model_flags import FIRST_FLAGS, add_cache_flags, add_model_flags, load_engine
from augury.cli.report import align_rows, drafting_lines, run_line, say, show_in_brief
from augury.cli.request_flags import add_sampling_flags, request_params
from augury.cli.text_file import check_writable, read_lines, read_text
from augury.errors import AuguryError, CapacityError, UnsupportedError
from augury.files.atomic_file import write_atomically
from augury.options import similar
from augury.registry import Registry
from augury.types import Result, Summary

if TYPE_CHECKING:
    from augury.engine.engine import Engine

    Messages = list[dict[str, Any]]

_COMMANDS = {
    "/continue": "continue an answer that was cut off or stopped",
    "/drop": "forget the oldest question and its answer, which makes room in the context",
    "/clear": "forget the conversation, but not the system prompt",
    "/system TEXT": "set the system prompt; without TEXT, show it",
    "/save FILE": "write the conversation to a file",
    "/load FILE": "continue the conversation in a file",
    "/stats": "figures of the last answer",
    "/help": "this list",
    "/exit": "leave; so do /quit, /bye, Ctrl-D, and Ctrl-C twice. Ctrl-C stops an answer, and clears a line",
}
_EXITS = ("/exit", "/quit", "/bye", "/q")  # in the words of other programs, too
_MAKE_ROOM = "/drop forgets the oldest question and its answer"


@define(eq=False)
class Conversation:
    """Messages so far, and what to do with the next line that a user types."""

    _engine: Engine
    _params: Mapping[str, Any]  # of each request
    _has_stats: bool = field(default=False, kw_only=True)  # whether drafted tokens are coloured, and answers have figures
    _is_stoppable: bool = field(default=True, kw_only=True)  # whether Ctrl-C ends an answer alone, or else is the caller's
    _session: Path | None = field(default=None, kw_only=True)  # the file that every change is written to
    messages: Messages = field(factory=list, kw_only=True)  # as `Engine.submit` takes them
    has_failed: bool = field(default=False, init=False)  # whether a message had no answer
    _saved: Messages = field(default=Factory(lambda self: list(self.messages), takes_self=True), init=False)
    """The contents of the session's file."""
    _summary: Summary | None = field(default=None, init=False)  # of the last answer

    def respond(self, text: str) -> bool:
        """Answer a message, or run a command; false where the user wants to leave."""
        if text.startswith("/") and "\n" not in text:  # several lines are never a command
            command, _, argument = text.partition(" ")
            if command in _EXITS:
                return False
            self._run_command(command, argument.strip())
        elif text:
            self._answer([*self.messages, {"role": "user", "content": text}])
        try:
            self.save_session()
        except OSError as error:  # the conversation is worth more than its file
            say(f"augury: {self._session}: {error.strerror}; the conversation is not saved, /save FILE takes another place")
        return True

    def save_session(self) -> None:
        """Write the changes to the session's file."""
        if self._session is not None and self.messages != self._saved:
            write_messages(self._session, self.messages)
            self._saved = list(self.messages)

    def _run_command(self, command: str, argument: str) -> None:
        match command:
            case "/help":
                for line in align_rows(list(_COMMANDS.items()), has_head=False):
                    say(line)
            case "/continue" if len(self.messages) > request_flags.has_system(self.messages):
                self._answer(self.messages)
            case "/continue":
                say("there is no answer yet")
            case "/drop":
                self._drop()
            case "/clear":
                self.messages, self._summary = self.messages[: request_flags.has_system(self.messages)], None
                say("the conversation is forgotten")
            case "/system":
                self._set_or_show_system(argument)
            case "/save" | "/load" if argument:
                self._save_or_load(command, Path(argument).expanduser())
            case "/save" | "/load":
                say(f"name a file: {command} FILE")
            case "/stats":
                for line in [run_line([self._summary]), *drafting_lines(self._summary)] if self._summary else ["no answer yet"]:
                    say(line)
            case _:
                meant = similar(command, [name.partition(" ")[0] for name in _COMMANDS])
                say(f"there is no command {command}; {f'did you mean {meant}?' if meant else '/help lists the commands'}")

    def _set_or_show_system(self, text: str) -> None:
        if text:
            self.messages = request_flags.with_system(self.messages, text)
            say("the system prompt is set" + (", also for what was said before" if len(self.messages) > 1 else ""))
        else:
            say(self.messages[0]["content"] if request_flags.has_system(self.messages) else "there is no system prompt")

    def _drop(self) -> None:
        """Forget the first question and its answer, but not the messages before it, such as a system prompt."""
        questions = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        if not questions:
            say("there is nothing to forget")
            return
        first, end = [*questions, len(self.messages)][:2]
        asked = " ".join(self.messages[first]["content"].split())
        del self.messages[first:end]
        say(f"forgotten: {asked if len(asked) <= 60 else f'{asked[:57]}...'}")

    def _save_or_load(self, command: str, path: Path) -> None:
        try:
            if command == "/load":
                self.messages, self._summary = read_messages(path), None
                say(f"{_n_messages(self.messages)} from {path}")
                return
            if path.exists():
                read_messages(path)  # of another kind of file nothing is lost by a slip of the hand
            write_messages(path, self.messages)
            say(f"{_n_messages(self.messages)} to {path}")
        except AuguryError as error:
            say(f"augury: {error}")
        except OSError as error:
            say(f"augury: {path}: {error.strerror}")

    def _answer(self, asked: Messages) -> None:
        """Write the model's answer to `asked`, or continue the answer that `asked` ends with."""
        writer = TokenWriter(has_tokenizer=True, is_coloured=self._has_stats)
        try:
            result = self._stream_answer(asked, writer)
        except UnsupportedError:  # no other message will do better
            raise
        except AuguryError as error:
            self.has_failed = True
            say(f"augury: {error}; {f'{_MAKE_ROOM}, ' if isinstance(error, CapacityError) else ''}/clear starts anew")
            return
        finally:
            writer.end()
        if result is None or not result.tokens:
            say("(stopped before anything was said: the conversation is as before)")
            return
        self._summary = result.stats
        if self._has_stats:
            say(run_line([self._summary]))
        if asked[-1]["role"] == "assistant":
            asked, begun = asked[:-1], asked[-1]["content"]
        else:
            begun = ""
        self.messages = [*asked, {"role": "assistant", "content": begun + result.text}]
        self._say_why_it_ended(result)

    def _stream_answer(self, asked: Messages, writer: TokenWriter) -> Result | None:
        """Write an answer as it is generated; None if it was stopped before it began."""
        running = None
        try:
            running = self._engine.submit(messages=asked, **self._params)
            for piece in running:
                writer.write(piece)
        except KeyboardInterrupt:
            if not self._is_stoppable:
                raise
            if running is None:
                return None
            running.cancel()
        return running.result()

    def _say_why_it_ended(self, result: Result) -> None:
        match result.finish_reason:
            case "length":
                say(f"(cut off after {len(result.tokens)} tokens: /continue goes on, -n N sets another limit)")
            case "context":
                full = f"the context of {self._engine.config['n_ctx']} tokens is full"
                say(f"({full}: {_MAKE_ROOM}, then /continue goes on; -c N loads the model with more)")
            case "cancelled":
                say("(stopped: /continue goes on)")


def read_messages(path: Path) -> Messages:
    """Read the conversation in a file. Raises AuguryError: the file cannot be read, or holds something else."""
    text = read_text(path)
    try:
        messages = json.loads(text)["messages"]
        is_right = isinstance(messages, list) and all(
            message.keys() == {"role", "content"} and all(isinstance(value, str) for value in message.values())
            for message in messages
        )
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        is_right = False
    if not is_right:
        raise AuguryError(f"{path}: this is not a conversation that augury saved; it is left as it is, name another file")
    return messages


def write_messages(path: Path, messages: Messages) -> None:
    """Write a conversation to a file, whole or not at all."""
    write_atomically(path, json.dumps({"messages": messages}, ensure_ascii=False, indent=1) + "\n")


def _n_messages(messages: Messages) -> str:
    return "1 message" if len(messages) == 1 else f"{len(messages)} messages"


_N_PREDICT = 1024  # small models repeat themselves until the context is full


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("chat", description="Talk with a model; /help lists commands.")
    add_model_flags(parser, registry, argv, n_slots=None)
    add_cache_flags(parser)
    parser.foreign = FOREIGN_FLAGS_IN_CHAT
    add_sampling_flags(parser, registry, n_predict=_N_PREDICT)
    request_flags.add_system_flags(parser, "a system prompt, in place of the one that a session has; /system changes it")
    request_flags.add_template_flags(parser)
    parser.flag("--stats", "colour tokens by who proposed them, and show figures per answer")
    parser.flag("--session FILE", "continue the conversation in this file, and save it there after every answer", Path)
    parser.show_first(f"{FIRST_FLAGS} -n --temp -s -sys --session --stats", words=("model",))
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    params = request_params(args)
    if args.chat_template_kwargs is not None:
        params["chat_template_kwargs"] = args.chat_template_kwargs
    warn_of_synthetic(args)
    messages, template = _session_of(args.session), request_flags.template_of(args)
    if (system := request_flags.system_prompt_of(args)) is not None:
        messages = request_flags.with_system(messages, system)
    is_terminal = sys.stdin.isatty() and (sys.stdout.isatty() or sys.stderr.isatty())
    with load_engine(args, args.spec_type, args.model_draft) as engine:
        request_flags.use_template(engine, template, parse_special=args.parse_special)
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
