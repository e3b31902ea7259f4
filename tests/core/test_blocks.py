import attrs
import numpy as np
import pytest

from augury import blocks
from augury.backends import numba_cpu, reference
from augury.backends.numba_cpu.blocks import KNOWN as NUMBA_CPU
from augury.backends.reference.mixers import KNOWN as REFERENCE
from augury.blocks import (
    Activation,
    Attention,
    Convolution,
    Embedding,
    FeedForward,
    Layer,
    Linear,
    ModelPlan,
    Norm,
    NormKind,
    Output,
    Projection,
    Rope,
    Rows,
    ShortConvolution,
    Temperature,
    Vector,
)
from augury.errors import CapacityError, UnsupportedError
from augury.options import NoOptions
from augury.types import ModelOptions

NORM = Norm("norm", 8, 1e-5)
SQUARE = Linear("matrix", 8, 8)
ROPE = Rope(np.ones(2))
ATTENTION = Attention(NORM, SQUARE, SQUARE, SQUARE, SQUARE, 2, 2, 4, 4, 0.5, ROPE)
FEED_FORWARD = FeedForward(NORM, SQUARE, SQUARE, SQUARE, Activation.SILU)
CONVOLUTION = ShortConvolution(NORM, Linear("inputs", 8, 24), Convolution("taps", 8, 3), SQUARE)
LAYER = Layer(ATTENTION, FEED_FORWARD)
PLAN = ModelPlan("toy", Embedding("embedding", 16, 8), (LAYER,), Output(NORM, Linear("output", 8, 16)), 64)
BACKENDS = {"reference": (REFERENCE, reference.Reference), "numba-cpu": (NUMBA_CPU, numba_cpu.NumbaCpu)}

VALUES = {  # of each optional field, something else than its default
    Embedding: {"scale": 2.0, "positions": Linear("positions", 8, 1024), "norm": NORM},
    Attention: {
        "norm": None,
        "rope": None,
        **dict.fromkeys(("q_norm", "k_norm", "v_norm", "out_norm", "post_norm"), NORM),
        **dict.fromkeys(("has_joint_norms", "is_rope_first"), True),
        **dict.fromkeys(("window", "chunk"), 3),
        **dict.fromkeys(("clamp", "softcap"), 30.0),
        "temperature": Temperature(0.1, 8192),
        "slopes": (0.5, 0.25),
        "sinks": Vector("sinks", 2),
        "gate": SQUARE,
    },
    FeedForward: {
        "norm": None,
        "gate": None,
        "activation": Activation.RELU,
        "post_norm": NORM,
        "hidden_norm": NORM,
        "divisors": Vector("divisors", 8),
    },
    Output: {"softcap": 30.0},
    Layer: {"mixer": None, "feed_forward": None, "is_parallel": True, "skip": 0.5, "norm": NORM},
    Linear: {"bias": "bias", "scale": 2.0, "bias_scale": 2.0, "rows": Rows(0, 8, 24, 24), "has_own_bias": True},
    Norm: {"weight": None, "bias": "bias", "kind": NormKind.LAYER, "weight_shape": (2, 4)},
    Rope: {"magnitude": 2.0, "is_interleaved": True},
    Temperature: {"offset": 1.0},
    Convolution: {"bias": "bias"},
}


def with_field(kind, name):
    """The plan with one field that is not as usual."""
    value = VALUES[kind][name]
    if kind is Embedding:
        return attrs.evolve(PLAN, embedding=attrs.evolve(PLAN.embedding, **{name: value}))
    if kind is Output:
        return attrs.evolve(PLAN, output=attrs.evolve(PLAN.output, **{name: value}))
    changed = {
        Attention: lambda: attrs.evolve(LAYER, mixer=attrs.evolve(ATTENTION, **{name: value})),
        FeedForward: lambda: attrs.evolve(LAYER, feed_forward=attrs.evolve(FEED_FORWARD, **{name: value})),
        Layer: lambda: attrs.evolve(LAYER, **{name: value}),
        Linear: lambda: attrs.evolve(LAYER, mixer=attrs.evolve(ATTENTION, o=attrs.evolve(SQUARE, **{name: value}))),
        Norm: lambda: attrs.evolve(LAYER, mixer=attrs.evolve(ATTENTION, norm=attrs.evolve(NORM, **{name: value}))),
        Rope: lambda: attrs.evolve(LAYER, mixer=attrs.evolve(ATTENTION, rope=attrs.evolve(ROPE, **{name: value}))),
        Convolution: lambda: Layer(attrs.evolve(CONVOLUTION, conv=attrs.evolve(CONVOLUTION.conv, **{name: value}))),
        Temperature: lambda: attrs.evolve(LAYER, mixer=attrs.evolve(ATTENTION, temperature=Temperature(1.0, 8, 1.0))),
    }[kind]()
    return attrs.evolve(PLAN, layers=(changed,))


