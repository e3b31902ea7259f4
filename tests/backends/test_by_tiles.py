"""Models of all architectures by tiles of bfloat16: near what vectors of float32 give, and the same bits in any pass."""

import numpy as np
import pytest
from oracles.models import ORACLES, nmse, tiny_file
from oracles.passes import joined, run_of
from support.stand_in_tiles import STAND_IN

from augury import Registry
from augury.backends.numba_cpu import NumbaCpu, NumbaCpuOptions
from augury.backends.numba_cpu.kernels.isa import choose_isa
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()
TOKENS = np.random.default_rng(7).integers(0, 100, 70)
PASSES = {1: [1, 1, 16, 2, 33, 17], 2: [70], 3: [5, 32, 31, 1, 1]}  # tokens of each, by threads


@pytest.mark.sample(3, rest=24)
@pytest.mark.parametrize("name", ORACLES)
def test_tokens_of_every_architecture_have_the_same_bits_in_any_pass(name, monkeypatch):
    file, exact = tiny_file(f"{name}-bf16"), {"cache_type_k": "f32", "cache_type_v": "f32"}
    plan, found = plan_of(file, REGISTRY), {}
    for isa, threads in ((choose_isa(), 2), *((STAND_IN, threads) for threads in PASSES)):
        monkeypatch.setenv("AUGURY_CPU_ISA", isa)
        options = ModelOptions(n_ctx=128, n_slots=2, threads=threads, **exact)
        model = NumbaCpu(NumbaCpuOptions(keep_weights=False)).load(file, plan, options, Progress())
        parts, start = [], 0
        for n in PASSES[threads]:
            parts.append(model.forward(run_of(TOKENS[start : start + n], start=start)).rows().copy())
            start += n
        found[isa, threads] = np.concatenate(parts)
        assert model.isa == isa
        if (isa, threads) == (STAND_IN, 2):  # once: threads change no bits, as the passes above show
            both = model.forward(joined(run_of(TOKENS[:9], slot=1), run_of(TOKENS[:20]))).rows().copy()
            last = model.forward(run_of(TOKENS, rows=[69])).rows().copy()
            assert np.array_equal(both, np.concatenate([found[isa, threads][:9], found[isa, threads][:20]]))
            assert np.array_equal(last, found[isa, threads][69:])
        model.close()
    by_vectors, *by_tiles = found.values()
    assert all(np.array_equal(logits, by_tiles[0]) for logits in by_tiles)
    assert 0 < nmse(by_tiles[0], by_vectors) < 1e-7
