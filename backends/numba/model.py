"""What models of both compiled backends have in common: what they tell of themselves, and what comes before each pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from augury.backends.numba.lowering import PlanEmitters
from augury.batch import Batch, Tree, check_batch
from augury.errors import AuguryError, CapacityError
from augury.files.gguf import ModelFile
from augury.interfaces import Model
from augury.passes import NamedPass, Pass
from augury.types import ModelInfo


class CompiledModel(Model):
    """A plan whose passes are programs, which its emitters write."""

    def __init__(self, info: ModelInfo, lowering: PlanEmitters[Any, Any], tokens: np.ndarray | None) -> None:
        """Take over the emitters of a plan; `tokens` (m,) are those that its logits are of, None: all."""
        self._plan = plan = lowering.plan
        self.info, self.state_spec, self.options, self.features = info, lowering.state_spec, lowering.options, plan.features
        self._known = (plan.embedding.n_vocab, info, self.state_spec, self.features)
        self._tokens, self._has_blocks = tokens, bool(plan.injections)  # of drafts, whose tokens see later ones
        self._is_closed = False

    @staticmethod
    def tokens_of(file: ModelFile, lowering: PlanEmitters[Any, Any]) -> np.ndarray | None:
        """The tokens of a plan's logits, (m,); None if they are those of all."""
        named, n_vocab = lowering.plan.output.tokens, ModelInfo.of(file, lowering.plan).n_vocab
        return None if named is None else np.array(file.integers(named.weight, named.shape, n_vocab))

    def _tree(self, batch: Batch) -> Tree | None:
        """Check a batch; returns its tree, if it has one."""
        self._require_open()
        check_batch(batch, *self._known)
        if batch.layers is not None:
            self._plan.check_start(batch.layers[0])
        return None if batch.parents is None else Tree(batch, self.state_spec.n_ctx)

    def _check_chain(self, batch: Batch, n_passes: int) -> None:
        """Check that the tokens that a chain of passes chooses fit into their slots, too. Raises CapacityError: they do not."""
        if (last := int(batch.positions.max()) + n_passes - 1) >= (n_ctx := self.state_spec.n_ctx):
            raise CapacityError(f"a chain of passes up to position {last} does not fit into a slot of {n_ctx} positions")

    @staticmethod
    def _moved(batch: Batch) -> np.ndarray:
        """The moves of accepted tokens' cells, (m, 3) int64 of slot, from, to; states take in those that stay, too."""
        moves = np.ascontiguousarray(batch.accepted, np.int64)
        moved: np.ndarray = moves[moves[:, 1] != moves[:, 2]]
        return moved

    def _named(self, passed: Pass, tokens: np.ndarray | None) -> Pass:
        """A pass whose logits are those of some tokens (m,) alone; None: of all."""
        return passed if tokens is None else NamedPass(passed, tokens, self.info.n_vocab)

    def _require_open(self) -> None:
        if self._is_closed:
            raise AuguryError(f"model {self.info.name!r} is closed")
