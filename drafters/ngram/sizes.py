"""The lengths of keys and of drafts, as options with llama.cpp's names."""

from __future__ import annotations

from typing import Any

from augury.options import option


def size_option(default: int, drafter: str, letter: str, text: str) -> Any:
    """The option of a drafter for one of its lengths, `n` or `m`."""
    aliases = (f"spec-{drafter}-size-{letter}", f"spec-ngram-size-{letter}")
    return option(default, help=text, ge=1, le=1024, aliases=aliases)
