"""What a pass is told: one array of int32, copied to the device once per pass. Numbers are where things begin."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.dialect import lane

MAX_TOKENS = 64  # of a pass
N_TOKENS, N_ROWS = 0, 1
TOKENS = 4  # (n,)
SLOTS = TOKENS + MAX_TOKENS
POSITIONS = SLOTS + MAX_TOKENS
CELLS = POSITIONS + MAX_TOKENS  # where a token's keys and values are stored
BRANCHES = CELLS + MAX_TOKENS  # the first position that a token sees in another cell than that of its number
PATHS = BRANCHES + MAX_TOKENS  # where in this array the cells are of the positions from there on
ROWS = PATHS + MAX_TOKENS  # (r,) the tokens that have logits
TABLE = ROWS + MAX_TOKENS
SIZE = TABLE + MAX_TOKENS * MAX_TOKENS


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
    return np.int32(position // chunk * chunk) if chunk > 0 else np.int32(0)
