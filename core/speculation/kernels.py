"""The loops of joint trees, of the choice among their nodes and of the costs of passes: every round runs them, compiled.

A parent stands before its children. The module is imported, which compiles all of it, when an engine with
drafters is made.
"""

import numba
import numpy as np

from augury.compiled import compiled
from augury.speculation.constants import (
    CHANCE,
    CONFIDENCE,
    CONSTANTS,
    EDGES,
    EVIDENCE,
    FIRST,
    IS_DRAWN,
    KEEP_ALL,
    PARENT,
    PROPOSERS,
    REACH,
    RUNS,
    STEPS,
    TOKEN,
    TYPICAL,
)

START, END, LIMIT, N_MIN, PAID = range(5)  # of a slot: its nodes, what it takes, and the drafters that no budget holds back
SECONDS, FIRST_SECONDS = range(2)  # of its budget

ALONE, AGREED, CONTESTED = range(3)
EXPECTED, N_RIGHT, RATIO = range(3)  # of agreement, by step and kind

FLAT, PER_POSITION, FACTOR, N_SEEN, HOPE, LOG = range(6)  # of passes' costs, by tokens: see `augury.speculation.costs`
KNOWN, HOPED = range(2)  # of curves

_CERTAIN = 0.995
_GAIN, _UNLIKELY = CONSTANTS.gain, CONSTANTS.unlikely
_LEARN_NEAR, _ALIKE, _DOUBT = CONSTANTS.learn_near, CONSTANTS.alike, CONSTANTS.doubt
_MANY = 1 / _LEARN_NEAR - 1  # passes, of which a new one counts as much as `learn_near`
_READ_ROW = numba.types.Array(numba.int32, 1, "C", readonly=True)
_READ_FLOATS = numba.types.Array(numba.float32, 1, "C", readonly=True)
_INTS, _FLOATS = numba.int64[:, ::1], numba.float64[:, ::1]
_INT, _FLOAT, _ROW, _FLOAT_ROW, _BOOLS = numba.int64, numba.float64, numba.int64[::1], numba.float64[::1], numba.bool_[::1]


_SHARP_EDGES = np.array(EDGES, np.float32)  # of the type of confidences


@compiled(_READ_ROW, _READ_ROW, _READ_FLOATS, _INT, _FLOAT_ROW, _ROW, _FLOAT_ROW)
def judge(parents, evidence, confidence, run, values, buckets, chances):
    """Set the bucket of each token of a draft, and its chance (k,); `values` (b,) are those of all buckets, see `Chances`.

    `evidence` and `confidence` may be empty. Without them a token is judged by its run, after `run` right ones, unless that is
    below 0.
    """
    runs = np.empty(len(parents) + 1, np.int64)  # of each token, and last of the history
    runs[-1] = run - 1
    for i in range(len(parents)):
        bucket = TYPICAL
        runs[i] = runs[parents[i]] + 1
        if len(evidence):
            bucket = EVIDENCE + evidence[i]
        elif len(confidence):
            bucket = CONFIDENCE
            for edge in _SHARP_EDGES:
                bucket += confidence[i] >= edge
        elif run >= 0:
            for first in RUNS:
                bucket += runs[i] >= first
        buckets[i], chances[i] = bucket, values[bucket]


@compiled(_INTS, _FLOATS, _INT, _READ_ROW, _READ_ROW, _FLOAT_ROW, _INT, _ROW)
def add(nodes, chances, n, tokens, parents, own, proposer, places):
    """Merge a draft, its tokens, parents and chances (k,), into a tree of n nodes.

    Returns:
        The new n; `places` (k,) are the nodes of the tokens.
    """
    for i in range(len(tokens)):
        token, parent, at = tokens[i], parents[i], -1
        if parent >= 0:
            at = places[parent]
        node = at + 1
        while node < n and not (nodes[PARENT, node] == at and nodes[TOKEN, node] == token):
            node += 1
        if node == n:
            nodes[TOKEN, node], nodes[PARENT, node], nodes[FIRST, node], nodes[IS_DRAWN, node] = token, at, proposer, 0
            nodes[PROPOSERS, node], chances[CHANCE, node] = 0, 0.0
            n += 1
        nodes[PROPOSERS, node] |= proposer
        chances[CHANCE, node] = max(chances[CHANCE, node], own[i])
        places[i] = node
    return n


