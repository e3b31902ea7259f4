"""The loops of lookups: every draft runs them, compiled.

An `order` holds positions in texts, sorted by the tokens before each, the last one first; a text begins after a -1. An `ending`
(depth,) has the last tokens of a text in the same way, with -1 from its beginning on.
"""

import numba
import numpy as np

from augury.compiled import compiled

TOKEN, PARENT, EVIDENCE = range(3)  # of a draft

_LENGTHS = (0, 2, 3, 5, 9, 17, 33)  # tokens that agree, the first of each bucket of `suffix`
_MOST = 0.5  # of the occurrences
_N_NEIGHBOURS = 6  # looked at on either side in each order: enough to tell frequent from rare

_INT, _FLOAT, _ROW, _TABLE = numba.int64, numba.float64, numba.int32[::1], numba.int32[:, ::1]
_BOOLS = numba.bool_[::1]
_READ_ROW = numba.types.Array(numba.int32, 1, "C", readonly=True)
_READ_TABLE = numba.types.Array(numba.int32, 2, "A", readonly=True)


@compiled()
def agreeing(tokens, position, ending):
    """How many tokens before a position an ending has, too, and whether the position comes first in an order."""
    for i in range(len(ending)):
        token = tokens[position - 1 - i] if position > i else -1
        if token != ending[i]:
            return i, token < ending[i]
        if token < 0:
            return i, False
    return len(ending), False


@compiled()
def is_before(tokens, a, b, depth):
    """Whether position a comes before position b in an order."""
    for i in range(depth):
        first, second = tokens[a - 1 - i] if a > i else -1, tokens[b - 1 - i] if b > i else -1
        if first != second:
            return first < second
        if first < 0:
            break
    return a < b


@compiled(_ROW, _ROW, _ROW, _INT, _ROW)
def merge(tokens, first, second, depth, merged):
    """Merge two orders."""
    i = j = 0
    for at in range(len(first) + len(second)):
        if j == len(second) or (i < len(first) and is_before(tokens, first[i], second[j], depth)):
            merged[at] = first[i]
            i += 1
        else:
            merged[at] = second[j]
            j += 1


@compiled(_ROW, _ROW, _INT)
def sort(tokens, positions, depth):
    """Sort positions into an order."""
    size, n = 1, len(positions)
    while size < n:
        for start in range(0, n - size, 2 * size):
            middle, end = start + size, min(start + 2 * size, n)
            merge(tokens, positions[start:middle].copy(), positions[middle:end].copy(), depth, positions[start:end])
        size *= 2


@compiled()
def first_not_before(tokens, order, n, ending):
    """The first place in an order of n positions whose tokens do not come before an ending."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if agreeing(tokens, order[middle], ending)[1]:
            low = middle + 1
        else:
            high = middle
    return low


@compiled(_ROW, _INT, _INT, _ROW, _INT, _ROW)
def extend(tokens, first, end, order, n, ending):
    """Add the positions from `first` to `end` - 1 to an order of n earlier ones, and move a text's ending there."""
    depth = len(ending)
    for position in range(first, end):
        low, high = 0, n
        while low < high:
            middle = (low + high) // 2
            if is_before(tokens, order[middle], position, depth):
                low = middle + 1
            else:
                high = middle
        for at in range(n, low, -1):
            order[at] = order[at - 1]
        order[low] = position
        n += 1
        for i in range(depth - 1, 0, -1):
            ending[i] = ending[i - 1]
        ending[0] = tokens[position]


@compiled(_ROW, _ROW, _ROW, _INT, _ROW, _TABLE)
def find(tokens, order, recent, n_recent, ending, found):
    """Find the positions that agree with an ending, in at least half of the longest match.

    `found` (2, 24) gets their lengths and the positions, longest first, of equals latest first; returns how many.
    """
    n = 0
    for part in range(2):
        places, n_places = (recent, n_recent) if part else (order, len(order))
        middle = first_not_before(tokens, places, n_places, ending)
        for step in (1, -1):
            at, longest = middle if step > 0 else middle - 1, 0
            for _ in range(_N_NEIGHBOURS):
                if not 0 <= at < n_places:
                    break
                length, _ = agreeing(tokens, places[at], ending)
                longest = max(longest, length)  # the first one's
                if not length or 2 * length < longest:
                    break
                place = n
                while place and (found[0, place - 1], found[1, place - 1]) < (length, places[at]):
                    found[0, place], found[1, place] = found[0, place - 1], found[1, place - 1]
                    place -= 1
                found[0, place], found[1, place] = length, places[at]
                n, at = n + 1, at + step
    while n and 2 * found[0, n - 1] < found[0, 0]:
        n -= 1
    return n


@compiled()
def step_of(length):
    """The bucket of a length."""
    step = -1
    for first in _LENGTHS:
        step += length >= first
    return step


