"""What a first run on a GPU finds out, and how fast kernels and models are there."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from oracles.cuda_products import PassedLogits

from augury.backends.numba_cuda import probe
from augury.backends.numba_cuda.aot import Compiler, all_kernels
from augury.backends.numba_cuda.device import Launch
from augury.backends.numba_cuda.gpu import Gpu
from augury.backends.numba_cuda.kernels import inputs
from augury.backends.numba_cuda.kernels.formats import FORMATS
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.matmul import MULTIPLY, STORE
from augury.backends.numba_cuda.kernels.sums import TILES, MatrixArgs, SourceArgs
from augury.backends.numba_cuda.kernels.tensor_cores import MATRIX_ROWS, MATRIX_THREADS, MATRIX_TILES, MULTIPLY_MATRIX
from augury.backends.numba_cuda.passes import KERNELS, RowRequest
from augury.backends.numba_cuda.repack import n_units
from augury.drafters.model.draft_runner import DraftRunner
from augury.drafters.model.written_draft import DraftRequest
from augury.engine.context import EngineContext
from augury.interfaces import Progress
from augury.plugins.memory.contiguous import Contiguous
from gpu import probes, turns
from gpu.checks import engine_of
from gpu.models import LARGE, MIDDLE, MIXTURE, Q4_K_M, SMALL, load, random_head, random_model
from gpu.timing import kernels_of, speeds_of, timed

_GIB = 1 << 30
_EMPTY = """.version 7.8
.target sm_90
.address_size 64
.visible .entry empty() { ret; }
.visible .entry waiting() { griddepcontrol.launch_dependents; griddepcontrol.wait; ret; }
"""
_N_EMPTY = 250
ACCEPTED = (0.75, 0.7, 0.65)  # chances of a draft's tokens: of a head's that is good


def versions():
    """What is installed, and what the GPU is."""
    figures = {"python": platform.python_version(), "machine": platform.platform(), "cores": os.cpu_count()}
    for name in ("numpy", "numba", "numba-cuda", "cuda-core", "cuda-bindings", "nvidia-nvvm", "nvidia-nvjitlink", "llvmlite"):
        with suppress(PackageNotFoundError):
            figures[name] = version(name)
    figures["libnvvm"] = str(probe.find_compiler())
    figures["reason"] = probe.unavailable_reason()
    with suppress(OSError):
        words = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"]
        figures["nvidia-smi"] = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    gpu = Gpu(0)
    figures |= {"gpu": gpu.name, "capability": gpu.capability, "driver": gpu._call("cuDriverGetVersion")}
    gpu.close()
    return figures


def compilation():
    """Machine code from another machine, and what is compiled here."""
    gpu = Gpu(0)
    kept = len(list(Compiler(gpu.capability).folder.glob("*.cubin")))
    begun = time.perf_counter()
    gpu.prepare(all_kernels(), Progress())
    figures = {"kernels": len(gpu._functions), "kept from before": kept, "seconds": round(time.perf_counter() - begun, 2)}
    gpu.close()
    return figures


def starts():
    """Seconds until a model of 135 million weights has made its first pass, in a new process: kernels compiled, and kept."""
    words = "from gpu import models; from augury.batch import Batch; "
    words += "models.load(models.random_model(models.SMALL, models.Q4_K_M)).forward(Batch.chain([1])).argmax()"
    figures, path = {}, {"PYTHONPATH": os.pathsep.join(sys.path)}
    with TemporaryDirectory() as folder:
        from_nothing = {} if probe.find_compiler() is None else {"from nothing": path | {"XDG_CACHE_HOME": folder}}
        for name, variables in {**from_nothing, "warm": from_nothing.get("from nothing", path)}.items():
            environment = os.environ | variables
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-c", words], check=True, env=environment, timeout=200)
            figures[name] = round(time.perf_counter() - begun, 1)
    return figures


def copying():
    """Bytes per second of a copy on the device, read and written, and of copies from and to the host."""
    gpu = Gpu(0)
    first, second = (gpu.allocate(_GIB, "copies") for _ in range(2))
    addresses = (second.buffer.address, first.buffer.address)

    def copies():
        for _ in range(10):
            gpu._call("cuMemcpyDtoDAsync", *addresses, _GIB, gpu.stream)

    figures = {"device, GB/s": round(2 * 10 * _GIB / timed(gpu, copies) / 1e9)}
    small = gpu.staging(1 << 20)
    gpu.write(first, small)
    begun = time.perf_counter()
    for _ in range(100):
        gpu.read(first, small)
    figures["device to host, GB/s"] = round(100 * small.nbytes / (time.perf_counter() - begun) / 1e9, 1)
    gpu.close()
    return figures


def launches():
    """Microseconds of an empty kernel: launched one by one, in a graph, and with programmatic dependent launch."""
    gpu, figures = Gpu(0), {}
    driver, module = gpu._driver, gpu._call("cuModuleLoadData", _EMPTY.encode() + b"\0")

    def one(name):
        function = gpu._call("cuModuleGetFunction", module, name)
        return lambda: gpu._call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, gpu.stream, 0, 0)

    def dependent():
        function = gpu._call("cuModuleGetFunction", module, b"waiting")
        config, attribute = driver.CUlaunchConfig(), driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.blockDimX, config.hStream, config.attrs, config.numAttrs = 32, gpu.stream, [attribute], 1
        return lambda: gpu._call("cuLaunchKernelEx", config, function, 0, 0)

    for name, make in (("plain", lambda: one(b"empty")), ("waiting", lambda: one(b"waiting")), ("dependent", dependent)):
        try:
            launch = make()
            launch()
            gpu.wait()
            begun = time.perf_counter()
            for _ in range(_N_EMPTY):
                launch()
            figures[f"{name}: host us per launch"] = round((time.perf_counter() - begun) / _N_EMPTY * 1e6, 2)
            gpu.wait()
            mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            gpu._call("cuStreamBeginCapture", gpu.stream, mode)
            for _ in range(_N_EMPTY):
                launch()
            graph = gpu._call("cuGraphInstantiate", gpu._call("cuStreamEndCapture", gpu.stream), 0)
            replay = lambda: gpu._call("cuGraphLaunch", graph, gpu.stream)  # noqa: B023
            replay()
            figures[f"{name}: us per kernel of a graph"] = round(min(timed(gpu, replay) for _ in range(5)) / _N_EMPTY * 1e6, 3)
        except Exception as error:  # noqa: BLE001 - the others are worth as much
            figures[f"{name}: failed"] = repr(error)
    gpu.close()
    return figures


def products():
    """GB/s of weights, by type and by how many tokens share a reading; of 256 MiB of weights, more than the caches hold."""
    gpu, figures = Gpu(0), {}
    n_rows, n_cols = 4096, 4096
    gpu.prepare([*MULTIPLY.values(), *MULTIPLY_MATRIX.values()], Progress())
    x = gpu.allocate(MAX_TOKENS * n_cols * 4, "x")
    y, at = gpu.allocate(MAX_TOKENS * n_rows * 4, "y"), gpu.allocate(4 * inputs.SIZE, "inputs")
    host_copy, best = gpu.staging(2), gpu.allocate(8, "figures")
    for name, fmt in FORMATS.items():
        n = n_units(n_rows, n_cols)
        n_bytes = 4 * fmt.n_words(n)
        copies = [gpu.allocate(n_bytes, name) for _ in range(max(4, (256 << 20) // n_bytes))]
        for tile in (*TILES, *(() if fmt.is_float else MATRIX_TILES)):
            gpu.write(at, np.array([tile, tile], np.int32))
            if tile in TILES:
                kernel, n_blocks, n_threads = MULTIPLY[name, tile], n_rows // 16, 128
            else:
                kernel, n_blocks, n_threads = MULTIPLY_MATRIX[name, tile], n_rows // MATRIX_ROWS, MATRIX_THREADS
            given = {"x": SourceArgs(x, x, x, x), "y": y, "stride": n_rows, "mode": STORE}
            given |= {} if tile in TILES else {"n_apart": MAX_TOKENS}
            ws = [MatrixArgs(w, None, n_rows, n_cols // 32, n_cols // 256, n, 1, 0, 1.0) for w in copies]
            steps = [Launch.of(kernel, (n_blocks,), n_threads, at, w=w, **given) for w in ws]
            program = gpu.program(steps, (host_copy, best), (best, host_copy))
            program()
            seconds = min(timed(gpu, program) for _ in range(5)) / len(copies)
            figures[f"{name}, {tile} tokens"] = {"GB/s": round(n_bytes / seconds / 1e9), "us": round(seconds * 1e6, 1)}
            del program
        for each in copies:
            gpu._call("cuMemFree", each.buffer.address)
            gpu._allocated.remove(each.buffer.address)
    gpu.close()
    return figures


def choosing():
    """Microseconds that it takes to find the best of 151,936 logits, and the k best, of one row and of eight."""
    gpu, n_vocab, figures = Gpu(0), 151_936, {}
    gpu.prepare(KERNELS, Progress())
    for n_rows in (1, 8):
        logits = np.random.default_rng(1).standard_normal((n_rows, n_vocab), np.float32)
        reader = PassedLogits(gpu, logits).reader
        chunks = reader.logits.best_of_chunks(n_rows, n_vocab)
        for k in (1, 40, 256):

            def choose(reader=reader, chunks=chunks, n_rows=n_rows, k=k):
                gpu.launch(chunks)
                reader.begin(n_rows, n_vocab, RowRequest(k))

            figures[f"{k} of {n_rows} rows, us"] = round(1e6 * min(timed(gpu, choose) for _ in range(5)), 1)
    gpu.close()
    return figures


def mixture():
    """A mixture of 32 experts, of which a token goes to four."""
    model = load(random_model(MIXTURE, Q4_K_M))
    figures = speeds_of(model)
    model.close()
    return figures


def kernels():
    """Microseconds of each kernel of passes, by tokens, how many launches it has, and gigabytes of weights per second."""
    for shape in (MIDDLE, LARGE, SMALL):
        yield {shape.name: kernels_of(shape, (1, 4, 8, 16, 64))}


def drafts():
    """Microseconds for each token of a draft by 135 million weights: fed to itself and waited for once, and one by one."""
    model, figures = load(random_model(SMALL, Q4_K_M)), {}
    context = EngineContext(model, Contiguous(None, model.state_spec, model))
    runner, text = DraftRunner(context, n_vocab=SMALL.n_vocab), np.random.default_rng(1).integers(0, SMALL.n_vocab, 2000)
    for how, chain_rows in (("at once", model.chain_rows), ("one by one", 0)):
        context.chain_rows = chain_rows
        for p_min in (0.0, 1e-9):
            for n in (1, 2, 4, 8, 16):
                seconds = []
                for end in range(512, 532):  # a token more each time, as after a draft that was wrong
                    begun = time.perf_counter()
                    (made,) = runner.draft([DraftRequest(0, text[:end].astype(np.int32), n, p_min)])
                    seconds.append((time.perf_counter() - begun) / max(1, len(made.tokens)))
                figures[f"{n} tokens {how}" + ", which may end early" * (p_min > 0)] = round(1e6 * np.median(seconds[5:]), 1)
    model.close()
    return figures


def rounds():
    """Microseconds of the engine's rounds, and tokens per second, plain and with drafts, by what a request asks for."""
    file, figures = random_model(MIDDLE, Q4_K_M), {}
    prompt = np.random.default_rng(1).integers(0, MIDDLE.n_vocab, 40).tolist() * 2
    requests = {
        "greedy": {"temperature": 0.0},
        "top-k": {"temperature": 0.8, "top_k": 40, "seed": 1},
        "penalties": {"temperature": 0.0, "repeat_penalty": 1.1},
    }
    for how, options in (
        ("plain", {"spec_type": "none"}),
        ("drafts of 7", {"spec_type": "ngram-simple:n=2,m=7", "spec_fixed": True}),
    ):
        with engine_of(file, **options) as engine:
            for name, params in requests.items():
                figures[f"{name}, {how}"] = _round_of(engine, prompt, **params)
    return figures


