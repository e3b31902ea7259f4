import numpy as np
import pytest
from hypothesis import given, strategies as st

from augury.engine.verification import accept_by_chance, match, match_tree, n_accepted_by_chance, reject


@given(draft=st.lists(st.integers(0, 3), max_size=8), target=st.lists(st.integers(0, 3), min_size=9, max_size=9))
def test_what_is_emitted_is_what_the_target_chooses_alone(draft, target):
    accepted = match(draft, target.__getitem__)
    emitted = accepted.tokens
    assert list(accepted.path) == list(range(len(emitted) - 1))
    assert emitted == target[: len(emitted)]
    assert emitted[:-1] == draft[: len(emitted) - 1]
    assert len(emitted) == len(draft) + 1 or emitted[-1] != draft[len(emitted) - 1]


def test_the_target_is_asked_in_order_and_not_after_a_rejection():
    asked = []

    def choose(i):
        asked.append(i)
        return [5, 6, 9, 1][i]

    assert match([5, 6, 7], choose).tokens == [5, 6, 9]
    assert asked == [0, 1, 2]


@st.composite
def trees(draw):
    tokens = draw(st.lists(st.integers(0, 2), max_size=10))
    return tokens, [draw(st.integers(-1, i - 1)) for i in range(len(tokens))]


@given(tree=trees(), target=st.lists(st.integers(0, 2), min_size=11, max_size=11))
def test_of_a_tree_a_path_is_accepted_that_is_what_the_target_chooses(tree, target):
    tokens, parents = tree
    asked = []

    def choose(node, depth):
        asked.append((node, depth))
        return target[depth]

    accepted = match_tree(tokens, parents, choose)
    path = list(accepted.path)
    assert accepted.tokens == target[: len(path) + 1]
    assert [tokens[node] for node in path] == target[: len(path)]
    assert [parents[node] for node in path] == [-1, *path[:-1]][: len(path)]
    assert asked == [(node, depth) for depth, node in enumerate([-1, *path])]
    end = path[-1] if path else -1
    assert not any(parents[i] == end and tokens[i] == target[len(path)] for i in range(len(tokens)))


@given(chain=st.lists(st.integers(0, 2), max_size=8), target=st.lists(st.integers(0, 2), min_size=9, max_size=9))
def test_a_tree_without_branches_is_a_chain(chain, target):
    as_tree = match_tree(chain, list(range(-1, len(chain) - 1)), lambda _, depth: target[depth])
    as_chain = match(chain, target.__getitem__)
    assert (as_tree.tokens, list(as_tree.path)) == (as_chain.tokens, list(as_chain.path))


P = np.array([[0.5, 0.3, 0.2, 0.0], [0.1, 0.1, 0.4, 0.4], [0.25, 0.25, 0.25, 0.25]])  # after 0, 1 and 2 draft tokens


def chi_square(counts, p):
    expected = p * counts.sum()
    assert (counts[expected == 0] == 0).all()
    return float(((counts - expected)[expected > 0] ** 2 / expected[expected > 0]).sum())


@pytest.mark.parametrize(
    "q",
    [
        [[0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1]],
        [[0.5, 0.3, 0.2, 0.0], [0.1, 0.1, 0.4, 0.4]],  # the target's own
        [[0.0, 0.0, 0.1, 0.9], [0.97, 0.01, 0.01, 0.01]],
        None,  # certain, of token 1 and then of token 2
    ],
)
def test_rejection_keeps_the_target_s_distribution(q):
    rng = np.random.default_rng(5)
    n = 20_000
    first, second = np.zeros(4), np.zeros(4)
    n_accepted = 0
    ids, probabilities = np.arange(4), None if q is None else np.array(q, np.float32)
    drafts = np.tile([1, 2], (n, 1)) if q is None else np.column_stack([rng.choice(4, n, p=row) for row in q])
    for drawn, numbers in zip(drafts.tolist(), rng.random((n, 3, 2)).tolist(), strict=True):
        accepted = reject(drawn, [-1, 0], probabilities, lambda _, depth: (ids, P[depth]), numbers.__getitem__)
        assert accepted.tokens[:-1] == drawn[: len(accepted.path)]
        n_accepted += len(accepted.path) > 0
        first[accepted.tokens[0]] += 1
        if len(accepted.tokens) > 1:
            second[accepted.tokens[1]] += 1
    # 3 degrees of freedom: 16.27 is exceeded once in a thousand times
    assert chi_square(first, P[0]) < 16.27
    assert chi_square(second, P[1]) < 16.27
    expected_rate = P[0, 1] if q is None else np.minimum(P[0], q[0]).sum()
    assert abs(n_accepted / n - expected_rate) < 4 * np.sqrt(0.25 / n)


