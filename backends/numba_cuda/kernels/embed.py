"""The embedding: rows of a matrix, as floats."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, kernel
from augury.backends.numba_cuda.kernels.formats import FORMATS, unit_at
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS
from augury.backends.numba_cuda.kernels.matmul import LOOK_UP


def _embed(name):
    look_up = LOOK_UP[name]

    @kernel("jwfiiiir", name=f"embed_{name}")
    def embed(inputs, w, x, size, n_steps, n, ids, scale):
        """X[t] = scale * W[id t], whose ids are the inputs from `ids` on; a thread for each unit of a row."""
        t = cuda.blockIdx.y
        unit = cuda.blockIdx.x * WARP + cuda.threadIdx.x
        if t >= inputs[N_TOKENS] or 32 * unit >= size:
            return
        u = unit_at(inputs[ids + t], unit, n_steps)
        look_up(w, n, u, x, t * size + 32 * unit, size - 32 * unit, np.float32(scale))

    return embed


EMBED = {name: _embed(name) for name in FORMATS}
"""Kernels by the weights' type."""
