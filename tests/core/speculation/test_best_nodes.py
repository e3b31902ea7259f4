"""What a planner takes of drawn drafts leaves the distribution of what is emitted as it is."""

import inspect

import numpy as np
import pytest
from hypothesis import given, strategies as st
from oracles import best_nodes as oracle
from oracles.chances import distribution
from oracles.drawn_drafts import Text, distance, verified
from oracles.planner_scenarios import request_of, slot_of
from support.toys import planner_of

from augury.speculation import constants, kernels
from augury.speculation.costs import PassCosts, PassCurve, PassTime
from augury.speculation.drafts import best_nodes
from augury.types import Draft

COSTS = PassCosts([PassTime(1, 0, 1.0)], 1)
CURVES = {"free": [1.0 + 0.01 * n for n in range(40)], "dear": [1.0 + 0.5 * n for n in range(40)]}


def drawn(text, chance):
    """A drawn draft whose confidence tells which tokens it drew."""
    tokens, _, rows = text.chain(chance)
    confidence = [row[token] for token, row in zip(tokens, rows, strict=True)]
    return Draft(tokens, None, np.array(rows, np.float32).reshape(len(tokens), text.n_vocab), np.array(confidence, np.float32))


def rivals(seed):
    """A target and two drafters that draw, whose probabilities float32 holds."""
    texts = Text(seed, 2), Text(seed + 1000, 2)
    for text in texts:
        text.q = {each: np.floor(q * 64) / 64 for each, q in text.q.items()}
        for q in text.q.values():
            q[q.argmax()] += 1 - q.sum()
    texts[1].p = texts[0].p
    return texts


def outcomes(seed, *, limit, curve="free", may_branch=True, budget=8.0, is_costly=True):
    """What is emitted where a lookup, two drafters that draw, and another slot's drafter share a pass."""
    first, second = rivals(seed)
    certain = np.random.default_rng(seed).integers(first.n_vocab, size=2).tolist()
    known, verified_by = PassCurve(CURVES[curve], CURVES[curve]), {}

    def taken(*drafts):
        request = request_of(planner_of(COSTS, False, is_costly, True))
        request.budget.seconds = budget
        slot = slot_of(request, dict(enumerate((Draft(certain), *drafts))), limit)
        slot.may_branch = may_branch
        beside = slot_of(request_of(planner_of(COSTS, False)), {0: Draft(certain)})
        ((nodes, _),) = [best_nodes([slot, beside], known).nodes]
        part = slot.tree.part(nodes)
        assert len(nodes) <= limit
        assert may_branch or part.parents is None
        rows = [] if part.probabilities is None else part.probabilities.astype(float).tolist()
        return part.tokens.tolist(), part.above.tolist(), rows

    def run(chance):
        drafts = drawn(first, chance), drawn(second, chance)
        key = tuple(tuple(draft.tokens.tolist()) for draft in drafts)
        if key not in verified_by:
            verified_by[key] = taken(*drafts)
        return verified(first, verified_by[key], chance)

    return first, distribution(run)


@pytest.mark.sample(6)
@pytest.mark.parametrize("limit", [1, 2, 3, 6])
@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("may_branch", [True, False])
def test_what_is_taken_of_drawn_drafts_keeps_the_distribution(limit, curve, may_branch):
    for seed in range(3):
        assert distance(*outcomes(seed, limit=limit, curve=curve, may_branch=may_branch)) < 1e-12


def test_a_budget_keeps_it_as_well():
    """Of a lookup that draws, another drafter's token may be the same, and paid for by that one."""
    for seed in range(3):
        assert distance(*outcomes(seed, limit=6, curve="dear", budget=0.0, is_costly=False)) < 1e-12


class Drafted:
    """A chain of tokens with given chances; each outcome is how many are accepted, with its probability."""

    def __init__(self, chances):
        self.chances, self.reach = chances, np.cumprod(chances).tolist()
        self.slot = slot_of(request_of(planner_of(COSTS, True)), {0: len(chances)})
        self.slot.tree.chances[:] = chances

    def outcomes(self, n):
        """Of the first n."""
        sure = [1.0, *self.reach[:n]]
        return [(i, sure[i] - (sure[i + 1] if i < n else 0.0)) for i in range(n + 1)]


