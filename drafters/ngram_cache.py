"""`ngram-cache`: the most frequent followers of the last few tokens, by counts of three kinds.

Every n-gram of one to four tokens has counts of its followers: in this request's text (context), in earlier generations (past),
and, of pairs, in a corpus that was counted beforehand (static). A draft is written token by token. The longest n-gram is asked
first, and a follower is taken where the n-gram was seen often enough and one follower leads clearly enough; the context is
trusted sooner than the past, and the corpus alone is asked last::

    tokens of the n-gram        1     2     3     4
    context: seen at least      2     2     1     1     the leader's share at least  66 %  50 %  50 %  50 %
    past: seen at least         4     3     2     2                                  75 %  66 %  66 %  66 %
    static: seen at least             2                                                    50 %

The corpus votes with the others, too: which follower leads is decided by its count times a hundred times its count in the
corpus after the last two tokens, or times one if it was never there.

`--lookup-cache-static` and `--lookup-cache-dynamic` name files in llama.cpp's format. The first is read; the second is read if
it exists, and saved when the engine closes (of two engines that share one, the last to close wins). Neither says which
vocabulary it was made with: use one file for each.

Source: llama.cpp, `common/ngram-cache.cpp`. The differences: the past grows with every request, by generated text and not by
prompts, which a conversation repeats again and again; and of equal counts the lowest token wins, not a hash table's first.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from attrs import frozen

from augury.drafters.ngram.lookup_file import MAX_NGRAM, NgramCorpus, NgramCounts, NgramPast, read_lookup
from augury.interfaces import Drafter, DrafterTraits, Session
from augury.options import option
from augury.types import Draft, Verdict

_CORPUS_FACTOR = 100
_SIZE = 4  # bytes of a token
_NO_WEIGHTS: Mapping[int, int] = {}


# How often an n-gram must have been seen, and the percentage that its leader must have, by its length less one
_LAX = ((2, 66), (2, 50), (1, 50), (1, 50))
_STRICT = ((4, 75), (3, 66), (2, 66), (2, 66))


@frozen
class NgramCacheOptions:
    """Options of `ngram-cache`."""

    n: int = option(4, help="length of the n-grams at most", ge=1, le=MAX_NGRAM)
    m: int = option(8, help="length of a draft at most", ge=1, le=1024, per_request=True)
    static: str | None = option(None, help="file with counts of a corpus", aliases=("lookup-cache-static", "lcs"))
    dynamic: str | None = option(
        None, help="file for counts of past generations, made if there is none", aliases=("lookup-cache-dynamic", "lcd")
    )


class NgramCache(Drafter):
    """Counts the request's text; past generations and the corpus are shared by all slots."""

    name = "ngram-cache"
    aliases = ("lookup",)
    traits = DrafterTraits(scope="process")
    options_class = NgramCacheOptions
    options: NgramCacheOptions

    def __init__(self, options: NgramCacheOptions, session: Session) -> None:
        super().__init__(options, session)
        n_vocab = session.model.n_vocab
        static, dynamic = (None if text is None else Path(text).expanduser() for text in (options.static, options.dynamic))
        self._corpus: NgramCorpus | None = None
        if static is not None:
            self._corpus = session.shared((self.name, "static", static), lambda: NgramCorpus(read_lookup(static, n_vocab)))
        self._past: NgramPast = session.shared((self.name, "dynamic", dynamic), lambda: NgramPast(dynamic, n_vocab))
        self._context = NgramCounts(options.n)
        self._text: np.ndarray | None = None  # of the request, as far as it was seen
        self._n_prompt = 0

    def begin(self, history: np.ndarray, n_reused: int) -> None:  # noqa: ARG002 - the interface's
        """Count the prompt. The slot's previous text may differ, so the counts start anew."""
        self._context = NgramCounts(self.options.n)
        self._context.extend(history, 0)
        self._text = history
        self._n_prompt = len(history) - 1

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        """Write ahead, token by token, as long as some count is clear."""
        self._see(history)
        recent = history[-MAX_NGRAM:].tobytes()
        tokens: list[int] = []
        while len(tokens) < min(limit, self.options.m):
            token = self._next(recent)
            if token is None:
                break
            tokens.append(token)
            recent = (recent + token.to_bytes(_SIZE, sys.byteorder))[-MAX_NGRAM * _SIZE :]
        return Draft(tokens)

    def accept(self, history: np.ndarray, verdict: Verdict) -> None:  # noqa: ARG002 - the interface's
        """Count the new tokens."""
        self._see(history)

    def end(self) -> None:
        """Count the generated text among the past generations."""
        text, self._text = self._text, None
        if text is not None and self.session.verify != "synthetic":
            self._past.learn(text, self._n_prompt)

    def _see(self, history: np.ndarray) -> None:
        n_seen = 0 if self._text is None else len(self._text)
        if len(history) > n_seen:
            self._context.extend(history, n_seen)
            self._text = history

    def _next(self, recent: bytes) -> int | None:
        """The token that the counts expect after `recent`, up to four int32 as bytes."""
        found = self._corpus.get(recent[-2 * _SIZE :]) if self._corpus is not None and len(recent) >= 2 * _SIZE else None
        weights = _NO_WEIGHTS if found is None else found.counts
        token = self._clear_leader(self._context, recent, weights, _LAX)
        if token is None:
            token = self._clear_leader(self._past.counts, recent, weights, _STRICT)
        if token is None and found is not None:
            least, percent = _LAX[1]
            is_clear = found.n_seen >= least and 100 * found.counts[found.leader] >= percent * found.n_seen
            token = found.leader if is_clear else None
        return token

    def _clear_leader(
        self, counts: NgramCounts, recent: bytes, weights: Mapping[int, int], thresholds: Sequence[tuple[int, int]]
    ) -> int | None:
        for n in range(min(self.options.n, len(recent) // _SIZE), 0, -1):
            found, (least, percent) = counts.get(recent[-n * _SIZE :]), thresholds[n - 1]
            if found is not None and found.n_seen >= least:
                token = found.best(weights, _CORPUS_FACTOR)
                if 100 * found.counts[token] >= percent * found.n_seen:
                    return token
        return None
