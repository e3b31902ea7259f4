from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from oracles.recycling import NaiveRecycle

from augury.drafters.recycle import (
    FIRST_OF_PAIRS,
    FIRST_OF_TEXT,
    RUNNER_UP_CHANCES,
    TARGET_CHANCES,
    Recycle,
    RecycleOptions,
    _tree_shape,
    most_frequent,
)
from augury.engine.shared import Shared
from augury.errors import OptionError
from augury.types import Verdict

N_VOCAB = 12


def drafters_of(n_slots, n_vocab=N_VOCAB, tokenizer=None, **options):
    session = SimpleNamespace(model=SimpleNamespace(n_vocab=n_vocab), shared=Shared().get, tokenizer=tokenizer)
    return [Recycle(RecycleOptions(**options), session) for _ in range(n_slots)]


def told(drafter, after, ids):
    """Tell a drafter of a round that verified these tokens."""
    ids = np.array(ids, np.int32)
    best = {"top_after": np.array(after, np.int32), "top_ids": ids, "top_logits": -np.arange(ids.size).reshape(ids.shape)}
    drafter.accept(np.array([after[0], ids[0][0]]), Verdict(0, 0, 1, is_used=False, **best))


def paths_of(draft, n_successors):
    """The ranks that lead to each node of a draft, by its buckets, which are other ones for each rank here."""
    paths = []
    for parent, bucket in zip(draft.above.tolist(), draft.evidence.tolist() if len(draft) else (), strict=True):
        rank = bucket if bucket < len(TARGET_CHANCES) else bucket - len(TARGET_CHANCES) + n_successors
        paths.append((*paths[parent], rank) if parent >= 0 else (rank,))
    return paths


successors = st.lists(st.permutations(range(N_VOCAB)), min_size=1, max_size=6)


@given(
    rounds=st.lists(st.tuples(st.lists(st.integers(0, N_VOCAB - 1), min_size=6, max_size=6), successors), max_size=6),
    n_successors=st.integers(1, 4),
    n_max=st.integers(1, 30),
    depth=st.integers(1, 4),
    limit=st.integers(1, 30),
    text=st.tuples(st.integers(0, N_VOCAB - 1), st.integers(0, N_VOCAB - 1)),
)
def test_a_draft_is_the_best_tree_of_what_was_learnt_last(rounds, n_successors, n_max, depth, limit, text):
    (drafter,) = drafters_of(1, n_successors=n_successors, n_max=n_max, depth=depth)
    naive = NaiveRecycle(n_successors, n_max, depth, TARGET_CHANCES, RUNNER_UP_CHANCES)
    for after, orders in rounds:
        ids = [order[:n_successors] for order in orders]
        told(drafter, after[: len(ids)], ids)
        naive.learn(after[: len(ids)], ids)
    draft = drafter.draft(np.array(text, np.int32), limit)
    paths = paths_of(draft, n_successors)
    assert len({*paths}) == len(paths)
    for path, token in zip(paths, draft.tokens.tolist(), strict=True):
        assert list(naive.tokens(*text, path))[-1] == token
    chances = [naive.chance(path) for path in paths]
    assert chances == sorted(chances, reverse=True)
    has_row, runners_up = text[1] in naive.successors, naive.runners_up(*text)
    known = [rank for rank, token in enumerate(runners_up, n_successors) if token is not None]
    assert has_row <= bool(paths), "the first successor is always the likeliest"
    assert {path[0] for path in paths} <= {*(range(n_successors) if has_row else ()), *known}
    if len(naive.successors) == N_VOCAB and len(known) == n_successors - 1:  # nothing is missing
        assert chances == pytest.approx(naive.best(min(n_max, limit)))


def test_all_of_a_tree_is_drafted_that_is_known():
    (drafter,) = drafters_of(1, n_successors=2, n_max=6, depth=2)
    told(drafter, [0, 1], [[1, 2], [3, 4]])
    draft = drafter.draft(np.array([0], np.int32), 9)
    assert draft.tokens.tolist() == [1, 3, 2, 4]  # what comes after 2 is not known
    assert draft.parents.tolist() == [-1, 0, -1, 0]
    assert draft.evidence.tolist() == [0, 0, 1, 1]
    assert len(drafter.draft(np.array([0], np.int32), 3)) == 3
    assert not len(drafter.draft(np.array([2], np.int32), 9))


def test_runners_up_of_the_last_token_are_drafted_beside_its_successors():
    (drafter,) = drafters_of(1, n_successors=4, depth=2)
    told(drafter, [0, 2], [[1, 2, 3, 4], [5, 6, 7, 8]])
    draft = drafter.draft(np.array([0, 1], np.int32), 20)  # what comes after 1 is not known
    assert draft.tokens.tolist() == [2, 3, 4, 5, 6, 7, 8]
    assert draft.above.tolist() == [-1, -1, -1, 0, 0, 0, 0]
    told(drafter, [1], [[9, 3, 10, 11]])
    draft = drafter.draft(np.array([0, 1], np.int32), 20)
    assert draft.tokens[draft.above < 0].tolist() == [9, 3, 10, 2, 11, 4], "3 once"
    draft = drafter.draft(np.array([0, 3], np.int32), 2)  # a drawn token need not be the best one
    assert draft.tokens.tolist() == [1, 2]


def test_every_option_bounds_the_tree():
    for options, n in (({"n_successors": 1}, 6), ({"depth": 1}, 8 + 7), ({"n_max": 5}, 5), ({}, 80)):
        (drafter,) = drafters_of(1, 40, **options)
        for token in range(40):
            told(drafter, [token], [((8 * token + np.arange(1, 9)) % 40)[: drafter.traits.n_top].tolist()])
        assert len(drafter.draft(np.array([3, 0], np.int32), 10**6)) == n


