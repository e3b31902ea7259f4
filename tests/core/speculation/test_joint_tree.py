import numpy as np
import pytest
from hypothesis import given, strategies as st
from oracles import joint_tree as oracle

from augury.speculation.chances import Agreement
from augury.speculation.drafts import JointTree
from augury.speculation.kernels import AGREED, ALONE, CONTESTED, RATIO, step_of
from augury.types import Draft


def ratio(agreement, kind, chance):
    """What is learnt of tokens of this kind and chance."""
    return agreement.table[RATIO, 3 * step_of(chance) + kind]


@st.composite
def drafts(draw):
    n = draw(st.integers(0, 7))
    tokens = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    parents = [draw(st.integers(-1, i - 1)) for i in range(n)] if draw(st.booleans()) else None
    return Draft(tokens, parents), draw(st.lists(st.floats(0.01, 1.0), min_size=n, max_size=n))


def paths_of(tokens, parents):
    """The text from the history to each token."""
    paths = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


@given(st.lists(drafts(), max_size=4))
def test_a_tree_has_each_path_of_its_proposals_once_with_all_who_proposed_it(proposals):
    tree, expected = JointTree(), {}
    for i, (draft, chances) in enumerate(proposals):
        nodes = tree.add(i, draft, chances)
        own = paths_of(draft.tokens.tolist(), draft.above.tolist())
        assert [paths_of(tree.tokens, tree.parents)[node] for node in nodes] == own
        for path, chance in zip(own, chances, strict=True):
            known, who = expected.get(path, (0.0, []))
            expected[path] = (max(known, chance), [*who, *([] if i in who else [i])])
    assert paths_of(tree.tokens, tree.parents) == list(expected)
    assert list(zip(tree.chances.tolist(), tree.proposers, strict=True)) == list(expected.values())


@given(st.lists(drafts(), max_size=4))
def test_no_node_is_likelier_than_its_parent_and_siblings_share_its_chance(proposals):
    tree = JointTree()
    for i, (draft, chances) in enumerate(proposals):
        tree.add(i, draft, chances)
    reach, sums = tree.reach(), {}
    for node, parent in enumerate(tree.parents):
        sums[parent] = sums.get(parent, 0.0) + reach[node]
    for parent, total in sums.items():
        assert total <= (1.0 if parent < 0 else reach[parent]) + 1e-9


@given(drafts(), st.data())
def test_a_part_of_a_tree_is_a_draft_of_its_own(proposal, data):
    tree = JointTree()
    tree.add("d", *proposal)
    wanted = data.draw(st.sets(st.sampled_from(range(len(tree))))) if len(tree) else set()
    nodes = tree.ancestry(wanted)
    part = tree.part(nodes)
    every = paths_of(tree.tokens, tree.parents)
    assert paths_of(part.tokens.tolist(), part.above.tolist()) == [every[node] for node in nodes]
    assert set(wanted) <= set(nodes)
    assert (part.parents is None) == all(parent == i - 1 for i, parent in enumerate(part.above.tolist()))


@given(drafts())
def test_the_best_path_goes_to_the_likeliest_child_each_time(proposal):
    tree = JointTree()
    tree.add("d", *proposal)
    reach = tree.reach()
    path = tree.best_path()
    for node, parent in zip(path, [-1, *path], strict=False):
        assert reach[node] == max(chance for chance, above in zip(reach, tree.parents, strict=True) if above == parent)
    assert (path[-1] if path else -1) not in tree.parents


def test_of_the_tokens_after_one_parent_one_counts_as_drawn():
    tree = JointTree()
    rows = np.float32([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [1, 0, 0, 0]])
    tree.add("sure", Draft([1]), [0.3])
    tree.add("one", Draft([1, 2], probabilities=rows[:2]), [0.5, 0.5])
    tree.add("other", Draft([3, 0], probabilities=rows[1:]), [0.5, 0.5])
    assert {node: row.tolist() for node, row in tree.drawn.items()} == {
        0: [0.5, 0.5, 0, 0],
        1: [0, 0, 0.5, 0.5],
        3: [1, 0, 0, 0],
    }
    part = tree.part(range(4))
    assert part.probabilities.tolist() == [*rows[:2].tolist(), [0.0] * 4, rows[2].tolist()]
    assert tree.part([2]).probabilities.tolist() == [[0.0] * 4]


def test_a_row_of_zeros_is_no_draw():
    tree = JointTree()
    tree.add("one", Draft([1, 2], [-1, -1], np.float32([[0, 0, 0, 0], [0, 0, 1, 0]])), [0.5, 0.5])
    assert list(tree.drawn) == [1]


