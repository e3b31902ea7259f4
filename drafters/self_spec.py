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
from attrs import frozen

from augury.drafters.ngram_simple import NgramSimple, NgramSimpleOptions
from augury.errors import OptionError
from augury.hookspecs import hookimpl
from augury.interfaces import Ask, Drafter, Session
from augury.options import option
from augury.types import Draft

__all__ = ["SelfSpec", "SelfSpecOptions"]


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
        48,
        help="history: length of a draft at most; below draft_min nothing is drafted",
        ge=1,
        le=1024,
        aliases=("draft-max",),
    )
    layers: int = option(0, help="layers: how many of the first ones to keep; 0: a third", ge=0)
    vocab: int | None = option(
        None,
        help="layers: drafts are chosen among so many tokens, the first ones, and those that the text holds; 0: all; unless "
        "given a quarter, 16384 at least",
        ge=0,
        aliases=("draft-vocab",),
    )
    p_min: float = option(
        0.5,
        help="layers: a draft ends where their best token is less probable than this",
        ge=0.0,
        le=1.0,
        aliases=("draft-p-min", "spec-draft-p-min"),
        per_request=True,
    )


class SelfSpec(Drafter):
    """Drafts from the request's own text, or with the target's own first layers. Nothing is learnt beyond the request."""

    name = "self-spec"
    aliases = ("spec-self",)
    scope = "request"
    options_class = SelfSpecOptions

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
            from augury.drafters.model.draft_vocabulary import DraftVocabulary

            self._n_layers = _n_layers(options, session)
            n_vocab = session.model.n_vocab
            self._vocabulary: DraftVocabulary = session.shared(
                (self.name, options.vocab), lambda: DraftVocabulary(n_vocab, options.vocab)
            )
            self.is_costly = True

    def begin(self, history: np.ndarray, n_reused: int) -> None:
        """Index the prompt, where the text is what drafts come from; or see which tokens it holds."""
        if self._lookup is not None:
            self._lookup.begin(history, n_reused)
        else:
            self._vocabulary.begin(self.session.slot, history)

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        """Propose for one slot."""
        if self._lookup is not None:
            return self._lookup.draft(history, limit)
        return self.draft_together([Ask(self, history, limit)])[0]

    @classmethod
    def draft_together(cls, asks: Sequence[Ask]) -> list[Draft]:
        """Propose for several slots, whose layers are computed in one pass; all slots have the same mode."""
        from augury.drafters.model.self_layers import write_ahead

        first = asks[0].drafter
        assert isinstance(first, SelfSpec)
        if first._lookup is not None:  # noqa: SLF001 - of this class
            return super().draft_together(asks)
        vocabulary = first._vocabulary  # noqa: SLF001
        return [Draft(tokens) for tokens in write_ahead(first.session.target, first._n_layers, asks, vocabulary)]  # noqa: SLF001


def _n_layers(options: SelfSpecOptions, session: Session) -> int:
    there = session.target.n_layers
    if options.layers > there:
        raise OptionError(f"self-spec: layers is {options.layers}, but {session.model.name} has {there}")
    return options.layers or -(-there // 3)


@hookimpl
def augury_drafters() -> list[type[Drafter]]:
    """Offer `self-spec`."""
    return [SelfSpec]
