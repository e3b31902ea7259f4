"""One text in two vocabularies: the target's text as the draft model's tokens, and its drafts as the target's.

Both are encoded from characters. When text is added, only its end is encoded again, from some tokens before it; where these and
the tokens that were there agree longest in place and id, the new ones take over::

    tokens so far         the| cat| s|
    new text                          "at"
    end, encoded again     the| cat| sat|
    agreement              the| cat|         then  sat|

So a draft model's KV cache keeps nearly everything, and a round costs the same however long the text is.

Source: universal assisted generation in Hugging Face's transformers (`AssistedCandidateGeneratorDifferentTokenizers`), which
decodes, encodes again and aligns in the same way.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Sequence

import numpy as np

from augury.text.tokenizer import StreamDecoder, Tokenizer

MAX_PADDING = 128
FIRST_COMPARED = 5  # before it are control tokens, which relatives of one family name differently


def size_difference(n_target: int, n_draft: int) -> str | None:
    """The difference of the numbers of tokens, in words; None if they differ by padding at most."""
    if abs(n_target - n_draft) > MAX_PADDING:
        return f"the target has {n_target} tokens and the draft model {n_draft}, which is more than {MAX_PADDING} of padding"
    return None


def tokenizer_difference(target: Tokenizer, draft: Tokenizer) -> str | None:
    """The first difference of kind, special tokens and texts; None where ids mean the same."""
    if target.kind != draft.kind:
        return f"the target's tokenizer is of kind {target.kind!r}, the draft model's {draft.kind!r}"
    if (difference := size_difference(target.n_vocab, draft.n_vocab)) is not None:
        return difference
    for role in ("bos", "eos"):
        mine, other = _added(target, role), _added(draft, role)
        if mine != other:
            return f"the target's {role} token is {_named(target, mine)}, the draft model's {_named(draft, other)}"
    for token in range(FIRST_COMPARED, min(target.n_vocab, draft.n_vocab)):
        if target.text(token) != draft.text(token):
            return f"token {token} is {target.text(token)!r} to the target and {draft.text(token)!r} to the draft model"
    return None


def _added(tokenizer: Tokenizer, role: str) -> int | None:
    """The token that texts get in this role, or None: one that is never added may differ."""
    token: int | None = getattr(tokenizer, role) if getattr(tokenizer, f"add_{role}") else None
    return token


def _named(tokenizer: Tokenizer, token: int | None) -> str:
    return "none" if token is None else f"{token} ({tokenizer.text(token)!r})"


_LOOKBEHIND = 12  # tokens encoded again: a few words, so that effects at their beginning do not reach their end


class Translation:
    """The text of one slot's requests.

    Special tokens are translated by their texts, or left out where the other vocabulary has none of that text.
    """

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self._target = target
        self._draft = draft
        self._tokens = np.empty(1024, np.int32)  # the draft model's; the first `_n` are the text
        self.begin()

    def begin(self) -> None:
        """Start another text."""
        self._n = 0
        self._n_seen = 0  # of the target's tokens
        self._close([self._draft.bos] if self._draft.add_bos and self._draft.bos is not None else [])

    @property
    def is_within_character(self) -> bool:
        """Whether the target's last token ends within a character, so that nothing can be drafted after it."""
        decoder = getincrementaldecoder("utf-8")("replace")
        decoder.decode(b"".join(self._recent))
        return len(decoder.getstate()[0]) > 0

    def follow(self, history: np.ndarray) -> np.ndarray:
        """Take in the new tokens of the target's `history` (h,) int32.

        Returns:
            The text in the draft model's tokens, (t,) int32, valid until the next call.
        """
        text = ""
        for token in history[self._n_seen :].tolist():
            if token >= self._target.n_vocab:  # padding, which spells nothing
                continue
            if self._target.is_special(token):
                self._write(text + self._decoder.flush())
                text = ""
                is_bos = self._n == self._n_closed <= 1 and token == self._target.bos
                self._close([] if is_bos else _special(self._target, token, self._draft))
            else:
                text += self._decoder.push(token)
                self._recent.append(self._target.piece(token))
        self._n_seen = len(history)
        self._write(text)
        return self._tokens[: self._n]

    def back(self, drafted: Sequence[int]) -> list[int]:
        """The target's tokens for the draft model's continuation of the text, up to its first special token."""
        added = b""
        special: list[int] = []
        for token in drafted:
            if self._draft.is_special(token):
                special = _special(self._draft, token, self._target)
                break
            added += self._draft.piece(token)
        n_valid = _n_valid(added)
        tokens = self._encoded_after(b"".join(self._recent), added[:n_valid])
        return tokens + special if n_valid == len(added) else tokens

    def _encoded_after(self, recent: bytes, new: bytes) -> list[int]:
        """`new` as the target's tokens: encoded after `recent` if that leaves a boundary between the two, else alone."""
        if not new:
            return []
        for context in (recent, b""):
            tokens = self._target.encode((context + new).decode(errors="replace"), add_special=False)
            bounds = _bounds(self._target, tokens, len(new))
            after = tokens[bounds.index(0) :] if 0 in bounds else []
            if b"".join(map(self._target.piece, after)) == new:  # not so where the target cannot write some character
                return after
        return []

    def _write(self, text: str) -> None:
        """Append text after the last special token."""
        if not text:
            return
        self._text += text.encode()
        n_again = _LOOKBEHIND
        while (first := self._first_again(n_again)) > 0:
            tokens, ends = self._encoded(self._open_ends[first - 1])
            old = zip(self._tokens[self._n_closed + first : self._n].tolist(), self._open_ends[first:], strict=True)
            n_old, n_new = _agreement(list(old), list(zip(tokens, ends, strict=True)))
            if n_new:
                self._replace(first + n_old, tokens[n_new:], ends[n_new:])
                return
            n_again *= 4
        self._replace(0, *self._encoded(0))

    def _first_again(self, n_again: int) -> int:
        """Which open token is encoded again first: `n_again` from the end, or the nearest before that begins a character."""
        first = max(len(self._open_ends) - n_again, 0)
        while first > 0 and not _is_boundary(self._text, self._open_ends[first - 1]):
            first -= 1
        return first

    def _encoded(self, start: int) -> tuple[list[int], list[int]]:
        """The draft model's tokens of the open text from byte `start` on, and where each ends."""
        tokens = self._draft.encode(self._text[start:].decode(), add_special=False)
        return tokens, _bounds(self._draft, tokens, len(self._text))[1:]

    def _replace(self, n_kept: int, tokens: list[int], ends: list[int]) -> None:
        """Keep the first open tokens and append others."""
        self._open_ends[n_kept:] = ends
        self._n = self._n_closed + n_kept
        self._append(tokens)

    def _close(self, tokens: list[int]) -> None:
        """Append special tokens; text after them is encoded apart from text before them."""
        self._append(tokens)
        self._n_closed = self._n
        self._text = bytearray()  # after the special tokens: open, as its end may be encoded again
        self._open_ends: list[int] = []  # where in it each token ends
        self._recent: deque[bytes] = deque(maxlen=_LOOKBEHIND)  # the text of the target's last tokens of it
        self._decoder = StreamDecoder(self._target, continues=False)

    def _append(self, tokens: list[int]) -> None:
        end = self._n + len(tokens)
        if end > len(self._tokens):
            self._tokens = np.concatenate([self._tokens[: self._n], np.empty(end, np.int32)])
        self._tokens[self._n : end] = tokens
        self._n = end


