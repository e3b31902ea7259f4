"""Mixtures of experts: what a token's experts give it does not depend on who else goes to them."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from oracles.models import altered, expected, nmse, tiny_file
from oracles.passes import joined, run_of, tree_of

from augury import Registry
from augury.backends.numba_cpu.block import BlockEmitter
from augury.backends.numba_cpu.kernels.matmul import SCRATCH_BYTES
from augury.backends.reference.formula import choose_experts
from augury.blocks import Activation, Gating, Integers, Linear, Router
from augury.errors import UnsupportedError
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()
# The second with a shared expert, the third with codebooks, which are written out when they are packed, the last with experts
# that a token may go to twice.
NAMES = ("qwen3moe-moe-3-of-8", "qwen2moe-moe-2-of-8", "qwen3moe-moe-iq2_xxs", "grovemoe-moe-4-of-16")
N_CTX = 320
TOKENS = np.random.default_rng(5).integers(0, 128, N_CTX).astype(np.int32)
TABLE = np.random.default_rng(6).integers(0, 8, (128, 3)).astype(np.int32)
TABLE[:100] = 5  # so that an expert has more rows of a pass than there are tokens


def by_token(plan):
    table, first = Integers("table", TABLE.shape), plan.layers[0]
    router = attrs.evolve(first.feed_forward.router, token_experts=table)
    first = attrs.evolve(first, feed_forward=attrs.evolve(first.feed_forward, router=router))
    return attrs.evolve(plan, layers=(first, *plan.layers[1:]))


CASES = [
    *(pytest.param(name, {}, id=name) for name in NAMES),
    pytest.param(NAMES[0], {"change": by_token, "arrays": {"table": TABLE}}, id="experts by token"),
]


def load(name, *, backend="numba-cpu", threads=2, change=None, **altering):
    file = altered(tiny_file(name), **altering)
    plan = plan_of(file, REGISTRY)
    options = ModelOptions(n_slots=3, n_ctx=N_CTX, threads=threads, cache_type_k="f32", cache_type_v="f32")
    kind = REGISTRY.backends[backend]
    return kind(kind.options_class()).load(file, change(plan) if change else plan, options, Progress())


@pytest.mark.parametrize(("name", "how"), CASES)
def test_long_passes_give_the_bits_of_short_ones_on_any_number_of_threads(name, how):
    model = load(name, threads=3, **how)
    at_once = model.forward(run_of(TOKENS)).rows().copy()  # some forty tokens for each expert

    sizes, start, parts = [1, 2, 3, 1, 25, 60, 128, 100], 0, []
    other = load(name, threads=1, **how)
    for size in sizes:
        parts.append(other.forward(run_of(TOKENS[start : start + size], slot=1, start=start)).rows().copy())
        start += size

    assert start == N_CTX
    assert np.array_equal(np.concatenate(parts), at_once)


@pytest.mark.parametrize(("name", "how"), CASES)
def test_slots_and_branches_do_not_change_each_other(name, how):
    model = load(name, **how)
    alone = [model.forward(run_of(TOKENS[:9] + slot, slot=slot)).rows().copy() for slot in (0, 2)]

    both = model.forward(joined(*(run_of(TOKENS[:9] + slot, slot=slot) for slot in (0, 2)))).rows().copy()
    chain = model.forward(run_of(TOKENS[9:12], slot=0, start=9)).rows().copy()
    tree = model.forward(tree_of([*TOKENS[9:12], 7], [-1, 0, 1, 0], slot=0, start=9)).rows()

    assert np.array_equal(both, np.concatenate(alone))
    assert np.array_equal(tree[:3], chain)


@pytest.mark.parametrize("backend", ["numba-cpu", "reference"])
def test_quantised_experts_are_near_llama_cpp(backend):
    tokens, right = expected(NAMES[2])

    assert nmse(load(NAMES[2], backend=backend).forward(run_of(tokens)).rows(), right) < 2e-4


@pytest.mark.parametrize("gating", Gating)
@pytest.mark.parametrize("details", [{}, {"is_normalised": True, "scale": 2.5}, {"n_groups": 4, "n_groups_used": 2}])
def test_backends_choose_and_weigh_alike(gating, details):
    def change(plan):
        layers = [
            attrs.evolve(layer, feed_forward=attrs.evolve(block, router=attrs.evolve(block.router, gating=gating, **details)))
            for layer in plan.layers
            for block in [layer.feed_forward]
        ]
        return attrs.evolve(plan, layers=tuple(layers))

    right = load(NAMES[0], backend="reference", change=change).forward(run_of(TOKENS[:20])).rows()
    assert nmse(load(NAMES[0], change=change).forward(run_of(TOKENS[:20])).rows(), right) < 1e-10


BENT = {"activation": Activation.XIELU, "constants": (0.8, 0.8, 5.0, -1e-6)}


@pytest.mark.parametrize("details", [{"limit": 0.002}, {"limit": 0.001, "limits_activated": True}, BENT])
def test_backends_bend_and_limit_alike_what_experts_hide(details):
    def change(plan):
        layers = [attrs.evolve(layer, feed_forward=attrs.evolve(layer.feed_forward, **details)) for layer in plan.layers]
        return attrs.evolve(plan, layers=tuple(layers))

    plain = load(NAMES[0], backend="reference").forward(run_of(TOKENS[:20])).rows()
    right = load(NAMES[0], backend="reference", change=change).forward(run_of(TOKENS[:20])).rows()
    assert nmse(plain, right) > 1e-7
    assert nmse(load(NAMES[0], change=change).forward(run_of(TOKENS[:20])).rows(), right) < 1e-10


def test_groups_are_ranked_by_their_two_best_and_equal_experts_by_number():
    router = Router(Linear("w", 1, 8), n_used=3, gating=Gating.SIGMOID, n_groups=4, n_groups_used=2)

    logits = np.array([3.0, -9.0, 2.0, 1.5, 1.9, 1.8, 2.0, 1.5])  # sums of the groups: 2nd and 4th are the same, 1st less
    chosen, weights = choose_experts(router, logits, 0.0)

    assert chosen.tolist() == [2, 4, 5]
    np.testing.assert_allclose(weights, 1 / (1 + np.exp(-logits[chosen])))
    biased, same = choose_experts(router, logits, np.array([9.0, 0, 0, 0, 0, 0, 0, 0]))
    assert biased.tolist() == [0, 4, 5]
    np.testing.assert_allclose(same, 1 / (1 + np.exp(-logits[biased])))  # the bias is no part of the weight


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        (NAMES[0], "ffn_gate_inp"),
        ("gpt-oss-moe-2-of-8", "ffn_gate_exps"),
        ("gpt-oss-moe-2-of-8", "ffn_up_exps"),
        ("maple-moe", "ffn_gate_exps"),
        ("maple-moe", "ffn_up_exps"),
    ],
)
def test_weights_that_are_no_numbers_leave_none(name, tensor):
    weights = f"blk.1.{tensor}.weight"
    model = load(name, arrays={weights: np.full(tiny_file(name).tensors[weights].shape, np.nan)})

    rows = model.forward(run_of(TOKENS[:5])).rows()

    assert np.isnan(rows).all()


def test_an_expert_has_room_for_all_choices_of_a_pass():
    block = by_token(plan_of(tiny_file(NAMES[0]), REGISTRY)).layers[0].feed_forward

    assert BlockEmitter(block, ModelOptions(), 256, []).scratch_bytes() >= block.router.n_used * SCRATCH_BYTES


def test_experts_that_are_no_whole_panels_are_refused():
    def change(plan):
        block = plan.layers[0].feed_forward
        narrow = {name: attrs.evolve(getattr(block, name), n_out=250) for name in ("gate", "up")}
        block = attrs.evolve(block, **narrow, down=attrs.evolve(block.down, n_in=250))
        layer = attrs.evolve(plan.layers[0], feed_forward=block)
        return attrs.evolve(plan, layers=(layer, *plan.layers[1:]))

    with pytest.raises(UnsupportedError, match=r"250 rows .* expected a multiple of 32"):
        load(NAMES[0], change=change)
