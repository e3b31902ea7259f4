"""What the attention kernels of a layer are told, and how large the memory is that they work in."""

from __future__ import annotations

from augury.backends.numba_cpu.kernels.attention_tile import CHUNK, MAX_ROWS, SCORE_BYTES

BLOCK_ROWS = 96  # rows that share a chunk of keys and values while it is in cache
MANY_ROWS = 96  # per thread: from here on, threads take rows, not chunks
N_PARTS = 16384  # chunks' parts of rows that there is memory for
LINE = 64
HEAD = 64  # bytes before a part's weighted sum: maximum, total (-1 where a row sees nothing of a chunk)

# Offsets into the record of an attention layer, which `blocks/attention.py` writes. WAYS: what is done to heads, see `head.py`.
# A position sees WINDOW positions, its own the last, and if CHUNKS is not 0, of every so many positions only those of its own.
# SINKS (H,) float32. BEND is the kernel that changes scores, see `bend.py`. Where there are no such things, these are 0.
# VALUE_ROW: numbers from one value to the next, at least DV; padded to 16.
(Q, K, V, LDQ, LDK, LDV, D, DV, H, G, PREPARE_HEAD, WAYS_Q, WAYS_K, WAYS_V, KEYS, VALUES, T) = (
    8 * field for field in range(17)
)
(SCALE, WINDOW, CHUNKS, OUT, PARTS, COUNTS, SINKS, BEND, CAP, SLOPES, VALUE_ROW) = (8 * field for field in range(17, 28))
# Where tokens attend to chosen cells, see `choice.py`: these, int64 from one token's to the next; every token as a run of its
# own; how many it attends to, less one. Then what the indexer of the layer keeps, and the bytes of a row of it; 0 without one.
(CHOSEN, LD_CHOSEN, CHOSEN_RUNS, CHOSEN_ENDS, COMPARED, COMPARED_BYTES) = (8 * field for field in range(28, 34))
# Offsets into a thread's scratch: addresses of a tile's queries, a tile's scores, a row's scores by position, parts of rows.
# After these, keys and values of a chunk as float32.
QUERIES, SCORES = 0, 64
ROW_SCORES = SCORES + MAX_ROWS * SCORE_BYTES
OWN_PARTS = ROW_SCORES + 4 * CHUNK
N_OWN_PARTS = MAX_ROWS + BLOCK_ROWS


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
