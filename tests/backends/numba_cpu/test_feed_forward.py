"""Feed-forwards of more rows than are activated at once."""

import gguf
import numpy as np
import pytest
import support.stand_in_tiles  # noqa: F401 - one more instruction set
from oracles.passes import run_of

from augury.backends.numba_cpu import NumbaCpu, NumbaCpuOptions
from augury.backends.numba_cpu.kernels.amx import TILES
from augury.backends.numba_cpu.kernels.isa import available_isas, choose_isa
from augury.files.gguf import ModelFile
from augury.files.gguf_writer import LlamaSizes, gguf_file
from augury.interfaces import Progress
from augury.plugins.architectures.llama import Llama
from augury.types import ModelOptions

F32, Q4_0 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q4_0
CASES = [(F32, choose_isa()), *((Q4_0, isa) for isa in dict.fromkeys((choose_isa(), *available_isas())) if isa in TILES)]
N_TOKENS = 512  # a thread's share of the rows is done in two parts


@pytest.mark.parametrize(("kind", "isa"), CASES, ids=lambda value: str(getattr(value, "name", value)))
def test_rows_that_are_activated_part_by_part_have_the_same_bits(kind, isa, tmp_path, monkeypatch):
    monkeypatch.setenv("AUGURY_CPU_ISA", isa)
    rng, path = np.random.default_rng(5), tmp_path / "wide.gguf"
    n_ff = 1170 if kind is F32 else 1184
    sizes = {"n_vocab": 64, "n_embd": 32, "n_ff": n_ff, "n_heads": 1, "n_kv_heads": 1, "head_dim": 32, "n_rot": 32}
    wide = LlamaSizes(**sizes, n_layers=1, n_ctx=N_TOKENS)
    with gguf_file(path) as writer:
        wide.describe(writer)
        for name, shape in wide.shapes.items():
            values = (rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)
            is_matrix = len(shape) > 1
            stored = gguf.quants.quantize(values, kind) if is_matrix else 1 + values
            writer.add_tensor(name, stored, raw_dtype=kind if is_matrix else F32)
    with ModelFile.open(path) as file:
        options = ModelOptions(n_ctx=N_TOKENS, threads=1)
        model = NumbaCpu(NumbaCpuOptions(keep_weights=False)).load(file, Llama.plans(file)["main"], options, Progress())
    tokens = rng.integers(0, 64, N_TOKENS)

    at_once = model.forward(run_of(tokens)).rows().copy()
    parts = [model.forward(run_of(tokens[start : start + 90], start=start)).rows().copy() for start in range(0, N_TOKENS, 90)]
    one = model.forward(run_of(tokens[-1:], start=N_TOKENS - 1)).rows().copy()

    model.close()
    assert np.array_equal(np.concatenate(parts), at_once)
    assert np.array_equal(one, at_once[-1:])
