"""Flags of what a chat template is given and of the template itself: `-sys`, `--chat-template` and the like."""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augury.cli.parser import Parser, add_flag
from augury.cli.text_file import read_text
from augury.errors import ModelFileError, OptionError

if TYPE_CHECKING:
    from augury.engine.engine import Engine

    Messages = Sequence[dict[str, Any]]


def add_system_flags(parser: Parser, text: str) -> None:
    """Add `-sys` and `-sysf`; `text` is the help of the first."""
    group = parser.add_mutually_exclusive_group()
    add_flag(group, "-sys --system-prompt TEXT", text)
    add_flag(group, "-sysf -spf --system-prompt-file FILE", "the same, from a file", Path)


def add_template_flags(parser: Parser) -> None:
    """Add the flags of the chat template and of its variables."""
    parser.flag("--chat-template-kwargs JSON", 'variables for the chat template, such as {"enable_thinking": false}', _object)
    group = parser.add_mutually_exclusive_group()
    text = "a chat template in place of the model's own: Jinja, or a name of llama.cpp's such as chatml"
    add_flag(group, "--chat-template JINJA", text)
    add_flag(group, "--chat-template-file FILE", "the same, from a file", Path)


def system_prompt_of(args: argparse.Namespace) -> str | None:
    """The system prompt of the flags, None without them."""
    return args.system_prompt if args.system_prompt_file is None else read_text(args.system_prompt_file).removesuffix("\n")


def has_system(messages: Messages) -> bool:
    """Whether a conversation begins with a system prompt."""
    return bool(messages) and messages[0].get("role") == "system"


def with_system(messages: Messages, text: str) -> list[dict[str, Any]]:
    """These messages with a system prompt before them, in place of the one that they begin with; without one if it is empty."""
    rest = messages[1:] if has_system(messages) else messages
    return [*([{"role": "system", "content": text}] if text else []), *rest]


def template_of(args: argparse.Namespace) -> str | None:
    """The chat template of the flags, which can write a plain question; None without them.

    Raises:
        OptionError: It is no template, or is broken.
    """
    from augury.text.chat_template import ChatTemplate

    flag, source = "--chat-template", args.chat_template
    if args.chat_template_file is not None:
        flag, source = f"--chat-template-file {args.chat_template_file}", read_text(args.chat_template_file)
    elif source is None:
        return None
    elif "{" not in source:
        source = named_template(source)
    template = ChatTemplate(source)
    try:
        template.render([{"role": "user", "content": "?"}])
    except ModelFileError as error:
        raise OptionError(f"{flag} {error.__cause__}; correct it, or leave it out to use the model's own") from None
    except OptionError:  # it refuses this question, and may take others
        pass
    finally:
        template.close()
    return str(source)


def named_template(name: str) -> str:
    """The Jinja source of a template of `chat_templates.toml`.

    Raises:
        OptionError: None has that name.

    Source: llama.cpp's `llm_chat_apply_template`.
    """
    known = tomllib.loads(files("augury.cli").joinpath("chat_templates.toml").read_text(encoding="utf-8"))
    if name not in known:
        raise OptionError(
            f"--chat-template is {name!r}, expected Jinja or one of {', '.join(known)}; --chat-template-file takes a file, and "
            "without either the model's own is used"
        )
    found, content = known[name], "{{ message.content }}"
    of = {role: found.get(role, found.get("turn", found.get("user"))) for role in ("system", "assistant", "tool", "user")}
    begin = "{% if not begun.yes %}" + found.get("begin", "") + "{% endif %}{% set begun.yes = message.role != 'assistant' %}"
    tests = (f"if message.role == '{role}' %}}{of[role]}{{% el" for role in ("system", "assistant", "tool"))
    text = (
        f"{{% set begun = namespace(yes=false) %}}{{% for message in messages %}}{begin}{{% {''.join(tests)}se %}}{of['user']}"
        f"{{% endif %}}{{% endfor %}}{{% if add_generation_prompt %}}{found.get('opening', '')}{{% endif %}}"
    )
    trimmed = content.replace(" }}", " | trim }}")
    return text.replace("{}", content).replace("{trimmed}", trimmed).replace("{role}", "{{ message.role }}")


def use_template(engine: Engine, source: str | None, *, parse_special: bool) -> None:
    """Give an engine another chat template than the model's own, if there is one."""
    from augury.text.chat_template import ChatTemplate

    if source is not None:
        engine.chat_template = ChatTemplate(source, engine.tokenizer, parse_special=parse_special)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError('a JSON object, such as {"enable_thinking": false}')
    return found
