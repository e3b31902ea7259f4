from enum import Enum

import attrs
import numpy as np
import pytest

from augury import blocks
from augury.backends import numba_cpu, reference
from augury.blocks import (
    Activation,
    Attention,
    Block,
    Embedding,
    FeedForward,
    GateKind,
    Layer,
    Linear,
    ModelPlan,
    Norm,
    NormKind,
    Output,
    Residual,
    Rope,
    Rows,
)
from augury.errors import CapacityError, UnsupportedError
from augury.types import ModelOptions

NORM = Norm("norm", 8, 1e-5)
SQUARE = Linear("matrix", 8, 8)
ROPE = Rope(np.ones(2))
ATTENTION = Attention(NORM, SQUARE, SQUARE, SQUARE, SQUARE, 2, 2, 4, 4, 0.5, ROPE)
LAYER = Layer(ATTENTION, FeedForward(NORM, SQUARE, SQUARE, SQUARE, Activation.SILU))
PLAN = ModelPlan("toy", Embedding("embedding", 16, 8), (LAYER,), Output(NORM, Linear("output", 8, 16)), 64)
KNOWN = {  # of a backend that computes layers like that one, and matrices by rows
    **{kind: {each.name for each in attrs.fields(kind)} for kind in (Attention, Embedding, FeedForward, Layer, Linear, Output)},
    Norm: {"weight"},
    Rope: (),
    **{kind: tuple(kind) for kind in (Activation, GateKind, NormKind)},
}
BACKENDS = {"reference": reference.Reference, "numba-cpu": numba_cpu.NumbaCpu}
LATE = {"long_frequencies", "n_ctx_short"}  # `ModelPlan.for_context` chooses before a backend sees them

VOCABULARY = [kind for kind in (getattr(blocks, name) for name in blocks.__all__) if attrs.has(kind)]
FIELDS = [
    (kind, each.name, None if each.default is attrs.NOTHING else "something else")
    for kind in VOCABULARY
    for each in attrs.fields(kind)
    if kind is not ModelPlan
    if each.name not in LATE and not isinstance(each.default, Enum)
    if each.default is not attrs.NOTHING or str(each.type).endswith("| None")
]


def plan_with(kind, **fields):
    """A plan that has a part of a kind, of which nothing else is set."""
    required = {each.name: "whatever" for each in attrs.fields(kind) if each.default is attrs.NOTHING}
    return attrs.evolve(PLAN, embedding=kind(**required | fields))


@pytest.mark.parametrize(("kind", "name", "value"), FIELDS, ids=lambda each: getattr(each, "__name__", each))
def test_a_field_that_a_backend_does_not_list_is_refused_by_name(kind, name, value):
    plan, others = plan_with(kind, **{name: value}), {**KNOWN, kind: set(KNOWN.get(kind, ())) - {name}}

    if name in KNOWN.get(kind, ()):
        plan.check_blocks(KNOWN)
    with pytest.raises(UnsupportedError, match=f"toy models have {kind.__name__}.*{name}, which this backend does not compute"):
        plan.check_blocks(others)


@pytest.mark.parametrize("member", [NormKind.LAYER, Activation.RELU])
def test_a_member_of_an_enumeration_that_a_backend_does_not_list_is_refused_by_name(member):
    plan = plan_with(FeedForward, activation=member)

    plan.check_blocks(KNOWN)
    with pytest.raises(UnsupportedError, match=rf"toy models have {member.name} as FeedForward\.activation"):
        plan.check_blocks({**KNOWN, type(member): set(type(member)) - {member}})


@pytest.mark.parametrize("backend", BACKENDS)
def test_backends_check_a_plan_before_anything_else(backend):
    @attrs.frozen
    class Crystal(Block):
        """Not in any vocabulary."""

    kind = BACKENDS[backend]
    plan = attrs.evolve(PLAN, layers=(Layer(Crystal()),))

    with pytest.raises(UnsupportedError, match=r"block Crystal(, which this backend does not compute| does not say how it is)"):
        kind(kind.options_class()).state_spec(plan, ModelOptions())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_connection_that_a_backend_does_not_know_is_refused(backend):
    @attrs.frozen
    class Bridge(Block):
        """Not in any vocabulary."""

    kind, plan = BACKENDS[backend], attrs.evolve(PLAN, layers=(attrs.evolve(LAYER, residual=Residual(Bridge())),))
    with pytest.raises(UnsupportedError, match="Bridge"):
        kind(kind.options_class()).state_spec(plan, ModelOptions())


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
