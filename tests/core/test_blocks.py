import attrs
import numpy as np
import pytest

from augury.backends import numba_cpu, reference
from augury.blocks import (
    Activation,
    Attention,
    Block,
    Connection,
    Embedding,
    FeedForward,
    Layer,
    Linear,
    Matrices,
    ModelPlan,
    Norm,
    Output,
    Rope,
    RowSelection,
)
from augury.errors import CapacityError, UnsupportedError
from augury.types import ModelOptions

NORM = Norm("norm", 8, 1e-5)
SQUARE = Linear("matrix", 8, 8)
ROPE = Rope(np.ones(2))
ATTENTION = Attention(NORM, SQUARE, SQUARE, SQUARE, SQUARE, 2, 2, 4, 4, 0.5, ROPE)
LAYER = Layer(ATTENTION, FeedForward(NORM, SQUARE, SQUARE, SQUARE, Activation.SILU))
PLAN = ModelPlan("toy", Embedding("embedding", 16, 8), (LAYER,), Output(NORM, Linear("output", 8, 16)), 64)
BACKENDS = {"reference": reference.Reference, "numba-cpu": numba_cpu.NumbaCpu}


@pytest.mark.parametrize("backend", BACKENDS)
def test_backends_check_a_plan_before_anything_else(backend):
    @attrs.frozen
    class Crystal(Block):
        """Not in any vocabulary."""

    kind = BACKENDS[backend]
    plan = attrs.evolve(PLAN, layers=(Layer(Crystal()),))

    with pytest.raises(UnsupportedError, match=r"block Crystal(, which this backend does not compute| does not say how it is)"):
        kind(kind.options_class()).state_spec(plan, ModelOptions())


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "reference"])
def test_a_connection_that_a_backend_does_not_know_is_refused(backend):
    @attrs.frozen
    class Bridge(Connection):
        """Not in any vocabulary."""

        def read(self, given, streams):
            return streams[:, -1]

    kind, plan = BACKENDS[backend], attrs.evolve(PLAN, layers=(LAYER.connected(Bridge(), Bridge()),))
    with pytest.raises(UnsupportedError, match="Bridge"):
        kind(kind.options_class()).state_spec(plan, ModelOptions())


def test_rows_of_a_fused_matrix_say_what_the_file_stores():
    fused = Linear("qkv.weight", 8, 4, "qkv.bias", rows=RowSelection(4, 4, 12, 12))

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


def test_rows_and_matrices_view_what_they_use_of_a_stored_tensor():
    stored = np.arange(24).reshape(12, 2)
    assert np.array_equal(RowSelection(1, 2, 6, 12).of(stored), [stored[1:3], stored[7:9]])
    assert np.array_equal(Matrices("w", 2, 2, 3, first=1, n_stored=6).of(stored.reshape(-1)), [stored[1:4], stored[7:10]])
    turned = Matrices("w", 2, 3, 2, first=2, n_stored=6, is_transposed=True)
    assert np.array_equal(turned.of(stored), [stored[2:5], stored[8:11]])
