"""How fast one core multiplies packed matrices that no cache holds: GB/s of weights and 10^9 multiply-adds per second."""

import numpy as np
import pytest
from oracles import weights

from augury.backends.numba_cpu.kernels import matmul as kernels
from augury.backends.numba_cpu.kernels.target import choose_target
from augury.backends.numba_cpu.weights import aligned, pack
from augury.tensor_type import TensorType

pytestmark = pytest.mark.bench

ROWS, COLS = 4096, 1536
N_BYTES = 100_000_000  # of weights, beyond the last level of cache


@pytest.mark.parametrize("n", [1, 8, 64])
@pytest.mark.parametrize("kind", TensorType, ids=lambda kind: kind.name)
def test_matmul(benchmark, kind, n):
    rng = np.random.default_rng(1)
    part = weights.random_weights(rng, kind, 32, COLS)
    matrix = pack(kind, (ROWS, COLS), np.tile(part, ROWS // 32))
    copies = -(-N_BYTES // matrix.data.size)
    memory = aligned(copies * matrix.data.size)
    memory.reshape(copies, -1)[:] = matrix.data
    kernel = kernels.matmul_kernels([matrix.kind])[matrix.kind]
    x = rng.standard_normal((n, COLS), dtype=np.float32)
    operand, scratch = aligned(kernels.activation_bytes(matrix.activation, n, COLS)), aligned(kernels.SCRATCH_BYTES)
    kernel.quantize(x.ctypes.data, operand.ctypes.data, n, COLS, 0, kernels.n_blocks(COLS) * n)
    y = np.empty((n, ROWS), np.float32)

    def run():
        for i in range(copies):
            w = memory.ctypes.data + i * matrix.data.size
            kernel.matmul(w, operand.ctypes.data, y.ctypes.data, n, COLS, 0, matrix.n_panels, ROWS, scratch.ctypes.data)

    benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    seconds = benchmark.stats.stats.median
    benchmark.extra_info["target"] = choose_target()
    benchmark.extra_info["GB/s"] = round(memory.size / seconds / 1e9, 1)
    benchmark.extra_info["GMAC/s"] = round(copies * ROWS * COLS * n / seconds / 1e9, 1)