def test_slots_learn_together_and_rows_that_are_not_finite_teach_nothing():
    first, second = drafters_of(2, n_successors=2, depth=1)
    told(first, [0], [[3, 4]])
    told(first, [0, 1], [[-1, -1], [5, 6]])
    assert second.draft(np.array([0], np.int32), 2).tokens.tolist() == [3, 4]
    assert second.draft(np.array([1], np.int32), 2).tokens.tolist() == [5, 6]
    told(first, [1], [[7, -1]])  # of which one token alone can be chosen
    assert second.draft(np.array([1], np.int32), 2).tokens.tolist() == [7]


def test_a_vocabulary_smaller_than_the_row_is_kept_whole():
    (drafter,) = drafters_of(1, n_vocab=3)
    assert drafter.traits.n_top == 3


@pytest.mark.parametrize(("depth", "n_successors"), [(1, 4), (2, 2), (3, 3), (5, 4)])
def test_a_tree_s_nodes_are_those_most_likely_to_be_right(depth, n_successors):
    naive = NaiveRecycle(n_successors, 99, depth, TARGET_CHANCES, RUNNER_UP_CHANCES)
    for n in (1, 2, 7, 30):
        for has_row in (True, False):
            shape, paths = _tree_shape(n, depth, n_successors, has_row=has_row), []
            for i, (parent, rank, _) in enumerate(shape.T.tolist()):
                assert -1 <= parent < i
                paths.append((*paths[parent], rank) if parent >= 0 else (rank,))
            first = range(0 if has_row else n_successors, 2 * n_successors - 1)
            assert [naive.chance(path) for path in paths] == pytest.approx(naive.best(n, first))


@given(text=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=60), n=st.integers(1, 4))
def test_the_most_frequent_tokens_after_each_context_are_found(text, n):
    contexts, after = np.array(text, np.int64).reshape(-1, 2).T
    different, rows, counts, totals = most_frequent(contexts, after.astype(np.int32), n)
    naive = Counter(text)
    assert different.tolist() == sorted({context for context, _ in text})
    for context, row, n_followed, total in zip(
        different.tolist(), rows.tolist(), counts.tolist(), totals.tolist(), strict=True
    ):
        known = [token for token in row if token >= 0]
        assert row == known + [-1] * (n - len(known))
        frequencies = sorted((count for (first, _), count in naive.items() if first == context), reverse=True)
        assert n_followed[: len(known)] == [naive[context, token] for token in known] == frequencies[:n]
        assert total == sum(frequencies)


class Letters:
    """A tokenizer of small letters."""

    def encode(self, text, *, add_special):
        assert not add_special
        return [ord(letter) - ord("a") for letter in text]


def drafter_after(folder, text, **options):
    (folder / "text.txt").write_text(text)
    (drafter,) = drafters_of(1, tokenizer=Letters(), text=str(folder / "text.txt"), **options)
    return drafter


def test_the_target_s_rows_take_the_place_of_the_text_s(tmp_path):
    drafter = drafter_after(tmp_path, "abacabdab", n_successors=2, depth=1)
    draft = drafter.draft(np.array([5, 0], np.int32), 9)
    assert draft.tokens.tolist() == [1, 2]
    assert draft.evidence.tolist() == [FIRST_OF_TEXT, FIRST_OF_TEXT + 1]
    draft = drafter.draft(np.array([0, 5], np.int32), 9)
    assert not len(draft), "the text's successors of a were no other choices of the target after a"
    told(drafter, [0], [[4, 1]])
    draft = drafter.draft(np.array([5, 0], np.int32), 9)
    assert draft.tokens.tolist() == [4, 1]
    assert draft.evidence.tolist() == [0, 1]


def test_tokens_that_followed_the_last_two_in_the_text_come_first(tmp_path):
    texts = "cad", "cae", "cad", "cad"  # after c and a d three times of four, and e
    drafter = drafter_after(tmp_path, "b".join([*texts, "fag", "hai", "hai"]), n_successors=3, depth=2)
    told(drafter, [0], [[4, 6, 7]])
    draft = drafter.draft(np.array([2, 0], np.int32), 3)
    assert draft.tokens.tolist() == [3, 1, 4], "b followed a and d, and the text's other tokens come later"
    assert draft.above.tolist() == [-1, 0, -1]
    assert draft.evidence.tolist() == [FIRST_OF_PAIRS + 5, FIRST_OF_PAIRS + 3, FIRST_OF_PAIRS + 4]
    draft = drafter.draft(np.array([5, 0], np.int32), 9)
    assert draft.tokens[draft.above < 0].tolist() == [6, 4, 7], "what the text has is left out of the target's row"
    assert draft.evidence[draft.above < 0].tolist() == [FIRST_OF_PAIRS, 0, 2]
    draft = drafter.draft(np.array([7, 0], np.int32), 9)
    assert draft.evidence[draft.above < 0].tolist() == [FIRST_OF_PAIRS + 3, 0, 1]


def test_the_text_that_ships_fills_rows_and_an_empty_path_none():
    class Words:
        def encode(self, text, *, add_special):
            assert len(text) == 8 * N_VOCAB
            return [0, 1, 0, 1, 0, 2]

    (drafter,) = drafters_of(1, n_successors=2, depth=1, tokenizer=Words())
    assert drafter.draft(np.array([0], np.int32), 9).tokens.tolist() == [1, 2]
    (drafter,) = drafters_of(1, tokenizer=Words(), text="")
    assert not len(drafter.draft(np.array([0], np.int32), 9))


def test_a_text_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name in ("bytes", "missing"):
        with pytest.raises(OptionError, match=f"{name} could not be read: .*; name a file of UTF-8 text"):
            drafters_of(1, tokenizer=Letters(), text=str(tmp_path / name))
