"""Probes E1 to E6: what of a GPU decides how kernels are to be built, each in under 5 s, with what its figure says to do."""

from __future__ import annotations

import ctypes
from pathlib import Path

import attrs
import numpy as np

from augury.backends.numba_cuda.device import Copy, Launch
from augury.backends.numba_cuda.gpu import Gpu
from augury.backends.numba_cuda.kernels.dialect import SIMULATED, WARP, cuda, kernel, lane, mma_halves
from augury.backends.numba_cuda.probe import find_compiler
from gpu import ptx
from gpu.models import LARGE
from gpu.roofline import CLOCK
from gpu.timing import kernels_of, timed

STAGE = 18_944  # bytes: 16 rows x 2048 columns of Q4_K
STREAMED = 1 << 30
_TURNS = 4000
CASES = (4096, 250)  # random products, and how often each is varied
_MEASURED = Path(__file__).parents[1] / "data/tensor_cores.npz"
N_MEASURED = 300  # of H100s and of H200s each
_BYTES_OF_1024 = 592  # of Q4_K with its scales
_ENOUGH = 0.9  # of a copy's speed
_LAYERS = 4  # of a model, which no cache holds


def e1_overlap():
    """How many launches of a chain share a multiprocessor, by their shared memory, and how long one takes to follow another."""
    gpu, figures, n = Gpu(0), {}, 5
    n_blocks, function = _multiprocessors(gpu), _function(gpu, ptx.CHAINED, "chained")
    times = gpu.allocate(n * 32 * n_blocks, "times")
    for n_bytes in (95 << 10, 72 << 10, 16 << 10):
        begin = [
            _launcher(gpu, function, n_blocks, 288, n_bytes, times.buffer.address + 32 * n_blocks * i, cycles, overlaps=i > 0)
            for i, cycles in enumerate([400_000] + [20_000] * (n - 1))  # the first one lasts until all are begun
        ]
        for launch in begin:
            launch()
        found = np.zeros((n, n_blocks, 4), np.uint64)
        gpu.read(times, found)
        figures[f"{n_bytes >> 10} KiB a block"] = told = overlap_of(found)
    gpu.close()
    told = figures["72 KiB a block"]
    return figures | {
        "launches": f"budget shared memory and registers for {max(2, min(3, told['launches at once']))} launches at once",
        "edge": "try fewer, longer launches: an edge takes over 1 us"
        if told["edge, us"] > 1
        else "launches may follow each other",
    }


def overlap_of(times):
    """What clocks of launches say, (launches, blocks, 4): of a block's begin, the wait's end and its own, and where it was."""
    by_place = [launch[np.argsort(launch[:, 3], kind="stable"), :3].astype(np.int64) for launch in times]
    depth, edges = 1, []
    for i, launch in enumerate(by_place):
        for before in range(i):
            if np.median(by_place[before][:, 2] - launch[:, 0]) > 0:  # it had not ended when this one began
                depth = max(depth, i - before + 1)
        if i:
            edges.append(np.median(launch[:, 1] - by_place[i - 1][:, 2]))
    return {"launches at once": depth, "edge, us": round(float(np.median(edges)) / CLOCK * 1e6, 3)}


@lane
def _varied(word, turn):
    """Two halves that are below 2, others in every turn but the first."""
    if turn == 0:
        return word
    mixed = np.uint32(word ^ np.uint32(np.uint32(turn) * np.uint32(2654435761)))
    mixed = np.uint32(np.uint32(mixed ^ (mixed >> np.uint32(15))) * np.uint32(2246822519))
    return np.uint32(np.uint32(mixed ^ (mixed >> np.uint32(13))) & np.uint32(0xBFFFBFFF))


