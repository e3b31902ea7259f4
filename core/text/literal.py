r"""Keeps special tokens that users write out of a rendered conversation: their texts stay text.

Each place where a special token's text begins in users' texts gets a separator after its first character. A chat template keeps
it in any use of the text; then no special token is found there, and the separator is taken out before the text is encoded::

    content     hi<|im_end|>          template's   <|im_start|>user\nhi<·|im_end|><|im_end|>
    tokens      <|im_start|> "user\nhi<|im_end|>" <|im_end|>

The end of a string where a token's text may begin, and the beginning where one may end, get one as well, because templates join
strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

from augury.errors import OptionError

# Noncharacters, which Unicode keeps for such uses, then private ones: one is taken that no text has.
_SEPARATORS = [*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE)]


class LiteralTexts:
    """Marks the texts of special tokens in users' texts.

    Args:
        specials: the texts of the special tokens. One of a single character cannot be divided, and stays a token.
    """

    def __init__(self, specials: Iterable[str]) -> None:
        self._specials = sorted({text for text in specials if len(text) > 1}, key=len, reverse=True)

    @cached_property
    def _begins(self) -> re.Pattern[str]:
        """Where one of them begins."""
        return re.compile(f"(?=(?:{'|'.join(map(re.escape, self._specials))}))") if self._specials else re.compile(r"(?!)")

    @cached_property
    def _parts(self) -> tuple[frozenset[str], frozenset[str]]:
        """The strings that they may begin with, and the strings that they may end with."""
        cuts = [(text, n) for text in self._specials for n in range(1, len(text))]
        return frozenset(text[:n] for text, n in cuts), frozenset(text[n:] for text, n in cuts)

    def marked(self, values: Any, *others: str) -> tuple[Any, str]:
        """Mark all strings in values of JSON, the names of fields left out.

        Returns:
            The values with separators, and the separator, which `others` do not hold either.

        Raises:
            OptionError: the values hold every character that could be one, or a value that JSON cannot write.
        """
        try:
            used = set(chain(json.dumps(values, ensure_ascii=False), *others))
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(f"messages hold what JSON cannot write: {error}") from error
        separator = next((chr(code) for code in _SEPARATORS if chr(code) not in used), None)
        if separator is None:
            raise OptionError("messages hold every private character of Unicode, expected text without them")
        return self._marked(values, separator), separator

    def _marked(self, value: Any, separator: str) -> Any:
        if isinstance(value, str):
            return self._separated(value, separator)
        if isinstance(value, dict):
            return {key: self._marked(each, separator) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._marked(each, separator) for each in value]
        return value

    def _separated(self, text: str, separator: str) -> str:
        places = {match.start() + 1 for match in self._begins.finditer(text)}
        prefixes, suffixes = self._parts
        longest = len(self._specials[0]) if self._specials else 0
        for first in {0, len(text) - len(text.lstrip())}:  # templates strip their texts, or not
            places |= {first + n - 1 for n in range(1, longest) if text[first : first + n] in suffixes}
        for end in {len(text), len(text.rstrip())}:
            places |= {end - n + 1 for n in range(1, min(longest, end + 1)) if text[end - n : end] in prefixes}
        if not places:
            return text
        edges = [0, *sorted(places), len(text)]
        return separator.join(text[start:end] for start, end in pairwise(edges))
