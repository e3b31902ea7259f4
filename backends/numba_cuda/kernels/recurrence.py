"""Linear recurrences: of every head a matrix that decays, takes in products of keys and values, and is read by queries.

A head's matrix lies in fours of columns, (V / 4, K, 4). A warp takes four columns through all tokens of a run, in shared
memory; its lanes share the rows. A token's inputs are in one row of floats, at offsets that kernels are given. A drafted
token's key, decays and update are kept aside: taking it in, once it was accepted, is a product and a sum for each number, to
the bit as if it had been certain. A branch of a tree begins anew with the state.
"""

import numpy as np

from augury.backends.numba_cuda.kernels import inputs as layout, instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, kernel, lane, record, warp_barrier, warp_sums

COLUMNS = 4  # of a warp
MAX_ROWS = 256  # of a matrix
_TILE = COLUMNS * MAX_ROWS
RecurArgs = record(
    "RecurArgs",
    f="x table state saved aside added y",
    i="stride n_heads n_key_heads n_rows value_dim is_tiled query_at key_at value_at step_at beta_at n_steps n_aside",
)
"""A recurrence.

`x` (n, stride) is tokens' inputs: from `query_at` on queries, and so on. Steps are decays, by head or by key; by channel they
are betas, which `table` (value_dim / 4, n_rows, 4) is multiplied with in the exponent. `y` is (n, n_heads * value_dim).
Matrices are in `state` and `saved` (slots, n_heads, value_dim / 4, n_rows, 4), inputs of drafted tokens in `aside` (slots,
n_aside, n_key_heads * n_rows + n_steps) and `added` (slots, n_aside, n_heads * value_dim).
"""
BY_HEAD, BY_CHANNEL, BY_KEY = "by_head", "by_channel", "by_key"  # the granularity of decays


@lane
def _load(tile, source, at, n_rows, i):
    for k in range(i, n_rows, WARP):
        for c in range(COLUMNS):
            tile[c * MAX_ROWS + k] = source[at + COLUMNS * k + c]


@lane
def _clear(tile, n_rows, i):
    for k in range(i, n_rows, WARP):
        for c in range(COLUMNS):
            tile[c * MAX_ROWS + k] = np.float32(0)


@lane
def _store(tile, to, at, n_rows, i):
    for k in range(i, n_rows, WARP):
        for c in range(COLUMNS):
            to[at + COLUMNS * k + c] = tile[c * MAX_ROWS + k]


