"""`self-spec`: the model drafts for itself; no second model, no tables.

`mode=history` looks the last draft_min tokens up in the text before them and proposes up to draft_max tokens that followed.
This is how llama.cpp's self-speculation began (`--spec-self 1 --draft-min 12 --draft-max 48`, pull request 18471); it became
`ngram-simple` there, with n for draft-min and m for draft-max, and is the same here.

`mode=layers` writes ahead, greedily, with the model's own first layers, followed by the output at once. Their KV cache
is the model's own: a draft begins with the token just sampled, everything before it is there already, and verification
computes the same states again. A draft ends early where it grows unsure. Models that were trained to be left early draft well
this way; others hardly.

Sources: Zhang et al. 2023, "Draft & Verify" (arXiv 2309.08168), which leaves out layers between; Elhoushi et al. 2024,
"LayerSkip" (arXiv 2404.16710), which keeps the first ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import evolve, frozen

from augury.drafters.model.draft_runner import DraftVocabulary
from augury.drafters.model.model_drafter import p_min_option, vocab_option
from augury.drafters.model.written_draft import DraftRequest, WrittenDraft, add_best
from augury.drafters.ngram_simple import NgramSimple, NgramSimpleOptions
from augury.errors import OptionError
from augury.interfaces import Ask, Drafter, DrafterTraits, Session
from augury.options import option
from augury.types import Draft


@frozen
class SelfSpecOptions:
    """Options of `self-spec`."""

    mode: str = option(
        "history", help="history: what followed in the text before; layers: the first layers", choices=("history", "layers")
    )
    draft_min: int = option(
        12, help="history: how many of the last tokens are looked up", ge=1, le=1024, aliases=("draft-min",)
    )
    draft_max: int = option(
        48, help="history: length of a draft at most; below draft_min nothing is drafted", ge=1, le=1024, aliases=("draft-max",)
    )
    layers: int = option(0, help="layers: how many of the first ones to keep; 0: a third", ge=0)
    vocab: int | None = vocab_option("layers: ")
    p_min: float = p_min_option("layers: a draft ends where their best token is less probable than this", 0.5)


class SelfSpec(Drafter):
    """Drafts from the request's own text, or with the target's own first layers. Nothing is learnt beyond the request."""

    name = "self-spec"
    aliases = ("spec-self",)
    traits = DrafterTraits(scope="request")
    options_class = SelfSpecOptions
    options: SelfSpecOptions

    def __init__(self, options: SelfSpecOptions, session: Session) -> None:
        super().__init__(options, session)
        self._lookup: NgramSimple | None = None
        if options.mode == "history":
            if options.layers:
                raise OptionError(
                    f"self-spec: layers is {options.layers}, but mode is history, which has none; add mode=layers"
                )
            self._lookup = NgramSimple(NgramSimpleOptions(n=options.draft_min, m=options.draft_max), session)
        else:
            n_all = session.target.n_layers
            if options.layers > n_all:
                raise OptionError(f"self-spec: layers is {options.layers}, but {session.model.name} has {n_all}")
            self._n_layers = options.layers or -(-n_all // 3)
            n_vocab = session.model.n_vocab
            self._vocabulary = session.shared((self.name, options.vocab), lambda: DraftVocabulary(n_vocab, options.vocab))
            self.traits = evolve(self.traits, is_costly=True)

    def begin(self, history: np.ndarray, n_reused: int) -> None:
        """Index the prompt if drafts come from the text; otherwise note its tokens."""
        if self._lookup is not None:
            self._lookup.begin(history, n_reused)
        else:
            self._vocabulary.begin(self.session.slot, history)

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        if self._lookup is not None:
            return self._lookup.draft(history, limit)
        return self.draft_together([Ask(self, history, limit)])[0]

    @classmethod
    def draft_together(cls, asks: Sequence[Ask]) -> list[Draft]:
        """Propose for several slots, whose layers are computed in one pass; all slots have the same mode."""
        first = asks[0].drafter
        assert isinstance(first, SelfSpec)
        return super().draft_together(asks) if first._lookup is not None else first._write_ahead(asks)  # noqa: SLF001

    def _write_ahead(self, asks: Sequence[Ask]) -> list[Draft]:
        """Draft greedily with the first layers, a token of each slot with every pass."""
        target, n_vocab, vocabulary = self.session.target, self.session.model.n_vocab, self._vocabulary
        requests = [DraftRequest(ask.drafter.session.slot, ask.history, ask.limit, ask.drafter.options.p_min) for ask in asks]
        written = [WrittenDraft() for _ in asks]
        for request in requests:
            vocabulary.follow(request.slot, request.history)
        writing = [i for i, request in enumerate(requests) if request.limit > 0]
        while writing:
            texts = {requests[i].slot: np.array([requests[i].history[-1], *written[i].tokens], np.int32) for i in writing}
            logits = target.forward(texts, self._n_layers, vocabulary.tokens)
            writing = add_best(written, requests, writing, logits, n_vocab=n_vocab)
        return [Draft(each.tokens) for each in written]
