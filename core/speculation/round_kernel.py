"""Rounds of one slot, compiled: lookups draft, the model verifies, and what it accepts is the text that they draft after.

This is the round of `Loop`, `Drafting` and `DraftPlanner` where no Python is needed between its steps: greedy decoding of one
sequence, whose drafters and model have compiled functions. What the rounds teach is learnt after them.
"""

import numba
import numpy as np

from augury.compiled import compiled, invoker
from augury.speculation.constants import (
    CONSTANTS,
    DRAFTED_NS,
    EVIDENCE,
    IS_STOPPED,
    N_CHOSEN,
    N_EMITTED,
    N_NODES,
    N_PATH,
    NOT_ASKED,
    PARENT,
    PASS_NS,
    REACH,
    TOKEN,
)
from augury.speculation.kernels import END, LIMIT, PAID, add, choose, find_reach, fits, judge

N_TOKENS, START, N_MOVES = range(3)  # of `CompiledPass.sizes`
BEGUN, ENDED = range(2)  # its times
DRAFT, LEARN, STATE = range(3)  # of a drafter: addresses
BUCKET, CONFIDENCES = 2, 3  # of a draft, after its tokens and parents
_PLAIN = 1 + CONSTANTS.gain  # tokens of a pass without drafts, as a draft has to beat it
_INT, _FLOAT, _invoke = numba.int64, numba.float64, invoker()
_ROW, _FLOATS, _TOKENS = numba.int64[::1], numba.float64[::1], numba.int32[::1]
_TABLE, _FLOAT_TABLE, _TOKEN_TABLE = numba.int64[:, ::1], numba.float64[:, ::1], numba.int32[:, ::1]
_TABLES, _FLOAT_TABLES, _TOKEN_TABLES = numba.int64[:, :, ::1], numba.float64[:, :, ::1], numba.int32[:, :, ::1]


@compiled()
def choose_nodes(tree, reach, m, most, agreement, slot, budget, known, hoped, draft_s):
    """Choose among a tree's m nodes; returns whether each one is chosen, and the tokens per second that this promises."""
    find_reach(tree, reach, m, agreement, True)
    slot[0, END], slot[0, LIMIT] = m, most
    is_chosen, expected = np.zeros(m, np.bool_), np.ones(1)
    choose(tree, reach[REACH, :m], np.full(m, -1), slot, budget, known, hoped, draft_s, False, is_chosen, expected)
    return is_chosen, max(expected[0], _PLAIN) / hoped[is_chosen.sum()]