def _recur(kind, has_delta):
    @lane
    def decay(x, step, table, row, c, k):
        """The factor of row k of column c: steps begin at `step`; see `recur`."""
        if kind == BY_CHANNEL:
            return gpu.exp(gpu.mul(x[step + c], table[row + COLUMNS * k + c]))
        return x[step + k] if kind == BY_KEY else x[step]

    @lane
    def take_in(tile, x, key, step, table, row, added, at, n_rows, i):
        """Take in a token that nobody reads."""
        for k in range(i, n_rows, WARP):
            for c in range(COLUMNS):
                decayed = gpu.mul(decay(x, step, table, row, c, k), tile[c * MAX_ROWS + k])
                tile[c * MAX_ROWS + k] = gpu.fma(x[key + k], added[at + c], decayed)

    @lane
    def product(tile, x, key, step, table, row, n_rows, i, sums):
        """A lane's share of the decayed columns times a key."""
        for c in range(COLUMNS):
            sums[c] = np.float32(0)
        if has_delta:
            for k in range(i, n_rows, WARP):
                for c in range(COLUMNS):
                    decayed = gpu.mul(decay(x, step, table, row, c, k), tile[c * MAX_ROWS + k])
                    sums[c] = gpu.fma(decayed, x[key + k], sums[c])

    @lane
    def add_values(x, value, beta, sums):
        """The update for the values of a token, in place of the sums of `product`."""
        for c in range(COLUMNS):
            factor = x[beta + c] if kind == BY_CHANNEL else x[beta]
            sums[c] = gpu.mul(gpu.add(x[value + c], -sums[c]) if has_delta else x[value + c], factor)

    @lane
    def sweep(tile, x, key, step, query, table, row, n_rows, i, added, sums):
        """Take in a token; a lane's share of the columns times its query."""
        for c in range(COLUMNS):
            sums[c] = np.float32(0)
        for k in range(i, n_rows, WARP):
            for c in range(COLUMNS):
                decayed = gpu.mul(decay(x, step, table, row, c, k), tile[c * MAX_ROWS + k])
                decayed = gpu.fma(x[key + k], added[c], decayed)
                tile[c * MAX_ROWS + k] = decayed
                sums[c] = gpu.fma(decayed, x[query + k], sums[c])

    @lane
    def put(values, to, at):
        for c in range(COLUMNS):
            to[at + c] = values[c]

    @kernel("j", RecurArgs, name="recur" + "_delta" * has_delta + f"_{kind}")
    def recur(inputs, params):
        """Take the tokens of all runs through a layer's recurrence; see `RecurArgs`."""
        x, table, state, aside, added = params.x, params.table, params.state, params.aside, params.added
        n_rows, n_steps, n_key_heads = params.n_rows, params.n_steps, params.n_key_heads
        run, i = layout.RUNS + cuda.blockIdx.y * layout.RUN_FIELDS, cuda.threadIdx.x
        if cuda.blockIdx.y >= inputs[layout.N_RUNS]:
            return
        tile = cuda.shared.array(_TILE, np.float32)
        sums = cuda.local.array(COLUMNS, np.float32)
        values = cuda.local.array(COLUMNS, np.float32)
        column, width = COLUMNS * cuda.blockIdx.x, params.n_heads * params.value_dim
        head, n_alike = gpu.quotient(column, params.value_dim), gpu.quotient(params.n_heads, n_key_heads)
        key_head = gpu.remainder(head, n_key_heads) if params.is_tiled else gpu.quotient(head, n_alike)
        key, n_keys, own = key_head * n_rows, n_key_heads * n_rows, (inputs[run + layout.SLOT] * width + column) * n_rows
        step = column if kind == BY_CHANNEL else head * n_rows if kind == BY_KEY else head
        beta, row = column if kind == BY_CHANNEL else head, column * n_rows
        kept = inputs[run + layout.SLOT] * params.n_aside
        n_certain, save = inputs[run + layout.N_CERTAIN], inputs[run + layout.SAVE]
        if inputs[run + layout.IS_START]:
            _clear(tile, n_rows, i)
        else:
            _load(tile, params.saved if inputs[run + layout.IS_RESTORED] else state, own, n_rows, i)
        for j in range(-1, inputs[run + layout.N]):
            t = inputs[layout.ORDER + inputs[run + layout.FIRST] + j] if j >= 0 else 0
            path = inputs[layout.STATES + t] if j >= 0 else inputs[run + layout.ACCEPTED]
            if path > 0:
                if j >= 0:
                    _load(tile, state, own, n_rows, i)
                for node in range(path + 1, path + 1 + inputs[path]):
                    above = inputs[node]
                    is_aside = above < 0
                    place = kept + (-1 - above if is_aside else gpu.remainder(inputs[layout.CELLS + above], params.n_aside))
                    at = place * (n_keys + n_steps) if is_aside else above * params.stride
                    at_key = at + key + (0 if is_aside else params.key_at)
                    at_step = at + step + (n_keys if is_aside else params.step_at)
                    source = aside if is_aside else x
                    take_in(tile, source, at_key, at_step, table, row, added, place * width + column, n_rows, i)
            if j >= 0:
                at = t * params.stride
                at_key, at_step = at + params.key_at + key, at + params.step_at + step
                product(tile, x, at_key, at_step, table, row, n_rows, i, sums)
                if has_delta:
                    warp_sums(sums, COLUMNS)
                for c in range(COLUMNS):
                    values[c] = sums[c]
                add_values(x, at + params.value_at + column, at + params.beta_at + beta, values)
                sweep(tile, x, at_key, at_step, at + params.query_at + key, table, row, n_rows, i, values, sums)
                warp_sums(sums, COLUMNS)
                if i == 0:
                    put(sums, params.y, t * width + column)
                    if j >= n_certain:
                        put(values, added, (kept + gpu.remainder(inputs[layout.CELLS + t], params.n_aside)) * width + column)
                warp_barrier()
            if j + 1 == save:
                _store(tile, params.saved, own, n_rows, i)
            if j + 1 == n_certain:
                _store(tile, state, own, n_rows, i)

    return recur


RECUR = {
    (kind, has_delta): _recur(kind, has_delta)
    for kind, has_delta in ((BY_HEAD, True), (BY_KEY, True), (BY_HEAD, False), (BY_CHANNEL, False))
}
"""Kernels by the granularity of decays, and whether they have the delta rule."""
