"""The types of tensors that augury can read, and how many bytes each takes."""

from __future__ import annotations

import enum
from typing import Self

import numpy as np


class TensorType(enum.IntEnum):
    """How a tensor's weights are stored; the number is ggml's type id, as files hold it.

    Weights come in blocks along the last axis, 1 of the float types: `block_size` weights take `block_bytes` bytes. I32 and I64
    are no weight types: they hold numbers of experts, tokens and the like.

    >>> TensorType.Q4_K.block_size, TensorType.Q4_K.block_bytes
    (256, 144)

    Source: enum ggml_type and the block structs of ggml-common.h.
    """

    F32 = 0, 1, 4
    F16 = 1, 1, 2
    Q4_0 = 2, 32, 2 + 16
    Q4_1 = 3, 32, 2 + 2 + 16
    Q5_0 = 6, 32, 2 + 4 + 16
    Q5_1 = 7, 32, 2 + 2 + 4 + 16
    Q8_0 = 8, 32, 2 + 32
    Q2_K = 10, 256, 16 + 64 + 2 + 2
    Q3_K = 11, 256, 32 + 64 + 12 + 2
    Q4_K = 12, 256, 2 + 2 + 12 + 128
    Q5_K = 13, 256, 2 + 2 + 12 + 32 + 128
    Q6_K = 14, 256, 128 + 64 + 16 + 2
    IQ2_XXS = 16, 256, 2 + 64
    IQ2_XS = 17, 256, 2 + 64 + 8
    IQ3_XXS = 18, 256, 2 + 64 + 32
    IQ1_S = 19, 256, 2 + 32 + 16
    IQ4_NL = 20, 32, 2 + 16
    IQ3_S = 21, 256, 2 + 64 + 8 + 32 + 4
    IQ2_S = 22, 256, 2 + 64 + 8 + 8
    IQ4_XS = 23, 256, 2 + 2 + 4 + 128
    I32 = 26, 1, 4
    I64 = 27, 1, 8
    IQ1_M = 29, 256, 32 + 16 + 8
    BF16 = 30, 1, 2
    TQ1_0 = 34, 256, 48 + 4 + 2
    TQ2_0 = 35, 256, 64 + 2
    MXFP4 = 39, 32, 1 + 16
    NVFP4 = 40, 64, 4 + 32

    block_size: int
    block_bytes: int

    def __new__(cls, number: int, block_size: int = 1, block_bytes: int = 1) -> Self:
        kind = int.__new__(cls, number)
        kind._value_, kind.block_size, kind.block_bytes = number, block_size, block_bytes
        return kind

    @property
    def integers(self) -> type[np.int32 | np.int64] | None:
        """The type of whole numbers; None of weights."""
        return np.int32 if self is TensorType.I32 else np.int64 if self is TensorType.I64 else None


def type_name(type_id: int) -> str:
    """Return ggml's name of a type id, whether augury reads it or not.

    >>> type_name(41), type_name(999)
    ('Q1_0', 'type 999')
    """
    from gguf import GGMLQuantizationType

    return next((kind.name for kind in GGMLQuantizationType if kind == type_id), f"type {type_id}")