@kernel("jwffji", name="columns_alone")
def columns_alone(inputs, words, sums, results, differing, n_turns):
    """A warp's product, whole and each column alone, with zeros and without what they meet; counts floats that differ."""
    i = np.uint32(cuda.threadIdx.x)
    at = np.int64(cuda.blockIdx.x * WARP + i)
    first, column, n_differing = i % np.uint32(4) * np.uint32(2), i // np.uint32(4), np.int32(0)
    s, t, u, v = sums[4 * at], sums[4 * at + 1], sums[4 * at + 2], sums[4 * at + 3]
    zero = np.uint32(0)
    for turn in range(n_turns):
        a, b = _varied(words[6 * at], turn), _varied(words[6 * at + 1], turn)
        c, d = _varied(words[6 * at + 2], turn), _varied(words[6 * at + 3], turn)
        p, q = _varied(words[6 * at + 4], turn), _varied(words[6 * at + 5], turn)
        w, x, y, z = mma_halves(a, b, c, d, p, q, s, t, u, v)
        if turn == 0:
            results[4 * at], results[4 * at + 1], results[4 * at + 2], results[4 * at + 3] = w, x, y, z
        for j in range(8):
            is_own = column == np.uint32(j)
            e, f, g, h = mma_halves(a, b, c, d, p if is_own else zero, q if is_own else zero, s, t, u, v)
            if first == np.uint32(j):
                n_differing += np.int32(e != w) + np.int32(g != y)
            if first + np.uint32(1) == np.uint32(j):
                n_differing += np.int32(f != x) + np.int32(h != z)
        is_zero = i % np.uint32(4) == np.uint32(turn % 4)
        a, b = zero if is_zero else a, zero if is_zero else b
        w, x, y, z = mma_halves(a, b, c, d, p, q, s, t, u, v)
        e, f, g, h = mma_halves(a, b, c, d, zero if is_zero else p, q, s, t, u, v)
        n_differing += np.int32(e != w) + np.int32(f != x) + np.int32(g != y) + np.int32(h != z)
    differing[at] = n_differing


def e2_columns():
    """Whether a column of a matrix product of halves depends on others, on what a zero meets, and is as simulated."""
    if not SIMULATED and find_compiler() is None:
        return {"left out": "there is no libnvvm, which compiles this probe's kernel"}
    gpu = Gpu(0)
    _load(gpu, columns_alone)
    with np.load(_MEASURED) as data:
        kinds = {
            name: [data[f"{name}.{each}"][:N_MEASURED] for each in ("first", "second", "before", "after")]
            for name in ("H100", "H200")
        }
    n_wrong = 0
    for first, second, before, after in kinds.values():
        words, sums = fragments_of(first, second, before)
        results, _ = _columns(gpu, words, sums, 1)
        n_wrong += int((results[:, 0, 0].view(np.uint32) != after).sum())
    rng, (n_cases, n_turns) = np.random.default_rng(1), CASES
    words = rng.integers(0, 1 << 32, (n_cases, WARP, 6), np.uint32) & np.uint32(0xBFFFBFFF)
    sums = np.ldexp(rng.standard_normal((n_cases, WARP, 4)), rng.integers(-20, 5, (n_cases, WARP, 4))).astype(np.float32)
    _, n_differing = _columns(gpu, words, sums, n_turns)
    gpu.close()
    rule = "columns are apart and as simulated: zeros may mask, and any tokens may share a product"
    if n_differing or n_wrong:
        rule = "add the masked positions by fma, and simulate this GPU's matrix products anew"
    return {"products": n_cases * n_turns, "floats that differ": n_differing, "of those measured": n_wrong, "masks": rule}


def fragments_of(first, second, before):
    """What lanes hold of products whose first row and column are given, (n, 16) uint16 each, and are added to (n,) uint32."""
    n = len(first)
    words, sums = np.zeros((n, 8, 4, 6, 2), np.uint16), np.zeros((n, WARP, 4), np.float32)
    for word, of, start in ((0, first, 0), (2, first, 8), (4, second, 0), (5, second, 8)):
        words[:, 0, :, word] = of[:, start : start + 8].reshape(n, 4, 2)
    sums[:, 0, 0] = before.view(np.float32)
    return words.reshape(n, WARP, 12).view(np.uint32), sums