def test_one_that_is_forbidden_takes_nothing_from_its_siblings():
    tree = JointTree()
    tree.add("d", Draft([1, 2], [-1, -1]), [0.9, 0.6])
    assert tree.reach().tolist() == pytest.approx([0.9, 0.1])
    tree.forbid([1])
    assert tree.reach().tolist() == [0.0, 0.6]


@given(st.lists(drafts(), min_size=1, max_size=4), st.data())
def test_a_tree_reaches_and_teaches_what_one_of_python_s_own_objects_does(proposals, data):
    tree, plain, agreement = JointTree(), oracle.JointTree(), Agreement()
    known = oracle.Agreement(*agreement.table.tolist())
    for _ in range(data.draw(st.integers(1, 3))):
        for i, (draft, chances) in enumerate(proposals):
            assert tree.add(i % 3, draft, chances).tolist() == plain.add(i % 3, draft, chances)
        if len(tree) and (forbidden := data.draw(st.sets(st.sampled_from(range(len(tree)))))):
            allowed = sorted({*range(len(tree))} - forbidden)
            tree.forbid(allowed)
            plain.forbid(allowed)
        assert tree.reach(agreement).tolist() == plain.reach(known)
        assert tree.best_path() == plain.best_path(plain.reach(known))
        assert tree.kinds() == plain.kinds(range(len(plain.tokens)))
        emitted = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
        rights = [right for _, right in tree.tried(emitted)]
        assert [plain.tokens[node] for node in rights if node >= 0] == emitted[: len(rights) - (rights[-1] < 0)]
        assert all(
            tried == [*plain.children.get(at, {}).values()]
            for at, (tried, _) in zip([-1, *rights], tree.tried(emitted), strict=False)
        )
        tree.teach(agreement, emitted)
        plain.teach(known, emitted)
        assert agreement.table.tolist() == [known.expected, known.n_right, known.ratios]
    assert (tree.tokens, tree.parents) == (plain.tokens, plain.parents)
    assert [(each[0], {*each}) for each in tree.proposers] == [(each[0], {*each}) for each in plain.proposers]


def test_what_others_propose_in_its_place_is_learnt_to_speak_for_a_token_or_against_it():
    agreement, tree = Agreement(), JointTree()
    tree.add("one", Draft([1, 2, 3], [-1, -1, 0]), [0.4, 0.2, 0.5])
    tree.add("other", Draft([1, 7], [-1, 0]), [0.3, 0.5])
    tree.add("sure", Draft([9]), [1.0])
    assert tree.kinds()[:2] == [AGREED, CONTESTED]
    assert ratio(agreement, AGREED, 0.1) > 1 > ratio(agreement, CONTESTED, 0.2), "before anything was seen"
    for _ in range(300):
        tree.teach(agreement, [1, 3, 5])
    chances = [chance * ratio(agreement, *of, chance) for *of, chance in zip(tree.kinds(), tree.chances.tolist(), strict=True)]
    assert chances[:2] == pytest.approx([0.99, 0.0], abs=0.02), "agreed, and contested"
    assert chances[2:4] == pytest.approx([0.5, 0.5], abs=0.02), "one of two that disagree was right"
    for of in ((ALONE, 0.4), (AGREED, 0.5)):
        assert ratio(agreement, *of) == ratio(Agreement(), *of), "of another kind or step of chances"
    assert tree.reach(agreement)[4] == 1.0, "what is certain stays so"


def test_what_is_forbidden_or_follows_a_wrong_token_teaches_nothing():
    agreement, tree = Agreement(), JointTree()
    tree.add("one", Draft([1, 2, 3], [-1, -1, 0]), [0.4, 0.2, 0.5])
    tree.forbid([1, 2])
    tree.teach(agreement, [4, 3])
    same = [ratio(agreement, ALONE, chance) == ratio(Agreement(), ALONE, chance) for chance in (0.4, 0.2, 0.5)]
    assert same == [True, False, True]


@pytest.mark.parametrize("emitted", [[1, 2], [1, 2, 3], [1, 5], [1, 2, 6], [4, 2]])
def test_what_follows_a_certain_token_teaches_as_any_other(emitted):
    trees = JointTree(), JointTree()
    trees[0].add("one", Draft([1, 2, 3]), [1.0, 0.4, 0.7])
    trees[1].add("one", Draft([2, 3]), [0.4, 0.7])
    found, expected = Agreement(), Agreement()
    trees[0].teach(found, emitted)
    if emitted[0] == 1:
        trees[1].teach(expected, emitted[1:])
    assert found.table.tolist() == expected.table.tolist()
    n_learnt = 0 if emitted[0] == 4 else 1 + (emitted[1:] == [2, 3] or emitted[1:] == [2, 6])
    assert [ratio(found, ALONE, chance) != ratio(Agreement(), ALONE, chance) for chance in (0.4, 0.7)] == [
        i < n_learnt for i in range(2)
    ]