@compiled()
def token_at(tokens, start, i):
    """The i-th token of a way on; -1 where its text has ended."""
    return tokens[start + i] if start + i < len(tokens) else -1


@compiled(_ROW, _TABLE, _INT, _INT, _FLOAT, _TABLE)
def follow(tokens, found, n, n_max, min_prob, path):
    """Write the most frequent of n ways on, and how many of them each token follows (2, n_max); returns its length, and a sum.

    That is of how many ways agree, over all of its tokens.
    """
    starts, total = found[1], 0
    is_on = np.ones(n, np.bool_)
    for i in range(n_max):
        best, most = -1, 0  # among equals the continuation of the longest, latest match
        for j in range(n):
            token = token_at(tokens, starts[j], i) if is_on[j] else -1
            if token < 0 or token == best:
                continue
            count = 0
            for other in range(j, n):
                count += is_on[other] and token_at(tokens, starts[other], i) == token
            if count > most:
                best, most = token, count
        if not most or most < min_prob * n:
            return i, total
        path[0, i], path[1, i], total = best, most, total + most
        for j in range(n):
            is_on[j] = is_on[j] and token_at(tokens, starts[j], i) == best
    return n_max, total


@compiled()
def longest_draft(length, limit, factor, offset):
    """How many tokens to draft after an ending of a length."""
    return max(min(limit, int(factor * length + offset)), 0)


@compiled(_ROW, _TABLE, _INT, _INT, _FLOAT, _FLOAT, _FLOAT, _INT, _TABLE)
def draft_way(tokens, found, n, limit, factor, offset, min_prob, bucket, draft):
    """Draft the way on after n found positions that promises more tokens: of those of the longest ending, or of all.

    Args:
        tokens: (t,), the texts.
        found: See `find`.
        n: At least 1.
        limit: Tokens at most.
        factor: See `SuffixOptions`, as for the next two.
        offset: Tokens.
        min_prob: By frequency.
        bucket: The first of the texts.
        draft: (3, limit or more) is set.

    Returns:
        Its length, and that of the ways on from the longest ending, at most.
    """
    longest, shortest, n_longest = found[0, 0], found[0, n - 1], 0
    while n_longest < n and found[0, n_longest] == longest:
        n_longest += 1
    n_max = longest_draft(longest, limit, factor, offset)
    path, length, n_all = np.empty((2, n_max), np.int32), longest, n_longest
    k, total = follow(tokens, found, n_longest, n_max, min_prob, path)
    if shortest < longest:
        other = np.empty((2, n_max), np.int32)
        k_most = min(longest_draft(shortest, limit, factor, offset), n_max)
        k_other, total_other = follow(tokens, found, n, k_most, min_prob, other)
        if total_other * n_longest > total * n:
            path, k, length, n_all = other, k_other, shortest, n
    for i in range(k):
        n_agreeing = path[1, i]
        kind = 2 if n_agreeing == n_all else 1 if n_agreeing >= _MOST * n_all else 0
        draft[TOKEN, i], draft[PARENT, i], draft[EVIDENCE, i] = path[0, i], i - 1, bucket + 3 * step_of(length + i) + kind
    return k, n_max


@compiled()
def child(draft, n, limit, parent, token, bucket):
    """The node of a token after another node, added where it is new; -1 if there is no room for it. And the nodes by then."""
    for node in range(parent + 1, n):
        if draft[PARENT, node] == parent and draft[TOKEN, node] == token:
            return node, n
    if n == limit:
        return -1, n
    draft[TOKEN, n], draft[PARENT, n], draft[EVIDENCE, n] = token, parent, bucket
    return n, n + 1


@compiled(_TABLE, _INT, _INT, _TABLE, _INT)
def add_draft(draft, n, limit, other, k):
    """Add a chain of k tokens to a draft of n, up to a limit; returns how many it has then."""
    node = -1
    for i in range(k):
        node, n = child(draft, n, limit, node, other[TOKEN, i], other[EVIDENCE, i])
        if node < 0:
            break
    return n


@compiled(_TABLE, _INT, _INT, _ROW, _TABLE, _INT, _INT, _INT)
def add_ways(draft, n, limit, tokens, found, n_found, n_max, bucket):
    """The same of the ways on from found positions, of up to `n_max` tokens; `bucket` is the first of branches."""
    for i in range(n_found):
        length, start, node = found[0, i], found[1, i], -1
        for at in range(start, min(start + n_max, len(tokens))):
            if tokens[at] < 0:  # that text ends
                break
            node, n = child(draft, n, limit, node, tokens[at], bucket + step_of(length + at - start))
            if node < 0:
                break
    return n


FIRST_OF_TARGET, FIRST_OF_TEXT, N_RANKS, FIRST_OF_PAIRS = range(4)  # of the buckets of successors


