"""Drafts of a head for compiled rounds, see `augury.interfaces.CompiledDraft`: those of `PartRunner` and `branched`.

Arrays are told by addresses, in a `HEAD_STATE`.
"""

from math import exp

import numba
import numpy as np

from augury.compiled import array_at, compiled, invoker
from augury.interfaces import CompiledPass

HEAD_STATE = np.dtype(
    [(name, np.int64) for name in ("compute", "call", "sizes", "tokens", "hidden", "ids", "scores", "made")]
    + [(f"encoder_{name}", np.int64) for name in ("compute", "call", "sizes", "hidden", "rows")]
    + [(name, np.int64) for name in ("sources", "before")]
    + [(name, np.int64) for name in ("width", "room", "k_best", "row_stride", "n_names", "n_fed_values")]
    + [(name, np.int64) for name in ("n_vocab", "n_candidates", "depth", "n_ctx", "n_cached", "n_before", "n_features")]
    + [(name, np.float64) for name in ("p_min", "min_path_probability")]
)
"""The functions and arrays of the head's passes, and of its encoder's; the target's features of the rounds, and those of the
last tokens before them; sizes; what is asked, the positions that the head has, the text's tokens before the rounds, all but the
last of which have features, and how many of these are told."""

TOKEN, PARENT, CONFIDENCE = 0, 1, 3  # of a draft
_N_TOKENS, _START, _N_ROWS = 0, 1, 3  # of a pass's sizes
_INT, _invoke = numba.int64, invoker()
_head, _ints, _longs, _floats = array_at(HEAD_STATE), array_at(np.int32), array_at(np.int64), array_at(np.float32)


@compiled()
def find_hidden(own, first, n):
    """Make the hidden states of n positions from `first` on."""
    size, end, m = own.n_fed_values, own.n_before - 1, own.n_features
    sources, given = _longs(own.sources, (own.n_names,)), _floats(own.encoder_hidden, (own.room, own.n_names * size))
    there, start = min(max(end - first, 0), n), max(first - end, 0)
    given[:there] = _floats(own.before, (m, own.n_names * size))[m - end + first :][:there]
    for j in range(own.n_names):
        if sources[j] == 0:
            given[there:n, j * size : (j + 1) * size] = 0
        else:
            given[there:n, j * size : (j + 1) * size] = _floats(sources[j], (start + n - there, size))[start:]
    sizes = _longs(own.encoder_sizes, (4,))
    sizes[_N_TOKENS], sizes[_START] = n, 0
    _invoke(own.encoder_compute, (own.encoder_call,))
    hidden = _floats(own.hidden, (own.room, own.width))
    hidden[:n] = _floats(own.encoder_rows, (n, own.row_stride))[:, : own.width]


@compiled()
def compute(own, tokens, start):
    """Compute tokens from position `start` on, whose hidden states are there, with the logits of the last one."""
    given, sizes = _ints(own.tokens, (own.room,)), _longs(own.sizes, (4,))
    given[: len(tokens)] = tokens
    sizes[_N_TOKENS], sizes[_START], sizes[_N_ROWS] = len(tokens), start, 1
    _invoke(own.compute, (own.call,))


@compiled(*[_INT] * 6)
def draft_head(state, text, n, limit, draft, room):
    """Write a chain ahead, and the likeliest alternatives to its tokens."""
    own, history, table = _head(state, (1,))[0], _ints(text, (n,)), _ints(draft, (4, room))
    confidence, m = _floats(draft + 4 * CONFIDENCE * room, (room,)), 0
    while own.n_cached < n - 1 <= own.n_ctx:
        m = min(n - 1 - own.n_cached, own.room)
        find_hidden(own, own.n_cached, m)
        compute(own, history[own.n_cached + 1 : own.n_cached + 1 + m], own.n_cached)
        own.n_cached += m
    ids, scores, n_candidates = _ints(own.ids, (own.k_best,)), _floats(own.scores, (own.k_best,)), own.n_candidates
    depth = min(own.depth, limit, own.n_ctx - n + 2) if m else 0
    others, chances, before = np.full((limit, n_candidates), -1), np.empty((limit, n_candidates)), np.ones(limit + 1)
    made, hidden = _floats(own.made, (own.room, own.width)), _floats(own.hidden, (own.room, own.width))
    k, reach = 0, 1.0
    while k < depth:
        total = 0.0
        for each in scores:
            total += exp(np.float64(each) - np.float64(scores[0]))
        if ids[0] < 0 or ids[0] >= own.n_vocab or 1 / total < own.p_min:
            break
        for i in range(min(n_candidates, own.k_best)):
            chances[k, i] = exp(np.float64(scores[i]) - np.float64(scores[0])) / total
            if i > 0 and ids[i] < own.n_vocab:
                others[k, i] = ids[i]
        table[TOKEN, k], table[PARENT, k], confidence[k] = ids[0], k - 1, chances[k, 0]
        reach *= chances[k, 0]
        k += 1
        before[k] = reach
        if k == depth or reach < own.min_path_probability:
            break
        hidden[0] = made[m - 1]
        compute(own, table[TOKEN, k - 1 : k], n - 2 + k)
        m = 1
    n_chain = k
    while k < limit:
        place, best, path = -1, -1, -1.0
        for i in range(n_chain):
            for j in range(1, n_candidates):
                its = before[i] * chances[i, j]
                if others[i, j] >= 0 and (its > path or (its == path and i == place and others[i, j] < others[i, best])):
                    place, best, path = i, j, its
        if place < 0 or path < own.p_min:
            break
        table[TOKEN, k], table[PARENT, k], confidence[k] = others[place, best], place - 1, chances[place, best]
        others[place, best] = -1
        k += 1
    return k


def state_of(passes: CompiledPass, encoding: CompiledPass, made: str, sources: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The state (1,) of a head, and of the encoder of its hidden states.

    It takes the target's features at the addresses `sources` (s,) int64, 0: zeros, after those of the last tokens before the
    rounds, `before` (m, s F) float32. Its output `made` is the next hidden state. These arrays have to be kept as long as it is
    used.
    """
    state = np.zeros(1, HEAD_STATE)
    assert passes.hidden is not None
    assert encoding.hidden is not None
    arrays = {"sizes": passes.sizes, "tokens": passes.tokens, "hidden": passes.hidden, "ids": passes.ids}
    arrays |= {"scores": passes.scores, "made": passes.features[made], "before": before, "sources": sources}
    arrays |= {"encoder_sizes": encoding.sizes, "encoder_hidden": encoding.hidden, "encoder_rows": encoding.rows}
    for name, array in arrays.items():
        state[name] = array.ctypes.data
    state["compute"], state["call"] = passes.function, passes.argument
    state["encoder_compute"], state["encoder_call"] = encoding.function, encoding.argument
    state["room"], state["k_best"], state["width"] = *passes.ids.shape, passes.hidden.shape[1]
    state["row_stride"], state["n_names"], state["n_features"] = encoding.rows.shape[1], len(sources), len(before)
    state["n_fed_values"] = encoding.hidden.shape[1] // len(sources)
    for each in passes, encoding:
        each.parents[:] = np.arange(-1, len(each.parents) - 1)
    return state
