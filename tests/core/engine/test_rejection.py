"""What `reject` emits has exactly the target's distribution: all drafts and random numbers are gone through."""

import inspect
from collections import defaultdict
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from oracles.chances import distribution

from augury.engine import verification
from augury.engine.verification import reject

EXACT = 1e-12
N_VOCAB = 3
CERTAIN = [0.0] * N_VOCAB


class Text:
    """A target and a drafter with a distribution after every text, some of them with tokens that cannot come."""

    def __init__(self, seed, depth, n_vocab=N_VOCAB):
        rng = np.random.default_rng(seed)
        self.depth, self.n_vocab = depth, n_vocab
        texts = [text for n in range(depth + 1) for text in product(range(n_vocab), repeat=n)]
        self.p, self.q = ({text: self._odds(rng) for text in texts} for _ in range(2))
        for text in texts:  # the drafter may be the target
            if rng.random() < 0.1:
                self.q[text] = self.p[text]
        self.ends = {text for text in texts if text and rng.random() < 0.2}  # where a draft ends early
        self.certain = {text for text in texts if rng.random() < 0.2}  # where nothing is drawn of a tree
        self.others = {text: [int(i) for i in np.flatnonzero(rng.random(n_vocab) < 0.4)] for text in texts}

    def _odds(self, rng):
        odds = rng.integers(0, 6, self.n_vocab)
        odds[rng.integers(self.n_vocab)] += 1
        return odds / odds.sum()

    def chain(self, chance, text=()):
        """A drawn draft after a text: tokens, parents, probabilities."""
        tokens, rows = [], []
        while len(text) < self.depth and text not in self.ends:
            rows.append(self.q[text])
            tokens.append(chance.pick(self.q[text]))
            text += (tokens[-1],)
        return tokens, range(-1, len(tokens) - 1), rows

    def tree(self, chance, text=()):
        """The same with certain tokens beside the drawn ones, whose own drafts may be drawn as well."""
        tokens, parents, rows = [], [], []
        places = [(text, -1)]
        for at, parent in places:
            if len(at) == self.depth or at in self.ends:
                continue
            drawn = None if at in self.certain else chance.pick(self.q[at])
            for token in dict.fromkeys([*([] if drawn is None else [drawn]), *self.others[at]]):
                places.append(((*at, token), len(tokens)))
                tokens.append(token)
                parents.append(parent)
                rows.append(self.q[at] if token == drawn else CERTAIN)
        return tokens, parents, rows


def verified(text, draft, chance, emitted=(), verify=reject, accept_by=lambda place: place, **how):
    """What a round emits after some tokens, and which of the draft it accepts; numbers are those of their places."""
    tokens, parents, rows = draft

    def target(node, depth):
        path = []
        while node >= 0:
            path.append(tokens[node])
            node = parents[node]
        assert len(path) == depth
        return np.arange(text.n_vocab), text.p[(*emitted, *reversed(path))]

    def uniform(depth):
        place = len(emitted) + depth
        return chance.number("accept", accept_by(place)), chance.number("draw", place)

    accepted = verify(tokens, parents, np.array(rows) if rows else None, target, uniform, **how)
    assert [tokens[i] for i in accepted.path] == accepted.tokens[:-1]
    assert [parents[i] for i in accepted.path] == [-1, *accepted.path[:-1]][: len(accepted.path)]
    return tuple(accepted.tokens), tuple(accepted.path)


def distance(text, outcomes):
    """How far what is emitted, and goes on as the target says, is from the target's distribution of texts."""
    n = text.depth + 1
    found, expected = defaultdict(float), defaultdict(float)

    def go_on(emitted, weight, into):
        if len(emitted) == n:
            into[emitted] += weight
            return
        for token, p in enumerate(text.p[emitted]):
            go_on((*emitted, token), weight * p, into)

    go_on((), 1.0, expected)
    for (emitted, *_), weight in outcomes.items():
        go_on(emitted, weight, found)
    return max(abs(found[each] - expected[each]) for each in expected)


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