@compiled()
def holds(row, n, token):
    """Whether a token is among the first n of a row."""
    found = False
    for i in range(n):
        found |= row[i] == token
    return found


@compiled(_TABLE, _BOOLS, numba.int64[::1], _TABLE, _TABLE, _READ_ROW, _INT, _INT, _TABLE)
def write_row(rows, is_of_target, pairs, pair_rows, pair_kinds, buckets, before, token, written):
    """Write the successors of a token after another one, and their buckets (2, n): those known of the pair, then its own."""
    n_vocab, n = rows.shape
    row, evidence, n_first, key = written[0], written[1], 0, before * n_vocab + token
    at, end = 0, len(pairs)
    while at < end:
        middle = (at + end) // 2
        if pairs[middle] < key:
            at = middle + 1
        else:
            end = middle
    if at < len(pairs) and pairs[at] == key:
        for i in range(pair_rows.shape[1]):
            if pair_rows[at, i] >= 0 and n_first < n:
                row[n_first], evidence[n_first] = pair_rows[at, i], buckets[FIRST_OF_PAIRS] + pair_kinds[at, n_first]
                n_first += 1
    n_row, first = n_first, buckets[FIRST_OF_TARGET if is_of_target[token] else FIRST_OF_TEXT]
    for rank in range(n):
        if n_row < n and not holds(row, n_first, rows[token, rank]):
            row[n_row], evidence[n_row] = rows[token, rank], first + min(rank, buckets[N_RANKS] - 1)
            n_row += 1


@compiled(_TABLE, _BOOLS, numba.int64[::1], _TABLE, _TABLE, _READ_ROW, _READ_TABLE, _READ_TABLE, _INT, _INT, _TABLE)
def draft_successors(rows, is_of_target, pairs, pair_rows, pair_kinds, buckets, shape, shape_without, before, last, draft):
    """Follow the successors of tokens from the last one and its runners-up; see `drafters/recycle.py`.

    Args:
        rows: (V, n), of each token the successors.
        is_of_target: (V,), whether the target told them.
        pairs: Rising, of two tokens the first one times V and the second one.
        pair_rows: Of each pair the successors.
        pair_kinds: And their buckets, from the first of pairs on.
        buckets: The first ones, see above, and how many ranks have their own.
        shape: (3, m): of each node its parent, -1 for the last token, its rank among the successors of that, and its bucket.
        shape_without: The same where the last token has no row.
        before: The last token but one of the text.
        last: The last token.
        draft: (3, m), tokens, parents and evidence: is set.

    Returns:
        How many tokens are drafted.
    """
    n, m = rows.shape[1], draft.shape[1]
    # by node of the draft, after the last
    successors, is_written = np.empty((m + 1, 2, n), np.int32), np.zeros(m + 1, np.bool_)
    write_row(rows, is_of_target, pairs, pair_rows, pair_kinds, buckets, before, last, successors[0])
    is_written[0] = True
    runners_up, n_runners = np.full(n, -1, np.int32), 0
    for rank in range(n if is_of_target[before] else 0):
        token = rows[before, rank]
        if token != last and n_runners < n - 1:
            runners_up[n_runners] = -1 if holds(successors[0, 0], n, token) else token
            n_runners += 1
    nodes = shape if successors[0, 0, 0] >= 0 else shape_without
    places, k = np.full(nodes.shape[1], -1, np.int64), 0  # by node of the shape, in the draft: those that are known
    for node in range(nodes.shape[1]):
        parent, rank, at = nodes[0, node], nodes[1, node], -1
        if parent >= 0:
            at = places[parent]
            if at < 0:
                continue
        if not is_written[at + 1]:
            above = draft[PARENT, at]
            pair = draft[TOKEN, above] if above >= 0 else last, draft[TOKEN, at]
            write_row(rows, is_of_target, pairs, pair_rows, pair_kinds, buckets, pair[0], pair[1], successors[at + 1])
            is_written[at + 1] = True
        token = successors[at + 1, 0, rank] if rank < n else runners_up[rank - n]
        if token >= 0:
            places[node] = k
            draft[TOKEN, k], draft[PARENT, k] = token, at
            draft[EVIDENCE, k] = successors[at + 1, 1, rank] if rank < n else nodes[2, node]
            k += 1
    return k


@compiled(_TABLE, _BOOLS, _READ_ROW, _READ_TABLE)
def learn_successors(rows, is_of_target, tokens, best):
    """Keep the target's most probable tokens (m, n) after each of the tokens (m,), unless they are not finite."""
    for i in range(len(tokens)):
        if best[i, 0] >= 0:
            for rank in range(rows.shape[1]):
                rows[tokens[i], rank] = best[i, rank]
            is_of_target[tokens[i]] = True
