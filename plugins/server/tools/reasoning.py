"""Where models write their reasoning, and whether a prompt ends within it."""

from __future__ import annotations

from typing import Literal

_TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<mm:think>", "</mm:think>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
)

CLOSINGS = tuple(closing for _, closing in _TAGS)
"""The marks that end reasoning, of all families."""

_FRAMES = {
    "<response>": ("<response>", "</response>"),
    "[BEGIN FINAL RESPONSE]": ("[END FINAL RESPONSE]",),
    "<|open|>response<|sep|>": ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
}


def reasoning_tags(template: str) -> tuple[str, str]:
    """The marks around reasoning in the answers of a chat template's model.

    >>> reasoning_tags("{{ '[THINK]' }}{{ '[/THINK]' }}")
    ('[THINK]', '[/THINK]')
    """
    return next((tags for tags in _TAGS if tags[1] in template), _TAGS[0])


def frame_of(template: str) -> tuple[str, ...]:
    """The marks that a model writes around what is not reasoning, as Granite and Apriel do."""
    return next((marks for known, marks in _FRAMES.items() if known in template), ())


def reasoning_at(prompt: str, tags: tuple[str, str], *, is_continued: bool = False) -> Literal["to come", "open", "over"]:
    r"""Where reasoning is at the end of a prompt, or of the beginning of an answer that is continued.

    >>> reasoning_at("Hi<think>\n", ("<think>", "</think>")), reasoning_at("Hi<think></think>", ("<think>", "</think>"))
    ('open', 'over')
    """
    opening, closing = tags
    _, found, begun = prompt.rpartition(opening.rstrip())
    if found and closing not in begun and (is_continued or not begun.strip()):
        return "open"
    is_over = closing in begun if is_continued else prompt.rstrip().endswith(closing)
    return "over" if found and is_over else "to come"
