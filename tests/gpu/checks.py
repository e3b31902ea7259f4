"""What must hold on a GPU: to the bit where a token is computed in other company, near other backends where these differ."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from gpu.models import Q4_K_M, SMALL, TINY, load, random_model
from oracles.models import nmse
from oracles.weights import FLOATS, dequantised, random_weights

from augury.backends.numba_cuda.device import Launch
from augury.backends.numba_cuda.gpu import Gpu
from augury.backends.numba_cuda.kernels import inputs
from augury.backends.numba_cuda.kernels.dialect import THREADS
from augury.backends.numba_cuda.kernels.formats import FORMATS
from augury.backends.numba_cuda.kernels.matmul import MULTIPLY, STORE, TILES
from augury.backends.numba_cuda.kernels.norm import NOTHING, RMS, norm_rows
from augury.backends.numba_cuda.repack import n_units, repack
from augury.batch import Batch
from augury.engine.engine import Engine
from augury.files.tensor_type import TensorType
from augury.interfaces import Progress

N_SPECULATED = 10_000  # tokens that are written with and without drafts


def products():
    """Every kernel of products against float64, and its tiles against each other, at a size of a real layer."""
    gpu, rng, told = Gpu(0), np.random.default_rng(2), {}
    n_rows, n_cols, n_tokens = 260, 2048, 8
    gpu.prepare([norm_rows, *MULTIPLY.values()], Progress())
    for name, fmt in FORMATS.items():
        kind = TensorType[name]
        if kind in FLOATS:
            values = rng.standard_normal((n_rows, n_cols), np.float32)
            if kind is TensorType.F16:
                data = values.astype(np.float16).view(np.uint8)
            else:
                data = (
                    values.view(np.uint8)
                    if kind is TensorType.F32
                    else (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
                )
            weights = dequantised(kind, data, n_rows) if kind is not TensorType.F32 else values
        else:
            data = random_weights(rng, kind, n_rows, n_cols)
            weights = dequantised(kind, data, n_rows)
        words = repack(kind, data.reshape(-1), n_rows, n_cols)
        x = rng.standard_normal((n_tokens, n_cols), np.float32)
        sizes = {"w": words.nbytes, "x": x.nbytes, "ones": 4 * n_cols, "floats": x.nbytes, "bytes": x.nbytes}
        sizes |= {"factors": x.nbytes, "sums": x.nbytes, "y": 4 * n_rows * n_tokens, "inputs": 4 * inputs.SIZE}
        at = {key: gpu.allocate(n, key).at(0) for key, n in sizes.items()}
        told_inputs = np.array([n_tokens, n_tokens], np.int32)
        for key, array in (("w", words), ("x", x), ("ones", np.ones(n_cols, np.float32)), ("inputs", told_inputs)):
            gpu.write(at[key], array)
        places = [at[key] for key in ("inputs", "x", "x", "ones", "ones", "floats", "bytes", "factors", "sums")]
        widths, flags = (n_cols, 0, n_cols, n_cols, n_cols), (0, 1, 1, NOTHING, RMS)
        gpu.launch(Launch(norm_rows, (n_tokens, 1, 1), THREADS, (*places, *widths, *flags, 0.0, 1e-6)))
        fed, rounded = np.empty_like(x), np.empty(x.shape, np.int8)
        factors = np.empty((n_tokens, n_cols // 32), np.float32)
        for key, array in (("floats", fed), ("bytes", rounded), ("factors", factors)):
            gpu.read(at[key], array)
        if not fmt.is_float:
            assert np.abs(rounded * factors.repeat(32, axis=1) - fed).max() < 0.05, name
            fed = rounded * factors.repeat(32, axis=1)
        right, found = fed.astype(np.float64) @ weights.astype(np.float64).T, []
        for tile in TILES:
            rows = [at[key] for key in ("w", "floats" if fmt.is_float else "bytes", "factors", "sums", "y", "y")]
            units = (n_rows, n_cols // 32, -(-n_cols // 256), n_units(n_rows, n_cols))
            grid = (-(-n_rows // 16), n_tokens // tile, 1)
            gpu.launch(Launch(MULTIPLY[name, tile], grid, 128, (at["inputs"], *rows, *units, n_rows, 0, 0, STORE, 0, 1.0)))
            found.append(np.empty((n_tokens, n_rows), np.float32))
            gpu.read(at["y"], found[-1])
        assert all(np.array_equal(each, found[0]) for each in found), f"{name}: tiles differ"
        told[name] = float(np.abs(found[0] - right).max() / np.abs(right).max())
        assert told[name] < 1e-5, (name, told[name])
    gpu.close()
    return {"largest error": told}


def near_other_backends():
    """A whole model against the reference and numba-cpu."""
    file, batch = random_model(TINY, Q4_K_M), Batch.chain(np.arange(100) % 500)
    rows = {}
    for backend in ("numba-cuda", "numba-cpu", "reference"):
        model = load(file, backend, n_ctx=128)
        rows[backend] = model.forward(batch).rows().copy()
        model.close()
    told = {name: nmse(each, rows["reference"]) for name, each in rows.items()}
    assert told["numba-cuda"] < max(1e-3, 2 * told["numba-cpu"]), told  # random weights make more of what was rounded
    return {"error against the reference": told}


def invariance():
    """A token alone, and among 1 to 64 at each place, beside another slot, at any cut, with graphs and without."""
    file = random_model(TINY, Q4_K_M)
    tokens = np.random.default_rng(3).integers(0, TINY.n_vocab, 700).astype(np.int32)
    n_compared = 0
    whole = None
    for graphs in (True, False):
        model = load(file, n_ctx=1024, n_slots=2, graphs=graphs)
        rows = model.forward(Batch.chain(tokens)).rows().copy()
        assert whole is None or np.array_equal(rows, whole), "graphs and single launches differ"
        whole = rows
        for start in (0, 250, 600):
            for n in (*range(1, 18), 24, 25, 31, 32, 33, 48, 63, 64):
                found = model.forward(Batch.chain(tokens[start : start + n], start=start)).rows()
                assert np.array_equal(found, whole[start : start + n]), f"{n} tokens from {start} on"
                n_compared += n
        for n in (1, 3, 20):
            other = Batch.chain(tokens[::-1][:n], slot=1)
            here = Batch.chain(tokens[600:620], start=600)
            joint = Batch(
                np.concatenate([other.tokens, here.tokens]),
                np.concatenate([other.slots, here.slots]),
                np.concatenate([other.positions, here.positions]),
                np.arange(n + 20, dtype=np.int32),
            )
            assert np.array_equal(model.forward(joint).rows()[n:], whole[600:620]), f"beside {n} of another slot"
        model.close()
    return {"rows compared": n_compared}


def speculation():
    """Text with drafts is that without, to the bit, over thousands of tokens; and how many drafted tokens were right."""
    file, told = random_model(SMALL, Q4_K_M), {}
    prompts = [np.random.default_rng(i).integers(0, SMALL.n_vocab, 40).tolist() * 2 for i in range(5)]

    def written(**how):
        tokens, drafted, accepted = [], 0, 0
        with _engine(file, **how) as engine:
            n = N_SPECULATED // len(prompts)
            for result in engine.generate(prompts, max_tokens=n, temperature=0.0, logprobs=1, ignore_eos=True):
                tokens.append((result.tokens, [piece.logprob for piece in result.pieces]))
                drafted, accepted = drafted + result.stats.n_drafted, accepted + result.stats.n_accepted
        return tokens, drafted, accepted

    plain, *_ = written(spec_type="none")
    for name, how in (("fixed", {"spec_fixed": True}), ("planned", {}), ("four slots", {"slots": 4})):
        found, told[f"{name}: drafted"], told[f"{name}: accepted"] = written(spec_type="ngram-simple:n=2,m=8", **how)
        assert found == plain, name
    return told


def _engine(file, **how):
    """An engine of a model in memory, which is loaded as one from a file would be."""
    from unittest.mock import patch

    from augury.loader import Loader

    with patch.object(Loader, "open", lambda self, reference: file):
        return Engine.load(file.path, backend="numba-cuda", n_ctx=4096, **how)


def recordings():
    """Graphs recorded again and again while memory is collected."""
    file, batch = random_model(TINY, Q4_K_M), Batch.chain([1, 2, 3])
    model = load(file, n_ctx=256)
    right = model.forward(batch).rows().copy()
    for i in range(100):
        model._programs.clear()
        if i % 10 == 0:
            gc.collect()
        assert np.array_equal(model.forward(batch).rows(), right)
    model.close()
    return {"recordings": 100}


def memory_checker():
    """compute-sanitizer, where there is one, over a small model."""
    tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if tool is None:
        return {"left out": "there is no compute-sanitizer"}
    words = [sys.executable, Path(__file__).parent, "test", "/dev/null", "--only", "near_other_backends"]
    ended = subprocess.run([tool, "--error-exitcode", "9", *words], capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-3000:]
    return {"told": ended.stdout.strip().splitlines()[-1:]}


PARTS = (products, near_other_backends, invariance, recordings, speculation, memory_checker)
