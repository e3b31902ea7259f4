"""`draft-eagle3`: a head of one layer writes ahead, from hidden states of the target.

The target tells of every token what some of its layers gave; the head makes one hidden state of that, adds the token after it,
and predicts the one after that. It is told of the prompt while that is processed, and writes a chain; where a planner asks, the
candidates that it considered for each place become branches.

Source: Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test"; for
branches by calibrated chances Li et al. 2024, "EAGLE-2".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from augury.drafters.model.head_drafter import HeadDrafter
from augury.drafters.model.head_runner import HeadRunner
from augury.hookspecs import hookimpl
from augury.interfaces import Drafter

if TYPE_CHECKING:
    from augury.drafters.model.row_model import Encoder
    from augury.files.gguf import ModelFile
    from augury.passes import Context

__all__ = ["DraftEagle3"]


class DraftEagle3(HeadDrafter):
    """Lets an EAGLE-3 head write ahead."""

    name = "draft-eagle3"
    aliases = ("eagle3",)
    architecture = "eagle3"
    runner: HeadRunner

    @classmethod
    def drafts_with(cls, file: ModelFile) -> bool:
        """See `Drafter.drafts_with`."""
        return file.architecture == cls.architecture

    @classmethod
    def runner_of(
        cls,
        context: Context,
        encoder: Encoder,
        load: Callable[[str], Context],  # noqa: ARG003 - the encoder is all that such a head has besides
        n_vocab: int,
    ) -> HeadRunner:
        """See `HeadDrafter.runner_of`."""
        return HeadRunner(context, encoder, n_vocab=n_vocab)


@hookimpl
def augury_drafters() -> list[type[Drafter]]:
    """Offer `draft-eagle3`."""
    return [DraftEagle3]
