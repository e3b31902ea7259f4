"""Every optional part of a plan, on every backend: the reference's results, the same bits however tokens are batched."""

from __future__ import annotations

import itertools
import math
from functools import cache

import attrs
import numpy as np
import pytest
from oracles.models import altered, nmse, tiny_file
from oracles.passes import joined, run_of, tree_of
from oracles.strangers import with_strangers
from support.cpu_backends import cpu_backends

from augury import Registry
from augury.blocks import (
    Activation,
    Attention,
    Embedding,
    FeedForward,
    LatentAttention,
    Layer,
    Linear,
    Matrices,
    ModelPlan,
    Norm,
    NormKind,
    Output,
    Projection,
    Rope,
    RowSelection,
    SecondStream,
    Temperature,
    Vector,
)
from augury.errors import OptionError, UnsupportedError
from augury.interfaces import Progress
from augury.plugins.architectures.latent import BlockIndexer, Indexer
from augury.plugins.compressed_attention.deepseek4 import CompressedAttention
from augury.plugins.pooling import PoolIndexer, Pooling
from augury.plugins.residual_streams import AttentionResidual, GatedHyperConnection, HyperConnection, StreamMean
from augury.types import ModelOptions

REGISTRY = Registry.discover()
E, H, G, D, DV, F, V = 40, 6, 2, 24, 40, 50, 77
N_CTX = 320
LAYER_NORM = Norm("norm e", E, 1e-5, "bias e", NormKind.LAYER)
ATTENTION = Attention(
    Norm("norm e", E, 1e-5),
    *(Linear(name, E, n) for name, n in (("q", H * D), ("k", G * D), ("v", G * DV))),
    Linear("o", H * DV, E),
    *(H, G, D, DV, 1 / math.sqrt(D)),
    Rope(10000.0 ** (-np.arange(4) / 4)),
)
FEED_FORWARD = FeedForward(
    Norm("norm e", E, 1e-5), Linear("gate", E, F), Linear("up", E, F), Linear("down", F, E), Activation.SILU
)
LAYER = Layer(ATTENTION, FEED_FORWARD)
PLAN = ModelPlan(
    "llama", Embedding("embedding", V, E), (LAYER, LAYER), Output(Norm("norm e", E, 1e-5), Linear("output", E, V)), N_CTX
)
NORMS = {"q_norm": Norm("norm d", D, 1e-5), "k_norm": Norm("norm d", D, 1e-5)}
FUSED = 3 * H * D
L, R, N, LOW = 26, 14, 14, 28
LATENT = LatentAttention(
    Norm("norm e", E, 1e-5),
    Linear("latent q", E, H * (N + R)),
    Linear("latent kv", E, L + R),
    Norm("norm l", L, 1e-5),
    Matrices("latent keys", H, N, L),
    Matrices("latent values", H, L, DV),
    ATTENTION.o,
    1 / math.sqrt(N + R),
    attrs.evolve(ATTENTION.rope, is_interleaved=True),
)
LOW_RANK = attrs.evolve(
    LATENT,
    q=Linear("latent q of low rank", LOW, H * (N + R)),
    q_down=Linear("latent q down", E, LOW),
    q_norm=Norm("norm low", LOW, 1e-5),
)
INDEXER = Indexer(
    Linear("index q", LOW, 5 * 32),
    Linear("index k", E, 32),
    Norm("norm index", 32, 1e-5, "bias index", NormKind.LAYER),
    Linear("index weights", E, 5),
    ATTENTION.rope,
    n_chosen=7,
)
POOLING = Pooling(4, Linear("index k", E, 32))
POOL_INDEXER = PoolIndexer(INDEXER.q, POOLING, None, 2)
WEIGHING = {
    "weights": Linear("index gates", E, 32),
    "places": Vector("index places", 4 * 32, (4, 32)),
    "value_norm": INDEXER.k_norm,
    "norm": Norm("norm block", 32, 1e-5),
    "rope": ATTENTION.rope,
}
WIDE_POOLING = attrs.evolve(
    POOLING, values=Linear("wide index k", E, 64), weights=Linear("wide index gates", E, 64), overlaps=True
)
COMPRESSED = CompressedAttention(
    norm=Norm("norm e", E, 1e-5),
    q_down=Linear("latent q down", E, LOW),
    q_norm=Norm("norm low", LOW, 1e-5),
    q=Linear("wide q of low rank", LOW, H * 32),
    head_norm=Norm(None, 32, 1e-5),
    kv=Linear("index k", E, 32),
    kv_norm=Norm("norm block", 32, 1e-5),
    rope=attrs.evolve(ATTENTION.rope, offset=24, is_interleaved=True),
    sinks=Vector("sinks", H),
    window=6,
    scale=0.3,
    groups=Matrices("groups", 3, 64, 10),
    o=Linear("grouped o", 30, E),
)
CHOOSING = attrs.evolve(LAYER, mixer=attrs.evolve(LOW_RANK, indexer=INDEXER))
BLOCKS = BlockIndexer(
    Linear("block q", E, G * 32),
    Linear("index k", E, 32),
    *(Norm("norm block", 32, 1e-5), Norm("norm index", 32, 1e-5), ATTENTION.rope),
    size=4,
    n_chosen=3,
    n_local=1,
)
WIDE = attrs.evolve(
    ATTENTION,
    **{name: Linear(f"wide {name}", E, n * 32) for name, n in (("q", H), ("k", G), ("v", G))},
    o=Linear("wide o", H * 32, E),
    head_dim=32,
    value_dim=32,
)
S = 3
HYPER = HyperConnection(
    Norm(None, S * E, 1e-5),
    Linear("coefficients", S * E, 2 * S),
    *(Vector("scales of two", 2), Vector("base of two", 2 * S)),
    *(S, 1e-3),
    post_scale=1.7,
    post_eps=0.02,
)
HYPER_OUTPUT = attrs.evolve(
    HYPER,
    coefficients=Linear("coefficients of output", S * E, S),
    scales=Vector("scales of one", 1),
    base=Vector("base of one", S),
)
GATED = GatedHyperConnection(
    Norm("norm streams", E, 1e-5, weight_shape=(S, E)),
    Linear("low streams", S * E, 10),
    Linear("gates of streams", 10, S * E),
    Linear("injected", S * E, S),
)
BOTH = {"n_stored": N + DV, "is_flat": True}


