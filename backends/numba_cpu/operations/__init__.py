"""The operations that kernels compute: a class each that writes its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from augury.backends.numba_cpu.operations.attention import AttendEmitter, PrepareHeadsEmitter
from augury.backends.numba_cpu.operations.choice import ChooseBlocksEmitter, ChooseEmitter, PoolEmitter
from augury.backends.numba_cpu.operations.experts import (
    AddWeighedEmitter,
    FeedExpertsAndAddEmitter,
    FeedExpertsEmitter,
    RouteEmitter,
)
from augury.backends.numba_cpu.operations.latent import MultiplyHeadsEmitter, PrepareLatentsEmitter
from augury.backends.numba_cpu.operations.ngrams import GateStreamsEmitter, LookUpNgramsEmitter
from augury.backends.numba_cpu.operations.recurrence import (
    ConvolveEmitter,
    DecayByKeyEmitter,
    DecayEmitter,
    GateEmitter,
    RecurEmitter,
    ScaleToLengthEmitter,
)
from augury.backends.numba_cpu.operations.rows import (
    ActivateEmitter,
    AddEmitter,
    BeginStreamsEmitter,
    ConstantEmitter,
    ConvolveBlockEmitter,
    JoinEmitter,
    MultiplyActivatedEmitter,
    MultiplyEmitter,
    NormalizeEmitter,
)
from augury.lowering import (
    Activate,
    Add,
    AddWeighed,
    Attend,
    BeginStreams,
    Choose,
    ChooseBlocks,
    Constant,
    Convolve,
    ConvolveBlock,
    Decay,
    DecayByKey,
    FeedExperts,
    Gate,
    GateStreams,
    Join,
    LookUpNgrams,
    Multiply,
    MultiplyHeads,
    Normalize,
    Operation,
    Pool,
    PrepareHeads,
    PrepareLatents,
    Recur,
    Route,
    ScaleToLength,
)
from augury.lowering.rewrites import FeedExpertsAndAdd, MultiplyActivated

if TYPE_CHECKING:
    from collections.abc import Callable

    from augury.backends.numba_cpu.operations.emitter import OperationEmitter, Scope

__all__ = ["OPERATIONS"]

OPERATIONS: dict[type[Operation], Callable[[Any, Scope], OperationEmitter]] = {
    Normalize: NormalizeEmitter,
    Multiply: MultiplyEmitter,
    MultiplyActivated: MultiplyActivatedEmitter,
    Add: AddEmitter,
    AddWeighed: AddWeighedEmitter,
    Activate: ActivateEmitter,
    Route: RouteEmitter,
    FeedExperts: FeedExpertsEmitter,
    FeedExpertsAndAdd: FeedExpertsAndAddEmitter,
    BeginStreams: BeginStreamsEmitter,
    Constant: ConstantEmitter,
    Join: JoinEmitter,
    Gate: GateEmitter,
    Convolve: ConvolveEmitter,
    ConvolveBlock: ConvolveBlockEmitter,
    ScaleToLength: ScaleToLengthEmitter,
    Decay: DecayEmitter,
    DecayByKey: DecayByKeyEmitter,
    Recur: RecurEmitter,
    PrepareHeads: PrepareHeadsEmitter,
    PrepareLatents: PrepareLatentsEmitter,
    MultiplyHeads: MultiplyHeadsEmitter,
    Attend: AttendEmitter,
    Choose: ChooseEmitter,
    Pool: PoolEmitter,
    ChooseBlocks: ChooseBlocksEmitter,
    LookUpNgrams: LookUpNgramsEmitter,
    GateStreams: GateStreamsEmitter,
}
"""The emitter of each operation that this backend computes."""
