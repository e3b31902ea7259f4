"""How blocks are computed: operations, and the builder that a block writes them on (`Block.lower`)."""

from augury.lowering.builder import Builder
from augury.lowering.operations import (
    Activate,
    Add,
    AddWeighed,
    Constant,
    Convolve,
    Decay,
    DecayByKey,
    FeedExperts,
    Gate,
    Multiply,
    Normalize,
    Operation,
    ReadInput,
    Recur,
    Route,
    ScaleToLength,
    Value,
)

__all__ = [
    "Activate",
    "Add",
    "AddWeighed",
    "Builder",
    "Constant",
    "Convolve",
    "Decay",
    "DecayByKey",
    "FeedExperts",
    "Gate",
    "Multiply",
    "Normalize",
    "Operation",
    "ReadInput",
    "Recur",
    "Route",
    "ScaleToLength",
    "Value",
]
