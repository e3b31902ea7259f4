"""The page on architectures, blocks and operations: its examples are whole plugins, and work on all backends that it names."""

import re
import types
from pathlib import Path

import attrs
import numpy as np
import pytest
from oracles.models import altered, nmse, tiny_file
from oracles.passes import run_of
from oracles.states import script_rows

from augury import Engine, UnsupportedError
from augury.blocks import Activation, Linear
from augury.files.gguf import ModelFile
from augury.interfaces import Progress
from augury.registry import Registry
from augury.testing import check_architecture
from augury.types import ModelOptions

PAGE = Path(__file__).parents[2] / "docs" / "write-an-architecture.md"
ORACULAR, TIDAL, ENDS, SOFT, _, STREAMS, TINY = re.findall(
    r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE
)
BACKENDS = ("reference", "numba-cpu")


def plugin_of(source):
    module = types.ModuleType("augury_documented")
    exec(compile(source, str(PAGE), "exec"), vars(module))
    return module


def registry_with(source):
    registry = Registry.discover()
    registry.register(plugin_of(source), name="documented")
    return registry


@pytest.fixture(scope="module")
def tidal(tmp_path_factory):
    """The file that the page writes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("tidal"))
        exec(TINY, {})
        return Path("tiny.gguf").resolve()


def test_the_family_of_known_blocks_keeps_its_contracts_and_computes():
    """Its file is the tiny qwen3 model, renamed: it has the tensors that the example asks for."""
    qwen3 = tiny_file("qwen3-dense")
    renamed = {key.replace("qwen3.", "oracular."): value for key, value in qwen3.metadata.items()}
    file = altered(qwen3, metadata=renamed | {"general.architecture": "oracular", "oracular.attention.sliding_window": 16})
    registry = registry_with(ORACULAR)

    check_architecture("oracular", file, registry=registry)
    plan = registry.architectures["oracular"].plans(file)["main"]
    logits = script_rows(registry.backends["reference"], file, plan)

    assert [layer.mixer.window for layer in plan.layers] == [16, None]
    assert [layer.feed_forward.activation for layer in plan.layers] == [Activation.GELU] * 2
    assert np.isfinite(logits).all()


def test_the_family_with_a_block_of_its_own_keeps_its_contracts(tidal):
    check_architecture("tidal", tidal, registry=registry_with(TIDAL))


def test_the_block_is_what_its_docstring_says(tidal):
    registry, file = registry_with(TIDAL), ModelFile.open(tidal)
    plan = registry.architectures["tidal"].plans(file)["main"]
    tensors = {name: tensor.data.view(np.float32).reshape(tensor.shape).astype(float) for name, tensor in file.tensors.items()}
    x = tensors["token_embd.weight"][[3, 1, 4, 1, 5]]
    n = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5)
    v, g = np.split(n @ tensors["blk.1.tide_in.weight"].T, 2, axis=1)
    past = np.vstack([np.zeros((3, v.shape[1])), v])
    y = sum(past[j : j + 5] * tensors["blk.1.tide_conv.weight"][:, j] for j in range(4))
    x = x + (y * g / (1 + np.exp(-g))) @ tensors["blk.1.tide_out.weight"].T
    expected = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) @ tensors["output.weight"].T

    alone = attrs.evolve(plan, layers=(attrs.evolve(plan.layers[1], feed_forward=None),))
    for backend in BACKENDS:
        device = registry.backends[backend]
        model = device(device.options_class()).load(file, alone, ModelOptions(n_ctx=16, threads=2), Progress())
        assert nmse(model.forward(run_of([3, 1, 4, 1, 5])).rows(), expected) < 1e-10
        model.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("drafters", ["suffix", "suffix;recycle"])
def test_a_model_with_the_block_writes_the_same_with_and_without_drafts(tidal, backend, drafters):
    def answers(spec_type):
        options = {"backend": backend, "spec_type": spec_type, "spec_fixed": True, "registry": registry_with(TIDAL)}
        with Engine.load(tidal, slots=2, threads=2, n_ctx=256, **options) as engine:
            return engine.generate([[1, 2, 3] * 9, [7] * 5], max_tokens=40, temperature=0.7, seed=5)

    plain, drafted = answers("none"), answers(drafters)
    assert [each.tokens for each in drafted] == [each.tokens for each in plain]
    assert sum(each.stats.n_accepted for each in drafted) > 0


@pytest.fixture
def ends():
    """The page's embedding and output around a layer of a tiny model: file, plan, and their tensors (float64)."""
    module, rng = plugin_of(ENDS), np.random.default_rng(8)
    shapes = {"token_embd": (128, 32), "up": (256, 32), "hidden": (96, 256), "output": (128, 96)}
    arrays = {name: (rng.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32) for name, shape in shapes.items()}
    file = altered(tiny_file("llama-dense"), arrays=arrays)
    plan = Registry.discover().architectures["llama"].plans(tiny_file("llama-dense"))["main"]
    up, hidden, output = (Linear(name, *shapes[name][::-1]) for name in ("up", "hidden", "output"))
    embedding = module.NarrowEmbedding("token_embd", 128, 256, up=up)
    output = module.DeepOutput(plan.output.norm, output, hidden=hidden)
    return file, attrs.evolve(plan, embedding=embedding, output=output), arrays


