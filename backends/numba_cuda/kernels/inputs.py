"""The inputs of a pass: one array of int32, copied to the device once per pass. Constants are offsets."""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import SIMULATED, cuda, kernel, lane

MAX_TOKENS = 256  # of a pass
MAX_ROWS = 64  # of logits of a pass, and tokens of one that has a tree
FEW_TOKENS = 16 if SIMULATED else 4  # of a pass whose products are byte dot products; of more tensor cores compute them
N_TOKENS, N_ROWS, N_RUNS = 0, 1, 2
TOKENS = 4  # (n,)
SLOTS = TOKENS + MAX_TOKENS
POSITIONS = SLOTS + MAX_TOKENS
CELLS = POSITIONS + MAX_TOKENS  # where a token's keys and values are stored
# the first position that a token sees in another cell than that of its number; of a block the one after the last of the slot's
BRANCHES = CELLS + MAX_TOKENS
PATHS = BRANCHES + MAX_TOKENS  # where in this array the cells are of the positions from there on
ROWS = PATHS + MAX_TOKENS  # (r,) the tokens that have logits
ORDER = ROWS + MAX_ROWS  # (n,) the tokens by run, of models with a state per sequence
STATES = ORDER + MAX_TOKENS  # -1: it is certain; 0: drafted, after the one before it; otherwise where its path is
RUNS = STATES + MAX_TOKENS  # a slot's tokens each, see `RUN_FIELDS`
RUN_FIELDS = 8
FIRST, N, SLOT, N_CERTAIN, IS_START, IS_RESTORED, SAVE, ACCEPTED = range(RUN_FIELDS)
"""A run: where its tokens are in `ORDER`, how many, their slot, and how many of them are certain; whether its state is empty
or the saved one; after how many tokens it is saved, or -1; where the path of accepted tokens is.

A path is, in this array, its length, then drafted tokens from a sequence's state on: of the pass, or -1 - a place aside.
"""
TABLE = RUNS + MAX_TOKENS * RUN_FIELDS
SIZE = TABLE + MAX_ROWS * MAX_ROWS


@lane
def cell_of(inputs, t, position):
    """The cell of a position that token t sees."""
    branch = inputs[BRANCHES + t]
    if position < branch:
        return position
    return inputs[inputs[PATHS + t] + position - branch]


@lane
def first_seen(position, window):
    """The first position that a token sees; without a window 0."""
    return np.int32(max(0, position + 1 - window)) if window > 0 else np.int32(0)


@lane
def first_of_chunk(position, chunk):
    """The first position that a token sees of chunks that do not see each other; without chunks 0."""
    return np.int32(gpu.quotient(position, chunk) * chunk) if chunk > 0 else np.int32(0)


@kernel("jjjii")
def follow(inputs, best, names, n_named, n_vocab):
    """Tell a pass that it is over the best token after each row of the last one: a thread for each row that there may be.

    In place of one that the embedding does not know, and of none, it is 0.

    Args:
        inputs: The inputs of the last pass, then of the next one.
        best: (rows,), the columns of the best logits; -1 for none.
        names: The token of each column, if `n_named`, which says how many there are, is not 0: columns are tokens then.
        n_vocab: Tokens that the embedding knows.
    """
    i = cuda.threadIdx.x
    n, t, token = inputs[N_ROWS], inputs[ROWS + i], best[i]
    if n_named:
        token = names[token] if 0 <= token < n_named else np.int32(-1)
    slot, position = inputs[SLOTS + t], inputs[POSITIONS + t] + 1
    cuda.syncthreads()  # where a thread writes, another one reads
    if i < n:
        inputs[TOKENS + i] = token if 0 <= token < n_vocab else 0
        inputs[SLOTS + i] = slot
        inputs[POSITIONS + i] = position
        inputs[CELLS + i] = position
        inputs[BRANCHES + i] = position + 1
        inputs[ROWS + i] = i
    if i == 0:
        inputs[N_TOKENS] = n