@pytest.mark.parametrize("q", [None, [0.25, 0.25, 0.25, 0.25], [0.0, 0.9, 0.1, 0.0], [0.5, 0.3, 0.2, 0.0]])
def test_of_a_tree_rejection_keeps_the_target_s_distribution_too(q):
    """After the history two certain tokens and perhaps a drawn one, and the same after the first certain one."""
    rng = np.random.default_rng(8)
    n, parents = 30_000, [-1, -1, 0, 0] if q is None else [-1, -1, -1, 0, 0, 0]
    first, second = np.zeros(4), np.zeros(4)
    n_accepted = np.zeros(3)
    for numbers in rng.random((n, 3, 2)).tolist():
        drawn = [] if q is None else rng.choice(4, 2, p=q).tolist()
        draft = [1, 2, *drawn[:1], 0, 3, *drawn[1:]]
        rows = None if q is None else np.float32([[0.0] * 4, [0.0] * 4, q] * 2)
        accepted = reject(draft, parents, rows, lambda _, depth: (np.arange(4), P[depth]), numbers.__getitem__)
        assert [draft[i] for i in accepted.path] == accepted.tokens[:-1]
        assert [parents[i] for i in accepted.path] == [-1, *accepted.path[:-1]][: len(accepted.path)]
        first[accepted.tokens[0]] += 1
        n_accepted[len(accepted.path)] += 1
        if accepted.path and accepted.path[0] == 0:
            second[accepted.tokens[1]] += 1
    assert chi_square(first, P[0]) < 16.27
    assert chi_square(second, P[1]) < 16.27
    assert 1 - n_accepted[0] / n > P[0, 1:3].sum() - 0.02, "the drawn one adds to what the others accept"


@given(
    draft=st.lists(st.integers(0, 3), max_size=3),
    numbers=st.lists(st.floats(0, 1, exclude_max=True), min_size=8, max_size=8),
)
def test_a_row_of_zeros_counts_as_certain(draft, numbers):
    def verified(probabilities):
        target = lambda _, depth: (np.arange(4), P[depth % 3])
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
    assert reject([3], [-1], row, lambda *_: nearly, lambda _: (last, 0.5)).tokens == [3]


def test_chance_accepts_each_position_at_its_rate():
    rng = np.random.default_rng(11)
    rates = (0.9, 0.5, 0.8)
    offered, right = np.zeros(6), np.zeros(6)
    for _ in range(20_000):
        n = n_accepted_by_chance(6, rates, rng.random(6).__getitem__)
        offered[: n + 1] += 1
        right[:n] += 1
    expected = np.array([0.9, 0.5, 0.8, 0.8, 0.8, 0.8])
    # four standard deviations of a share of that many trials
    assert (abs(right / offered - expected) < 4 * np.sqrt(expected * (1 - expected) / offered)).all()


@given(
    draft=st.lists(st.integers(0, 3), max_size=6),
    rates=st.lists(st.floats(0, 1), min_size=1, max_size=4),
    numbers=st.lists(st.floats(0, 1, exclude_max=True), min_size=6, max_size=6),
)
def test_by_chance_a_beginning_of_the_draft_is_emitted_and_the_target_s_own_token(draft, rates, numbers):
    asked = []
    accepted = accept_by_chance(draft, rates, numbers.__getitem__, lambda i: asked.append(i) or 9)
    n = len(accepted.path)
    assert accepted.tokens == [*draft[:n], 9]
    assert list(accepted.path) == list(range(n))
    assert asked == [n]
    assert all(numbers[i] < rates[min(i, len(rates) - 1)] for i in range(n))
    assert n == len(draft) or numbers[n] >= rates[min(n, len(rates) - 1)]


def test_a_rate_of_one_accepts_all_and_of_zero_nothing():
    assert accept_by_chance([5, 6, 7], [1.0], lambda _: 1 - 2**-53, lambda _: 0).tokens == [5, 6, 7, 0]
    assert accept_by_chance([5, 6, 7], [0.0], lambda _: 0.0, lambda _: 0).tokens == [0]
