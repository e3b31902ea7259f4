"""The backend's class: loads a plan's weights and makes the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.reference.cache import LayerCache
from augury.backends.reference.model import ReferenceModel
from augury.backends.reference.operations import check_operations
from augury.backends.reference.weights import Weights
from augury.blocks import ModelPlan
from augury.errors import CapacityError
from augury.interfaces import Backend, Model, Progress
from augury.types import ModelInfo, ModelOptions, StateSpec

if TYPE_CHECKING:
    from augury.files.gguf import ModelFile


class Reference(Backend):
    """Plain numpy: the meaning of every operation in a form to read, and the oracle for other backends.

    Slow: some tokens per second with 135 million weights, which take four bytes each for any type of the file. BLAS chooses
    its own number of threads; `ModelOptions.threads` has no effect, and no thread count changes a result.
    """

    name = "reference"
    computes_mtp = True

    def state_spec(self, plan: ModelPlan, options: ModelOptions) -> StateSpec:
        plan.for_context(options.n_ctx)  # refuses one that is too long
        options.check_cache_types(plan)
        for block in plan.blocks():
            check_operations(block, plan.n_seen(block))
        n_bytes = sum(LayerCache.bytes_per_position(block, options) for layer in plan.every_layer for block in layer.blocks)
        n_floats = sum(state.size for block in plan.blocks() for state in block.states())
        if not n_floats:
            return StateSpec(options.n_slots, options.n_ctx, n_bytes)
        return StateSpec(options.n_slots, options.n_ctx, n_bytes, 8 * n_floats, draft_max=options.draft_max)

    def load(self, file: ModelFile, plan: ModelPlan, options: ModelOptions, progress: Progress) -> Model:
        spec, plan = self.state_spec(plan, options), plan.for_context(options.n_ctx)
        info = ModelInfo.of(file, plan)
        try:
            return ReferenceModel(info, spec, plan, Weights.load(file, plan, progress), options)
        except MemoryError as error:
            raise CapacityError(f"no memory for the weights of {file.path.name} as float32; use backend numba-cpu") from error
