"""Rounds of one slot, compiled: lookups draft, the model verifies, and what it accepts is the text that they draft after.

This is the round of `Loop`, `Drafting` and `DraftPlanner` where no Python is needed between its steps: greedy decoding of one
sequence, whose drafters and model have compiled functions. What the rounds teach is learnt after them.
"""

from typing import NamedTuple

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


class Passes(NamedTuple):
    """The arguments of a `CompiledPass`."""

    function: int
    argument: int
    sizes: np.ndarray
    tokens: np.ndarray
    parents: np.ndarray
    moves: np.ndarray
    ids: np.ndarray
    times: np.ndarray
    keep: int


class Ask(NamedTuple):
    """Whom rounds ask, and how a pass is chosen from their drafts."""

    functions: np.ndarray  # (d, 3), the addresses of each one's `CompiledDraft`
    drafts: np.ndarray  # (d, 4, ROOM) of work space
    values: np.ndarray  # (d, b), the chances of each one's buckets
    n_vocab: int  # of the model; drafted tokens are less
    limit: int  # of a draft, so that all drafters' fit into a tree of ROOM
    n_costly: int  # 1 if the last drafter is costly, else 0; such a one gives confidences,
    least: float  # is asked where the others promise fewer tokens per second,
    costly_s: float  # and takes about so many seconds
    agreement: np.ndarray  # see `Agreement`
    slot: np.ndarray  # (1, 5), see `choose`, as for the next three
    budget: np.ndarray  # (1, 2)
    known: np.ndarray  # seconds
    hoped: np.ndarray


class Told(NamedTuple):
    """What is told of each round r."""

    nodes: np.ndarray  # (r, 5, ROOM), the tree
    chances: np.ndarray  # (r, 2, ROOM), its chances
    places: np.ndarray  # (r, d, ROOM), the nodes of each draft,
    buckets: np.ndarray  # (r, d, ROOM), their buckets,
    lengths: np.ndarray  # (r, d), and how many these are; -1 of what is no draft, `NOT_ASKED` of a costly one that was not
    chosen: np.ndarray  # (r, ROOM), the nodes that were verified
    paths: np.ndarray  # (r, ROOM), the places of the accepted ones among these
    figures: np.ndarray  # (r, 7), which `augury.speculation.constants` names


@compiled()
def choose_nodes(ask, tree, reach, m, most, draft_s):
    """Choose among a tree's m nodes; returns whether each one is chosen, and the tokens per second that this promises."""
    if m == 0:
        return np.zeros(0, np.bool_), _PLAIN / ask.hoped[0]
    find_reach(tree, reach, m, ask.agreement, True)
    ask.slot[0, END], ask.slot[0, LIMIT] = m, most
    is_chosen, expected, nobody = np.zeros(m, np.bool_), np.ones(1), np.full(m, -1)
    choose(tree, reach[REACH, :m], nobody, ask.slot, ask.budget, ask.known, ask.hoped, draft_s, False, is_chosen, expected)
    return is_chosen, max(expected[0], _PLAIN) / ask.hoped[is_chosen.sum()]


@compiled()
def draft_and_choose(ask, told, r, text, n, most):
    """Ask for drafts of up to `most` tokens; returns whether each node of their tree is to be verified."""
    tree, reach, own, nothing = told.nodes[r], told.chances[r], np.empty(ask.limit), np.empty(0, np.float32)
    m, draft_s, ask.slot[0, PAID] = 0, 0.0, 0
    for d in range(len(ask.functions)):
        draft, is_costly = ask.drafts[d], d >= len(ask.functions) - ask.n_costly
        k = 0
        if is_costly:
            if most == 0 or choose_nodes(ask, tree, reach, m, most, draft_s)[1] >= ask.least:
                told.lengths[r, d] = NOT_ASKED
                continue
            draft_s, ask.slot[0, PAID] = ask.costly_s, 1 << d
        if most > 0:
            arguments = (ask.functions[d, STATE], text.ctypes.data, n, most, draft.ctypes.data, draft.shape[1])
            k = min(_invoke(ask.functions[d, DRAFT], arguments), most)
        above, evidence, confidence = draft[PARENT, :k], draft[BUCKET, :k], nothing
        if is_costly:
            evidence, confidence = evidence[:0], draft[CONFIDENCES, :k].view(np.float32)
        if k < 0 or not fits(draft[TOKEN, :k], above, evidence, ask.n_vocab, ask.values.shape[1] - EVIDENCE):
            told.lengths[r, d] = -1
            continue
        told.lengths[r, d] = k
        judge(above, evidence, confidence, -1, ask.values[d], told.buckets[r, d], own)
        m = add(tree, reach, m, draft[TOKEN, :k], above, own, 1 << d, told.places[r, d])
    return choose_nodes(ask, tree, reach, m, most, draft_s)[0]


