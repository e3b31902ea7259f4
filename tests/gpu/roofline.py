"""The least time of every launch of a pass: the slowest of bytes from memory, bytes from L2 and instructions, and its own.

    python tests/gpu/roofline.py OUT.json

Kernels are compiled for 9.0, without a GPU, or taken from the cache of machine code. Launches are those of the models that
docs/benchmarks.md measures. What a loop of products issues is read from machine code; of other kernels all code is counted
once, so their times are bounds that real ones exceed. A pass comes after 512 tokens. Needs the dependency group `cuda`.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from attrs import evolve, frozen
from cuda_simulator.device import CountingDevice

from augury.backends.numba_cuda.device import Buffer, Launch, Pointer
from augury.backends.numba_cuda.kernels.splits import SPLIT

SIZES = (1, 8, 64)  # tokens of a pass
BEFORE = 512
N_MULTIPROCESSORS = 132  # of an H100, as are all of these
MEMORY, L2, CLOCK = 3.0e12, 5.5e12, 1.76e9  # bytes per second, as a copy reads and writes; from L2; cycles per second
LAUNCH_S = 0.5e-6
_X_BYTES = (
    1.5  # of a value that weights are multiplied with: a byte, and of 32 of them two factors and the sums of their halves
)
_PRODUCTS = {  # of a warp's instruction
    r"\bHMMA\.16816\b": 16 * 8 * 16,
    r"\bIMMA\.16832\b": 16 * 8 * 32,
    r"\bIMMA\.16816\b": 16 * 8 * 16,
    r"\bIDP\.4A\b": 4 * 32,
    r"\bFFMA\b": 32,
}


@frozen
class Code:
    """What is read from a kernel's machine code.

    Attributes:
        n: Its instructions.
        per_product: Instructions of a warp for a product of a weight and a value, in the loop that needs most; 0 without one.
    """

    n: int
    per_product: float


@frozen
class Bound:
    """The seconds that a launch takes at least, by what bounds it."""

    memory: float
    l2: float
    instructions: float

    @property
    def seconds(self) -> float:
        """All in all."""
        return max(self.memory, self.l2, self.instructions) + LAUNCH_S


def arguments_of(launch: Launch) -> list[tuple[str, object]]:
    """The arguments of a launch by name, those of records with the record's."""
    values, found = iter(launch.arguments), []
    for name, kind in zip(launch.kernel.names, launch.kernel.kinds, strict=True):
        names = [name] if isinstance(kind, str) else [f"{kind.__name__}.{field}" for field in kind._fields]
        found += [(each, next(values)) for each in names]
    return found


def weights_of(launch: Launch) -> int:
    """The bytes of the matrices that a launch multiplies by."""
    return sum(value.buffer.n_bytes for name, value in arguments_of(launch) if name in ("MatrixArgs.words", "HalvesArgs.words"))


def code_of(instructions: dict[int, str]) -> Code:
    """See `Code`, of instructions by address."""
    loops = []
    for at, text in instructions.items():
        target = re.search(r"\bBRA(?:\.\w+)* (?:[!\w]+, )?0x([0-9a-f]+)$", text)
        if target and int(target[1], 16) < at:
            loops.append((int(target[1], 16), at))
    innermost = [each for each in loops if not any(each != (a, b) and each[0] <= a and b <= each[1] for a, b in loops)]
    bodies = [[text for at, text in instructions.items() if start <= at <= end] for start, end in innermost]
    for pattern, n in _PRODUCTS.items():  # the first that there is: few floats are multiplied beside matrices
        counts = [(len(body), n * sum(bool(re.search(pattern, text)) for text in body)) for body in bodies]
        if most := max((products for _, products in counts), default=0):
            costs = [length / products for length, products in counts if 2 * products >= most]
            return Code(len(instructions), max(costs))
    return Code(len(instructions), 0.0)