def attention(**changes):
    return with_layers(mixer=attrs.evolve(ATTENTION, **changes))


def feed_forward(**changes):
    return with_layers(feed_forward=attrs.evolve(FEED_FORWARD, **changes))


def with_layers(**changes):
    """A plan whose second layer is not as usual."""
    return attrs.evolve(PLAN, layers=(LAYER, attrs.evolve(LAYER, **changes)))


def pooled(indexer):
    """A plan whose second layer attends to what the first chose."""
    first, second = attrs.evolve(LOW_RANK, indexer=indexer), attrs.evolve(LATENT, reuses_choice=indexer.keys.size)
    return attrs.evolve(PLAN, layers=tuple(attrs.evolve(LAYER, mixer=mixer) for mixer in (first, second)))


def with_streams(connection, output):
    """A plan with several residual streams."""
    layers = (LAYER.connected(connection, connection),) * 2
    embedding = attrs.evolve(PLAN.embedding, n_streams=S)
    return attrs.evolve(PLAN, embedding=embedding, layers=layers, output=attrs.evolve(PLAN.output, connection=output))


VARIANTS = {
    "no norm before": with_layers(mixer=attrs.evolve(ATTENTION, norm=None), feed_forward=attrs.evolve(FEED_FORWARD, norm=None)),
    "layer norms": with_layers(
        mixer=attrs.evolve(ATTENTION, norm=LAYER_NORM, post_norm=LAYER_NORM),
        feed_forward=attrs.evolve(FEED_FORWARD, norm=attrs.evolve(LAYER_NORM, weight=None, bias=None), post_norm=LAYER_NORM),
    ),
    "norms with a bias": feed_forward(norm=attrs.evolve(LAYER_NORM, kind=NormKind.RMS)),
    "no rope": attention(rope=None),
    "rope, then norms": attention(is_rope_first=True, **NORMS),
    "norms by head": attention(
        q_norm=Norm("norm hd", D, 1e-5, kind=NormKind.LAYER, weight_shape=(H, D)),
        k_norm=Norm("norm g", D, 1e-5, weight_shape=(G, 1)),
        v_norm=Norm(None, DV, 1e-5),
    ),
    "joint norms": attention(
        q_norm=Norm("norm q", H * D, 1e-5), k_norm=Norm("norm k", G * D, 1e-5), has_joint_norms=True, clamp=0.5
    ),
    "rope, then joint norms": attention(
        *(),
        q_norm=Norm("norm q", H * D, 1e-5),
        k_norm=Norm("norm k", G * D, 1e-5),
        has_joint_norms=True,
        is_rope_first=True,
        temperature=Temperature(0.3, 4.0),
    ),
    "clamp": attention(clamp=0.7, **NORMS),
    "temperature": attention(temperature=Temperature(0.5, 3.0, 1.0)),
    "capped scores": attention(softcap=2.0),
    "slopes": attention(slopes=tuple(0.5**h for h in range(H))),
    "slopes of capped scores": attention(slopes=tuple(0.02 * h for h in range(H)), softcap=1.5, rope=None),
    "sinks": attention(sinks=Vector("sinks", H)),
    "sinks and window": attention(sinks=Vector("sinks", H), window=5),
    "chunk": attention(chunk=7),
    "chunk and window": attention(chunk=9, window=4),
    "gate": attention(gate=Linear("gates", E, H * DV)),
    "gate by head": attention(gate=Linear("gates of heads", E, H)),
    "norm before o": attention(out_norm=Norm("norm mixed", H * DV, 1e-5)),
    "fused matrices": attention(
        q=Linear("fused", E, H * D, "bias fused", rows=RowSelection(0, H * D, FUSED, FUSED)),
        k=Linear("fused", E, G * D, "bias fused", scale=0.5, rows=RowSelection(H * D, G * D, FUSED, FUSED)),
        v=Linear("fused", E, G * DV, "bias v", rows=RowSelection(2 * H * D, G * DV, FUSED, FUSED), has_own_bias=True),
    ),
    "interleaved matrices": attention(q=Linear("fused", E, H * D, "bias fused", rows=RowSelection(D, D, 3 * D, FUSED))),
    "plain feed-forward": feed_forward(gate=None, activation=Activation.GELU),
    "divided feed-forward": feed_forward(gate=None, activation=Activation.RELU_SQUARED, divisors=Vector("divisors", F)),
    "limited feed-forward": feed_forward(limit=0.2),
    "feed-forward limited once activated": feed_forward(limit=0.2, limits_activated=True),
    "relu": feed_forward(activation=Activation.RELU, divisors=Vector("divisors", F)),
    "norm before down": feed_forward(hidden_norm=Norm("norm f", F, 1e-5)),
    "latent attention": with_layers(mixer=LATENT),
    "latent attention of low rank": with_layers(mixer=attrs.evolve(LOW_RANK, temperature=Temperature(0.5, 3.0))),
    "latent attention with a window": with_layers(mixer=attrs.evolve(LATENT, window=5, turned_norm=Norm("norm r", R, 1e-5))),
    "attention to chosen blocks": with_layers(mixer=attrs.evolve(WIDE, indexer=BLOCKS)),
    "attention to pooled blocks": with_layers(
        mixer=attrs.evolve(WIDE, indexer=attrs.evolve(POOL_INDEXER, q=Linear("block q", E, G * 32)))
    ),
    "latent attention to what an indexer chooses": attrs.evolve(
        PLAN, layers=(CHOOSING, attrs.evolve(LAYER, mixer=attrs.evolve(LATENT, reuses_choice=1)))
    ),
    "latent attention to pooled blocks": pooled(POOL_INDEXER),
    "latent attention to blocks pooled by weights": pooled(
        attrs.evolve(POOL_INDEXER, keys=attrs.evolve(POOLING, **WEIGHING), rope=ATTENTION.rope, weights=INDEXER.weights)
    ),
    "latent attention to blocks that overlap": pooled(
        attrs.evolve(POOL_INDEXER, keys=WIDE_POOLING, q_norm=Norm("norm block", 32, 1e-5))
    ),
    "compressed attention to a window": with_layers(mixer=COMPRESSED),
    "compressed attention": with_layers(mixer=attrs.evolve(COMPRESSED, pooling=attrs.evolve(POOLING, **WEIGHING))),
    "compressed attention to chosen blocks": with_layers(
        mixer=attrs.evolve(COMPRESSED, pooling=WIDE_POOLING, indexer=attrs.evolve(POOL_INDEXER, keys=WIDE_POOLING))
    ),
    "latent attention without rope": with_layers(mixer=attrs.evolve(LATENT, rope=None)),
    "gated latent attention": with_layers(mixer=attrs.evolve(LATENT, gate=Linear("gates", E, H * DV))),
    "latent attention gated by head": with_layers(mixer=attrs.evolve(LATENT, gate=Linear("gates of heads", E, H))),
    "latent attention in one tensor": with_layers(
        mixer=attrs.evolve(
            LATENT,
            keys=Matrices("latent keys and values", H, N, L, is_transposed=True, **BOTH),
            values=Matrices("latent keys and values", H, L, DV, first=N, **BOTH),
        )
    ),
    "projection": with_layers(mixer=Projection(LAYER_NORM, Linear("square", E, E))),
    "no mixer": with_layers(mixer=None),
    "nothing but a norm": with_layers(mixer=None, feed_forward=None, norm=Norm("norm e", E, 1e-5)),
    "skip": with_layers(feed_forward=(FEED_FORWARD, SecondStream(0.7))),
    "capped feed-forward": feed_forward(activation=Activation.SITU, constants=(0.3, 0.2)),
    "xielu": feed_forward(gate=None, activation=Activation.XIELU, constants=(0.7, 0.9, 0.5, -1e-6)),
    "mixed streams": attrs.evolve(
        PLAN,
        layers=(LAYER, LAYER.connected(AttentionResidual(LAYER_NORM, begins=True), AttentionResidual(LAYER_NORM))),
        output=attrs.evolve(PLAN.output, connection=AttentionResidual(LAYER_NORM)),
    ),
    "hyper-connections": with_streams(HYPER, HYPER_OUTPUT),
    "hyper-connections that mix streams": with_streams(
        attrs.evolve(
            HYPER,
            coefficients=Linear("mixing", S * E, S * (2 + S)),
            scales=Vector("scales", 3),
            base=Vector("base", S * (2 + S)),
            n_rounds=3,
        ),
        StreamMean(),
    ),
    "gated hyper-connections": with_streams(GATED, attrs.evolve(GATED, inject=None)),
    "latent attention with sinks": with_layers(mixer=attrs.evolve(LATENT, sinks=Vector("sinks", H))),
    "rope of the last values": attention(rope=attrs.evolve(ATTENTION.rope, offset=3)),
    "keys and values of another layer": with_layers(mixer=attrs.evolve(ATTENTION, source=0, **NORMS)),
    "scaled layers": with_layers(feed_forward=(FEED_FORWARD, SecondStream(0.7)), scale=0.6),
    "norm of a layer": with_layers(norm=LAYER_NORM),
    "parallel with a skip": with_layers(
        feed_forward=(attrs.evolve(FEED_FORWARD, is_parallel=True), SecondStream(0.7)), norm=Norm(None, E, 1e-5)
    ),
    "parallel blocks, early and late": with_layers(
        mixer=(ATTENTION, Projection(LAYER_NORM, Linear("square", E, E), is_parallel=True)),
        feed_forward=(FEED_FORWARD, attrs.evolve(FEED_FORWARD, is_parallel=True)),
    ),
    "a second stream": attrs.evolve(
        PLAN,
        layers=tuple(
            attrs.evolve(LAYER, mixer=(stream, ATTENTION))
            for stream in (SecondStream(first=Vector("norm e", E)), SecondStream(swaps=True), SecondStream())
        ),
    ),
    "positions": attrs.evolve(PLAN, embedding=attrs.evolve(PLAN.embedding, scale=0.3, positions=Linear("positions", E, N_CTX))),
    "norm of the embedding": attrs.evolve(PLAN, embedding=attrs.evolve(PLAN.embedding, norm=LAYER_NORM)),
    "no norm before the output": attrs.evolve(PLAN, output=attrs.evolve(PLAN.output, norm=None)),
    "capped logits": attrs.evolve(PLAN, output=attrs.evolve(PLAN.output, softcap=0.8)),
}