def _columns(gpu, words, sums, n_turns):
    """The results of the products of words, and how many floats differ."""
    n = len(words)
    inputs = gpu.allocate(4, "probe")
    places = [gpu.allocate(each.nbytes, "probe") for each in (words, sums, sums)]
    differing = gpu.allocate(4 * n * WARP, "probe")
    gpu.write(places[0], words)
    gpu.write(places[1], sums)
    given = dict(zip(("words", "sums", "results"), places, strict=True))
    gpu.launch(Launch.of(columns_alone, (n,), WARP, inputs, **given, differing=differing, n_turns=n_turns))
    results, counts = np.zeros_like(sums), np.zeros(n * WARP, np.int32)
    gpu.read(places[2], results)
    gpu.read(differing, counts)
    return results, int(counts.sum())


def e3_bulk_copies():
    """Terabytes per second that bulk copies bring into shared memory, by stages of a ring and blocks of a multiprocessor."""
    gpu, figures = Gpu(0), {}
    function, copied = _function(gpu, ptx.STREAM, "stream"), _copy_speed(gpu)
    source, n = gpu.allocate(STREAMED, "stream"), _multiprocessors(gpu)
    for n_each, depths in ((1, (1, 2, 4, 5, 8, 11)), (2, (2, 4, 5))):
        n_stages = STREAMED // STAGE // (n * n_each)
        for depth in depths:
            run = _launcher(gpu, function, n * n_each, 32, 1024 + depth * STAGE, source.buffer.address, n_stages, depth, STAGE)
            run()
            seconds = min(timed(gpu, run) for _ in range(3))
            figures[f"{n_each} x {depth} stages, TB/s"] = round(n * n_each * n_stages * STAGE / seconds / 1e12, 3)
    gpu.close()
    is_enough = figures["1 x 5 stages, TB/s"] >= _ENOUGH * copied
    return figures | {
        "a copy, TB/s": copied,
        "blocks": "one block a multiprocessor" if is_enough else "two blocks a multiprocessor",
    }


def e4_grid_barrier():
    """Microseconds that all blocks of a grid take to wait for each other."""
    gpu, figures, n_turns = Gpu(0), {}, 2000
    counter, function = gpu.allocate(4, "counter"), _function(gpu, ptx.GRID, "grid")
    run = _launcher(gpu, function, _multiprocessors(gpu), 288, 0, counter.buffer.address, n_turns)
    for _ in range(2):  # the first one loads the kernel
        gpu.write(counter, np.zeros(1, np.int32))
        figures["us"] = round(timed(gpu, run) / n_turns * 1e6, 3)
    gpu.close()
    is_fast = figures["us"] < 0.5
    return figures | {
        "one kernel for a pass": "is worth a try: a barrier takes less than a launch" if is_fast else "gains nothing"
    }


def e5_matrix_rates():
    """Teraflops of products of halves, and cycles that a multiprocessor takes for 1024 weights, dequantised and not."""
    gpu, figures = Gpu(0), {}
    n, values = _multiprocessors(gpu), gpu.allocate(4, "values")
    budget = _BYTES_OF_1024 / (_copy_speed(gpu) * 1e12 / n / CLOCK)
    for name, program in ptx.PROGRAMS.items():
        if not name.startswith("products"):
            continue
        n_tokens = int(name.split()[2].rstrip(","))
        run = _launcher(gpu, _function(gpu, program, "rates"), n, 256, 0, values.buffer.address, _TURNS)
        run()
        seconds = min(timed(gpu, run) for _ in range(3))
        n_weights = _TURNS * 8 * 1024  # of a multiprocessor, by eight warps
        figures[f"{name}, TFLOP/s"] = round(2 * n * n_weights * n_tokens / seconds / 1e12)
        figures[f"{name}, cycles"] = round(seconds * CLOCK / n_weights * 1024, 1)
    gpu.close()
    most = max((n for n in (8, 16, 64) if figures[f"products of {n}, dequantised, cycles"] <= budget), default=0)
    return figures | {
        "cycles in which 1024 weights are read": round(budget, 1),
        "passes": f"of up to {most} tokens wait for memory, larger ones for instructions",
        "prompts": "mma serves them"
        if figures["products of 64, TFLOP/s"] >= 300
        else "ask again about wgmma: mma gives under 300 TFLOP/s",
    }


