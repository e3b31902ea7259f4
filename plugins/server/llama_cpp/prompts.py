"""The shapes that a prompt may have in llama.cpp's interface, and its tokens."""

from __future__ import annotations

from typing import Any

from augury.errors import OptionError, UnsupportedError
from augury.plugins.server.fields import Fields
from augury.text.tokenizer import Tokenizer

__all__ = ["Prompt", "PromptObject", "mixed_tokens", "needed", "prompt_tokens"]


class PromptObject(Fields):
    """A text, where other servers take pictures beside it."""

    prompt_string: str


Prompt = str | PromptObject | list[int | str | PromptObject | list[int | str]]
"""A text; an object with one; tokens, or tokens and texts in one sequence; or several of all these."""


def prompt_tokens(prompt: Prompt, tokenizer: Tokenizer | None) -> list[list[int]]:
    """The tokens of every prompt; a list without a number is several prompts.

    Raises:
        OptionError: There is no prompt, or a list holds tokens and whole prompts.
        UnsupportedError: There is a text, but no tokenizer.
    """
    is_several = isinstance(prompt, list) and not any(isinstance(each, int) for each in prompt)
    prompts: list[Any] = prompt if is_several else [prompt]  # type: ignore[assignment]
    if not prompts:
        raise OptionError("prompt is an empty list, expected at least one prompt")
    return [mixed_tokens(each, tokenizer, add_special=True) for each in prompts]


def mixed_tokens(prompt: Any, tokenizer: Tokenizer | None, *, add_special: bool, parse_special: bool = True) -> list[int]:
    """The tokens of one prompt; what the model begins a text with is added where the prompt begins with a text.

    Raises:
        OptionError: A list holds tokens and whole prompts.
        UnsupportedError: There is a text, but no tokenizer.
    """
    parts = prompt if isinstance(prompt, list) else [prompt]
    found: list[int] = []
    for i, part in enumerate(parts):
        text = part.prompt_string if isinstance(part, PromptObject) else part
        if isinstance(text, int):
            found.append(text)
        elif not isinstance(text, str):
            raise OptionError("prompt holds tokens beside whole prompts; put the tokens into a list of their own")
        else:
            found += needed(tokenizer).encode(text, add_special=add_special and i == 0, parse_special=parse_special)
    return found


def needed(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer, where there is a text.

    Raises:
        UnsupportedError: The model has none.
    """
    if tokenizer is None:
        raise UnsupportedError("this model has no tokenizer that augury can read; give token ids instead of text")
    return tokenizer
