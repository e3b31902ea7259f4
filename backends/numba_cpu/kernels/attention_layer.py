"""The operands of a layer's attention kernels, and the sizes of the memory that they work in."""

from __future__ import annotations

from typing import Any

from augury.backends.numba_cpu.kernels.attention_tile import CHUNK, MAX_ROWS, SCORE_BYTES
from augury.backends.numba_cpu.kernels.struct import nested, pointer_to, struct
from augury.backends.numba_cpu.kernels.team import Record, Segment, StridedRows

BLOCK_ROWS = 96  # rows that share a chunk of keys and values while it is in cache
MANY_ROWS = 96  # per thread: from here on, threads take rows, not chunks
N_PARTS = 16384  # chunks' parts of rows that there is memory for
LINE = 64
PART = 32  # that rows are padded to which are keys and values at once: of a panel, and of numbers that share a scale in a cache
TOTAL = 4  # where a part's total lies, in bytes
HEAD = 64  # bytes before a part's weighted sum: maximum, total (-1 where a row sees nothing of a chunk)

# Offsets into a thread's scratch: addresses of a tile's queries, a tile's scores, a row's scores by position, parts of rows.
# After these, keys and values of a chunk as float32.
QUERIES, SCORES = 0, 64
ROW_SCORES = SCORES + MAX_ROWS * SCORE_BYTES
OWN_PARTS = ROW_SCORES + 4 * CHUNK
N_OWN_PARTS = MAX_ROWS + BLOCK_ROWS


@struct
class Lists:
    """The cells that tokens attend to where these are chosen, see `choice.py`; addresses."""

    chosen: int  # (n, n_lists, ld_chosen) int64
    n_lists: int  # of a token: one, or one for each KV head
    ld_chosen: int
    runs: Any = pointer_to(Segment)  # every token by itself
    ends: int  # (n,) int64, how many cells a token attends to, less one


@struct
class AttentionLayer:
    """The operands of attention. Numbers and addresses of missing parts are 0."""

    q: Any = nested(StridedRows)  # (n, n_heads * d) float32
    out: int  # (n, n_heads * dv) float32, address
    d: int
    dv: int
    value_row: int  # numbers from one value to the next, at least dv; padded to 16
    n_heads: int
    n_kv_heads: int
    keys: int  # address
    values: int  # address
    n_rows: int  # from one head of a slot to the next
    scale: float
    window: int  # how many positions a position sees, its own the last
    chunk: int  # of every so many positions it sees those of its own only
    sees_run: bool  # whether it sees the later positions of its run, too
    sinks: int  # (n_heads,) float32, address
    adjust_scores: int  # address of the kernel, see `softmax.py`; 0: scores stay as they are
    cap: float  # of scores
    slopes: int  # (n_heads,) float32, address
    parts: int  # of rows, address
    counts: int  # of parts, address
    lists: Any = nested(Lists)


@struct
class Attend(Record):
    layer: Any = nested(AttentionLayer)


def scratch_bytes(key_dim: int, value_dim: int) -> int:
    """Bytes of scratch that `attend` needs per thread."""
    part = _part_bytes(value_dim)
    return OWN_PARTS + N_OWN_PARTS * part + CHUNK * (4 * key_dim + part - HEAD)


def parts_bytes(value_dim: int, n_ctx: int, n_threads: int) -> int:
    """Bytes that the threads need for the parts of rows; a layer after the other uses them."""
    return min(N_PARTS, MANY_ROWS * n_threads * -(-n_ctx // CHUNK)) * _part_bytes(value_dim)


def counts_bytes(n_threads: int) -> int:
    """Bytes that the threads need for how far each block of rows has come, zero at first; a block has a row at least."""
    return MANY_ROWS * n_threads * LINE


def _part_bytes(value_dim: int) -> int:
    return HEAD + 4 * (-(-value_dim // 16) * 16)
