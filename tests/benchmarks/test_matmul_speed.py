"""How fast one core multiplies packed matrices that no cache holds: GB/s of weights and 10^9 multiply-adds per second.

Types of about the same bits should be about as fast. What one of them lacks in GB/s at one token it may lack in unpacking, at
16 and more tokens in scales and minima, of which types need more or fewer.
"""

import numpy as np
import pytest
from oracles import weights

from augury.backends.numba_cpu.kernels import matmul as kernels
from augury.backends.numba_cpu.kernels.isa import choose_isa
from augury.backends.numba_cpu.packing import aligned, pack
from augury.files.tensor_type import TensorType

pytestmark = pytest.mark.bench

ROWS, COLS = 4096, 1536
N_BYTES = 100_000_000  # of weights, beyond the last level of cache
PASSES = (1, 2, 4, 8, 16, 32)
WEIGHTS = [kind for kind in TensorType if kind.integers is None]


@pytest.fixture(scope="module", params=WEIGHTS, ids=lambda kind: kind.name)
def matrix(request):
    """A matrix of a type, and enough copies of it, one after the other."""
    part = weights.random_weights(np.random.default_rng(1), request.param, 32, COLS)
    packed = pack(request.param, (ROWS, COLS), np.tile(part, ROWS // 32))
    copies = -(-N_BYTES // packed.data.size)
    memory = aligned(copies * packed.data.size)
    memory.reshape(copies, -1)[:] = packed.data
    return packed, memory


@pytest.mark.parametrize("n", PASSES)
def test_a_matrix_is_multiplied_with_the_tokens_of_a_pass(benchmark, matrix, n):
    packed, memory = matrix
    kernel = kernels.matmul_kernels([packed.kind])[packed.kind]
    x = np.random.default_rng(n).standard_normal((n, COLS), dtype=np.float32)
    operand, scratch = aligned(kernels.activation_bytes(kernel.activation, n, COLS)), aligned(kernels.SCRATCH_BYTES)
    kernel.quantize(x.ctypes.data, operand.ctypes.data, n, COLS, 0, kernels.n_blocks(COLS) * n)
    y = np.empty((n, ROWS), np.float32)
    starts = range(memory.ctypes.data, memory.ctypes.data + memory.size, packed.data.size)

    def run():
        for w in starts:
            kernel.matmul(w, operand.ctypes.data, y.ctypes.data, n, COLS, 0, packed.n_panels, ROWS, scratch.ctypes.data)

    benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    seconds = benchmark.stats.stats.median
    benchmark.extra_info["isa"] = choose_isa()
    benchmark.extra_info["bits per weight"] = round(8 * packed.data.size / (ROWS * COLS), 2)
    benchmark.extra_info["GB/s"] = round(memory.size / seconds / 1e9, 1)
    benchmark.extra_info["GMAC/s"] = round(len(starts) * ROWS * COLS * n / seconds / 1e9, 1)
