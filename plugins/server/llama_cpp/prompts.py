"""The shapes that a prompt may have in llama.cpp's interface, and its tokens."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from augury.errors import OptionError, UnsupportedError
from augury.plugins.server.fields import Fields, TextPart, text_of
from augury.text.tokenizer import Tokenizer


class PromptObject(Fields):
    """A text, where other servers take pictures beside it."""

    prompt_string: str


class PromptParts(Fields):
    """The same in parts, as in a message."""

    content: list[TextPart] = Field(min_length=1)

    @property
    def prompt_string(self) -> str:
        """The parts, one after the other."""
        return text_of(self.content)


MOST_TEXT = 1 << 20
"""Characters of text that is encoded and is no prompt: to encode takes some 230 bytes of memory for each."""

Prompt = str | PromptObject | PromptParts | list[int | str | PromptObject | PromptParts | list[int | str]]
"""A text; an object with one or its parts; tokens, or tokens and texts in one sequence; or several of all these."""


def prompt_tokens(prompt: Prompt, tokenizer: Tokenizer | None, n_ctx: int) -> list[list[int]]:
    """The tokens of every prompt; a list without a number is several prompts.

    Raises:
        PromptTooLongError: A text has more than `n_ctx` tokens for certain; it is not encoded.
        OptionError: There is no prompt, or a list holds tokens and whole prompts.
        UnsupportedError: There is a text, but no tokenizer.
    """
    is_several = isinstance(prompt, list) and not any(isinstance(each, int) for each in prompt)
    prompts: list[Any] = prompt if is_several else [prompt]  # type: ignore[assignment]
    if not prompts:
        raise OptionError("prompt is an empty list, expected at least one prompt")
    return [mixed_tokens(each, tokenizer, add_special=True, n_most=n_ctx) for each in prompts]


def mixed_tokens(
    prompt: Any, tokenizer: Tokenizer | None, *, add_special: bool, parse_special: bool = True, n_most: int | None = None
) -> list[int]:
    """The tokens of one prompt; the model's beginning token is added if the prompt begins with a text.

    Raises:
        OptionError: A list holds tokens and whole prompts, or its texts are longer than `MOST_TEXT`.
        PromptTooLongError: As `Tokenizer.encode` does.
        UnsupportedError: There is a text, but no tokenizer.
    """
    parts = prompt if isinstance(prompt, list) else [prompt]
    parts = [part.prompt_string if isinstance(part, PromptObject | PromptParts) else part for part in parts]
    if n_most is None and (n := sum(len(text) for text in parts if isinstance(text, str))) > MOST_TEXT:
        raise OptionError(f"there are {n} characters of text, expected {MOST_TEXT} at most; send them in parts")
    found: list[int] = []
    for i, text in enumerate(parts):
        if isinstance(text, int):
            found.append(text)
        elif not isinstance(text, str):
            raise OptionError("prompt holds tokens beside whole prompts; put the tokens into a list of their own")
        else:
            found += needed(tokenizer).encode(
                text, add_special=add_special and i == 0, parse_special=parse_special, n_most=n_most
            )
    return found


def needed(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer, where there is a text.

    Raises:
        UnsupportedError: The model has none.
    """
    if tokenizer is None:
        raise UnsupportedError("this model has no tokenizer that augury can read; give token ids instead of text")
    return tokenizer