def bound_of(launch: Launch, code: Code, n_tokens: int, cache_bytes: int) -> tuple[str, Bound]:
    """The stage of a launch, and its bound; `cache_bytes` are those of keys and values before and of a pass, in one layer."""
    given, n_blocks = arguments_of(launch), launch.grid[0] * launch.grid[1] * launch.grid[2]
    n_warps, numbers = launch.n_threads // 32, dict(given)
    if n_bytes := weights_of(launch):
        kind, field, size = ("HalvesArgs", "n_steps", 64) if "HalvesArgs.words" in numbers else ("MatrixArgs", "n_units", 32)
        sizes = ([value for name, value in given if name == f"{kind}.{each}"] for each in ("n_rows", field))
        n_weights = sum(n_rows * size * n for n_rows, n in zip(*sizes, strict=True))
        row_bytes = (2 if kind == "HalvesArgs" else _X_BYTES) * size * numbers[f"{kind}.{field}"] * n_tokens
        tile = int(re.search(r"_(\d+)$", launch.kernel.name)[1])
        instructions = code.per_product * n_weights * tile * -(-n_tokens // tile)
        return "products", _bound(n_bytes, n_bytes + launch.grid[0] * row_bytes, instructions, n_blocks)
    if launch.kernel.name.startswith("attend"):
        n_splits = numbers["AttendArgs.n_splits"]
        n_blocks = n_blocks * min(n_splits, -(-(BEFORE + n_tokens) // SPLIT)) // n_splits  # others end at once
        seen = cache_bytes * n_blocks // -(-(BEFORE + n_tokens) // SPLIT) // numbers["AttendArgs.n_kv_heads"]
        return "attention", _bound(cache_bytes, seen, n_blocks * n_warps * code.n, n_blocks)
    return "rest", _bound(0, 0, n_blocks * n_warps * code.n, n_blocks)


def _bound(memory: float, l2: float, instructions: float, n_blocks: int) -> Bound:
    """Of so many warps' instructions, by whole blocks of which some multiprocessors have one more; each begins four a cycle."""
    share = -(-n_blocks // N_MULTIPROCESSORS) / n_blocks
    return Bound(memory / MEMORY, l2 / L2, instructions * share / 4 / CLOCK)


def lowered(shape, *, as_halves=False):
    """The lowering of a random model in Q4_K_M, whose matrices have their sizes and no memory."""
    from oracles.cuda_launches import Counted, placed

    from augury.backends.numba_cuda.repack import n_words_of
    from gpu.models import Q4_K_M, random_model

    class Sized(Counted):
        def __init__(self, *given):
            super().__init__(*given)
            self._as_halves = as_halves

        def _type(self, part):
            return self._file.tensors[part.weight].type

        def _matrix(self, group):
            made = super()._matrix(group)
            n = n_words_of(made.format, made.n_rows, made.n_cols) if made.is_halved else made.format.n_words(made.n)
            return evolve(made, words=Pointer(Buffer(4 * n)))

    return placed(random_model(shape, Q4_K_M, is_hollow=True), CountingDevice(), {}, n_ctx=1024, weights=Sized)


def launches_of(lowering, shape, n_tokens: int) -> list[Launch]:
    """The launches of a pass."""
    from augury.backends.numba.lowering import Parts
    from augury.backends.numba_cuda.lowering import size_of

    size = size_of(n_tokens, BEFORE + n_tokens - 1, is_run=n_tokens > 1)
    return [step for step in lowering.steps(size, Parts((0, shape.n_layers))).steps if isinstance(step, Launch)]


def codes_of(kernels) -> dict[str, Code]:
    """What there is to know of kernels' machine code for 9.0, by name."""
    from machine_code import disassembled, usage_and_code

    from augury.backends.numba_cuda.aot import Compiler
    from augury.interfaces import Progress

    binaries = Compiler((9, 0)).binaries(kernels, Progress())
    codes = [usage_and_code(binary.cubin)[1] for binary in binaries.values()]
    return dict(zip(binaries, map(code_of, disassembled(codes, (9, 0))), strict=True))


def sums() -> dict[str, dict[str, float]]:
    """Microseconds of passes by model, tokens and kind of products, those of each stage and how many launches there are."""
    from gpu.models import LARGE, MIDDLE, SMALL

    passes = {}
    for shape, kind in product((SMALL, MIDDLE, LARGE), ("bytes", "halves")):
        lowering = lowered(shape, as_halves=kind == "halves")
        passes |= {(shape, n, kind): launches_of(lowering, shape, n) for n in SIZES}
    codes = codes_of(list(dict.fromkeys(launch.kernel for launches in passes.values() for launch in launches)))
    found = {}
    for (shape, n, kind), launches in passes.items():
        cache_bytes = shape.n_kv_heads * shape.head_dim * 2 * 2 * (BEFORE + n)
        stages = Counter[str]()
        for launch in launches:
            stage, bound = bound_of(launch, codes[launch.kernel.name], n, cache_bytes)
            stages[stage] += 1e6 * bound.seconds
        stages["all"] = stages.total()
        figures = {name: round(value, 1) for name, value in sorted(stages.items())}
        found[f"{shape.name}, {n} tokens, {kind}"] = {"launches": len(launches), **figures}
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(sums(), indent=1) + "\n")
