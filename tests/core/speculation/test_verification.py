import numpy as np
from hypothesis import given, strategies as st

from augury.speculation.verification import accept_by_chance, match, match_tree, n_accepted_by_chance


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