def heads():
    """Microseconds of drafts by a head as `augury learn` makes them, and of rounds, whose tokens chance accepts; and plain."""
    file, figures = random_model(MIDDLE, Q4_K_M), {}
    prompt = np.random.default_rng(1).integers(0, MIDDLE.n_vocab, 80).tolist()
    with TemporaryDirectory() as folder:
        head = random_head(file, Path(folder) / "head.gguf")
        options = {"spec_type": "draft-eagle3", "draft_model": head.path, "spec_fixed": True, "spec_synth_rates": ACCEPTED}
        with engine_of(file, head, **options) as engine:
            for n in (0, 1, 2, 3, 5):
                figures[f"drafts of {n}"] = _round_of(engine, prompt, temperature=0.0, speculative={"n_max": n})
    return figures


def _round_of(engine, prompt, **params):
    """Of rounds of a request that is made for the second time, so that graphs are there; without its prompt."""
    for _ in range(2):
        stats = engine.generate(prompt, max_tokens=300, ignore_eos=True, **params).stats
    figures = {
        "us per round": round(1e6 * stats.timings.predict_s / (stats.n_rounds - 1)),
        "tokens per round": round(stats.timings.n_predicted / (stats.n_rounds - 1), 2),
        "tokens per s": round(stats.timings.predicted_per_second),
    }
    for name, drafter in stats.drafters.items():
        figures[f"us per draft of {name}"] = round(1e6 * drafter.draft_s / max(1, drafter.calls))
    return figures


# the most important first: what is beyond the time is left out
PARTS = (
    versions,
    copying,
    launches,
    *turns.PARTS,
    kernels,
    turns.halves,
    *probes.PARTS,
    turns.contexts,
    turns.cpu_threads,
    rounds,
    heads,
    drafts,
    products,
    choosing,
    mixture,
    starts,
    compilation,
)