@compiled(_READ_ROW, _READ_ROW, _READ_ROW, _INT, _INT)
def fits(tokens, parents, evidence, n_vocab, n_buckets):
    """Whether a draft's numbers are in their ranges; `evidence` may be empty."""
    is_right = len(parents) == len(tokens) and len(evidence) in {0, len(tokens)}
    for i in range(len(tokens) if is_right else 0):
        is_right &= 0 <= tokens[i] < n_vocab and -1 <= parents[i] < i
    for bucket in evidence:
        is_right &= 0 <= bucket < n_buckets
    return is_right


@compiled(_INTS, _ROW, numba.int32[:, ::1])
def take(nodes, chosen, draft):
    """Write tokens and parents (2, k) of chosen nodes, rising, with the parents of each; returns whether they are a chain."""
    is_chain, places = True, np.full(nodes.shape[1] + 1, -1, np.int64)  # by node, and last of the history
    for i in range(len(chosen)):
        node = chosen[i]
        places[node] = i
        draft[0, i], draft[1, i] = nodes[TOKEN, node], places[nodes[PARENT, node]]
        is_chain &= draft[1, i] == i - 1
    return is_chain


@compiled(_FLOATS, _FLOAT_ROW, _INT, numba.bool_, _FLOAT, _FLOAT)
def see(table, prior, bucket, is_right, weight, keep):
    """Learn that a token of a bucket was right or wrong, by the tables of `Chances`."""
    table[0, bucket] = seen = table[0, bucket] * keep + 1.0
    table[1, bucket] = right = table[1, bucket] * keep + is_right
    table[2, bucket] = (right + weight * prior[bucket]) / (seen + weight)


@compiled(_INTS, _FLOATS, _INT, _ROW, _ROW, _ROW, _FLOATS, _FLOAT_ROW, _FLOATS, _FLOAT_ROW, _FLOAT, _FLOAT, _INT)
def score(nodes, chances, n, emitted, places, buckets, every, prior, own, own_prior, weight, keep, run):
    """Learn from the emitted tokens (e,) by a proposal, used or not. A forbidden token is no trial.

    `places` and `buckets` (k,) are those of the proposal in a tree of n nodes. What all requests taught is `every`, and this
    one `own`, each with its prior; see `Chances` for these, `weight` and `keep`. `run` tokens were right in a row.

    Returns:
        The new run, and how many of the emitted tokens the proposal had.
    """
    bucket_of, place_of = np.full(n, -1, np.int64), np.empty(n, np.int64)
    for i in range(len(places)):
        bucket_of[places[i]] = buckets[i]
    for i in range(len(places) - 1, -1, -1):
        place_of[places[i]] = i
    right, n_right = -1, 0
    for token in emitted:
        at, right, first, n_own, is_right = right, -1, -1, 0, False
        for node in range(at + 1, n):
            if right < 0 and nodes[PARENT, node] == at and nodes[TOKEN, node] == token:
                right = node
        for node in range(at + 1, n):
            bucket = bucket_of[node]
            if nodes[PARENT, node] != at or bucket < 0 or chances[CHANCE, node] == 0:
                continue
            n_own += 1
            is_right |= node == right
            if bucket != TYPICAL:
                see(every, prior, bucket, node == right, weight, KEEP_ALL)
                see(own, own_prior, bucket, node == right, weight, keep)
            if first < 0 or place_of[node] < place_of[first]:
                first = node
        if n_own:
            see(every, prior, TYPICAL, first == right, weight, KEEP_ALL)
            see(own, own_prior, TYPICAL, first == right, weight, keep)
            run, n_right = run + 1 if is_right else 0, n_right + is_right
        if right < 0:
            break
    return run, n_right


@compiled(_INTS, _ROW, _ROW, _INT, _INTS)
def count(nodes, chosen, path, together, counts):
    """Count (d + 1, 5), by drafter and at last of those `together` as one, what was verified; see `VerifiedNodes.counts`.

    `chosen` (k,) are nodes, rising, `path` (a,) places of the accepted ones among these, and `together` bits of drafters.
    """
    n_drafters, depths = len(counts) - 1, np.empty(nodes.shape[1] + 1, np.int64)  # by node, and last of the history
    for row in range(n_drafters + 1):
        bits = 1 << row if row < n_drafters else together
        depths[-1], accepted = 0, 0
        for i in range(len(chosen)):
            node = chosen[i]
            is_own, is_first = (nodes[PROPOSERS, node] & bits) != 0, (nodes[FIRST, node] & bits) != 0
            is_accepted = accepted < len(path) and path[accepted] == i
            accepted += is_accepted
            depths[node] = depths[nodes[PARENT, node]] + is_own
            counts[row, 0] += is_own
            counts[row, 1] += is_own and is_accepted
            counts[row, 2] = max(counts[row, 2], depths[node])
            counts[row, 3] += is_first
            counts[row, 4] += is_first and is_accepted


