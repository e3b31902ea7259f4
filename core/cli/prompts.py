"""Where prompts come from: `-p`, `--prompt-tokens`, `-f`, or standard input."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from attrs import Factory, evolve, frozen

from augury.cli.parser import Parser, expecting
from augury.cli.report import say
from augury.cli.request_flags import has_system, system_prompt_of, with_system
from augury.cli.text_file import numbered_lines, read_text
from augury.errors import AuguryError, OptionError

_KINDS = {"prompt": "a text", "tokens": "a list of token ids", "messages": 'a list of {"role": ..., "content": ...}'}


@frozen
class Prompt:
    """A text, token ids or messages, with request parameters; or a line of a file that is not a prompt, and why."""

    text: str | None = None
    tokens: tuple[int, ...] | None = None
    messages: Any = None
    params: dict[str, Any] = Factory(dict)
    id: Any = None  # which a line may have, to be repeated with its answer
    category: Any = None  # likewise, for comparisons
    where: str = ""  # FILE:LINE of one that came from JSON lines
    error: str = ""  # why the line is not a prompt

    def arguments(self) -> dict[str, Any]:
        """The arguments of `Engine.submit`. Raises AuguryError: the line is not a prompt."""
        if self.error:
            raise AuguryError(f"{self.where}: {self.error}")
        if "n" in self.params:
            raise AuguryError(f"{self.where}: n is given, but a line has one answer; repeat the line with other seeds")
        if self.messages is not None:
            return {"messages": self.messages, **self.params}
        return {"prompt": self.text if self.tokens is None else list(self.tokens), **self.params}

    def with_kwargs(self, kwargs: Mapping[str, Any] | None) -> Self:
        """The same, with these variables for the chat template of a conversation, below those of its own."""
        own = self.params.get("chat_template_kwargs", {})
        if kwargs is None or self.messages is None or not isinstance(own, dict):
            return self
        return evolve(self, params=self.params | {"chat_template_kwargs": {**kwargs, **own}})


def add_prompt_flags(parser: Parser, default: str = "standard input") -> None:
    """Add the flags that give prompts; `default` says where prompts come from without them."""
    group = parser.add_argument_group(f"prompts (default: {default})")
    group.flag("-p --prompt TEXT ...", "a prompt; repeats")
    group.flag(
        "-f --file FILE ...",
        'a file with one prompt, or JSON lines: {"prompt"}, {"messages"} or {"tokens"}, and "id" and parameters such as '
        '"seed" or "tools"; - is standard input',
    )
    ids = expecting("token ids separated by commas, such as 1,2,3", lambda text: tuple(map(int, text.split(","))))
    group.flag("--prompt-tokens 1,2,3 ...", "a prompt as token ids; repeats", ids)
    group.flag("-st --single-turn --chat", "put prompts into the model's chat template", dest="chat")


def read_prompts(args: argparse.Namespace) -> list[Prompt]:
    """All prompts of a command line: those of `-p`, of `--prompt-tokens`, and of `-f`. Raises AuguryError: there are none."""
    prompts = [Prompt(text=text) for text in args.prompt]
    prompts += [Prompt(tokens=tokens) for tokens in args.prompt_tokens]
    for name in args.file:
        is_lines = Path(name).suffix in {".jsonl", ".ndjson"}
        prompts += _from_input() if name == "-" else _from_text(read_text(name), name, is_lines=is_lines)
    if not prompts and not args.file:
        prompts = _from_input()
    if not prompts:
        raise OptionError("there is no prompt; give one with -p TEXT, -f FILE or on standard input")
    system = system_prompt_of(args) if "system_prompt" in args else None
    return [_as_chat(prompt, system) for prompt in prompts] if args.chat or system is not None else prompts


def prompts_of_lines(text: str, where: str) -> list[Prompt]:
    """Parse JSON lines, each as `prompt_of_line` does."""
    return [prompt_of_line(line, f"{where}:{number}") for number, line in numbered_lines(text)]


def prompt_of_line(line: str, where: str) -> Prompt:
    """Parse a line such as `{"id": "a", "prompt": "Once", "seed": 1}`; a bad one becomes a prompt with an `error`."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Prompt(where=where, error=f"not JSON: {error}")
    if not _is_prompt(found):
        found = found if isinstance(found, dict) else {}
        expected = 'expected an object with one of "prompt", "messages" and "tokens"'
        return Prompt(where=where, id=found.get("id"), error=expected)
    prompt = Prompt(where=where, id=found.pop("id", None), category=found.pop("category", None), params=found)
    (kind,) = _KINDS.keys() & found.keys()
    value = found.pop(kind)
    if kind == "prompt" and isinstance(value, str):
        return evolve(prompt, text=value)
    if kind == "tokens" and isinstance(value, list) and all(type(each) is int for each in value):
        return evolve(prompt, tokens=tuple(value))
    if kind == "messages" and isinstance(value, list) and all(isinstance(each, dict) for each in value):
        return evolve(prompt, messages=value)
    return evolve(prompt, error=f"{kind} is {value!r}, expected {_KINDS[kind]}")


def _from_input() -> list[Prompt]:
    if sys.stdin is None or sys.stdin.closed:
        return []
    if sys.stdin.isatty():
        say("reading a prompt from the terminal; end it with Ctrl-D")
    return _from_text(read_text(sys.stdin), "standard input", is_lines=False)


def _from_text(text: str, where: str, *, is_lines: bool) -> list[Prompt]:
    if is_lines or (text.lstrip().startswith("{") and any(_is_object(line) for _, line in numbered_lines(text))):
        return prompts_of_lines(text, where)
    text = text.removesuffix("\n")  # editors and `echo` end a text with one, which is not a part of the prompt
    return [Prompt(text=text)] if text else []


def _is_object(line: str) -> bool:
    """Whether a line is a prompt in JSON; a plain text that starts with a brace has no such line."""
    try:
        return _is_prompt(json.loads(line))
    except (ValueError, RecursionError):
        return False


def _is_prompt(found: Any) -> bool:
    return isinstance(found, dict) and sum(kind in found for kind in _KINDS) == 1


def _as_chat(prompt: Prompt, system: str | None) -> Prompt:
    """Make a text a question, and give it, or the messages of a line, a system prompt."""
    if prompt.tokens is not None:
        flag = "--chat" if system is None else "--system-prompt"
        raise OptionError(f"{flag} needs texts, but a prompt is given as token ids; leave one of the two out")
    if prompt.error:
        return prompt
    messages = prompt.messages if prompt.text is None else [{"role": "user", "content": prompt.text}]
    if system is not None and not has_system(messages):  # a line's own goes before
        messages = with_system(messages, system)
    return evolve(prompt, text=None, messages=messages)
