import numpy as np
from hypothesis import given, settings, strategies as st
from oracles.recycling import row_of
from oracles.suffixes import draft_of, way_on

from augury.drafters.ngram import kernels

FIRST = 100  # bucket of a text
TOKENS = st.integers(0, 2)


def step_of(length):
    """The bucket of a length, of those that `suffix` has."""
    return sum(length >= least for least in (2, 3, 5, 9, 17, 33))


@settings(max_examples=300)
@given(
    text=st.lists(st.integers(-1, 2), min_size=1, max_size=60),
    endings=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=24),
    limit=st.integers(1, 12),
    factor=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    offset=st.integers(-3, 3),
    min_prob=st.sampled_from([0.0, 0.1, 0.5, 0.6, 1.0]),
)
def test_the_way_on_that_promises_more_is_drafted_and_how_many_agree(text, endings, limit, factor, offset, min_prob):
    endings = [(length, min(place, len(text))) for length, place in sorted(endings, reverse=True)]
    found = np.zeros((2, 24), np.int32)
    found[:, : len(endings)] = np.transpose(endings)
    draft = np.full((3, limit), -9, np.int32)

    def most(length):
        return max(min(limit, int(factor * length + offset)), 0)

    tokens = np.array(text, np.int32)
    k, n_max = kernels.draft_way(tokens, found, len(endings), limit, factor, float(offset), min_prob, FIRST, draft)
    lengths, places = zip(*endings, strict=True)
    expected = draft_of([way_on(text, place) for place in places], lengths, most, min_prob)
    buckets = [(token, FIRST + 3 * step_of(length) + kind) for token, length, kind in expected]
    assert [*zip(draft[kernels.TOKEN, :k].tolist(), draft[kernels.EVIDENCE, :k].tolist(), strict=True)] == buckets
    assert draft[kernels.PARENT, :k].tolist() == [*range(-1, k - 1)]
    assert n_max == most(lengths[0])


@settings(max_examples=300)
@given(
    own=st.lists(st.permutations(range(5)), min_size=5, max_size=5),
    n=st.integers(1, 5),
    pairs=st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 4)), st.permutations(range(-1, 4)), max_size=8),
    is_of_target=st.lists(st.booleans(), min_size=5, max_size=5),
    n_ranks=st.integers(1, 5),
    last=st.tuples(st.integers(0, 4), st.integers(0, 4)),
)
def test_successors_of_two_tokens_come_before_those_of_one(own, n, pairs, is_of_target, n_ranks, last):
    rows = np.array(own, np.int32)[:, :n].copy()
    known = sorted(pairs)
    keys = np.array([5 * before + token for before, token in known], np.int64)
    pair_rows = np.array([pairs[each][:3] for each in known], np.int32).reshape(-1, 3)
    kinds = np.arange(3 * len(known), dtype=np.int32).reshape(-1, 3)
    of_target, of_text, of_pairs = 10, 20, 30
    buckets = np.array([of_target, of_text, n_ranks, of_pairs], np.int32)
    written = np.full((2, n), -9, np.int32)
    kernels.write_row(rows, np.array(is_of_target), keys, pair_rows, kinds, buckets, *last, written)
    expected = row_of(pairs[last][:3] if last in pairs else (), rows[last[1]].tolist(), n)
    assert written[0].tolist() == [token for *_, token in expected]
    first = of_target if is_of_target[last[1]] else of_text
    assert written[1].tolist() == [
        of_pairs + kinds[known.index(last), place] if what == "pair" else first + min(place, n_ranks - 1)
        for what, place, _ in expected
    ]
