"""What it takes to find the best tokens of rows of 151,936 logits, as Qwen2.5-Coder-1.5B has them, right after their product.

The product reads the whole output matrix, so that most logits have left the caches. `reading` is what it takes to read them
all, for one thread as for the one that looks for the best tokens. Noting the largest of each block is a part of the product;
what that costs is the ratio of both kinds of products, in turns.
"""

from time import perf_counter

import numpy as np
import pytest
from oracles.weights import random_weights

from augury.backends.numba_cpu.kernels import logits, matmul, step, team
from augury.backends.numba_cpu.kernels.isa import choose_isa
from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.kernels.struct import table
from augury.backends.numba_cpu.operations.rows import logits_row
from augury.backends.numba_cpu.packing import aligned, pack
from augury.backends.numba_cpu.passes import KernelPass
from augury.backends.numba_cpu.team import PassMemory, Team
from augury.files.tensor_type import TensorType

pytestmark = pytest.mark.bench

N_VOCAB, COLS, THREADS, ROUNDS = 151_936, 1536, 2, 15


@pytest.fixture(scope="module")
def output():
    """An output matrix, none of whose rows are alike: equal logits in all blocks would have all of them read."""
    return pack(TensorType.Q6_K, (N_VOCAB, COLS), random_weights(np.random.default_rng(1), TensorType.Q6_K, N_VOCAB, COLS))


@pytest.mark.parametrize("n", [1, 8, 16])
def test_the_best_tokens_are_found_after_a_product(benchmark, output, n):
    kernels, rng = matmul.matmul_kernels([output.kind])[output.kind], np.random.default_rng(n)
    x = rng.standard_normal((n, COLS), dtype=np.float32)
    operand, scratch = aligned(matmul.activation_bytes(kernels.activation, n, COLS)), aligned(THREADS * matmul.SCRATCH_BYTES)
    kernels.quantize(x.ctypes.data, operand.ctypes.data, n, COLS, 0, matmul.n_blocks(COLS) * n)
    width, stride = logits_row(N_VOCAB)
    rows = np.zeros((n, stride), np.float32)
    entry = step.Entry(
        kernel=address(kernels.matmul),
        weights=output.address,
        x=team.StridedRows(address=operand.ctypes.data, width=0, thread_stride=0),
        y=rows.ctypes.data,
        n_cols=COLS,
        n_panels=output.n_panels,
        ldy=stride,
        bias=0,
        n_rows=N_VOCAB,
        scale=1.0,
        first=0,
    )
    entries = table([entry])
    of_both = {"entries": entries.ctypes.data, "n_panels": output.n_panels}
    tapes = {
        "plain": team.record_of(step.multiply, **of_both),
        "noting": team.record_of(logits.multiply_logits, **of_both, width=width, cap_logits=0, cap=0.0),
    }
    threads, memory, every = Team(THREADS), PassMemory(), np.arange(n, dtype=np.int32)
    for field, value in {
        "n_tokens": n,
        "n_rows": n,
        "scratch": scratch.ctypes.data,
        "scratch_bytes": matmul.SCRATCH_BYTES,
    }.items():
        memory.fields[field] = value
    passed = KernelPass(rows[:, :N_VOCAB], width)
    asked = {
        "reading": lambda: rows.max(axis=1),
        "argmax": passed.argmax,
        "top 8": lambda: passed.top_k(every, 8),
    }
    seconds = {name: [] for name in (*tapes, *asked)}

    def timed(name, call):
        start = perf_counter()
        call()
        seconds[name].append(perf_counter() - start)

    def all_in_turns():
        for name, ask in asked.items():
            for kind in ("plain", "noting"):
                timed(kind, lambda kind=kind: threads.run(tapes[kind], memory))
            timed(name, ask)

    benchmark.pedantic(all_in_turns, rounds=ROUNDS, warmup_rounds=2)
    threads.close()
    assert np.array_equal(passed.argmax(), rows[:, :N_VOCAB].argmax(axis=1))
    least = {name: min(each) for name, each in seconds.items()}
    benchmark.extra_info["isa"] = choose_isa()
    benchmark.extra_info["us"] = {name: round(1e6 * least[name]) for name in asked}
    benchmark.extra_info["product ms"] = {name: round(1e3 * least[name], 2) for name in tapes}