@compiled()
def step_of(chance):
    """The step of a chance."""
    step = 0
    for edge in STEPS:
        step += chance >= edge
    return step


@compiled(_INTS, _INT, _INT)
def proposers_after(nodes, n, parent):
    """All drafters that propose something after a node."""
    found = 0
    for node in range(parent + 1, n):
        if nodes[PARENT, node] == parent:
            found |= nodes[PROPOSERS, node]
    return found


@compiled(_INT, _INT)
def kind_of(own, every):
    """Whether several drafters propose a node, or others something else in its place, by the bits of each."""
    return AGREED if own & (own - 1) else CONTESTED if every & (every - 1) else ALONE


@compiled(_INTS, _FLOATS, _INT, _FLOATS, numba.bool_)
def find_reach(nodes, chances, n, agreement, is_learnt):
    """Set by node the chance that it is accepted, which falls from a parent to its children."""
    for parent in range(-1, n):
        every = proposers_after(nodes, n, parent)
        if not every:
            continue
        total, most, best, n_children = 0.0, -1.0, -1, 0
        for node in range(parent + 1, n):
            if nodes[PARENT, node] == parent:
                chance = chances[CHANCE, node]
                if is_learnt and 0 < chance < 1:
                    place = 3 * step_of(chance) + kind_of(nodes[PROPOSERS, node], every)
                    chance = min(_CERTAIN, chance * agreement[RATIO, place])
                chances[REACH, node] = chance
                total, n_children = total + chance, n_children + 1
                if chance > most:
                    most, best = chance, node
        before = chances[REACH, parent] if parent >= 0 else 1.0
        rest = (1 - most) / (total - most) if n_children > 1 and total > 1 else 1.0  # the share of the others
        for node in range(parent + 1, n):
            if nodes[PARENT, node] == parent:
                chances[REACH, node] = chances[REACH, node] * (1.0 if node == best else rest) * before


@compiled(_INTS, _FLOATS, _INT, _ROW)
def find_best_path(nodes, chances, n, path):
    """Write the nodes from the history on, each time the child that was drawn, or else the likeliest; returns how many."""
    length, at = 0, -1
    while True:
        best, is_drawn = -1, 0
        for node in range(at + 1, n):
            if nodes[PARENT, node] == at:
                drawn = nodes[IS_DRAWN, node]
                if best < 0 or drawn or (not is_drawn and chances[REACH, node] > chances[REACH, best]):
                    best, is_drawn = node, drawn
        if best < 0 or not (is_drawn or chances[REACH, best] > 0):
            return length
        path[length], length, at = best, length + 1, best


@compiled(_INTS, _FLOATS, _INT, _ROW, _FLOATS)
def learn_agreement(nodes, chances, n, emitted, agreement):
    """Learn from the emitted tokens what it is worth that drafters agree."""
    right = -1
    for token in emitted:
        at, right, every = right, -1, proposers_after(nodes, n, right)
        for node in range(at + 1, n):
            if nodes[PARENT, node] == at and nodes[TOKEN, node] == token:
                right = node
        for node in range(at + 1, n):
            chance = chances[CHANCE, node]
            if nodes[PARENT, node] == at and 0 < chance < 1:
                place = 3 * step_of(chance) + kind_of(nodes[PROPOSERS, node], every)
                agreement[EXPECTED, place] = agreement[EXPECTED, place] * KEEP_ALL + chance
                agreement[N_RIGHT, place] = agreement[N_RIGHT, place] * KEEP_ALL + (node == right)
                agreement[RATIO, place] = agreement[N_RIGHT, place] / agreement[EXPECTED, place]
        if right < 0:
            return


