"""The operations that kernels compute: a class each that writes its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    ConstantEmitter,
    MultiplyEmitter,
    NormalizeEmitter,
)
from augury.lowering import (
    Activate,
    Add,
    Constant,
    Convolve,
    Decay,
    DecayByKey,
    Gate,
    Multiply,
    Normalize,
    Operation,
    Recur,
    ScaleToLength,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from augury.backends.numba_cpu.operations.emitter import OperationEmitter

__all__ = ["OPERATIONS"]

OPERATIONS: dict[type[Operation], Callable[[Any], OperationEmitter]] = {
    Normalize: NormalizeEmitter,
    Multiply: MultiplyEmitter,
    Add: AddEmitter,
    Activate: ActivateEmitter,
    Constant: ConstantEmitter,
    Gate: GateEmitter,
    Convolve: ConvolveEmitter,
    ScaleToLength: ScaleToLengthEmitter,
    Decay: DecayEmitter,
    DecayByKey: DecayByKeyEmitter,
    Recur: RecurEmitter,
}
"""The emitter of each operation that this backend computes."""
