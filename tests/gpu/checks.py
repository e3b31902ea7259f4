"""What must hold on a GPU: to the bit where a token is computed in other company, near other backends where these differ."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import numpy as np
from oracles.cuda_latents import error_of_latents
from oracles.cuda_products import ExpertProducts, PassedLogits, Product
from oracles.drafts import DRAFTS, MTP
from oracles.models import ORACLES, expected, nmse, tiny_file
from support.head_rig import rounds

from augury.backends.numba_cuda import NumbaCuda, NumbaCudaOptions
from augury.backends.numba_cuda.gpu import Gpu
from augury.backends.numba_cuda.kernels.attention import ATTEND
from augury.backends.numba_cuda.kernels.experts import route
from augury.backends.numba_cuda.kernels.formats import FORMATS
from augury.backends.numba_cuda.kernels.halves import halve_rows
from augury.backends.numba_cuda.kernels.inputs import FEW_TOKENS
from augury.backends.numba_cuda.kernels.latent import merge_latents
from augury.backends.numba_cuda.kernels.latent_attention import ATTEND_LATENT
from augury.backends.numba_cuda.kernels.matmul import MULTIPLY
from augury.backends.numba_cuda.kernels.norm import norm_rows
from augury.backends.numba_cuda.kernels.routes import gather_rows
from augury.backends.numba_cuda.kernels.stream import HALVED, MULTIPLY_HALVES, STREAM_TILES
from augury.backends.numba_cuda.kernels.sums import TILES
from augury.backends.numba_cuda.kernels.tensor_cores import MATRIX_TILE, MATRIX_TILES, MULTIPLY_MATRIX
from augury.backends.numba_cuda.passes import KERNELS
from augury.batch import Batch
from augury.devices import Placement
from augury.engine.engine import Engine
from augury.errors import UnsupportedError
from augury.interfaces import Model, Progress
from augury.loader import plan_of
from augury.passes import ArrayPass
from augury.registry import Registry
from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.planner import DraftPlanner
from augury.speculation.profiles import DrafterProfile
from augury.stages import Stage, StagedBackend
from augury.types import ModelOptions
from gpu.models import Q4_K_M, SMALL, TINY, TINY_MIXTURE, load, random_head, random_model

N_SPECULATED = 10_000  # tokens that are written with and without drafts
N_OVERLAPPED = 500  # while a CPU drafts
CHAINED_FROM = (5, 250, 600)  # where chains of passes begin, by slot
N_CHAINED = 500  # tokens that are written with drafts of a model that feeds itself
KINDS = (  # with, between them, blocks of every kind
    "qwen3-dense",
    "gemma4-e",
    "deepseek32-moe",
    "deepseek4-moe",
    "minimax-m3-moe",
    "gpt-oss-moe",
    "qwen35-dense",
    "deltanet-dense",
    "jamba-dense",
    "falcon-h1-dense",
    "lfm2-dense",
    "minimax-01-moe",
    "kimi-linear-moe",
    "kimi-k3-moe",
    "hrm_text-dense",
    "qwen4exp-moe",
)
N_PLACED = 200  # by each number of layers on a GPU
N_RECORDED = 100  # graphs
PRODUCT = (260, 2048)  # rows and columns of a matrix
N_VOCAB = 151_936
LATENTS = (128, 512, 64, 2000)  # heads, what is kept of a position, what of that is turned, and the position


def products():
    """Every kernel of products against float64, and against the others of its type, at a size of a real layer."""
    gpu, figures = Gpu(0), {}
    kernels = [*MULTIPLY.values(), *MULTIPLY_MATRIX.values(), *MULTIPLY_HALVES.values()]
    gpu.prepare([norm_rows, route, gather_rows, halve_rows, *kernels], Progress())
    for name, fmt in FORMATS.items():
        few, many = (Product(gpu, name, n, *PRODUCT) for n in (FEW_TOKENS, 64))
        found = [few.by(tile, n_cuts=n_cuts) for n_cuts in (1, 4) for tile in TILES]
        assert all(np.array_equal(each, found[0]) for each in found[: len(TILES)]), f"{name}: tiles differ"
        assert all(np.array_equal(each, found[-1]) for each in found[len(TILES) :]), f"{name}: tiles of cut rows differ"
        figures[name] = float(np.abs(found[0] - few.right).max() / np.abs(few.right).max())
        if not fmt.is_float:
            for tile in MATRIX_TILES:
                assert np.array_equal(many.by(tile)[:FEW_TOKENS], found[0]), f"{name}: tensor cores differ"
                by_tensor_cores = many.by(tile, n_cuts=4, is_split=tile == MATRIX_TILE)[:FEW_TOKENS]
                assert np.array_equal(by_tensor_cores, found[-1]), f"{name}: tensor cores differ where rows are cut"
            chosen = np.random.default_rng(5).integers(0, 8, (64, 2))
            experts = ExpertProducts(gpu, name, chosen, 8, *PRODUCT)
            by_bytes, by_tensor_cores = (experts.by(tile)[0] for tile in (TILES[-1], MATRIX_TILE))
            assert np.array_equal(by_bytes, by_tensor_cores), f"{name}: tensor cores differ for experts"
            figures[name] = max(figures[name], float(np.abs(many.by(32) - many.right).max() / np.abs(many.right).max()))
        assert figures[name] < 1e-5, (name, figures[name])
        if name in HALVED:
            by_halves = many.by_halves(64)
            for n in (1, *STREAM_TILES[:-1]):
                assert np.array_equal(many.by_halves(n), by_halves[:n]), f"{name}: {n} tokens as halves differ from 64"
            error = np.sqrt(((by_halves - many.exact) ** 2).mean() / (many.exact**2).mean())
            figures[f"{name} as halves"] = float(error)
            assert error < 1e-3, (name, error)
    gpu.close()
    return {"largest error": figures}


def latent_attention():
    """Heads that share what tensor cores read, at DeepSeek's size, against float64: the same bits by every kernel of a type."""
    gpu = Gpu(0)
    gpu.prepare([*ATTEND_LATENT.values(), merge_latents], Progress())
    errors = {kind: error_of_latents(gpu, kind, *LATENTS) for kind, _ in ATTEND_LATENT}
    gpu.close()
    assert max(errors.values()) < 1e-10, errors
    return {"error against float64": errors}


