"""Weights of 8 and 4 bits with scales beside them, as safetensors have them.

Source: DeepSeek-V3 and -V4 (`fp8` with blocks, MXFP4 experts), compressed-tensors and ModelOpt (`fp8` with a scale for each row
or matrix); OCP 8-bit Floating Point Specification; OCP Microscaling Formats.
"""

from __future__ import annotations

import numpy as np

SCALES = ("weight_scale_inv", "weight_scale", "scale")
"""What stands in place of `weight` in the names of scales; weights are multiplied by each of them, whatever its name."""
_BLOCK = 32  # weights of MXFP4 with one scale


def _e4m3() -> np.ndarray:
    """(256,) float32, the values of E4M3, which has no infinity."""
    bits = np.arange(256)
    exponent, fraction = (bits >> 3) & 15, (bits & 7) / 8
    values = np.where(exponent == 0, fraction * 2.0**-6, (1 + fraction) * 2.0 ** (exponent - 7.0))
    values[[0x7F, 0xFF]] = np.nan
    return np.where(bits & 0x80, -values, values).astype(np.float32)


def e8m0(stored: np.ndarray) -> np.ndarray:
    """Powers of two, float32, whose exponents are stored (uint8)."""
    return np.asarray(np.exp2(stored.astype(np.float32) - 127))


def fp8(stored: np.ndarray, scales: np.ndarray, block: tuple[int, int] | None) -> np.ndarray | None:
    """Weights (n_out, n_in) of E4M3 (uint8), times their scales, float32; None where the scales are of another shape.

    Args:
        stored: (n_out, n_in) or (n,) uint8.
        scales: Of the matrix, of each row, or of each block.
        block: The rows and columns of a block; None: there are none.
    """
    values = _e4m3()[stored]
    if scales.size == 1:
        return np.asarray(values * scales.reshape(()))
    n_out, n_in = stored.shape
    if block is not None and scales.shape == (-(-n_out // block[0]), -(-n_in // block[1])):
        rows = np.repeat(scales, block[0], axis=0)[:n_out]
        return np.asarray(values * np.repeat(rows, block[1], axis=1)[:, :n_in])
    return np.asarray(values * scales.reshape(-1, 1)) if scales.size == n_out and scales.shape[0] == n_out else None


def mxfp4(stored: np.ndarray, scales: np.ndarray) -> np.ndarray | None:
    """Weights of MXFP4 in GGUF's order, (n_out, n_in / 32 * 17) uint8; None where the scales are of another shape.

    Args:
        stored: (n_out, n_in / 2) uint8, weights 2 i and 2 i + 1 in the low and the high half of byte i.
        scales: (n_out, n_in / 32) uint8, exponents.
    """
    n_out, n_blocks = stored.shape[0], 2 * stored.shape[1] // _BLOCK
    if scales.shape != (n_out, n_blocks) or n_blocks * _BLOCK != 2 * stored.shape[1]:
        return None
    codes = np.stack([stored & 15, stored >> 4], axis=-1).reshape(n_out, n_blocks, 2, _BLOCK // 2)
    blocks = np.concatenate([scales[..., None], codes[:, :, 0] | codes[:, :, 1] << 4], axis=-1)
    return np.asarray(blocks.reshape(n_out, -1))
