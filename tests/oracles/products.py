"""Products of random weights and activations, by the kernels of `numba-cpu`."""

from itertools import pairwise

import numpy as np
import pytest
from oracles import weights

from augury.backends.numba_cpu.kernels import matmul as kernels
from augury.backends.numba_cpu.packing import PackedMatrix, aligned, pack
from augury.files.tensor_type import TensorType

ROWS, COLS = 70, 768  # three panels, the last one partly filled; three units of the K types
every_kind = pytest.mark.parametrize("kind", weights.KINDS, ids=lambda kind: kind.name)


def quantised(matrix: PackedMatrix, x: np.ndarray, ranges: int = 1) -> np.ndarray:
    """Activations as the matrix kernels want them, made in so many parts."""
    n, k = x.shape
    kernel = kernels.matmul_kernels([matrix.kind])[matrix.kind]
    out = aligned(kernels.activation_bytes(kernel.activation, n, k))
    n_items = kernels.n_blocks(k) * n
    edges = np.linspace(0, n_items, ranges + 1).astype(int)
    for start, end in pairwise(edges):
        kernel.quantize(x.ctypes.data, out.ctypes.data, n, k, start, end)
    return out


def multiply(matrix: PackedMatrix, x: np.ndarray, panels: tuple[int, ...] = (), ldy: int = 0) -> np.ndarray:
    """Multiply panel range by panel range, cut at `panels`, into rows of at least `ldy`; (n, n_rows) float32."""
    operand, scratch = quantised(matrix, x), aligned(kernels.SCRATCH_BYTES)
    n_written = 32 * matrix.n_panels
    ldy = max(ldy, n_written)
    guarded = aligned(4 * (len(x) + 1) * ldy).view(np.float32).reshape(-1, ldy)
    guarded[:] = np.nan
    y = guarded[:-1]
    run = kernels.matmul_kernels([matrix.kind])[matrix.kind].matmul
    edges = (0, *panels, matrix.n_panels)
    for p0, p1 in pairwise(edges):
        scratch[:] = 0xFF  # NaNs: nothing may be taken from an earlier call
        run(matrix.address, operand.ctypes.data, y.ctypes.data, len(x), matrix.n_cols, p0, p1, ldy, scratch.ctypes.data)
    assert not np.any(y[:, matrix.n_rows : n_written])
    assert np.all(np.isnan(y[:, n_written:]))
    assert np.all(np.isnan(guarded[-1]))  # no more tokens than there are
    return y[:, : matrix.n_rows]


def activations(seed: int, n: int, k: int = COLS) -> np.ndarray:
    """Random activations, (n, k) float32."""
    return np.random.default_rng(seed).standard_normal((n, k), dtype=np.float32)


def random_matrix(kind: TensorType, seed: int, n_cols: int = COLS) -> tuple[PackedMatrix, np.ndarray]:
    """A packed matrix of random weights, and what they stand for, (ROWS, n_cols) float64."""
    source = weights.random_weights(np.random.default_rng(seed), kind, ROWS, n_cols)
    return pack(kind, (ROWS, n_cols), source), weights.dequantised(kind, source, ROWS).astype(np.float64)
