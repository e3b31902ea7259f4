"""How blocks are computed: operations, and the builder that a block writes them on (`Block.lower`)."""

from augury.lowering.builder import Builder
from augury.lowering.operations import (
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
    Value,
)

__all__ = [
    "Activate",
    "Add",
    "Builder",
    "Constant",
    "Convolve",
    "Decay",
    "DecayByKey",
    "Gate",
    "Multiply",
    "Normalize",
    "Operation",
    "Recur",
    "ScaleToLength",
    "Value",
]
