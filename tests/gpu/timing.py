"""Times of passes, and of each kernel of passes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from augury.batch import Batch
from gpu.models import Q4_K_M, load, random_model
from gpu.roofline import BEFORE, launches_of, weights_of

if TYPE_CHECKING:
    from augury.backends.numba_cuda.device import Launch

SIZES = (1, 2, 4, 8, 16, 64)  # of passes
PROMPTS = (512, 4096)
AFTER = BEFORE  # tokens come passes and decoding
N_PASSES = 12  # two of which are not timed


def speeds_of(model, *, sizes=SIZES, prompts=PROMPTS, n_decoded=200, after=AFTER, n_passes=N_PASSES):
    """Tokens per second of prompts, of passes over so many tokens, all with logits, and of decoding; medians."""
    tokens = np.random.default_rng(1).integers(0, model.info.n_vocab, max(prompts, default=0) or max(sizes)).astype(np.int32)
    figures = {}
    for n in prompts:
        seconds = []
        for _ in range(3):
            begun = time.perf_counter()
            model.forward(Batch.chain(tokens[:n], rows=np.array([n - 1], np.int32))).argmax()
            seconds.append(time.perf_counter() - begun)
        figures[f"prompt of {n}"] = round(n / np.median(seconds[1:]), 1)
    for n in sizes:
        device, host = [], []
        for _ in range(n_passes):
            begun = time.perf_counter()
            passed = model.forward(Batch.chain(tokens[:n], start=after))
            passed.argmax()
            host.append(time.perf_counter() - begun)
            device.append(passed.wait() or 0.0)
        figures[f"pass of {n}"] = round(n / np.median(host[2:]), 1)
        figures[f"pass of {n}, ms on the device"] = round(1e3 * np.median(device[2:]), 3)
    if n_decoded:
        token, begun = 1, time.perf_counter()
        for i in range(n_decoded):
            token = int(model.forward(Batch.chain([token], start=after + i)).argmax()[0])
        figures["decoding"] = round(n_decoded / (time.perf_counter() - begun), 1)
    return figures


def kernels_of(shape, sizes, **given):
    """Microseconds of a model's launches, by tokens and those that are alike, and gigabytes of weights per second."""
    model, figures = load(random_model(shape, Q4_K_M), **given), {}
    lowering, gpu = model._lowering, model._device
    for n in sizes:
        model.forward(Batch.chain(np.arange(n), start=BEFORE)).wait()  # which tells what the programs below are over
        found: dict[tuple[str, object], list[Launch]] = {}
        for step in launches_of(lowering, shape, n):
            found.setdefault((step.kernel.name, step.grid), []).append(step)
        for (name, grid), steps in found.items():  # of all layers in turn, so that weights are read from memory
            program = gpu.program(steps, (model._inputs, lowering.inputs), (lowering.buffers["best"], model._fetched))
            program()
            seconds = min(timed(gpu, program) for _ in range(5)) / len(steps)
            n_bytes = sum(map(weights_of, steps)) / len(steps)
            figures[f"{n} tokens, {name} {grid}"] = {
                "us": round(1e6 * seconds, 2),
                "launches": len(steps),
                "bytes of weights": round(n_bytes),
                "GB/s": round(n_bytes / seconds / 1e9),
            }
            del program
    model.close()
    return figures


def timed(gpu, run):
    """The device's seconds of a run."""
    gpu._n_marks = 0
    gpu.mark()
    run()
    gpu.mark()
    seconds = gpu.wait()
    assert seconds is not None
    return seconds
