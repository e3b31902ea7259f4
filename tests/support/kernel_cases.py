"""What kernels compute, as arrays: to compare one kind of CPU with another.

Run as `kernel_cases.py OUT NAMES PATH...`, with weight types and models joined by commas and the paths to import from, it
stores what an emulated 64-bit ARM CPU computes.
"""

from __future__ import annotations

import sys

import numpy as np

MODELS = {"llama-dense-q4_0": ("f16", "f32"), "gemma2-dense": ("bf16", "f16"), "bloom-dense": ("q8_0", "q4_0")}  # cache types
PASSES = (3, 1, 2)
MADE_OF = {"q8_0": {"sdot"}, "iq4_xs": {"sdot", "tbl"}}  # instructions of types: of 8 bits, and looked up


def of_type(kind) -> dict[str, np.ndarray]:
    """Packed weights, products with 1, 3 and 26 tokens (each way of tiling), and a dequantised row, of a weight type."""
    from oracles import weights

    from augury.backends.numba_cpu.kernels import matmul
    from augury.backends.numba_cpu.packing import aligned, pack

    n_rows, n_cols = 40, 256
    source = weights.random_weights(np.random.default_rng(1), kind, n_rows, n_cols)
    matrix = pack(kind, (n_rows, n_cols), source)
    kernels = matmul.matmul_kernels([matrix.kind])[matrix.kind]
    scratch, row = aligned(matmul.SCRATCH_BYTES), np.zeros(n_cols, np.float32)
    kernels.embed(matrix.address, 33, n_cols, row.ctypes.data, scratch.ctypes.data)
    found = {"packed": matrix.data, "row": row}
    for n in (1, 3, 26):
        x = np.random.default_rng(n).standard_normal((n, n_cols), dtype=np.float32)
        operand, y = aligned(matmul.activation_bytes(kernels.activation, n, n_cols)), np.zeros((n, 64), np.float32)
        kernels.quantize(x.ctypes.data, operand.ctypes.data, n, n_cols, 0, matmul.n_blocks(n_cols) * n)
        kernels.matmul(matrix.address, operand.ctypes.data, y.ctypes.data, n, n_cols, 0, 2, 64, scratch.ctypes.data)
        found[f"products{n}"] = y
    return {f"{kind.name}.{name}": array for name, array in found.items()}


def of_model(name: str) -> dict[str, np.ndarray]:
    """Logits of a tiny model, in passes of some tokens, with cache types of its own."""
    from oracles.models import tiny_file
    from oracles.passes import run_of

    from augury.backends.numba_cpu import NumbaCpu, NumbaCpuOptions
    from augury.interfaces import Progress
    from augury.plugins.architectures.gemma import Gemma2
    from augury.plugins.architectures.gpt import Bloom
    from augury.plugins.architectures.llama import Llama
    from augury.types import ModelOptions

    file = tiny_file(name)
    plan = {"llama": Llama, "gemma2": Gemma2, "bloom": Bloom}[file.architecture].plans(file)["main"]
    options = ModelOptions(n_ctx=64, threads=1, cache_type_k=MODELS[name][0], cache_type_v=MODELS[name][1])
    model = NumbaCpu(NumbaCpuOptions()).load(file, plan, options, Progress())
    logits, start = [], 0
    for n in PASSES:
        logits.append(model.forward(run_of(range(start, start + n), start=start)).rows().copy())
        start += n
    model.close()
    return {f"{name}.logits": np.concatenate(logits)}


def main(out: str, names: list[str]) -> None:
    """Store cases of the emulated CPU, and what its kernels are made of."""
    from support import arm64

    arm64.pretend()
    import support.stand_in_tiles  # noqa: F401 - one more instruction set

    from augury.backends.numba_cpu.kernels import matmul
    from augury.backends.numba_cpu.kernels.isa import available_isas
    from augury.files.tensor_type import TensorType

    found = {"isas": np.array(available_isas())}
    for kind in TensorType:
        if kind.name in names:
            found |= of_type(kind)
    for name, kernels in matmul.matmul_kernels(MADE_OF.keys() & names).items():
        found[f"{name}.instructions"] = np.array(sorted(set(arm64.assembly(kernels.matmul).split())))
    for name in MODELS:
        if name in names:
            found |= of_model(name)
    np.savez(out, **found)


if __name__ == "__main__":
    sys.path[:0] = sys.argv[3:]
    main(sys.argv[1], sys.argv[2].split(","))
