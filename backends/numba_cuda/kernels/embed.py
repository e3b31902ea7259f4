"""The embedding: rows of a matrix as floats, and the ids of tokens."""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, kernel, lane
from augury.backends.numba_cuda.kernels.formats import FORMATS, floats_of, unit_at, weights_of, words_of
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS, TOKENS


def _look_up(fmt):
    if fmt.is_float:
        eight = floats_of(fmt.name)

        @lane
        def unit_of(w, n, u, out, start, size, scale):
            for i in range(4):
                values = eight(w, n, u, i)
                for j in range(8):
                    if 8 * i + j < size:
                        out[start + 8 * i + j] = gpu.mul(values[j], scale)
    else:
        read, weights, offset = words_of(fmt), weights_of(fmt), fmt.offset
        number_words, numbers = fmt.number_words, fmt.numbers

        @lane
        def unit_of(w, n, u, out, start, size, scale):
            words = weights(read(w, n, u))
            factor, first, second, least, third, fourth = numbers(number_words(w, n, u), u)
            for i in range(8):
                by, from_least = (first, third) if i < 4 else (second, fourth)
                for j in range(4):
                    byte = (np.int32(words[i] >> np.uint32(8 * j) & np.uint32(0xFF)) ^ 128) - 128
                    value = gpu.mul(gpu.mul(factor, np.float32(by)), np.float32(np.int32(byte - offset)))
                    value = gpu.add(value, gpu.mul(least, np.float32(from_least)))
                    out[start + 4 * i + j] = gpu.mul(value, scale)

    return unit_of


LOOK_UP = {name: _look_up(fmt) for name, fmt in FORMATS.items()}
"""Lane functions (array, units, unit, out, start, size, scale) that write up to 32 weights, by type."""


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


@kernel("jfi")
def read_tokens(inputs, out, stride):
    """Out[t] = id t, (n, stride); a thread for each token."""
    t = cuda.blockIdx.x * WARP + cuda.threadIdx.x
    if t < inputs[N_TOKENS]:
        out[t * stride] = np.float32(inputs[TOKENS + t])
