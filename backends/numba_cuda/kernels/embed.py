"""The embedding: rows of a matrix, as floats."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, kernel
from augury.backends.numba_cuda.kernels.formats import FORMATS, unit_at
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS
from augury.backends.numba_cuda.kernels.matmul import LOOK_UP


def _embed(name):
    look_up = LOOK_UP[name]

    @kernel("jwfjiiiir", name=f"embed_{name}")
    def embed(inputs, w, x, ids, size, n_steps, n, per_token, scale):
        """X[i] = scale * W[ids[i]], so many rows per token; a thread for each unit of a row."""
        row = cuda.blockIdx.y
        unit = cuda.blockIdx.x * WARP + cuda.threadIdx.x
        if row >= inputs[N_TOKENS] * per_token or 32 * unit >= size:
            return
        u = unit_at(ids[row], unit, n_steps)
        look_up(w, n, u, x, row * size + 32 * unit, size - 32 * unit, np.float32(scale))

    return embed


EMBED = {name: _embed(name) for name in FORMATS}
"""Kernels by the weights' type."""