def silu(x):
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_embedding_and_the_output_are_what_their_docstrings_say(ends, backend):
    file, plan, arrays = ends
    device = Registry.discover().backends[backend]
    model = device(device.options_class()).load(file, plan, ModelOptions(n_slots=1, n_ctx=16, threads=2), Progress())
    told = attrs.evolve(run_of([3, 1, 4, 1, 5]), features=("embedding", "output"))
    passed = model.forward(told)
    x = arrays["token_embd"][[3, 1, 4, 1, 5]] @ arrays["up"].T
    assert nmse(passed.features("embedding"), x) < 1e-10
    logits = silu(passed.features("output") @ arrays["hidden"].T) @ arrays["output"].T
    assert nmse(passed.rows(), logits) < 1e-10
    alone = model.forward(run_of([3]))
    assert np.array_equal(alone.rows()[0], passed.rows()[0])
    model.close()


def test_the_embedding_and_the_output_compute_the_same_with_trees_and_drafts(ends):
    file, plan, _ = ends
    found, expected = (script_rows(Registry.discover().backends[each], file, plan) for each in BACKENDS)
    assert nmse(found, expected) < 1e-6


def soft_plan(file, registry, module):
    plan = registry.architectures["llama"].plans(file)["main"]
    inner = plan.layers[0].feed_forward
    return attrs.evolve(
        plan,
        layers=(
            attrs.evolve(plan.layers[0], feed_forward=module.SoftFeedForward(inner.norm, inner.up, inner.down)),
            *plan.layers[1:],
        ),
    )


def test_the_operation_of_ones_own_is_computed_by_the_backends_that_it_has_a_kernel_for():
    registry, file, module = Registry.discover(), tiny_file("llama-dense"), plugin_of(SOFT)
    x, out = np.array([-3.0, 0.0, 1.0]), np.empty(3)
    module.soften(x, 2.0, out)
    assert np.array_equal(out, 2 * x / (1 + np.abs(x)))
    expected, found = (script_rows(registry.backends[each], file, soft_plan(file, registry, module)) for each in BACKENDS)
    assert nmse(found, expected) < 1e-6


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_without_a_kernel_refuses_the_operation_by_name(backend):
    registry, file, module = Registry.discover(), tiny_file("llama-dense"), plugin_of(SOFT)
    module.Soften.kernels = {name: each for name, each in module.Soften.kernels.items() if name != backend}
    with pytest.raises(UnsupportedError, match=f"SoftFeedForward has the operation Soften, which backend {backend} does not"):
        script_rows(registry.backends[backend], file, soft_plan(file, registry, module))


def test_streams_of_ones_own_are_read_and_written_as_the_page_says():
    registry, file, module = Registry.discover(), tiny_file("llama-dense"), plugin_of(STREAMS)
    plain = registry.architectures["llama"].plans(file)["main"]
    plain = attrs.evolve(plain, layers=plain.layers[:1])

    def features(plan):
        backend = registry.backends["reference"]
        model = backend(backend.options_class()).load(file, plan, ModelOptions(n_ctx=32), Progress())
        batch = attrs.evolve(run_of([3, 1, 4, 1]), features=("embedding", "layer.0"))
        return [model.forward(batch).features(name).astype(np.float64) for name in batch.features]

    (x, expected), (_, streams) = features(plain), features(module.reversible(plain))
    added_by_feed_forward, with_attention = streams[:, : x.shape[1]] - x, streams[:, x.shape[1] :]
    assert nmse(with_attention + added_by_feed_forward, expected) < 1e-12
    with pytest.raises(UnsupportedError, match="connection Reversible, which backend numba-cpu does not compute"):
        script_rows(registry.backends["numba-cpu"], file, module.reversible(plain))
