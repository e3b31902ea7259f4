"""Drafts of `suffix` and `recycle` for compiled rounds, see `augury.interfaces.CompiledDraft`; arrays are told by addresses."""

import numba
import numpy as np

from augury.compiled import array_at, compiled
from augury.drafters.ngram import RECYCLE_STATE, SUFFIX_STATE
from augury.drafters.ngram.kernels import add_ways, draft_successors, draft_way, extend, find, learn_successors

_N_FOUND = 24
_INT = numba.int64
_suffix, _recycle = array_at(SUFFIX_STATE), array_at(RECYCLE_STATE)
_ints, _longs, _flags = array_at(np.int32), array_at(np.int64), array_at(np.bool_)


@compiled(*[_INT] * 6)
def draft_suffix(state, text, n, limit, draft, room):
    """Learn the text's new tokens, and draft the ways on."""
    own, history = _suffix(state, (1,))[0], _ints(text, (n,))
    tokens, recent, ending = (
        _ints(own.tokens, (own.n_tokens,)),
        _ints(own.recent, (own.n_recent,)),
        _ints(own.ending, (own.n_ending,)),
    )
    first, end = own.n, own.n + n - own.n_seen
    tokens[first:end] = history[own.n_seen :]
    extend(tokens, first, end, recent, own.n_used, ending)
    own.n, own.n_used, own.n_seen = end, own.n_used + end - first, n
    found, texts = np.empty((2, _N_FOUND), np.int32), tokens[:end]
    n_found = find(texts, _ints(own.sorted, (own.n_sorted,)), recent, own.n_used, ending, found)
    if n_found == 0:
        return 0
    table = _ints(draft, (3, room))
    k, n_max = draft_way(texts, found, n_found, limit, own.factor, own.offset, own.min_prob, 0, table)
    return add_ways(table, k, limit, texts, found, n_found, n_max, own.first_branch) if k < limit else k


@compiled(*[_INT] * 6)
def draft_recycle(state, text, n, limit, draft, room):  # noqa: ARG001 - its tree has a limit
    """Follow the successors of the last token."""
    own, history = _recycle(state, (1,))[0], _ints(text, (n,))
    return draft_successors(
        _ints(own.rows, (own.n_rows, own.m_rows)),
        _flags(own.is_of_target, (own.n_is_of_target,)),
        _longs(own.pairs, (own.n_pairs,)),
        _ints(own.pair_rows, (own.n_pair_rows, own.m_pair_rows)),
        _ints(own.kinds, (own.n_kinds, own.m_kinds)),
        _ints(own.buckets, (own.n_buckets,)),
        _ints(own.shape, (own.n_shape, own.m_shape)),
        _ints(own.shape_without, (own.n_shape_without, own.m_shape_without)),
        history[max(n - 2, 0)],
        history[n - 1],
        _ints(draft, (3, room)),
    )


@compiled(*[_INT] * 5)
def learn_recycle(state, tokens, best, n, k):
    """Keep the successors of what a pass verified."""
    own = _recycle(state, (1,))[0]
    rows, is_of_target = _ints(own.rows, (own.n_rows, own.m_rows)), _flags(own.is_of_target, (own.n_is_of_target,))
    learn_successors(rows, is_of_target, _ints(tokens, (n,)), _ints(best, (n, k)))