@compiled()
def verify(passes, told, r, is_chosen, text, n):
    """Compute the text's last token and the chosen nodes after it; returns how many these are."""
    tree, n_chosen, where = told.nodes[r], 0, np.full(len(is_chosen) + 1, -1)
    passes.tokens[0], passes.parents[0] = text[n - 1], -1
    for node in range(len(is_chosen)):
        if is_chosen[node]:
            told.chosen[r, n_chosen] = node
            where[node] = n_chosen
            n_chosen += 1
            passes.tokens[n_chosen], passes.parents[n_chosen] = tree[TOKEN, node], 1 + where[tree[PARENT, node]]
    passes.sizes[N_TOKENS], passes.sizes[START] = 1 + n_chosen, n - 1
    _invoke(passes.function, (passes.argument,))
    return n_chosen


@compiled()
def accept(passes, path, n_chosen, text, n, n_left, ends):
    """Write the model's own tokens as far as drafts foretold them, and one more.

    Returns how many drafted ones that accepted, how many were emitted, whether the text is over, and whether it ends within a
    draft. The next pass begins with the moves of the accepted ones' cells.
    """
    n_path, n_emitted, at, n_moves = 0, 0, -1, 0
    while True:
        token, following = passes.ids[1 + at, 0], -1
        n_emitted += 1
        if token < 0:
            is_over = True
            break
        text[n + n_emitted - 1] = token
        for i in range(at + 1, n_chosen):
            if passes.parents[1 + i] == 1 + at and passes.tokens[1 + i] == token:
                following = i
        place = np.searchsorted(ends, token)
        is_over = n_emitted == n_left or (place < len(ends) and ends[place] == token)
        if is_over or following < 0:
            break
        path[n_path] = at = following
        n_path += 1
    for i in range(n_path):
        if path[i] != i:
            passes.moves[n_moves, 0], passes.moves[n_moves, 1] = n + path[i], n + i
            n_moves += 1
    passes.sizes[N_MOVES] = n_moves
    return n_path, n_emitted, is_over, is_over and following >= 0


@compiled(
    *(_INT, _INT, _TOKENS, _INT, _INT, _TOKENS),
    numba.types.NamedTuple((_INT, _INT, _ROW, _TOKENS, _TOKENS, _TOKEN_TABLE, _TOKEN_TABLE, _ROW, _INT), Passes),
    numba.types.NamedTuple(
        (
            _TABLE,
            _TOKEN_TABLES,
            _FLOAT_TABLE,
            _INT,
            _INT,
            _INT,
            *(_FLOAT, _FLOAT, _FLOAT_TABLE, _TABLE, _FLOAT_TABLE, _FLOATS, _FLOATS),
        ),
        Ask,
    ),
    numba.types.NamedTuple((_TABLES, _FLOAT_TABLES, _TABLES, _TABLES, _TABLE, _TABLE, _TABLE, _TABLE), Told),
    nogil=True,
)
def run_rounds(n_most, most_ns, text, n, n_left, ends, passes, ask, told):
    """Run up to `n_most` rounds, until one begins later than `most_ns` after the first pass, or the text ends.

    Args:
        n_most: At least 1.
        most_ns: Nanoseconds.
        text: (h,), the text, with room for what follows.
        n: Its tokens, the last of which is not yet in the model's memory.
        n_left: Tokens that may still be emitted.
        ends: (e,), the tokens that end a text, rising.
        passes: See `Passes`.
        ask: See `Ask`.
        told: Is set, see `Told`.

    Returns:
        How many rounds there were.
    """
    times, first_ns, before_ns = passes.times, 0, 0
    for r in range(n_most):
        figures, path = told.figures[r], told.paths[r]
        is_chosen = draft_and_choose(ask, told, r, text, n, min(ask.limit, n_left - 1))
        n_chosen = verify(passes, told, r, is_chosen, text, n)
        n_path, n_emitted, is_over, is_stopped = accept(passes, path, n_chosen, text, n, n_left, ends)
        n, n_left = n + n_emitted, n_left - n_emitted
        if passes.keep != 0:
            _invoke(passes.keep, (passes.argument, path.ctypes.data, n_path))
        for d in range(len(ask.functions)):
            state, learn = ask.functions[d, STATE], ask.functions[d, LEARN]
            if learn != 0:
                arguments = (state, passes.tokens.ctypes.data, passes.ids.ctypes.data, 1 + n_chosen, passes.ids.shape[1])
                _invoke(learn, arguments)
        first_ns = first_ns or times[BEGUN]
        figures[DRAFTED_NS], figures[PASS_NS] = times[BEGUN] - (before_ns or times[BEGUN]), times[ENDED] - times[BEGUN]
        before_ns = times[ENDED]
        figures[N_NODES], figures[N_CHOSEN], figures[N_PATH] = len(is_chosen), n_chosen, n_path
        figures[N_EMITTED], figures[IS_STOPPED] = n_emitted, is_stopped
        if is_over or times[ENDED] - first_ns > most_ns or r == n_most - 1:
            if passes.sizes[N_MOVES] > 0:
                passes.sizes[N_TOKENS] = 0
                _invoke(passes.function, (passes.argument,))
            return r + 1
    return n_most