@cache
def model_file():
    """Weights for all of it."""
    shapes = {
        **{part.weight: (part.n_out, part.n_in) for part in (ATTENTION.q, ATTENTION.k, ATTENTION.v, ATTENTION.o)},
        **{part.weight: (part.n_out, part.n_in) for part in (FEED_FORWARD.gate, FEED_FORWARD.up, FEED_FORWARD.down)},
        "embedding": (V, E),
        "output": (V, E),
        "positions": (N_CTX, E),
        "square": (E, E),
        "fused": (FUSED, E),
        "gates": (H * DV, E),
        "gates of heads": (H, E),
        "latent q": (H * (N + R), E),
        "latent kv": (L + R, E),
        "latent keys": (H, L, N),
        "latent values": (H, DV, L),
        "latent keys and values": (H * (N + DV), L),
        "latent q down": (LOW, E),
        "latent q of low rank": (H * (N + R), LOW),
        "wide q": (H * 32, E),
        "wide k": (G * 32, E),
        "wide v": (G * 32, E),
        "wide o": (E, H * 32),
        "block q": (G * 32, E),
        "norm block": (32,),
        "index q": (5 * 32, LOW),
        "index k": (32, E),
        "index weights": (5, E),
        "norm index": (32,),
        "bias index": (32,),
        "norm r": (R,),
        "norm l": (L,),
        "norm low": (LOW,),
        "coefficients": (2 * S, S * E),
        "coefficients of output": (S, S * E),
        "mixing": (S * (2 + S), S * E),
        "scales": (3,),
        "base": (S * (2 + S),),
        "scales of two": (2,),
        "base of two": (2 * S,),
        "scales of one": (1,),
        "base of one": (S,),
        "norm streams": (S, E),
        "low streams": (10, S * E),
        "gates of streams": (S * E, 10),
        "injected": (S, S * E),
        "wide q of low rank": (H * 32, LOW),
        "groups": (3, 10, 64),
        "grouped o": (E, 30),
        "index gates": (32, E),
        "index places": (4, 32),
        "wide index k": (64, E),
        "wide index gates": (64, E),
        "norm hd": (H, D),
        "norm g": (G, 1),
        "norm e": (E,),
        "norm d": (D,),
        "norm f": (F,),
        "norm q": (H * D,),
        "norm k": (G * D,),
        "norm mixed": (H * DV,),
        "bias e": (E,),
        "bias fused": (FUSED,),
        "bias v": (G * DV,),
        "sinks": (H,),
        "divisors": (F,),
    }
    rng, arrays = np.random.default_rng(1), {}
    for name, shape in shapes.items():
        random = rng.standard_normal(shape).astype(np.float32)
        is_factor = name.startswith(("norm", "divisors"))
        arrays[name] = (
            1 + random / 5 if is_factor else random / (math.sqrt(E) if len(shape) == 2 and name != "embedding" else 1)
        )
    return altered(tiny_file("llama-dense"), arrays=arrays)


