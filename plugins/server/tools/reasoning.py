"""Where models write their reasoning, and whether a prompt ends within it."""

from __future__ import annotations

_TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<mm:think>", "</mm:think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
)

CHANNEL_TAGS = ("<|channel|>analysis<|message|>", "<|end|>")
"""The marks around the reasoning of harmony, which has a channel for it."""


def reasoning_tags(template: str) -> tuple[str, str]:
    """The marks around reasoning in the answers of a chat template's model.

    >>> reasoning_tags("{{ '[THINK]' }}{{ '[/THINK]' }}")
    ('[THINK]', '[/THINK]')
    """
    return next((tags for tags in _TAGS if tags[1] in template), _TAGS[0])


def ends_within(prompt: str, tags: tuple[str, str], *, is_continued: bool = False) -> bool:
    r"""Whether a prompt ends within reasoning: right after its opening, or anywhere in an answer that is continued.

    >>> ends_within("Hi<think>\n", ("<think>", "</think>")), ends_within("Hi<think></think>", ("<think>", "</think>"))
    (True, False)
    """
    opening, closing = tags
    _, found, begun = prompt.rpartition(opening.rstrip())
    return bool(found) and closing not in begun and (is_continued or not begun.strip())
