"""Find special tokens in text, as llama.cpp does: the longest token first, over the whole text, then the next."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator

_ASCII_SPACE = " \t\n\v\f\r"


class Partition:
    """Cuts text at the tokens of a fixed set, given by their texts.

    Args:
        tokens: (text, id) of each token; no text is empty.
        strips_left: tokens before which white space is dropped.
        strips_right: tokens after which it is dropped.
    """

    def __init__(
        self, tokens: Iterable[tuple[str, int]], *, strips_left: Container[int] = (), strips_right: Container[int] = ()
    ) -> None:
        self._sorted = sorted(tokens)
        self._strips_left = strips_left
        self._strips_right = strips_right

    def cut(self, text: str) -> list[str | int]:
        """Replace every token that is found in the text by its id; the parts between stay text, and are never empty.

        >>> Partition([("<b>", 7), ("<b><b>", 8)]).cut("x<b><b><b>y")
        ['x', 8, 7, 'y']
        """
        parts: list[str | int] = [text] if text else []
        found = sorted(self._present(text), key=lambda entry: (-len(entry[0].encode("utf-8", "surrogateescape")), entry[1]))
        for needle, token in found:
            before, parts = parts, []
            for part in before:
                if isinstance(part, int) or needle not in part:
                    parts.append(part)
                else:
                    parts.extend(self._cut_one(part, needle, token))
        return parts

    def _cut_one(self, text: str, needle: str, token: int) -> Iterator[str | int]:
        """Replace one token in a piece of text."""
        start = 0
        while (at := text.find(needle, start)) >= 0:
            before = text[start:at]
            if before := before.rstrip(_ASCII_SPACE) if token in self._strips_left else before:
                yield before
            yield token
            start = at + len(needle)
            while token in self._strips_right and start < len(text) and text[start] in _ASCII_SPACE:
                start += 1
        if start < len(text):
            yield text[start:]

    def _present(self, text: str) -> list[tuple[str, int]]:
        """List the tokens that occur in the text at all.

        Vocabularies have up to thousands of special tokens. They are walked as a tree by their leading characters, and a
        branch is left as soon as its beginning does not occur in the text: a few dozen searches where nothing is found.
        """
        found = []
        branches = [(0, len(self._sorted), 1)]
        while branches:
            start, end, depth = branches.pop()
            while start < end:
                head = self._sorted[start][0][:depth]
                stop = bisect_left(self._sorted, (head + "\U0010ffff",), start, end)
                if head in text:
                    if len(self._sorted[start][0]) == depth:
                        found.append(self._sorted[start])
                        start += 1
                    if start < stop:
                        branches.append((start, stop, depth + 1))
                start = stop
        return found