@compiled(_INTS, _FLOAT_ROW, _ROW, _INTS, _FLOATS, _FLOAT_ROW, _FLOAT_ROW, _FLOAT, numba.bool_, _BOOLS, _FLOAT_ROW)
def choose(nodes, reach, ranks, slots, budgets, known, hoped, draft_s, replays_accepted, is_chosen, expected):
    """Rank the nodes of all slots by their reach, take the first n, for the best n; see `best_nodes`.

    Args:
        nodes: The slots' nodes (5, m), one after another.
        reach: (m,).
        ranks: (m,), the place of a drawn node, or of one before it, in its slot; -1 of the others.
        slots: (s, 5).
        budgets: (s, 2).
        known: Seconds of a pass by its drafted tokens.
        hoped: The same as far as they may turn out to be.
        draft_s: Seconds of drafting.
        replays_accepted: See `DraftPlanner`.
        is_chosen: (m,) bool, zeros: set for the nodes that are taken.
        expected: (s,), ones: set to each slot's tokens.
    """
    n_slots, m = len(slots), len(reach)
    most = 0.0  # tokens, if all nodes were verified
    for each in reach:
        most += each
    most += n_slots
    counts, sums, lost = np.zeros(n_slots, np.int64), np.zeros(n_slots), np.zeros(n_slots)
    keys, slot_of, left_out, taken = np.empty(m), np.empty(m, np.int64), np.zeros(m, np.bool_), np.empty(m, np.int64)
    for i in range(n_slots):
        for at in range(slots[i, START], slots[i, END]):
            slot_of[at] = i
            keys[at] = ranks[at] - m - 2 if ranks[at] >= 0 else -reach[at] if reach[at] > _UNLIKELY else np.inf
    n, n_best, n_short, tokens = 0, 0, 0, float(n_slots)
    best_rate = (tokens + _GAIN) / (hoped[0] + draft_s)
    while m:
        at = 0
        for other in range(1, m):
            if keys[other] < keys[at]:
                at = other
        if keys[at] == np.inf:
            break
        keys[at] = np.inf
        i, is_drawn, chance = slot_of[at], ranks[at] >= 0, reach[at]
        count, n_min, parent = counts[i], slots[i, N_MIN], nodes[PARENT, at]
        if count == slots[i, LIMIT]:
            continue
        if not is_drawn and most <= best_rate * (hoped[n + 1] + draft_s):
            break  # no further node can pay
        is_paid = is_drawn or (nodes[PROPOSERS, at] & slots[i, PAID]) != 0
        loss_s = known[n + 1] - known[n - count]  # of one token more after the slot's own, at worst
        is_covered = (
            is_paid or loss_s <= budgets[i, SECONDS] or (count < n_min and budgets[i, SECONDS] >= budgets[i, FIRST_SECONDS])
        )
        if (parent >= 0 and left_out[slots[i, START] + parent]) or not is_covered:
            left_out[at] = True
            continue
        n_short += int(count + 1 < n_min) - int(0 < count < n_min)
        taken[n] = at
        n += 1
        counts[i], sums[i], tokens = count + 1, sums[i] + chance, tokens + chance
        replay_s = 0.0
        if replays_accepted:  # tokens accepted where a later one is not; each takes as long as a drafted one
            lost[i] = max(sums[i] - counts[i] * chance, 0.0)
            replay_s = (known[n] - known[0]) / n * lost.sum()
        rate = tokens / (hoped[n] + draft_s + replay_s)
        if is_drawn or (rate > best_rate and not n_short):
            n_best, best_rate = n, rate
    for at in taken[:n_best]:
        is_chosen[at] = True
        expected[slot_of[at]] += reach[at]


@compiled(_FLOATS, _FLOAT, _FLOAT, _FLOAT, _FLOATS)
def find_curves(costs, plain, several, depth, curves):
    """Set the seconds of passes by their tokens, none less than a smaller one's, and the same as they may turn out (2, n).

    `costs` (6, n) are seconds at no depth, and more by position; a factor, the passes that it rests on, and one for hope.
    `plain` is the factor of all passes of one token, `several` that of all others.
    """
    known = hoped = 0.0
    for i in range(costs.shape[1]):
        seconds = (plain if i <= 1 else several) * costs[FACTOR, i] * (costs[FLAT, i] + costs[PER_POSITION, i] * depth)
        known, hoped = max(known, seconds), max(hoped, seconds * costs[HOPE, i])
        curves[KNOWN, i], curves[HOPED, i] = known, hoped


@compiled(_FLOATS, _INT, _FLOAT)
def learn_pass(costs, n, ratio):
    """Learn from a pass of n tokens that took so many times its figure: most of its own size, and less of others."""
    for i in range(2) if n == 1 else range(2, costs.shape[1]):
        near, n_seen = max(1.0 - abs(costs[LOG, i] - costs[LOG, n]), 0.0), costs[N_SEEN, i]
        costs[FACTOR, i] *= ratio ** (max(near, _ALIKE) * (1 / (1 + n_seen) if n_seen < _MANY else _LEARN_NEAR))
        if near > 0:
            costs[N_SEEN, i] = n_seen + near
            costs[HOPE, i] = 1.0 if i <= 1 else 1 - _DOUBT / (1 + n_seen + near)
