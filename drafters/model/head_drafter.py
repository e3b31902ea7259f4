"""The common part of drafters whose head, a file of its own, reads hidden states of the target."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import attrs

from augury.drafters.model.load_options import HeadOptions
from augury.drafters.model.model_drafter import FeatureDrafter, drafter_for
from augury.drafters.model.part_runner import Encoder, PartRunner
from augury.drafters.model.vocabulary_match import size_difference
from augury.errors import OptionError, UnsupportedError

if TYPE_CHECKING:
    from augury.files.gguf import ModelFile
    from augury.interfaces import Session
    from augury.passes import Context

_N_AT_ONCE = 256  # tokens of which hidden states are made at once


class HeadDrafter(FeatureDrafter):
    """Lets a head write ahead; unless `runner_of` says otherwise, a head of one layer."""

    architecture: ClassVar[str]
    """The architectures of heads' files."""
    options_class = HeadOptions
    options: HeadOptions
    runner: PartRunner

    def __init__(self, options: HeadOptions, session: Session) -> None:
        super().__init__(options, session)
        if (reference := options.model) is None:
            raise OptionError(f"{self.name} needs a head; pass -md HEAD or --spec-type {self.name}:model=HEAD")
        key = (self.name, reference, attrs.evolve(options, p_min=0.0))
        self.runner = session.shared(key, lambda: self._load(reference))
        names = tuple(dict.fromkeys(filter(None, self.runner.encoder.names)))
        self.traits = attrs.evolve(self.traits, features=names)

    @classmethod
    def drafts_with(cls, file: ModelFile) -> bool:
        return file.architecture == cls.architecture

    @classmethod
    def runner_of(
        cls,
        context: Context,
        encoder: Encoder,
        load: Callable[[str], Context],  # noqa: ARG003 - the encoder is all that a head of one layer has besides
        n_vocab: int,
    ) -> PartRunner:
        """The runner of a head.

        Args:
            context: The head.
            encoder: Makes its hidden states.
            load: Loads another plan of its file, which has no layers.
            n_vocab: A token from this on is never proposed.
        """
        return PartRunner(context, encoder, n_vocab=n_vocab)

    def _load(self, reference: str) -> PartRunner:
        """The head, for all slots.

        Raises:
            UnsupportedError: The file is no head, or one of another target.
        """
        options, session = self.options, self.session
        load_options = options.of_target(session.options, window=options.window)
        context = session.load(reference, load_options, options.backend)
        names, target = context.info.parts["main"].input, session.model
        if context.info.architecture != self.architecture:
            raise UnsupportedError(
                f"{reference} is a model of architecture {context.info.architecture!r}, {self.name} takes heads of "
                f"{self.architecture!r}; use {drafter_for(context.info)}"
            )
        of_rows = attrs.evolve(load_options, n_slots=1, n_ctx=min(load_options.n_ctx, _N_AT_ONCE))

        def load(plan: str) -> Context:
            return session.load(reference, of_rows, options.backend, plan)

        difference = size_difference(target.n_vocab, context.info.n_vocab)
        encoder = Encoder(load("encoder"), names)
        for width in {session.target.features.get(name, 0) for name in names}:
            if width % encoder.width:
                difference = f"the target's hidden states have {width} values, the head reads {encoder.width}"
        if difference is not None:
            raise UnsupportedError(f"{reference}: {difference}; use a head that was trained for {target.name}")
        return self.runner_of(context, encoder, load, target.n_vocab)