def choosing():
    """The best tokens of a large vocabulary, normalisers and some logits, as numpy finds them."""
    gpu, rng = Gpu(0), np.random.default_rng(3)
    logits = np.round(rng.standard_normal((3, N_VOCAB)) * 300).astype(np.float32) / 100  # many are equal
    logits[2, N_VOCAB // 2] = np.nan
    gpu.prepare(KERNELS, Progress())
    passed, right, rows = PassedLogits(gpu, logits)(N_VOCAB), ArrayPass(logits), np.arange(3, dtype=np.int32)
    for k in (1, 40, 256):
        for found, wanted in zip(passed.top_k(rows, k), right.top_k(rows, k), strict=True):
            assert np.array_equal(found, wanted, equal_nan=True), f"the {k} best"
    assert all(abs(passed.log_normalizer(row) - right.log_normalizer(row)) < 1e-9 for row in (0, 1))
    ids = rng.integers(0, N_VOCAB, 300)
    assert np.array_equal(passed.gather(1, ids), logits[1, ids])
    gpu.close()


def near_other_backends():
    """A whole model against the reference and numba-cpu."""
    file, batch = random_model(TINY, Q4_K_M), Batch.chain(np.arange(100) % 500)
    rows = {}
    for backend in ("numba-cuda", "numba-cpu", "reference"):
        model = load(file, backend, n_ctx=128)
        rows[backend] = model.forward(batch).rows().copy()
        model.close()
    figures = {name: nmse(each, rows["reference"]) for name, each in rows.items()}
    assert figures["numba-cuda"] < max(1e-3, 2 * figures["numba-cpu"]), figures  # random weights make more of what was rounded
    return {"error against the reference": figures}


def architectures():
    """Tiny models of all architectures, and of some in all cache types: near the reference, at once as one by one."""
    registry, pairs, errors, left_out, wrong = Registry.discover(), [*ATTEND], {}, [], []
    for name in ORACLES:
        file = tiny_file(name)
        plan = plan_of(file, registry)
        try:
            NumbaCuda(NumbaCudaOptions()).state_spec(plan, ModelOptions(n_ctx=64))
        except UnsupportedError as error:
            left_out.append(f"{name}: {error}")
            continue
        tokens = expected(name)[0][:12]
        for types in pairs if name in ("llama-dense", "gemma3-dense") else pairs[:1]:
            case, params = f"{name} {'-'.join(types)}", {"n_ctx": 64, "types": types}
            try:
                model = load(file, n_slots=2, **params)
                found = model.forward(Batch.chain(tokens)).rows().copy()
                one_by_one = [
                    model.forward(Batch.chain([token], slot=1, start=i)).rows().copy() for i, token in enumerate(tokens)
                ]
                if told := _differing(found, np.concatenate(one_by_one)):
                    wrong.append(f"{case}, at once and one by one: {told}; {_where_they_differ(model, tokens)}")
                model.close()
            except Exception as error:  # noqa: BLE001 - after a fault all others fail, too
                wrong.append(f"{case}: {error!r}")
                continue
            right = load(file, "reference", **params).forward(Batch.chain(tokens)).rows()
            errors[case] = nmse(found, right)
    wrong += [f"{case}: {error} from the reference" for case, error in errors.items() if not error < NumbaCuda.tolerance]
    assert not wrong, "\n".join(wrong)
    return {"models": len(errors), "largest error": max(errors.values()), "left out": left_out}


def heads():
    """Tiny heads, and layers that predict further tokens: they draft what llama.cpp does, round by round."""
    n_drafts, errors, wrong = 0, {}, []
    for name in (*DRAFTS, *MTP):
        try:
            for i, (found, right, error) in enumerate(rounds(name, "numba-cuda")):
                n_drafts, errors[name] = n_drafts + 1, max(error, errors.get(name, 0.0))
                if found != right or not error < NumbaCuda.tolerance:
                    wrong.append(f"{name}, round {i}: {found}, expected {right}, logits with an error of {error}")
        except Exception as error:  # noqa: BLE001 - after a fault all others fail, too
            wrong.append(f"{name}: {error!r}")
    assert not wrong, "\n".join(wrong)
    return {"drafts": n_drafts, "largest error of logits": max(errors.values())}


def _differing(found, right):
    """How many values differ, of which rows, and by how much at most; nothing where none does."""
    differs = found != right
    rows = {i: int(n) for i, n in enumerate(differs.sum(axis=1)) if n}
    most = np.abs(found - right)[differs].max(initial=0)
    return f"of rows {rows} of {found.shape[1]} values, by {most} at most" if rows else ""


def _where_they_differ(model, tokens):
    """After which of a model's layers tokens at once differ first from the same tokens one by one."""

    def features(**params):
        passed = model.forward(Batch.chain(**params, features=names))
        return [passed.features(name).copy() for name in names]

    names = tuple(model.features)
    whole = features(tokens=tokens)
    one_by_one = [features(tokens=[token], slot=1, start=i) for i, token in enumerate(tokens)]
    for name, found, *rows in zip(names, whole, *one_by_one, strict=True):
        if told := _differing(found, np.concatenate(rows)):
            return f"first in {name}: {told}"
    return f"not in {', '.join(names) or 'features, of which there are none'}"


def invariance():
    """A token alone, and among 1 to 64 at each place or 255, beside another slot, at any cut, with graphs and without."""
    kinds = [(shape, products) for products in ("bytes", "halves") for shape in (TINY, TINY_MIXTURE)]
    return {f"rows compared of {shape.name}, {products}": _n_compared(shape, products) for shape, products in kinds}


def _n_compared(shape, products):
    file = random_model(shape, Q4_K_M)
    tokens = np.random.default_rng(3).integers(0, TINY.n_vocab, 700).astype(np.int32)
    n_compared = 0
    whole = None
    for graphs in (True, False):
        model = load(file, n_ctx=1024, n_slots=2, graphs=graphs, products=products)
        rows = model.forward(Batch.chain(tokens)).rows().copy()
        assert whole is None or np.array_equal(rows, whole), "graphs and single launches differ"
        whole = rows
        for start in (0, 250, 600):
            for n in range(1, 65):
                found = model.forward(Batch.chain(tokens[start : start + n], start=start)).rows()
                assert np.array_equal(found, whole[start : start + n]), f"{n} tokens from {start} on"
                n_compared += n
        for n in (65, 100, 256):  # of a prompt, of which a pass gives few logits
            found = model.forward(
                Batch.chain(tokens[600 - n : 600], start=600 - n, rows=np.arange(n - 60, n, dtype=np.int32))
            ).rows()
            assert np.array_equal(found, whole[540:600]), f"{n} tokens up to 600"
            n_compared += 60
        few = np.array([*range(TINY.n_vocab // 4), TINY.n_vocab // 2, TINY.n_vocab - 5], np.int32)
        for n in (1, 3, 20):
            found = model.forward(Batch.chain(tokens[600 : 600 + n], start=600, vocabulary=few)).rows()[:, few]
            assert np.array_equal(found, whole[600 : 600 + n, few]), f"logits of some tokens alone, after {n}"
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
    return n_compared


def speculation():
    """Text with drafts, right ones and wrong ones, is that without, to the bit, over thousands of tokens."""
    file, figures = random_model(TINY, Q4_K_M), {}  # whose texts repeat themselves
    prompts = [np.random.default_rng(i).integers(0, TINY.n_vocab, 40).tolist() * 2 for i in range(5)]

    def written(**params):
        tokens, drafted, accepted = [], 0, 0
        with engine_of(file, **params) as engine:
            n = N_SPECULATED // len(prompts)
            for result in engine.generate(prompts, max_tokens=n, temperature=0.0, logprobs=1, ignore_eos=True):
                tokens.append((result.tokens, [piece.logprob for piece in result.pieces]))
                drafted, accepted = drafted + result.stats.n_drafted, accepted + result.stats.n_accepted
        return tokens, drafted, accepted

    plain, *_ = written(spec_type="none")
    chains, trees = {"spec_type": "suffix"}, {"spec_type": "recycle"}
    for name, params in (("chains", chains), ("trees", trees), ("trees of four slots", trees | {"slots": 4})):
        found, drafted, accepted = written(spec_fixed=True, **params)
        assert found == plain, name
        assert 0 < accepted < drafted, (name, accepted, drafted)
        figures[f"{name}: drafted"], figures[f"{name}: accepted"] = drafted, accepted
    assert written()[0] == plain, "planned"
    return figures


def chains():
    """What a model or a head feeds itself is what it is fed one by one, to the bit; and with such drafts texts are the same."""
    with TemporaryDirectory() as folder:
        target, draft = random_model(SMALL, Q4_K_M), random_model(attrs.evolve(TINY, n_vocab=SMALL.n_vocab), Q4_K_M)
        head = random_head(target, Path(folder) / "head.gguf")
        head.borrow_from(target)
        n_compared = sum(map(_n_chained, (draft, head)))
        return {"rows compared": n_compared, **_texts_by_chains(target, draft, head)}


def _n_chained(file):
    """How many rows of chains are those of passes one by one, with graphs and without."""
    rng, rows = np.random.default_rng(1), []
    starts, tokens, slots = np.array(CHAINED_FROM, np.int32), np.int32([1, 2, 3]), np.arange(3, dtype=np.int32)
    width = file.metadata[f"{file.architecture}.embedding_length"]
    hidden = rng.standard_normal((CHAINED_FROM[-1] + 3, width), np.float32)
    for graphs in (True, False):
        model = load(file, n_ctx=1024, n_slots=3, graphs=graphs)
        is_head = file.target is not None
        for slot, start in enumerate(starts):
            model.forward(Batch.chain(np.arange(start) % 500, slot=slot, hidden=hidden[:start] if is_head else None))
        batch = Batch(tokens, slots, starts, slots)
        if is_head:
            batch = attrs.evolve(batch, hidden=hidden[-3:], features=(f"layer.{model.info.n_layers - 1}",))
        for n in (2, 5, 14, 14):
            passes = [chain(model, batch, n) for chain in (Model.forward_chain, type(model).forward_chain)]
            right, found = ([each.rows(), *map(each.features, batch.features)] for each in passes)
            assert all(map(np.array_equal, found, right)), f"{n} passes of {file.architecture}"
            rows.append(found[0].copy())
        model.close()
    assert all(np.array_equal(*each) for each in zip(rows[:4], rows[4:], strict=True)), "graphs and single launches differ"
    return sum(map(len, rows))


def _texts_by_chains(target, draft, head):
    """What is drafted and accepted of texts that are the same with drafts of models and of a head, and without."""
    found, prompts = [], [[*range(first, first + 20)] for first in (5, 600, 9000)]
    ways = [{"spec_type": "none"}, {"spec_type": "draft-eagle3", "draft_model": head.path, "spec_fixed": True, "slots": 3}]
    for drafting, p_min in ((draft, 0.0), (draft, 0.02), (target, 0.0)):
        options = {"draft-model": {"p_min": p_min}}
        params = {"spec_type": "draft-model", "draft_model": drafting.path, "spec_options": options}
        ways.append({**params, "spec_fixed": True, "slots": 3})
    for params in ways:
        with engine_of(target, draft, head, **params) as engine:
            results = engine.generate(prompts, max_tokens=N_CHAINED, temperature=0.0, logprobs=1, ignore_eos=True)
        found.append([(result.tokens, [piece.logprob for piece in result.pieces]) for result in results])
        assert found[-1] == found[0], params
    figures = {name: sum(getattr(result.stats, name) for result in results) for name in ("n_drafted", "n_accepted")}
    assert figures["n_accepted"] > 0, figures  # of what the target itself has drafted
    return figures


class _Eager(DraftPlanner):
    """Drafts, and drafts ahead, whatever it takes."""

    def n_ahead(self, choices, able, n_others, begun_s):
        return [2 for _ in able]

    def observe_round(self, rounds, depth, n_others, pass_s, overhead_s):
        pass


def overlap():
    """While the GPU verifies drafts a draft model on the CPU writes the next ones: the text is the same to the bit."""
    from unittest.mock import patch

    target, found = random_model(SMALL, Q4_K_M), []
    draft = random_model(attrs.evolve(TINY, n_vocab=SMALL.n_vocab), Q4_K_M)
    flat = PassCosts([PassTime(1, 0, 1e3), PassTime(9, 0, 1e3)], 9)
    on_cpu = {"draft_model": draft.path, "spec_options": {"draft-model": {"backend": "numba-cpu"}}, "draft_max": 4}
    prompts = [[*range(first, first + 20)] for first in (5, 600, 9000)]
    for params in ({"spec_type": "none"}, {"spec_type": "draft-model", **on_cpu}):
        with (
            patch("augury.engine.engine.planner_for", lambda _, chain, *__, **___: _Eager(flat, map(DrafterProfile.of, chain))),
            engine_of(target, draft, **params) as engine,
        ):
            results = engine.generate(prompts, max_tokens=N_OVERLAPPED, temperature=0.0, logprobs=1, ignore_eos=True)
        found.append([(result.tokens, [piece.logprob for piece in result.pieces]) for result in results])
    assert found[0] == found[1]
    drafters = [result.stats.drafters["draft-model"] for result in results]
    assert sum(each.ahead for each in drafters) > 0
    names = ("drafted", "accepted", "ahead", "ahead_used", "draft_s", "hidden_s")
    return {name: sum(getattr(each, name) for each in drafters) for name in names}


def placement():
    """Layers on the CPU and the GPU, with drafts and without; stages on one GPU, or on two, are the whole model."""
    file, n_layers, prompts = random_model(TINY, Q4_K_M), TINY.n_layers + 1, [[5, 6, 7, 8] * 4]
    for n in range(n_layers + 1):
        found = []
        for params in ({"spec_type": "none"}, {"spec_type": "ngram-simple:n=2,m=4", "spec_fixed": True}):
            with engine_of(file, placement=Placement(gpu_layers=n), **params) as engine:
                (result,) = engine.generate(prompts, max_tokens=N_PLACED, temperature=0.0, logprobs=1, ignore_eos=True)
            found.append((result.tokens, [piece.logprob for piece in result.pieces]))
        assert found[0] == found[1], f"{n} layers on the GPU"
    gpus, batch, options = NumbaCuda.devices(), Batch.chain(np.arange(40) % 500), ModelOptions(n_ctx=64)
    plan = plan_of(file, Registry.discover())
    whole = load(file, n_ctx=64)
    right = whole.forward(batch).rows().copy()
    whole.close()
    for cut in range(1, n_layers):
        second = gpus[-1].options["device"]
        backends = (NumbaCuda(NumbaCudaOptions(device=number)) for number in (0, second))
        stages = [Stage(backend, *ends) for backend, ends in zip(backends, ((0, cut), (cut, n_layers)), strict=True)]
        model = StagedBackend(stages).load(file, plan, options, Progress())
        assert np.array_equal(model.forward(batch).rows(), right), f"cut before layer {cut}"
        model.close()
    return {"GPUs": [f"{gpu.name}: {gpu.description}, {gpu.n_bytes_free} of {gpu.n_bytes} bytes free" for gpu in gpus]}


def engine_of(file, *others, backend="numba-cuda", **params):
    """An engine of a model in memory, and of others for its drafters, which are loaded as those from files would be."""
    from unittest.mock import patch

    from augury.loader import Loader

    files = {str(each.path): each for each in (file, *others)}
    with patch.object(Loader, "open", lambda self, reference, *_: files[str(reference)]):
        return Engine.load(file.path, backend=backend, n_ctx=4096, **params)


def recordings():
    """Graphs recorded again and again while memory is collected."""
    file, batch = random_model(TINY, Q4_K_M), Batch.chain([1, 2, 3])
    model = load(file, n_ctx=256)
    right = model.forward(batch).rows().copy()
    for i in range(N_RECORDED):
        model._programs.clear()
        if i % 10 == 0:
            gc.collect()
        assert np.array_equal(model.forward(batch).rows(), right)
    model.close()
    return {"recordings": N_RECORDED}


def every_kind_of_block():
    """Passes of tiny models, few tokens and many, of which a checker of memory tells what is wrong."""
    files = [*map(tiny_file, KINDS), random_model(TINY, Q4_K_M)]
    for file in files:
        model = load(file, n_ctx=64, n_slots=2)
        for n in (3, 20):
            model.forward(Batch.chain(np.arange(n, dtype=np.int32))).top_k(np.zeros(1, np.int32), 5)
        model.close()
    next(rounds("dflash2-qwen3", "numba-cuda"))  # whose blocks no model has


def memory_checker():
    """compute-sanitizer, where there is one: what is read and written, races in shared memory, and who comes to barriers."""
    tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if tool is None:
        return {"left out": "there is no compute-sanitizer"}
    words = [sys.executable, "-c", "from gpu import checks; checks.every_kind_of_block()"]
    figures, environment = {}, os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for name in ("memcheck", "racecheck", "synccheck"):
        words_of_tool = [tool, "--tool", name, "--error-exitcode", "9", *words]
        ended = subprocess.run(words_of_tool, capture_output=True, text=True, check=False, timeout=75, env=environment)
        figures[name] = f"status {ended.returncode}: {(ended.stdout + ended.stderr)[-2000:]}"
    assert all(each.startswith("status 0:") for each in figures.values()), figures
    return figures


PARTS = (
    products,
    latent_attention,
    choosing,
    near_other_backends,
    architectures,
    heads,
    invariance,
    recordings,
    placement,
    speculation,
    chains,
    overlap,
    memory_checker,
)
