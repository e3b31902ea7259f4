import numpy as np

from augury.drafters.ngram_map_k4v import NgramMapK4v, NgramMapK4vOptions


def draft_after(*followers, min_hits=1, n_calls=1):
    """The draft where the key 1 2 was followed by these, each two tokens long, in turn."""
    drafter = NgramMapK4v(NgramMapK4vOptions(n=2, m=2, min_hits=min_hits), None)
    text = np.array([0, *(token for pair in followers for token in (1, 2, *pair)), 8, 1, 2], dtype=np.int32)
    for _ in range(n_calls):
        draft = drafter.draft(text, 100)
    return draft.tokens.tolist()


def test_it_drafts_only_where_one_continuation_is_seen_twice_as_often_as_the_others_together():
    assert draft_after((3, 4), (3, 4), (5, 6), (3, 4)) == [3, 4]
    assert draft_after((3, 4), (5, 6), (3, 4)) == [3, 4]
    assert draft_after((3, 4), (5, 6), (7, 6), (3, 4)) == []
    assert draft_after((3, 4), (5, 6)) == []


def test_a_fifth_continuation_is_not_counted():
    others = [(3, 4), (5, 4), (6, 4), (7, 4)]
    assert draft_after(*others, *[(3, 4)] * 5, *[(9, 4)] * 4, (3, 4)) == [3, 4]
    assert draft_after(*others[:3], *[(3, 4)] * 5, *[(9, 4)] * 4, (3, 4)) == []


def test_nothing_is_drafted_before_the_key_was_found_often_enough():
    for min_hits in (1, 2, 3):
        for n_calls in (1, 2, 3):
            expected = [3, 4] if n_calls >= min_hits else []
            assert draft_after((3, 4), (3, 4), (3, 4), min_hits=min_hits, n_calls=n_calls) == expected