@compiled(
    *(_INT, _INT, _TOKENS, _INT, _INT, _INT, _TOKENS, _INT),
    *(_INT, _INT, _ROW, _TOKENS, _TOKENS, _TOKEN_TABLE, _TOKEN_TABLE, _ROW, _INT),
    *(_TABLE, _FLOAT_TABLE, _INT, _FLOAT, _FLOAT, _FLOAT_TABLE, _TABLE, _FLOAT_TABLE, _FLOATS, _FLOATS),
    *(_TOKEN_TABLES, _TABLES, _FLOAT_TABLES, _TABLES, _TABLES, _TABLE, _TABLE, _TABLE, _TABLE),
    nogil=True,
)
def run_rounds(
    n_most,
    most_ns,
    text,
    n,
    n_left,
    limit,
    ends,
    n_vocab,
    compute,
    call,
    sizes,
    tokens,
    parents,
    moves,
    ids,
    times,
    keep,
    drafters,
    values,
    n_costly,
    least,
    costly_s,
    agreement,
    slot,
    budget,
    known,
    hoped,
    drafts,
    nodes,
    chances,
    places,
    buckets,
    lengths,
    chosen,
    paths,
    rounds,
):
    """Run up to `n_most` rounds, until one begins later than `most_ns` after the first pass, or the text ends.

    Args:
        n_most: At least 1.
        most_ns: Nanoseconds.
        text: The text, with room for what follows.
        n: Its tokens, the last of which is not yet in the model's memory.
        n_left: Tokens that may still be emitted.
        limit: Of a draft, so that all drafters' fit into a tree of ROOM.
        ends: The tokens that end a text, rising.
        n_vocab: Of the model; drafted tokens are less.
        compute: See `CompiledPass.function`, as for the next eight.
        call: Its argument.
        sizes: (3,).
        tokens: (t,).
        parents: (t,).
        moves: (t, 2).
        ids: (t, k).
        times: (2,).
        keep: An address.
        drafters: (d, 3), the addresses of `CompiledDraft`.
        values: (d, b), the chances of each one's buckets.
        n_costly: 1 if the last drafter is costly, else 0; such a one gives confidences,
        least: is asked where the others promise fewer tokens per second,
        costly_s: and takes about so many seconds.
        agreement: See `Agreement`.
        slot: (1, 5), see `choose`, as for the next three.
        budget: (1, 2).
        known: Seconds.
        hoped: Seconds.
        drafts: (d, 4, ROOM) of work space.
        nodes: (r, 5, ROOM), by round r the tree, is set, as are all that follow.
        chances: (r, 2, ROOM), its chances.
        places: (r, d, ROOM), the nodes of each draft.
        buckets: (r, d, ROOM), and their buckets.
        lengths: (r, d), how many these are; -1 of what is no draft, `NOT_ASKED` of a costly one that was not.
        chosen: (r, ROOM), the nodes that were verified.
        paths: (r, ROOM), the places of the accepted ones among these.
        rounds: (r, 7), the figures that `augury.speculation.constants` names.

    Returns:
        How many rounds there were.
    """
    n_drafters, k_best, room = len(drafters), ids.shape[1], nodes.shape[2]
    own, nothing = np.empty(limit), np.empty(0, np.float32)
    first_ns, before_ns = 0, 0
    for r in range(n_most):
        tree, reach, m, most = nodes[r], chances[r], 0, min(limit, n_left - 1)
        draft_s, slot[0, PAID] = 0.0, 0
        for d in range(n_drafters):  # draft
            draft, is_costly = drafts[d], d >= n_drafters - n_costly
            k = 0
            if is_costly:
                _, rate = choose_nodes(tree, reach, m, most, agreement, slot, budget, known, hoped, draft_s)
                if most == 0 or rate >= least:
                    lengths[r, d] = NOT_ASKED
                    continue
                draft_s, slot[0, PAID] = costly_s, 1 << d
            if most > 0:
                arguments = (drafters[d, STATE], text.ctypes.data, n, most, draft.ctypes.data, draft.shape[1])
                k = min(_invoke(drafters[d, DRAFT], arguments), most)
            above, place, evidence, confidence = draft[PARENT, :k], places[r, d], draft[BUCKET, :k], nothing
            if is_costly:
                evidence, confidence = evidence[:0], draft[CONFIDENCES, :k].view(np.float32)
            if k < 0 or not fits(draft[TOKEN, :k], above, evidence, n_vocab, values.shape[1] - EVIDENCE):
                lengths[r, d] = -1
                continue
            lengths[r, d] = k
            judge(above, evidence, confidence, -1, values[d], buckets[r, d], own)
            m = add(tree, reach, m, draft[TOKEN, :k], above, own, 1 << d, place)
        is_chosen, _ = choose_nodes(tree, reach, m, most, agreement, slot, budget, known, hoped, draft_s)
        n_chosen, where = 0, np.full(room + 1, -1, np.int64)
        tokens[0], parents[0] = text[n - 1], -1
        for node in range(m):
            if is_chosen[node]:
                chosen[r, n_chosen] = node
                where[node] = n_chosen
                n_chosen += 1
                tokens[n_chosen], parents[n_chosen] = tree[TOKEN, node], 1 + where[tree[PARENT, node]]
        sizes[N_TOKENS], sizes[START] = 1 + n_chosen, n - 1  # verify
        _invoke(compute, (call,))
        first_ns = first_ns or times[BEGUN]
        rounds[r, DRAFTED_NS], rounds[r, PASS_NS] = times[BEGUN] - (before_ns or times[BEGUN]), times[ENDED] - times[BEGUN]
        before_ns, sizes[N_MOVES] = times[ENDED], 0
        n_path, n_emitted, at, is_over, is_stopped = 0, 0, -1, False, False  # accept
        while True:
            token = ids[1 + at, 0]
            n_emitted += 1
            if token < 0:
                is_over = True
                break
            text[n] = token
            n, n_left = n + 1, n_left - 1
            following = -1
            for i in range(at + 1, n_chosen):
                if parents[1 + i] == 1 + at and tokens[1 + i] == token:
                    following = i
            place = np.searchsorted(ends, token)
            is_over = n_left == 0 or (place < len(ends) and ends[place] == token)
            is_stopped = is_over and following >= 0
            if is_over or following < 0:
                break
            paths[r, n_path] = at = following
            n_path += 1
        if keep != 0:
            _invoke(keep, (call, paths[r].ctypes.data, n_path))
        n_moves = 0
        for i in range(n_path):
            if paths[r, i] != i:
                moves[n_moves, 0], moves[n_moves, 1] = sizes[START] + 1 + paths[r, i], sizes[START] + 1 + i
                n_moves += 1
        sizes[N_MOVES] = n_moves
        for d in range(n_drafters):
            if drafters[d, LEARN] != 0:
                _invoke(drafters[d, LEARN], (drafters[d, STATE], tokens.ctypes.data, ids.ctypes.data, 1 + n_chosen, k_best))
        rounds[r, N_NODES], rounds[r, N_CHOSEN], rounds[r, N_PATH] = m, n_chosen, n_path
        rounds[r, N_EMITTED], rounds[r, IS_STOPPED] = n_emitted, is_stopped
        if is_over or times[ENDED] - first_ns > most_ns or r == n_most - 1:
            if n_moves > 0:
                sizes[N_TOKENS] = 0
                _invoke(compute, (call,))
            return r + 1
    return n_most
