"""`draft-eagle3`, `draft-dflash` and `draft-dspark`: a head, a file of its own, reads hidden states of the target.

For each token a head gets the outputs of some of the target's layers.

An EAGLE-3 head makes one hidden state of them, adds the token after it, and predicts the one after that. It goes through the
prompt while that is processed, and writes a chain; where a planner asks, the candidates that it considered for each place
become branches. A P-EAGLE head writes all tokens with one pass.

The layers of a DFlash head keep keys and values of hidden states. A draft is one pass over the last token and masks in the
places of the next ones. With a head of DFlash2, `draft-dflash` chooses in each place the one of the best tokens that goes best
with the token drafted before. `draft-dspark` adds logits that depend on the token drafted before to those of each place, or on
all before with a head of Domino, and its head may give the probability of its choice.

Sources: Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test"; for
branches by calibrated chances Li et al. 2024, "EAGLE-2"; Hui et al. 2026, "P-EAGLE: Parallel-Drafting EAGLE with Scalable
Training" (arXiv 2602.01469); Chen et al. 2026, "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv 2602.06036);
llama.cpp's `draft-dflash` and `draft-dspark`, whose drafts these are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from attrs import evolve

from augury.drafters.model.block_runner import BlockRunner, ParallelRunner
from augury.drafters.model.model_drafter import HeadDrafter, drafter_for
from augury.drafters.model.part_runner import RowModel
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np

    from augury.drafters.model.model_drafter import HeadOptions
    from augury.drafters.model.part_runner import Encoder, PartRunner
    from augury.files.gguf import ModelFile
    from augury.interfaces import Ask, CompiledDraft, Session
    from augury.passes import Context


KERNELS = "augury.drafters.model.compiled_heads"


class DraftEagle3(HeadDrafter):
    """Lets an EAGLE-3 head write ahead."""

    name = "draft-eagle3"
    aliases = ("eagle3",)
    architecture = "eagle3"
    traits = evolve(HeadDrafter.traits, kernels=KERNELS)

    def __init__(self, options: HeadOptions, session: Session) -> None:
        super().__init__(options, session)
        self.traits = evolve(self.traits, drafts_at_once=isinstance(self.runner, ParallelRunner))
        import_module(KERNELS)

    def compiled_draft(self, ask: Ask, n_more: int, features: Mapping[str, np.ndarray]) -> CompiledDraft | None:
        """See `Drafter.compiled_draft`; a block of tokens has none."""
        if isinstance(self.runner, ParallelRunner):
            return None
        return self.runner.compiled_draft(self.request(ask), n_more, features)

    @classmethod
    def runner_of(cls, context: Context, encoder: Encoder, load: Callable[[str], Context], n_vocab: int) -> PartRunner:
        if context.info.parts["main"].block is None:
            return super().runner_of(context, encoder, load, n_vocab)
        return ParallelRunner(context, encoder, RowModel(load("mask")), n_vocab=n_vocab)


class DraftDflash(HeadDrafter):
    """Lets a DFlash head write ahead."""

    name = "draft-dflash"
    aliases = ("dflash",)
    architecture = "dflash"
    traits = evolve(HeadDrafter.traits, drafts_at_once=True)
    corrects: ClassVar[bool] = False
    """Whether its heads add logits by the previous token to all logits."""

    @classmethod
    def drafts_with(cls, file: ModelFile) -> bool:
        is_corrected = not {"markov_w1.weight", "prefix_gru.weight"}.isdisjoint(file.tensors)
        return super().drafts_with(file) and is_corrected is cls.corrects

    @classmethod
    def runner_of(cls, context: Context, encoder: Encoder, load: Callable[[str], Context], n_vocab: int) -> BlockRunner:
        block = context.info.parts["main"].block
        assert block is not None
        if (meant := drafter_for(context.info)) != cls.name:
            raise UnsupportedError(f"{context.info.name} is a head for {meant}; name that instead of {cls.name}")
        plans = ["transitions"] * block.has_transitions + ["confidence"] * block.has_confidence
        plans += ["previous", "gate"] * (block.markov != "vanilla") + ["projection"] * (block.markov == "domino")
        plans += ["predecessor", "successor", "selector"] if block.n_selected else []
        further = {plan: RowModel(load(plan)) for plan in plans}
        return BlockRunner(context, encoder, n_vocab=n_vocab, further=further)


class DraftDspark(DraftDflash):
    """Lets a DSpark head write ahead."""

    name = "draft-dspark"
    aliases = ("dspark",)
    corrects = True
