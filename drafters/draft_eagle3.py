"""`draft-eagle3`: a head of one layer writes ahead, from hidden states of the target.

The target tells of every token what some of its layers gave; the head makes one hidden state of that, adds the token after it,
and predicts the one after that. It is told of the prompt while that is processed, and writes a chain; where a planner asks, the
candidates that it considered for each place become branches.

Source: Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test"; for
branches by calibrated chances Li et al. 2024, "EAGLE-2".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import attrs
import numpy as np
from attrs import frozen

from augury.drafters.model.head_runner import Encoder, HeadRunner
from augury.drafters.model.load_options import LoadOptions
from augury.drafters.model.model_drafter import ModelDrafter
from augury.drafters.model.vocabulary_match import size_difference
from augury.errors import OptionError, UnsupportedError
from augury.hookspecs import hookimpl
from augury.interfaces import Drafter, Session
from augury.options import option

if TYPE_CHECKING:
    from augury.files.gguf import ModelFile

__all__ = ["DraftEagle3", "DraftEagle3Options"]

_N_ENCODED = 256  # tokens of which hidden states are made at once


@frozen
class DraftEagle3Options(LoadOptions):
    """Options of `draft-eagle3`; options that are not given are the target's."""

    p_min: float = option(
        0.0,
        help="a draft ends where the head's best token is less probable than this, among its ten best",
        ge=0.0,
        le=1.0,
        aliases=("draft-p-min", "spec-draft-p-min"),
        per_request=True,
    )


class DraftEagle3(ModelDrafter):
    """Lets an EAGLE-3 head write ahead."""

    name = "draft-eagle3"
    aliases = ("eagle3",)
    options_class = DraftEagle3Options
    runner: HeadRunner

    def __init__(self, options: DraftEagle3Options, session: Session) -> None:
        super().__init__(options, session)
        if options.model is None:
            raise OptionError("draft-eagle3 needs a head; pass -md HEAD or --spec-type draft-eagle3:model=HEAD")
        reference = options.model

        def make() -> HeadRunner:
            return _load(reference, options, session)

        self.runner = session.shared((self.name, reference, attrs.evolve(options, p_min=0.0)), make)
        self.features = tuple(dict.fromkeys(filter(None, self.runner.encoder.names)))

    @classmethod
    def drafts_with(cls, file: ModelFile) -> bool:
        """See `Drafter.drafts_with`."""
        return file.architecture == "eagle3"

    def n_held(self, history: np.ndarray) -> int:
        """How much of the prompt the head's slot holds."""
        return self.runner.n_held(self.session.slot, history)

    def feed(self, start: int, tokens: np.ndarray, features: Mapping[str, np.ndarray]) -> None:
        """Keep the target's features, and process a long prompt as it comes."""
        self.runner.feed(self.session.slot, start, tokens, features)

    def begin(self, history: np.ndarray, n_reused: int) -> Iterator[None]:  # noqa: ARG002 - the runner knows its slots
        """Process the rest of the prompt."""
        self.begin_sampling()
        return self.runner.begin(self.session.slot, history)

    def teacher_forced(self, history: np.ndarray, n: int) -> np.ndarray:
        """Its drafts for the last tokens, by teacher forcing."""
        return self.runner.teacher_forced(self.session.slot, history, n)


def _load(reference: str, options: DraftEagle3Options, session: Session) -> HeadRunner:
    """The head, for all slots.

    Raises:
        UnsupportedError: It is none, or one of another target.
    """
    load_options = options.of_target(session.options)
    context = session.load(reference, load_options, options.backend)
    names, target = context.info.hidden_of, session.model
    if context.info.architecture != "eagle3":
        raise UnsupportedError(
            f"{reference} is a model of architecture {context.info.architecture!r}, draft-eagle3 takes heads of 'eagle3'; "
            "use draft-model"
        )
    difference = size_difference(target.n_vocab, context.info.n_vocab)
    n_ctx = min(load_options.n_ctx, _N_ENCODED)
    encoder = Encoder(
        session.load(reference, attrs.evolve(load_options, n_slots=1, n_ctx=n_ctx), options.backend, "encoder"), names
    )
    for width in {session.target.features.get(name, 0) for name in names}:
        if width % encoder.width:
            difference = f"the target's hidden states have {width} values, the head reads {encoder.width}"
    if difference is not None:
        raise UnsupportedError(f"{reference}: {difference}; use a head that was trained for {target.name}")
    return HeadRunner(context, encoder, n_vocab=target.n_vocab)


@hookimpl
def augury_drafters() -> list[type[Drafter]]:
    """Offer `draft-eagle3`."""
    return [DraftEagle3]