FIELDS = [(kind, name) for kind, values in VALUES.items() for name in values]


def test_every_optional_field_of_the_vocabulary_has_a_value_here():
    late = {"long_frequencies", "n_ctx_short"}  # `for_context` chooses before a backend sees them
    for kind in (getattr(blocks, name) for name in blocks.__all__):
        if attrs.has(kind) and kind is not ModelPlan:
            optional = {each.name for each in attrs.fields(kind) if each.default is not attrs.NOTHING}
            assert optional - late <= set(VALUES.get(kind, ())), kind


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=lambda each: getattr(each, "__name__", each))
def test_a_backend_refuses_by_name_each_field_that_it_does_not_list(backend, kind, name):
    known, backend_class = BACKENDS[backend]
    value = VALUES[kind][name]
    is_known = value in known[type(value)] if type(value) in (Activation, NormKind) else name in known.get(kind, ())
    is_known = is_known and all(type(each) in known for each in (value,) if attrs.has(type(each)))
    loaded = backend_class(backend_class.options_class())

    if is_known:
        loaded.state_spec(with_field(kind, name), ModelOptions(n_ctx=64))
    else:
        with pytest.raises(UnsupportedError, match=f"(?i){name if kind in known else kind.__name__}"):
            loaded.state_spec(with_field(kind, name), ModelOptions(n_ctx=64))


def test_a_block_that_is_not_listed_is_refused_by_name():
    plan = attrs.evolve(PLAN, layers=(Layer(Projection(NORM, SQUARE)),))

    with pytest.raises(UnsupportedError, match="toy models have a block Projection, which this backend does not compute"):
        plan.check_blocks({kind: known for kind, known in REFERENCE.items() if kind is not Projection})
    reference.Reference(NoOptions()).state_spec(plan, ModelOptions())


def test_rows_of_a_fused_matrix_say_what_the_file_stores():
    fused = Linear("qkv.weight", 8, 4, "qkv.bias", rows=Rows(4, 4, 12, 12))

    assert fused.shapes == {"qkv.weight": (12, 8), "qkv.bias": (12,)}
    assert attrs.evolve(fused, bias="k.bias", has_own_bias=True).shapes == {"qkv.weight": (12, 8), "k.bias": (4,)}


@pytest.mark.parametrize(("n_ctx", "expected"), [(32, 1.0), (33, 0.5)])
def test_a_rope_of_two_lengths_is_chosen_by_the_context(n_ctx, expected):
    rope = attrs.evolve(ROPE, long_frequencies=np.full(2, 0.5), n_ctx_short=32)
    plan = attrs.evolve(PLAN, layers=(attrs.evolve(LAYER, mixer=attrs.evolve(ATTENTION, rope=rope)),))

    chosen = plan.for_context(n_ctx).layers[0].mixer.rope

    assert chosen.frequencies.tolist() == [expected] * 2
    assert chosen.long_frequencies is None


def test_a_context_longer_than_the_learned_positions_is_refused():
    plan = attrs.evolve(PLAN, embedding=attrs.evolve(PLAN.embedding, positions=Linear("positions", 8, 64)))

    assert plan.for_context(64) == plan
    with pytest.raises(CapacityError, match="a context of 65 positions, but the model has learned 64"):
        plan.for_context(65)