@pytest.mark.parametrize("n_slots", [1, 2, 3])
@pytest.mark.parametrize("per_token_s", [0.02, 0.1, 0.3])
def test_what_is_computed_again_is_part_of_what_a_choice_costs(n_slots, per_token_s):
    """The best part of the ranked tokens, found by going through what can be accepted of each."""
    curve, rng = PassCurve(*[[1.0 + per_token_s * n for n in range(40)]] * 2), np.random.default_rng(n_slots)
    n_shortened = 0
    for _ in range(60):
        drafted = [Drafted(rng.uniform(0.2, 1.0, 6).tolist()) for _ in range(n_slots)]
        ranked = sorted((-chance, i, node) for i, each in enumerate(drafted) for node, chance in enumerate(each.reach))
        rates = {}
        for n in range(len(ranked) + 1):
            counts = [sum(i == slot for _, i, _ in ranked[:n]) for slot in range(n_slots)]
            every = [
                (each, count, outcome) for each, count in zip(drafted, counts, strict=True) for outcome in each.outcomes(count)
            ]
            tokens = n_slots + sum(accepted * p for _, _, (accepted, p) in every)
            again = sum(accepted * p for _, count, (accepted, p) in every if accepted < count)
            rates[tuple(counts)] = (tokens + 0.02 * (not n)) / (curve.known[n] + per_token_s * again)
        slots = [each.slot for each in drafted]
        found = best_nodes(slots, curve, replays_accepted=True)
        counts = tuple(map(len, found.nodes))
        assert counts == max(rates, key=rates.__getitem__)
        assert found.expected == pytest.approx([1 + sum(each.reach[:n]) for each, n in zip(drafted, counts, strict=True)])
        n_shortened += sum(counts) < sum(map(len, best_nodes(slots, curve).nodes))
    assert n_shortened > 0


FAULTS = {
    "the likeliest of the drawn first": ("ranks[at] - m - 2", "-reach[at] - 2", {"limit": 3}),
    "drawn tokens by their places": ("ranks[at] - m - 2", "-2.0", {"limit": 2}),
    "drawn tokens by their chance": ("slot_of[at] = i", "slot_of[at], ranks[at] = i, -1", {"limit": 2}),
    "drawn tokens by the budget": (
        "is_paid = is_drawn or ",
        "is_paid = ",
        {"limit": 6, "curve": "dear", "budget": 0.0, "is_costly": False},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_choice_by_what_was_drawn_emits_something_else(monkeypatch, fault):
    before, after, how = FAULTS[fault]
    source, names = (
        inspect.getsource(kernels.choose.py_func),
        vars(kernels) | {"compiled": lambda *_: lambda function: function},
    )
    assert source.count(before) == 1
    exec(source.replace(before, after), names)
    monkeypatch.setattr(constants.kernels, "choose", names["choose"])
    assert any(distance(*outcomes(seed, **how)) > 1e-3 for seed in range(6))


@st.composite
def slots_of_lookups_and_others(draw):
    """Slots with trees of a lookup, a certain drafter and a costly one, of any budget and limit."""
    slots = []
    for _ in range(draw(st.integers(1, 3))):
        request = request_of(planner_of(COSTS, False, False, True, is_certain=(False, True, False)))
        request.budget.seconds = draw(st.floats(-0.5, 4.0))
        drafts = {}
        for drafter in range(3):
            tokens = draw(st.lists(st.integers(0, 2), max_size=5))
            drafts[drafter] = Draft(tokens, [draw(st.integers(-1, i - 1)) for i in range(len(tokens))])
            request.every[drafter].spent_s = draw(st.sampled_from([0.0, 0.3]))
        slot = slot_of(request, drafts, draw(st.integers(1, 6)), draw(st.integers(1, 3)))
        slot.tree.chances[:] = [draw(st.floats(0.0, 1.0)) for _ in range(len(slot.tree))]
        slots.append(slot)
    return slots


@given(slots=slots_of_lookups_and_others(), curve=st.sampled_from([*CURVES]), replays_accepted=st.booleans())
def test_the_choice_is_that_of_going_node_by_node(slots, curve, replays_accepted):
    known = PassCurve(CURVES[curve], [0.9 * seconds for seconds in CURVES[curve]])
    found = best_nodes(slots, known, replays_accepted=replays_accepted)
    assert found == oracle.best_nodes(slots, known, replays_accepted=replays_accepted)
