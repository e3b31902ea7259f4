"""Where prompts come from: `-p`, `--prompt-tokens`, `-f`, standard input or, for comparisons, workloads."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import Factory, evolve, frozen

from augury.bench.workload import Item, builtin_workload, read_workload
from augury.cli.report import say
from augury.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ITEMS", "Prompt", "add_prompt_flags", "add_workload_flag", "read_items", "read_prompts"]

ITEMS = "those of standard input, if any, or else a small workload"  # where `read_items` finds prompts
_KINDS = ("prompt", "messages", "tokens")


@frozen
class Prompt:
    """A text, token ids or messages, and the parameters that came with it."""

    text: str | None = None
    tokens: tuple[int, ...] | None = None
    messages: Any = None
    params: dict[str, Any] = Factory(dict)

    def arguments(self) -> dict[str, Any]:
        """As `Engine.submit` takes it."""
        if self.messages is not None:
            return {"messages": self.messages, **self.params}
        return {"prompt": self.text if self.tokens is None else list(self.tokens), **self.params}


def add_prompt_flags(parser: argparse.ArgumentParser, default: str = "standard input") -> None:
    """Add the flags that give prompts; `default` says where they come from without."""
    group = parser.add_argument_group(f"prompts (default: {default})")
    group.add_argument("-p", "--prompt", action="append", default=[], metavar="TEXT", help="a prompt; repeats")
    group.add_argument(
        "-f",
        "--file",
        action="append",
        default=[],
        metavar="FILE",
        help='a file with one prompt, or JSON lines: {"prompt"}, {"messages"} or {"tokens"}, and parameters such as "seed"',
    )
    group.add_argument(
        "--prompt-tokens", action="append", default=[], type=_token_ids, metavar="1,2,3", help="a prompt as token ids; repeats"
    )
    group.add_argument(
        "-st", "--single-turn", "--chat", dest="chat", action="store_true", help="put prompts into the model's chat template"
    )


def add_workload_flag(group: Any) -> None:
    """Add `--workload`, for commands that compare by category."""
    group.add_argument(
        "--workload",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help='prompts as JSON lines with "id", "category", and "messages", "prompt" or "tokens"; repeats',
    )


def read_prompts(args: argparse.Namespace) -> list[Prompt]:
    """All prompts of a command line: those of `-p`, then of `--prompt-tokens`, then of `-f`.

    Raises:
        OptionError: A file cannot be read, or there is no prompt at all.
    """
    prompts = [Prompt(text=text) for text in args.prompt]
    prompts += [Prompt(tokens=tokens) for tokens in args.prompt_tokens]
    for name in args.file:
        prompts += _from_file(Path(name))
    if not prompts and not args.file:
        prompts = _from_input()
    if not prompts:
        raise OptionError("there is no prompt; give one with -p TEXT, -f FILE or on standard input")
    if args.chat:
        prompts = [_as_chat(prompt) for prompt in prompts]
    return prompts


def read_items(args: argparse.Namespace) -> list[Item]:
    """The command line's prompts; those of the built-in workload where there are none, and none wait at standard input."""
    items = [item for path in args.workload for item in read_workload(path)]
    is_given = args.prompt or args.prompt_tokens or args.file
    if is_given or not (items or _is_silent()):
        try:
            prompts = read_prompts(args)
        except OptionError:
            if is_given:
                raise
            prompts = []  # standard input was empty
        for number, prompt in enumerate(prompts, start=1):
            arguments = prompt.arguments()
            name, category = arguments.pop("id", str(number)), arguments.pop("category", "all")
            items.append(Item(str(name), str(category), arguments))
    return _distinct(items) or builtin_workload()


def _from_input() -> list[Prompt]:
    if sys.stdin is None or sys.stdin.closed:
        return []
    if sys.stdin.isatty():
        say("reading a prompt from the terminal; end it with Ctrl-D")
    text = sys.stdin.read()
    return [Prompt(text=text)] if text else []


def _from_file(path: Path) -> list[Prompt]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise OptionError(f"{path}: not a text file in UTF-8") from None
    except OSError as error:
        raise OptionError(f"{path}: {error.strerror or error}") from None
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if path.suffix in {".jsonl", ".ndjson"} or (lines and _is_object(lines[0][1])):
        return [_from_line(line, f"{path}:{number}") for number, line in lines]
    text = text.removesuffix("\n")  # editors end files with one, which no prompt means
    return [Prompt(text=text)] if text else []


def _is_object(line: str) -> bool:
    """Whether a file that starts with this line holds JSON lines; one that merely starts with a brace does not."""
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and any(kind in found for kind in _KINDS)


def _from_line(line: str, where: str) -> Prompt:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise OptionError(f"{where}: not JSON: {error}") from None
    if not isinstance(found, dict) or sum(kind in found for kind in _KINDS) != 1:
        raise OptionError(f'{where}: expected an object with one of "prompt", "messages" and "tokens"')
    params = {key: value for key, value in found.items() if key not in _KINDS}
    if "logit_bias" in params and not isinstance(params["logit_bias"], dict):
        raise OptionError(f"{where}: logit_bias is no object of token ids and numbers")
    if "tokens" in found:
        return Prompt(tokens=_checked_ids(found["tokens"], where), params=params)
    if "messages" in found:
        return Prompt(messages=found["messages"], params=params)
    if not isinstance(found["prompt"], str):
        raise OptionError(f"{where}: prompt is {found['prompt']!r}, expected a text")
    return Prompt(text=found["prompt"], params=params)


def _checked_ids(ids: Any, where: str) -> tuple[int, ...]:
    if not isinstance(ids, list) or not all(isinstance(each, int) and not isinstance(each, bool) for each in ids):
        raise OptionError(f"{where}: tokens is {ids!r}, expected a list of token ids")
    return tuple(ids)


def _token_ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError("token ids with commas, such as 1,2,3") from None


def _as_chat(prompt: Prompt) -> Prompt:
    if prompt.text is None:
        if prompt.messages is not None:
            return prompt
        raise OptionError("--chat needs texts, but a prompt is given as token ids; leave one of the two out")
    return Prompt(messages=[{"role": "user", "content": prompt.text}], params=prompt.params)


def _distinct(items: Sequence[Item]) -> list[Item]:
    """The same items, with ids that tell them apart where they come from several files."""
    seen: Counter[str] = Counter()
    found = []
    for item in items:
        seen[item.id] += 1
        found.append(item if seen[item.id] == 1 else evolve(item, id=f"{item.id} ({seen[item.id]})"))
    return found


def _is_silent() -> bool:
    return sys.stdin is None or sys.stdin.closed or sys.stdin.isatty()