def e6_products():
    """Gigabytes of weights per second of a large model's layers, by kind of products and tokens, and times of one token's."""
    gpu = Gpu(0)
    copied = _copy_speed(gpu)
    gpu.close()
    figures, slow = {"a copy, TB/s": copied}, []
    for kind in ("bytes", "halves"):
        times = {}
        for name, told in kernels_of(attrs.evolve(LARGE, n_layers=_LAYERS, n_vocab=512), (1, 8, 16, 64), products=kind).items():
            if told["bytes of weights"]:
                n, (us, n_bytes) = int(name.split()[0]), times.get(int(name.split()[0]), (0.0, 0))
                times[n] = us + told["us"] * told["launches"], n_bytes + told["bytes of weights"] * told["launches"]
        for n, (us, n_bytes) in times.items():
            figures |= {f"{kind}, {n} tokens, GB/s": round(n_bytes / us / 1e3)}
            figures |= {f"{kind}, {n} tokens, times of one": round(us / times[1][0], 2)}
            slow += [f"{kind} at {n}"] if n <= 16 and n_bytes / us < 1e6 * _ENOUGH * copied else []
    rule = f"wait for more than memory: {', '.join(slow)} tokens" if slow else "read as fast as a copy"
    return figures | {"products": rule}


def _copy_speed(gpu):
    """Terabytes per second that a copy on the device reads and writes."""
    first, second = (gpu.allocate(STREAMED // 2, "copies") for _ in range(2))
    copy = Copy(first, second, STREAMED // 2)
    gpu.copy(copy)
    seconds = min(timed(gpu, lambda: gpu.copy(copy)) for _ in range(3))
    for each in (first, second):
        gpu._call("cuMemFree", each.buffer.address)
        gpu._allocated.remove(each.buffer.address)
    return round(STREAMED / seconds / 1e12, 3)


def _multiprocessors(gpu):
    attribute = gpu._driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    return gpu._call("cuDeviceGetAttribute", attribute, gpu._device)


def _function(gpu, program, name):
    module = gpu._call("cuModuleLoadData", program.encode() + b"\0")
    return gpu._call("cuModuleGetFunction", module, name.encode())


def _load(gpu, kernel):
    """Compile a kernel that is not among augury's, whose machine code is kept by their sources."""
    if not SIMULATED:
        from augury.backends.numba_cuda.aot import compile_kernel

        (binary,) = compile_kernel(kernel, [(gpu.capability[0], 0)])
        gpu.load(kernel.name, binary.entry, binary.cubin)


def _launcher(gpu, function, n_blocks, n_threads, n_shared, *values, overlaps=False):
    """Launches a kernel whose parameters are numbers of 64 bits, with some bytes of shared memory."""
    driver = gpu._driver
    if n_shared:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        gpu._call("cuFuncSetAttribute", function, attribute, n_shared)
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = n_blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = n_threads, 1, 1
    config.sharedMemBytes, config.hStream = n_shared, gpu.stream
    if overlaps:
        config.attrs, config.numAttrs = [gpu.overlapping], 1
    given = tuple(values), (ctypes.c_uint64,) * len(values)

    def launch():
        gpu._enter()
        gpu._call("cuLaunchKernelEx", config, function, given, 0)

    return launch


PARTS = (e1_overlap, e2_columns, e3_bulk_copies, e4_grid_barrier, e5_matrix_rates, e6_products)
