"""The types of tensors that augury can read, and how many bytes each takes."""

from __future__ import annotations

import enum

import numpy as np


class TensorType(enum.IntEnum):
    """How a tensor's weights are stored; the number is ggml's type id, as files hold it.

    Weights come in blocks along the last axis: `block_size` weights take `block_bytes` bytes. I32 and I64 are no weight types:
    they hold numbers of experts, tokens and the like.

    >>> TensorType.Q4_K.block_size, TensorType.Q4_K.block_bytes
    (256, 144)

    Source: enum ggml_type and the block structs of ggml-common.h.
    """

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I32 = 26
    I64 = 27
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40

    @property
    def integers(self) -> type[np.int32 | np.int64] | None:
        """The type of whole numbers; None of weights."""
        kinds: dict[TensorType, type[np.int32 | np.int64]] = {TensorType.I32: np.int32, TensorType.I64: np.int64}
        return kinds.get(self)

    @property
    def block_size(self) -> int:
        """Weights per block; 1 for the float types."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes per block."""
        return _BLOCKS[self][1]


_BLOCKS = {
    TensorType.F32: (1, 4),
    TensorType.F16: (1, 2),
    TensorType.BF16: (1, 2),
    TensorType.Q4_0: (32, 2 + 16),
    TensorType.Q4_1: (32, 2 + 2 + 16),
    TensorType.Q5_0: (32, 2 + 4 + 16),
    TensorType.Q5_1: (32, 2 + 2 + 4 + 16),
    TensorType.Q8_0: (32, 2 + 32),
    TensorType.Q2_K: (256, 16 + 64 + 2 + 2),
    TensorType.Q3_K: (256, 32 + 64 + 12 + 2),
    TensorType.Q4_K: (256, 2 + 2 + 12 + 128),
    TensorType.Q5_K: (256, 2 + 2 + 12 + 32 + 128),
    TensorType.Q6_K: (256, 128 + 64 + 16 + 2),
    TensorType.IQ1_S: (256, 2 + 32 + 16),
    TensorType.IQ1_M: (256, 32 + 16 + 8),
    TensorType.IQ2_XXS: (256, 2 + 64),
    TensorType.IQ2_XS: (256, 2 + 64 + 8),
    TensorType.IQ2_S: (256, 2 + 64 + 8 + 8),
    TensorType.IQ3_XXS: (256, 2 + 64 + 32),
    TensorType.IQ3_S: (256, 2 + 64 + 8 + 32 + 4),
    TensorType.IQ4_NL: (32, 2 + 16),
    TensorType.IQ4_XS: (256, 2 + 2 + 4 + 128),
    TensorType.I32: (1, 4),
    TensorType.I64: (1, 8),
    TensorType.TQ1_0: (256, 48 + 4 + 2),
    TensorType.TQ2_0: (256, 64 + 2),
    TensorType.MXFP4: (32, 1 + 16),
    TensorType.NVFP4: (64, 4 + 32),
}

# With the types that ggml defines and augury does not read: an error that names one is worth more than a number.
_NAMES = {kind.value: kind.name for kind in TensorType} | {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    24: "I8",
    25: "I16",
    28: "F64",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    41: "Q1_0",
}


def type_name(type_id: int) -> str:
    """Return ggml's name of a type id, whether augury reads it or not.

    >>> type_name(41), type_name(999)
    ('Q1_0', 'type 999')
    """
    return _NAMES.get(type_id, f"type {type_id}")
