"""The operations that kernels compute: a class each that writes its launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from augury.backends.numba_cuda.operations.attention import AttendEmitter, PrepareHeadsEmitter
from augury.backends.numba_cuda.operations.attention_rewrites import AttendGated, AttendLatents, MultiplyHeadsGated
from augury.backends.numba_cuda.operations.choice import ChooseEmitter, PoolEmitter
from augury.backends.numba_cuda.operations.expert_rewrites import ChooseExperts, MultiplyAndChoose, SharedExpert
from augury.backends.numba_cuda.operations.experts import (
    AddWeighedEmitter,
    ChooseExpertsEmitter,
    FeedExpertsEmitter,
    MultiplyAndChooseEmitter,
    SharedExpertEmitter,
)
from augury.backends.numba_cuda.operations.latent import AttendLatentsEmitter, MultiplyHeadsEmitter, PrepareLatentsEmitter
from augury.backends.numba_cuda.operations.ngrams import GateStreamsEmitter, LookUpNgramsEmitter
from augury.backends.numba_cuda.operations.recurrence import (
    ActivateAndDecayEmitter,
    ConvolveAndDecayEmitter,
    ConvolveEmitter,
    DecayByKeyEmitter,
    DecayEmitter,
    GateEmitter,
    RecurEmitter,
    ScaleAndDecayEmitter,
    ScaleToLengthEmitter,
)
from augury.backends.numba_cuda.operations.rewrites import (
    ActivateAndDecay,
    ConvolveAndDecay,
    NormalizeParts,
    ScaleAndDecay,
)
from augury.backends.numba_cuda.operations.rows import (
    ActivateEmitter,
    AddEmitter,
    ConstantEmitter,
    MultiplyActivatedEmitter,
    MultiplyEmitter,
    NormalizeEmitter,
    NormalizePartsEmitter,
    ReadInputEmitter,
)
from augury.lowering import (
    Activate,
    Add,
    AddWeighed,
    Attend,
    Choose,
    ChooseBlocks,
    Constant,
    Convolve,
    Decay,
    DecayByKey,
    FeedExperts,
    Gate,
    GateStreams,
    LookUpNgrams,
    Multiply,
    MultiplyHeads,
    Normalize,
    Operation,
    Pool,
    PrepareHeads,
    PrepareLatents,
    ReadInput,
    Recur,
    ScaleToLength,
)
from augury.lowering.rewrites import FeedExpertsAndAdd, MultiplyActivated

if TYPE_CHECKING:
    from collections.abc import Callable

    from augury.backends.numba_cuda.operations.emitter import OperationEmitter, Scope

__all__ = ["OPERATIONS"]

OPERATIONS: dict[type[Operation], Callable[[Any, Scope], OperationEmitter]] = {
    Normalize: NormalizeEmitter,
    NormalizeParts: NormalizePartsEmitter,
    Multiply: MultiplyEmitter,
    MultiplyActivated: MultiplyActivatedEmitter,
    MultiplyAndChoose: MultiplyAndChooseEmitter,
    Add: AddEmitter,
    AddWeighed: AddWeighedEmitter,
    Activate: ActivateEmitter,
    ChooseExperts: ChooseExpertsEmitter,
    SharedExpert: SharedExpertEmitter,
    FeedExperts: FeedExpertsEmitter,
    FeedExpertsAndAdd: FeedExpertsEmitter,
    ReadInput: ReadInputEmitter,
    Constant: ConstantEmitter,
    Gate: GateEmitter,
    Convolve: ConvolveEmitter,
    ConvolveAndDecay: ConvolveAndDecayEmitter,
    ScaleToLength: ScaleToLengthEmitter,
    ScaleAndDecay: ScaleAndDecayEmitter,
    Decay: DecayEmitter,
    DecayByKey: DecayByKeyEmitter,
    ActivateAndDecay: ActivateAndDecayEmitter,
    Recur: RecurEmitter,
    PrepareHeads: PrepareHeadsEmitter,
    Attend: AttendEmitter,
    AttendGated: AttendEmitter,
    PrepareLatents: PrepareLatentsEmitter,
    AttendLatents: AttendLatentsEmitter,
    MultiplyHeads: MultiplyHeadsEmitter,
    MultiplyHeadsGated: MultiplyHeadsEmitter,
    Choose: ChooseEmitter,
    ChooseBlocks: ChooseEmitter,
    Pool: PoolEmitter,
    LookUpNgrams: LookUpNgramsEmitter,
    GateStreams: GateStreamsEmitter,
}
"""The emitter of each operation that this backend computes."""
