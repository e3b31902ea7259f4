"""augury and llama.cpp in turns on the same weights, A B A: what docs/benchmarks.md has of GPUs, and of a machine's CPU."""

from __future__ import annotations

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu import llama
from gpu.models import LARGE, MIDDLE, Q4_K_M, SMALL, load, random_model, write
from gpu.timing import AFTER, PROMPTS, SIZES, kernels_of, speeds_of

THREADS = (16, 8, 4, 2, 1)  # the last ones take longest
_N_CTX = 32_768
_LATE = 32_000  # a position near its end


def small():
    """A model of 135 million weights."""
    yield from _turns(SMALL)


def middle():
    """A model of 1.5 billion weights."""
    yield from _turns(MIDDLE)


def large():
    """A model of 8 billion weights."""
    yield from _turns(LARGE)


def halves():
    """The same models by both kinds of products in turns, and each kernel of 1.5 billion weights multiplied as halves."""
    for shape in (MIDDLE, LARGE, SMALL):
        file = random_model(shape, Q4_K_M)
        for i, products in enumerate(("bytes", "halves", "bytes")):
            yield {f"{shape.name}, {products}{' again' * (i > 1)}": _turn(file, products=products)}
    yield {f"kernels of {MIDDLE.name}": kernels_of(MIDDLE, (1, 8, 64), products="halves")}


def contexts():
    """The same models, opened with a large context: prompts at its beginning, passes there and near its end."""
    for shape in (LARGE, MIDDLE, SMALL):
        file = random_model(shape, Q4_K_M)
        model = load(file, n_ctx=_N_CTX)
        figures = speeds_of(model, sizes=(1, 8), n_decoded=0)
        late = speeds_of(model, sizes=(1, 8, 64), prompts=(), n_decoded=0, after=_LATE)
        model.close()
        yield {shape.name: figures | {f"{name} after {_LATE:,}": value for name, value in late.items()}}


def cpu_threads():
    """A model of 1.5 billion weights on the CPU, by threads; after all that is on the GPU, never beside it."""
    file, n_cores = random_model(MIDDLE, Q4_K_M), os.cpu_count() or 1
    with TemporaryDirectory() as folder:
        path = write(file, Path(folder) / "model.gguf") if llama.tool() else None
        for n in (each for each in THREADS if each <= n_cores):
            turns = {"augury": _on_cpu(file, n)}
            if path is not None:
                turns["llama.cpp"] = llama.speeds(path, prompts=(8, 512), n_decoded=32, threads=n)
                turns["augury again"] = _on_cpu(file, n)
            yield {f"threads: {n}": turns}


def _on_cpu(file, n_threads):
    """One turn on the CPU, without tokens before, because llama-bench would compute them again and again."""
    model = load(file, "numba-cpu", n_ctx=1024, threads=n_threads)
    try:
        return speeds_of(model, sizes=(8,), prompts=(512,), n_decoded=32, after=0, n_passes=4)
    finally:
        model.close()


def _turns(shape):
    """A turn of augury, one of llama.cpp where it is, another one of augury, each told when it is over."""
    begun = time.perf_counter()
    file = random_model(shape, Q4_K_M)
    yield {"made in s": round(time.perf_counter() - begun, 1), "GB": round(file.n_bytes / 1e9, 2)}
    yield {"augury": _turn(file)}
    if llama.tool() is None:
        yield {"llama.cpp": {"left out": llama.NONE}}
        return
    with TemporaryDirectory() as folder:
        path = write(file, Path(folder) / f"{shape.name}.gguf")
        told = llama.speeds(path, prompts=PROMPTS)
        told |= llama.speeds(path, prompts=SIZES[1:], n_decoded=128, depth=AFTER)
    yield {"llama.cpp": told}
    yield {"augury again": _turn(file)}


def _turn(file, **given):
    begun = time.perf_counter()
    model = load(file, **given)
    loaded_s = round(time.perf_counter() - begun, 1)
    try:
        return speeds_of(model) | {"loaded in s": loaded_s}
    finally:
        model.close()


PARTS = (small, middle, large)
