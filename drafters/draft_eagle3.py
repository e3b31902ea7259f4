"""`draft-eagle3`: a head of one layer or several writes ahead, from hidden states of the target.

For each token the head gets the outputs of some of the target's layers. It makes one hidden state of them, adds the token after
it, and predicts the one after that. It goes through the prompt while that is processed, and writes a chain; where a planner
asks, the candidates that it considered for each place become branches. A P-EAGLE head writes all tokens with one pass.

Source: Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test"; for
branches by calibrated chances Li et al. 2024, "EAGLE-2"; Hui et al. 2026, "P-EAGLE: Parallel-Drafting EAGLE with Scalable
Training" (arXiv 2602.01469).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import evolve

from augury.drafters.model.block_runner import ParallelRunner
from augury.drafters.model.model_drafter import HeadDrafter
from augury.drafters.model.part_runner import RowModel

if TYPE_CHECKING:
    from augury.drafters.model.model_drafter import HeadOptions
    from augury.drafters.model.part_runner import Encoder, PartRunner
    from augury.interfaces import Session
    from augury.passes import Context


class DraftEagle3(HeadDrafter):
    """Lets an EAGLE-3 head write ahead."""

    name = "draft-eagle3"
    aliases = ("eagle3",)
    architecture = "eagle3"

    def __init__(self, options: HeadOptions, session: Session) -> None:
        super().__init__(options, session)
        self.traits = evolve(self.traits, drafts_at_once=isinstance(self.runner, ParallelRunner))

    @classmethod
    def runner_of(cls, context: Context, encoder: Encoder, load: Callable[[str], Context], n_vocab: int) -> PartRunner:
        """See `HeadDrafter.runner_of`."""
        if context.info.parts["main"].block is None:
            return super().runner_of(context, encoder, load, n_vocab)
        return ParallelRunner(context, encoder, RowModel(load("mask")), n_vocab=n_vocab)
