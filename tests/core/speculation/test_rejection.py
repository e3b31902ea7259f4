"""What `reject` emits has exactly the target's distribution: all drafts and random numbers are gone through."""

import inspect

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from oracles.chances import distribution
from oracles.drawn_drafts import Text, distance, verified

from augury.speculation import verification
from augury.speculation.verification import reject

EXACT = 1e-12


@pytest.mark.parametrize("n_block", [None, 1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_of_a_drawn_draft_the_target_s_distribution_is_emitted(seed, n_block):
    text = Text(seed, 3)
    outcomes = distribution(lambda chance: verified(text, text.chain(chance), chance, n_block=n_block))
    assert distance(text, outcomes) < EXACT


@pytest.mark.parametrize("n_block", [None, 1])
@pytest.mark.parametrize("seed", range(10))
def test_of_a_tree_of_drawn_and_certain_tokens_it_is_emitted_as_well(seed, n_block):
    text = Text(100 + seed, 2)
    outcomes = distribution(lambda chance: verified(text, text.tree(chance), chance, n_block=n_block))
    assert distance(text, outcomes) < EXACT


def rounds(text, chance, **how):
    """What is emitted and accepted by round, until the text is full; each round drafts anew."""
    emitted, paths = (), []
    while len(emitted) <= text.depth:
        tokens, path = verified(text, text.chain(chance, emitted), chance, emitted, **how)
        emitted += tokens
        paths.append((tokens, path))
    return emitted, tuple(paths)


@pytest.mark.parametrize("seed", range(4))
def test_rounds_that_follow_one_another_emit_it(seed):
    text = Text(200 + seed, 2)
    assert distance(text, distribution(lambda chance: rounds(text, chance))) < EXACT


# Planted faults


FAULTS = {
    "what is left of p, not of its part": ("weight * p - q[ids]", "p - q[ids]"),
    "as if nothing were missing": ("(sum_left + (1.0 - weight))", "1.0"),
    "a weight that does not go on": ("min(weight * float", "min(float"),
    "drawn from p itself": ("left.append((ids, rest)", "left.append((ids, p)"),
    "a weight that stays below 1": (", 1.0)\n", ", 0.9)\n"),
    "each place by its own ratio": ("[*chances, weight]", "[*chances[:-1], weight]"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_rule_emits_something_else(fault):
    source, names = inspect.getsource(reject), dict(vars(verification))
    before, after = FAULTS[fault]
    assert source.count(before) == 1
    exec(source.replace(before, after), names)
    texts = [Text(seed, 3) for seed in range(4)]
    far = [
        distance(
            text, distribution(lambda chance, text=text: verified(text, text.chain(chance), chance, verify=names["reject"]))
        )
        for text in texts
    ]
    assert max(far) > 1e-3


def without_unlikely(text, draft):
    """A draft that ends before a token that was improbable."""
    tokens, _, rows = draft
    n = next((i for i, (token, row) in enumerate(zip(tokens, rows, strict=True)) if row[token] < 0.4), len(tokens))
    return tokens[:n], range(-1, n - 1), rows[:n]


def test_to_leave_a_token_out_because_of_what_it_is_emits_something_else():
    text = Text(2, 3)
    outcomes = distribution(lambda chance: verified(text, without_unlikely(text, text.chain(chance)), chance))
    assert distance(text, outcomes) > 1e-3


def test_to_accept_two_rounds_by_one_number_emits_something_else():
    text = Text(201, 2)
    assert distance(text, distribution(lambda chance: rounds(text, chance, accept_by=lambda _: 0))) > 1e-3


# Certain tokens


@given(
    draft=st.lists(st.integers(0, 3), max_size=3),
    numbers=st.lists(st.floats(0, 1, exclude_max=True), min_size=8, max_size=8),
)
def test_a_row_of_zeros_counts_as_certain(draft, numbers):
    def verified(probabilities):
        target = lambda _, depth: (np.arange(4), np.arange(1, 5) / 10)
        accepted = reject(
            draft, range(-1, len(draft) - 1), probabilities, target, lambda d: (numbers[2 * d], numbers[2 * d + 1])
        )
        return accepted.tokens, list(accepted.path)

    assert verified(None) == verified(np.zeros((len(draft), 4), np.float32))


def test_a_draft_that_the_target_finds_certain_is_accepted_and_an_impossible_one_is_not():
    def target(_, depth):
        return np.array([3]), np.array([1.0])

    def uniform(depth):
        return 0.999, 0.0

    assert reject([3, 3], [-1, 0], None, target, uniform).tokens == [3, 3, 3]
    assert reject([2], [-1], None, target, lambda _: (0.0, 0.5)).tokens == [3]
    # rounding alone refused it, and nothing else is left
    row, last = np.eye(4, dtype=np.float32)[3:], 1 - 2**-53
    nearly = (np.array([3, 2]), np.array([last, 0.0]))
    assert reject([3], [-1], row, lambda *_: nearly, lambda _: (last, 0.5)).tokens == [3, 3]


# How much is accepted


def n_accepted(text, draft, **how):
    """Tokens accepted on average."""
    outcomes = distribution(lambda chance: verified(text, draft(chance), chance, **how))
    return sum(len(path) * weight for (_, path), weight in outcomes.items())


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.booleans())
def test_never_fewer_tokens_are_accepted_than_one_by_one(seed, is_tree):
    text = Text(seed, 2 if is_tree else 3, 3 if is_tree else 2)
    draft = text.tree if is_tree else text.chain
    assert n_accepted(text, draft) >= n_accepted(text, draft, n_block=1) - EXACT


def test_the_paper_s_example_accepts_as_many_tokens_as_it_says():
    """Section 2: two tokens, the drafter gives the first 2/3, the target the second."""
    text = Text(0, 2, 2)
    text.ends = set()
    text.p, text.q = ({each: np.array(odds) / 3 for each in text.p} for odds in ([1.0, 2.0], [2.0, 1.0]))
    assert n_accepted(text, text.chain, n_block=1) == pytest.approx(10 / 9, abs=EXACT)
    assert n_accepted(text, text.chain) == pytest.approx(11 / 9, abs=EXACT)
    assert distance(text, distribution(lambda chance: verified(text, text.chain(chance), chance))) < EXACT