def load(backend, plan, **options):
    kind = REGISTRY.backends[backend]
    given = {"n_ctx": N_CTX, "n_slots": 3, "threads": 2, "cache_type_k": "f32", "cache_type_v": "f32", **options}
    return kind(kind.options_class()).load(model_file(), plan, ModelOptions(**given), Progress())


def rows(model, batch):
    return model.forward(batch).rows().copy()


def some_tokens(n):
    return np.random.default_rng(7).integers(0, V, n).astype(np.int32)


@cache
def of_reference(name):
    model = load("reference", VARIANTS[name] if name else PLAN)
    return rows(model, run_of(some_tokens(24)))


@pytest.mark.sample(8)
@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
@pytest.mark.parametrize("name", VARIANTS)
def test_a_part_is_computed_as_the_reference_does(backend, name):
    right = of_reference(name)

    logits = rows(load(backend, VARIANTS[name]), run_of(some_tokens(24)))

    assert nmse(logits, right) < 1e-11
    assert nmse(of_reference(""), right) > 1e-6, "the part changes nothing"


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", VARIANTS)
def test_operations_compute_a_part_as_its_function_does(name):
    model = load("reference", with_strangers(VARIANTS[name]))

    assert nmse(rows(model, run_of(some_tokens(24))), of_reference(name)) < 1e-20


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
def test_a_part_does_not_depend_on_the_pass(backend, name):
    model, n = load(backend, VARIANTS[name]), 300 if backend == "numba-cpu" else 20
    tokens, parents = some_tokens(n + 12), [-1, *[i // 2 for i in range(11)]]
    whole = rows(model, run_of(tokens[:n]))

    for sizes in ([1] * 9 + [n - 9], [2, 3, n // 2, n - 5 - n // 2]):
        edges = [0, *itertools.accumulate(sizes)]
        parts = [rows(model, run_of(tokens[a:b], slot=1, start=a)) for a, b in itertools.pairwise(edges)]
        assert np.array_equal(np.concatenate(parts), whole)
    alone = rows(load(backend, VARIANTS[name], threads=1), joined(run_of(tokens[:9], slot=2), run_of(tokens[:n], slot=0)))
    assert np.array_equal(alone, np.concatenate([whole[:9], whole]))
    tree = rows(model, tree_of(tokens[n:], parents, slot=0, start=n))
    for path in ([0, 2, 5, 11], [0, 1, 4, 9]):
        assert np.array_equal(rows(model, run_of(tokens[n:][path], slot=1, start=n)), tree[path])


@pytest.mark.sample(4)
@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
@pytest.mark.parametrize(
    "name",
    [
        "latent attention to what an indexer chooses",
        "attention to chosen blocks",
        "latent attention to blocks that overlap",
        "compressed attention to chosen blocks",
    ],
)
def test_what_an_indexer_compares_moves_with_its_position(backend, name):
    model = load(backend, VARIANTS[name])
    tokens, parents, path = some_tokens(30), [-1, 0, 0, 1, 2, 4], [0, 2, 4, 5]
    for slot in (0, 1):
        model.forward(run_of(tokens[:20], slot=slot))
    model.forward(tree_of(tokens[20:26], parents, slot=0, start=20))
    model.forward(run_of(tokens[20:26][path], slot=1, start=20))

    moves = np.array([(0, 20 + node, 20 + i) for i, node in enumerate(path)], np.int32)
    after = rows(model, attrs.evolve(run_of(tokens[26:], slot=0, start=24), accepted=moves))

    assert np.array_equal(after, rows(model, run_of(tokens[26:], slot=1, start=24)))
    memory = [model.slot_memory(slot, 24) for slot in (0, 1)]
    assert all(np.array_equal(*pair) for pair in zip(*memory, strict=True))


@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
def test_a_pass_does_not_begin_with_a_layer_that_attends_to_what_an_earlier_one_chose(backend):
    model = load(backend, VARIANTS["latent attention to what an indexer chooses"])
    hidden = np.zeros((3, E), np.float32)

    with pytest.raises(OptionError, match="an earlier layer chooses"):
        model.forward(attrs.evolve(run_of(some_tokens(3)), layers=(1, 2), hidden=hidden))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"window": 5}, "attention with window"), ({"indexer": attrs.evolve(BLOCKS, n_local=0)}, "the last 0 in any case")],
)
def test_choices_that_kernels_do_not_follow_are_refused(changes, message):
    with pytest.raises(UnsupportedError, match=message):
        load("numba-cpu", with_layers(mixer=attrs.evolve(WIDE, **{"indexer": BLOCKS, **changes})))


@pytest.mark.parametrize(
    "name",
    [
        *("skip", "parallel with a skip", "norm of a layer", "no norm before"),
        *("hyper-connections that mix streams", "gated hyper-connections"),
    ],
)
@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
def test_two_passes_of_a_layer_each_are_one_of_both(backend, name):
    model, tokens = load(backend, VARIANTS[name]), some_tokens(9)
    whole = rows(model, run_of(tokens))

    for batch in (run_of(tokens, slot=1), run_of(tokens[:1], slot=2)):
        hidden = model.forward(attrs.evolve(batch, layers=(0, 1), features=("layer.0",))).features("layer.0").copy()
        later = model.forward(attrs.evolve(batch, layers=(1, 2), hidden=hidden))
        assert np.array_equal(later.rows(), whole[: len(batch.tokens)])
