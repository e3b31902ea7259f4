"""Tells bits, to compare before and after a change: `python tests/bits.py [WORD...] > before.txt`, and `diff`.

A line for each tiny model, and each of those that draft, on both CPU backends: a hash of logits, features, slots and drafts.
For each kernel of `numba-cuda` a hash of its PTX, where the dependency group `cuda` is installed, but for its symbols, which
numba counts in the order in which it compiles. WORDs choose the lines that have them all.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from importlib.util import find_spec

import attrs
import numpy as np
from oracles.drafts import DRAFTS, MTP, runs
from oracles.models import ORACLES, QUANTISED_NAMES, expected, tiny_file
from oracles.passes import run_of, tree_of
from support.head_rig import OPTIONS, Rig, Told

from augury import Registry
from augury.interfaces import Progress
from augury.loader import make_backend, plan_of

REGISTRY = Registry.discover()
BACKENDS = ("reference", "numba-cpu")
PARENTS = (-1, 0, 0, 1, 2)  # of a tree whose path 0, 2, 4 is accepted


def of_model(backend: str, name: str) -> Iterator[np.ndarray]:
    """All that a model tells of a prompt, a tree, a text after its accepted path, and another slot's text in two passes."""
    file = tiny_file(name)
    model = make_backend(REGISTRY, backend).load(file, plan_of(file, REGISTRY), attrs.evolve(OPTIONS, draft_max=8), Progress())
    tokens = np.resize(expected(name)[0] if name in ORACLES else expected("llama-dense")[0], 16)
    n = len(PARENTS)
    tree = attrs.evolve(tree_of(tokens[6 : 6 + n], PARENTS, start=6), is_drafted=np.ones(n, bool))
    accepted = np.int32([[0, 6, 6], [0, 8, 7], [0, 10, 8]])
    after = attrs.evolve(run_of(tokens[11:14], start=9), accepted=accepted)
    others = run_of(tokens[:5], slot=1), run_of(tokens[5:7], slot=1, start=5)
    for batch in (run_of(tokens[:6]), tree, after, *others):
        passed = model.forward(attrs.evolve(batch, features=tuple(model.features)))
        yield passed.rows()
        yield from (passed.features(each) for each in model.features)
    for slot, length in ((0, 12), (1, 7)):
        yield from model.slot_memory(slot, length)
    model.close()


def of_drafts(backend: str, name: str) -> Iterator[np.ndarray]:
    """What a model drafts in all rounds of a text, and of layers for further tokens their logits."""
    for drafted in (Told if name in MTP else Rig)(name, backend).replayed(runs(name)[-1]):
        yield from map(np.array, drafted if name in MTP else (drafted,))


def of_kernels() -> Iterator[tuple[str, Callable[[], Iterable[np.ndarray]]]]:
    """The kernels of `numba-cuda`, each with what makes its PTX."""
    from augury.backends.numba_cuda.aot import all_kernels, ptx_of  # needs what may not be installed

    for kernel in all_kernels():
        yield f"ptx {kernel.name}", lambda kernel=kernel: [_nameless(ptx_of(kernel, ((9, 0),))[0])]


def _nameless(ptx: str) -> np.ndarray:
    """PTX with symbols by the order in which they come, and without those of numba's environments, which nothing reads."""
    names: dict[str, str] = {}
    lines = "\n".join(line for line in ptx.splitlines() if "NumbaEnv" not in line)
    named = re.sub(r"_Z\w+", lambda found: names.setdefault(found[0], f"symbol_{len(names)}"), lines)
    return np.frombuffer(named.encode(), np.uint8)


def told() -> Iterator[tuple[str, Callable[[], Iterable[np.ndarray]]]]:
    """The lines' names, each with what makes the arrays that are hashed."""
    for backend in BACKENDS:
        for name in (*ORACLES, *QUANTISED_NAMES):
            yield f"{backend} {name}", lambda backend=backend, name=name: of_model(backend, name)
        for name in (*DRAFTS, *MTP):
            yield f"{backend} {name}", lambda backend=backend, name=name: of_drafts(backend, name)
    if find_spec("numba_cuda") is not None:
        yield from of_kernels()


if __name__ == "__main__":
    for line, arrays in told():
        if all(word in line for word in sys.argv[1:]):
            found = sha256()
            for array in arrays():
                found.update(f"{array.shape} {array.dtype}".encode() + np.ascontiguousarray(array).tobytes())
            print(line, found.hexdigest()[:16], flush=True)
