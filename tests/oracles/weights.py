"""Weight matrices of every type and what they mean, from the gguf package and plain numpy in float64."""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType, quants

from augury.files.tensor_type import TensorType

# Where a block of a type holds numbers in half precision.
HALVES = {
    TensorType.Q8_0: (0,),
    TensorType.Q4_0: (0,),
    TensorType.Q4_1: (0, 2),
    TensorType.Q5_0: (0,),
    TensorType.Q5_1: (0, 2),
    TensorType.Q2_K: (80, 82),
    TensorType.Q3_K: (108,),
    TensorType.Q4_K: (0, 2),
    TensorType.Q5_K: (0, 2),
    TensorType.Q6_K: (208,),
    TensorType.TQ1_0: (52,),
    TensorType.TQ2_0: (64,),
    TensorType.IQ1_S: (0,),
    TensorType.IQ1_M: (54,),  # the highest four bits; the others lie in the words before
    TensorType.IQ2_XXS: (0,),
    TensorType.IQ2_XS: (0,),
    TensorType.IQ2_S: (0,),
    TensorType.IQ3_XXS: (0,),
    TensorType.IQ3_S: (0,),
    TensorType.IQ4_NL: (0,),
    TensorType.IQ4_XS: (0,),
    TensorType.MXFP4: (),
    TensorType.NVFP4: (),
}
# What of a block holds its scales, and the largest ones: 65504 unless said otherwise.
SCALES = {kind: [place + i for place in places for i in (0, 1)] for kind, places in HALVES.items()} | {
    TensorType.MXFP4: [0],
    TensorType.NVFP4: [0, 1, 2, 3],
}
LARGEST = {kind: [0xFF, 0x7B] * len(places) for kind, places in HALVES.items()} | {
    TensorType.IQ1_M: [0xFF, 0x6B],
    TensorType.MXFP4: [128 + 16],
    TensorType.NVFP4: [0x7E, 0x7F, 0x80, 0xFF],  # 224, none, none, 240
}
FLOATS = (TensorType.F32, TensorType.F16, TensorType.BF16)
QUANTISED = tuple(HALVES)
KINDS = FLOATS + QUANTISED


def random_weights(rng: np.random.Generator, kind: TensorType, n_rows: int, n_cols: int) -> np.ndarray:
    """Make the bytes of a matrix: what gguf quantises from normal numbers, or random blocks for types that it only reads."""
    if kind.name.startswith(("IQ", "NV")) or kind.name.endswith("K"):
        return random_blocks(rng, kind, n_rows, n_cols)
    numbers = rng.standard_normal((n_rows, n_cols), dtype=np.float32)
    return quants.quantize(numbers, GGMLQuantizationType[kind.name]).view(np.uint8).reshape(-1)


def random_blocks(rng: np.random.Generator, kind: TensorType, n_rows: int, n_cols: int) -> np.ndarray:
    """Make blocks of random bits, with scales of all magnitudes below two: negative, zero and denormal ones too."""
    blocks = rng.integers(0, 256, (n_rows * n_cols // kind.block_size, kind.block_bytes), dtype=np.uint8)
    for place in HALVES[kind]:
        blocks[:, place + 1] &= 0xBF
        blocks[::7, place : place + 2] = 0
        blocks[1::7, place + 1] &= 0x83  # denormal
    if kind is TensorType.MXFP4:
        blocks[:, 0] = rng.integers(64, 129, len(blocks))
        blocks[::7, 0] = rng.integers(0, 3)  # denormal, and the smallest that is not
    return blocks.reshape(-1)


def set_scales(kind: TensorType, blocks: np.ndarray, scale: float) -> None:
    """Give all of (n, block_bytes) blocks one scale; NVFP4, whose floats of 8 bits are many, gets some near 1/78 anyway."""
    if kind is TensorType.NVFP4:
        blocks[:, :4] = blocks[:, :4] & 3 | 12
    elif kind is TensorType.IQ1_M:
        words, (value,) = blocks[:, 48:].view(np.uint16), np.array([scale], np.float16).view(np.uint16)
        words[:] = words & 0xFFF | (value >> np.arange(0, 16, 4, np.uint16) & 15) << 12
    else:
        (place,) = HALVES[kind]
        blocks[:, place : place + 2] = np.array([scale], np.float16).view(np.uint8)


def dequantised(kind: TensorType, source: np.ndarray, n_rows: int) -> np.ndarray:
    """Return (n_rows, n_cols) float32, as ggml dequantises."""
    return quants.dequantize(source.reshape(n_rows, -1), GGMLQuantizationType[kind.name]).reshape(n_rows, -1)


def rounded(x: np.ndarray) -> np.ndarray:
    """Round activations (n, k) float32 to 1/127 of the largest magnitude of each 16; float64."""
    blocks = x.reshape(len(x), -1, 16)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    counts = largest >= np.float32(1e-35)
    inverse = np.float32(127) / np.where(counts, largest, np.float32(1))
    scale = np.where(counts, largest / np.float32(127), np.float32(0))
    return (np.rint(blocks * inverse * counts).astype(np.float64) * scale).reshape(x.shape)