def _special(tokenizer: Tokenizer, token: int, other: Tokenizer) -> list[int]:
    """The special token of `other` with the text of `token`, if there is one."""
    tokens = other.encode(tokenizer.text(token), add_special=False, parse_special=True)
    return tokens if len(tokens) == 1 and other.is_special(tokens[0]) else []


def _bounds(tokenizer: Tokenizer, tokens: list[int], end: int) -> list[int]:
    """Where the first of `tokens` begins and each ends, in bytes, if the last ends at `end`.

    Counted from the end, because an encoder may have put a space in front.
    """
    bounds = [end]
    for token in reversed(tokens):
        end -= len(tokenizer.piece(token))
        bounds.append(end)
    return bounds[::-1]


def _agreement(old: list[tuple[int, int]], new: list[tuple[int, int]]) -> tuple[int, int]:
    """Where the longest run that both have ends in either; (0, 0) where they have nothing in common."""
    places = {pair: i for i, pair in enumerate(new)}
    n_longest = n_run = 0
    found = (0, 0)
    previous = None
    for i, pair in enumerate(old):
        place = places.get(pair)
        if place is None:
            n_run = 0
        else:
            n_run = n_run + 1 if previous is not None and place == previous + 1 else 1
            if n_run >= n_longest:
                n_longest, found = n_run, (i + 1, place + 1)
        previous = place
    return found


def _is_boundary(text: bytearray, at: int) -> bool:
    """Whether a character begins at byte `at`, which is not the first."""
    return 0 < at < len(text) and text[at] & 0xC0 != 0x80


def _n_valid(data: bytes) -> int:
    """How many of the first bytes are whole characters."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(data)
