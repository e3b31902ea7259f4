"""`suffix`: the most frequent continuation of the longest ending of the text that occurred before.

The text's ending is looked up in the slot's texts, prompts and outputs, of this request and of earlier ones. The more of it
occurred before, the longer is the draft; if the occurrences went on differently, the more frequent continuation is taken, and
it ends where it becomes improbable::

    occurrences of "a b":   a b c d e, a b c d f, a b g        min_prob 0.5
    draft                   c (2/3), d (2/3)                   e (1/3) is left out

The chance of a token is learnt by the length of the ending before it, the draft's tokens included, and by how many of the
occurrences go on with it.

Where a planner chooses among proposals, the other ways on become branches, those after longer endings first.

With `corpus` the ending is also looked up in the answers of all requests of the process, and of earlier ones. The worth of
tokens from there is learnt apart. The draft goes on from the place where more of the ending occurred.

Shorter endings occurred more often and say more about frequency. So the longest and those down to half of it are tried, and the
draft is taken that promises more tokens: the sum of its tokens' probabilities.

Source: Oliaro et al. 2024, "SuffixDecoding" (arXiv 2411.04975), section 3; the names of the options are those of its
implementations. The differences: frequencies are taken from the two dozen occurrences that agree longest, so that a round costs
the same however often a text repeats itself; and depth bounds the ending alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from attrs import evolve, frozen

from augury.compiled import address_of
from augury.drafters.ngram import MAX_CORPUS_TOKENS
from augury.errors import OptionError
from augury.interfaces import Ask, CompiledDraft, Drafter, DrafterTraits, Session
from augury.options import option
from augury.types import NO_DRAFT, Draft, Verdict

if TYPE_CHECKING:
    from augury.drafters.ngram.text_corpus import SuffixArray, TextCorpus


_CHANCES = (  # docs/benchmarks.md has how they were measured; for lengths from 0, 2, 3, 5, 9, 17 and 33 tokens on
    *(0.14, 0.24, 0.4, 0.31, 0.33, 0.62, 0.25, 0.52, 0.74, 0.3, 0.62, 0.82),
    *(0.4, 0.7, 0.89, 0.5, 0.93, 0.97, 0.5, 0.8, 0.98),
)  # by length, then where less than most, most and all occurrences agree
_BRANCH_CHANCES = (0.068, 0.27, 0.31, 0.25, 0.2, 0.2, 0.2)  # by length


@frozen
class SuffixOptions:
    """Options of `suffix`."""

    max_depth: int = option(
        24, help="length of the text's ending that is looked up, at most", ge=1, le=256, aliases=("suffix-max-depth",)
    )
    factor: float = option(
        2.0, help="length of a draft at most, in lengths of the ending found", ge=0, le=1024, per_request=True
    )
    offset: float = option(
        0.0, help="tokens that a draft may be longer or, below 0, shorter than that", ge=-1024, le=1024, per_request=True
    )
    min_prob: float = option(
        0.1, help="a draft ends before the first token that is less probable by frequency", ge=0, le=1, per_request=True
    )
    max_tokens: int = option(262144, help="tokens kept for a slot; beyond, the older half is forgotten", ge=1024)
    corpus: str | None = option(
        None,
        help="file for the answers of all requests, made if there is none: each learns from all others, and from earlier runs",
    )
    corpus_tokens: int = option(
        262144,
        help="tokens kept there, 12 bytes of memory each; beyond, the older half is forgotten",
        ge=1024,
        le=MAX_CORPUS_TOKENS,
    )
    corpus_learns: bool = option(True, help="whether answers are added to it", per_request=True)

    def __attrs_post_init__(self) -> None:
        """Refuse options that would never draft, and an empty path."""
        if self.corpus == "":
            raise OptionError("suffix: corpus is empty text, expected a file's path; name one, or leave corpus out")
        if self.factor * self.max_depth + self.offset < 1:
            raise OptionError(
                f"suffix: factor {self.factor:g} and offset {self.offset:g} leave no token to draft even after an ending of "
                f"max_depth {self.max_depth}; raise one of them"
            )


class _Found(NamedTuple):
    """The ways on from the endings that occurred in some texts, and the draft of one of them."""

    texts: SuffixArray
    places: np.ndarray  # see `SuffixArray.find`
    n: int  # of them
    draft: np.ndarray  # (3, limit) int32, tokens, parents and evidence
    k: int = 0  # tokens of it
    n_max: int = 0  # of a way on
    first_branch: int = 0  # the first bucket of the branches


class Suffix(Drafter):
    """Keeps the slot's texts in a suffix array. Its knowledge lives as long as the slot, a corpus longer."""

    name = "suffix"
    options_class = SuffixOptions
    options: SuffixOptions
    traits = DrafterTraits(
        evidence_chances=(*_CHANCES, *_BRANCH_CHANCES),
        is_paced=True,
        kernels="augury.drafters.ngram.compiled_drafts",
    )

    def __init__(self, options: SuffixOptions, session: Session) -> None:
        super().__init__(options, session)
        from augury.drafters.ngram import kernels
        from augury.drafters.ngram.text_corpus import SuffixArray

        self._kernels = kernels
        self._texts = SuffixArray(options.max_depth, options.max_tokens)
        self._texts.begin()
        self._texts.lent["first_branch"] = len(_CHANCES)
        self._seen = np.empty(0, np.int32)  # the learnt part of the request's text, or of the last one's
        self._text: np.ndarray | None = None  # of the request
        self._n_prompt = 0
        self._corpus: TextCorpus | None = None
        if options.corpus is not None:
            from augury.drafters.ngram.text_corpus import TextCorpus, vocabulary_digest

            path, vocabulary = Path(options.corpus).expanduser(), vocabulary_digest(session.tokenizer, session.model.n_vocab)
            kept = path, vocabulary, options.max_depth, options.corpus_tokens
            self._corpus = session.shared((self.name, kept), lambda: TextCorpus(*kept, learns=options.corpus_learns))
            self.traits = evolve(self.traits, scope="process", evidence_chances=2 * (*self.traits.evidence_chances,))

    def begin(self, history: np.ndarray, n_reused: int) -> None:  # noqa: ARG002 - requests without drafts may lie between
        """Start a text, but leave out the common part with the previous one, except for its last tokens."""
        n_both = min(len(self._seen), len(history))
        differ = (self._seen[:n_both] != history[:n_both]).nonzero()[0]
        n_same = int(differ[0]) if len(differ) else n_both
        self._texts.begin()
        self._seen = history[: max(n_same - self.options.max_depth, 0)]
        self._text, self._n_prompt = history, len(history) - 1
        self._learn(history)

    def accept(self, history: np.ndarray, verdict: Verdict) -> None:  # noqa: ARG002 - the interface's
        self._text = history

    def end(self) -> None:
        """Add the answer to the corpus, and the tokens before it by which it may be found; keep no view of the history."""
        self._seen = self._seen.copy()
        text, self._text = self._text, None
        if text is None or self._corpus is None:
            return
        if self.options.corpus_learns and self.session.verify != "synthetic":
            self._corpus.learn(text[max(self._n_prompt - self.options.max_depth, 0) :].copy())

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        return self._draft(Ask(self, history, limit))

    @classmethod
    def draft_together(cls, asks: Sequence[Ask]) -> list[Draft]:
        """Propose for several slots, other ways on, too, where a planner asks."""
        return [ask.drafter._draft(ask) for ask in asks]  # type: ignore[attr-defined] # noqa: SLF001 - of this class

    def _draft(self, ask: Ask) -> Draft:
        self._learn(ask.history)
        best, others = self._found(ask, self._texts, 0), list[_Found]()
        if self._corpus is not None:
            other = self._found(ask, self._corpus.texts, len(_CHANCES) + len(_BRANCH_CHANCES))
            best, other = (best, other) if _longest(best) >= _longest(other) else (other, best)
            others = [other]
        if not best.n:
            return NO_DRAFT
        tree, k = best.draft, best.k
        if ask.pace is None or k >= ask.limit:
            return Draft(tree[0, :k], evidence=tree[2, :k])
        for each in others:
            k = self._kernels.add_draft(tree, k, ask.limit, each.draft, each.k)
        for each in (best, *others):
            k = self._kernels.add_ways(
                tree, k, ask.limit, each.texts.tokens, each.places, each.n, each.n_max, each.first_branch
            )
        return Draft.of_table(tree[:, :k])

    def compiled_draft(self, ask: Ask, n_more: int, features: Mapping[str, np.ndarray]) -> CompiledDraft | None:  # noqa: ARG002 - the interface's
        """See `Drafter.compiled_draft`; none with a corpus, which has a text of its own."""
        if self._corpus is not None:
            return None
        from augury.drafters.ngram import compiled_drafts

        state, lent = self._texts.lend(len(ask.history) - len(self._seen) + n_more), self._texts.lent
        lent["n_seen"], options = len(self._seen), self.options
        lent["factor"], lent["offset"], lent["min_prob"] = options.factor, options.offset, options.min_prob

        def end(history: np.ndarray) -> None:
            self._texts.take_back()
            self._seen = history[: int(lent["n_seen"])]

        return CompiledDraft(address_of(compiled_drafts.draft_suffix), 0, state, end)

    def _found(self, ask: Ask, texts: SuffixArray, bucket: int) -> _Found:
        """The ways on in some texts, whose first bucket this is."""
        options, (places, n), draft = self.options, texts.find(self._texts.ending), np.empty((3, ask.limit), np.int32)
        if not n:
            return _Found(texts, places, 0, draft)
        limit = ask.limit if ask.pace is None else min(ask.limit, ask.pace.depth)
        bounds = limit, options.factor, options.offset, options.min_prob
        k, n_max = self._kernels.draft_way(texts.tokens, places, n, *bounds, bucket, draft)
        return _Found(texts, places, n, draft, k, n_max, bucket + len(_CHANCES))

    def _learn(self, history: np.ndarray) -> None:
        if len(history) > (n_seen := len(self._seen)):
            self._texts.extend(history[n_seen:])
            self._seen = history


def _longest(found: _Found) -> int:
    return int(found.places[0, 0]) if found.n else 0
