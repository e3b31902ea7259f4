"""A pass over a text's last token and a tree after it, which compiled rounds call; see `augury.interfaces.CompiledPass`."""

from __future__ import annotations

from typing import Any

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.cache_type import CellMove, Move
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.logits import best
from augury.backends.numba_cpu.kernels.simd import get_i32, get_i64, put_i32, put_i64
from augury.backends.numba_cpu.kernels.step import copy_row
from augury.backends.numba_cpu.kernels.struct import nested, pointer_maker, pointer_to, struct
from augury.backends.numba_cpu.kernels.team import PassState, Segment, run


@struct
class Tape:
    """Records of a team."""

    address: int
    end: int


@struct
class KeptFeature:
    """A feature of a pass's tokens, and where that of the next kept token goes; addresses of float32."""

    source: int
    target: int
    size: int


@struct
class DraftedPass:
    """What the passes of a slot work with; sizes to times are those of `CompiledPass`."""

    team: int  # address
    state: Any = pointer_to(PassState)
    slot: int
    few: Any = nested(Tape)  # of a pass of up to `n_few` tokens, or of more
    many: Any = nested(Tape)
    n_few: int
    moving: Any = nested(Tape)
    cells: Any = pointer_to(CellMove)
    segment: Any = pointer_to(Segment)
    run_parents: int  # (n,) int64, address, of the run's tokens
    logits: int  # address
    maxima: int
    stride: int
    n_vocab: int
    names: int  # (n_vocab,) int32, address: the token of each logit; 0: the logit's number
    k: int
    scores: int  # (rows, k) float32, address
    sizes: int
    tokens: int
    parents: int
    moves: int
    ids: int
    times: int
    features: Any = pointer_to(KeptFeature)
    n_features: int


move_at = pointer_maker(Move)


@helper
def move_cells(call, n_moves):
    """Move accepted tokens' cells together."""
    for i in range(n_moves):
        cell = call.cells[i]
        cell.slot = call.slot
        cell.source, cell.target = get_i32(call.moves + 8 * i), get_i32(call.moves + 8 * i + 4)
    place = call.moving.address
    while place < call.moving.end:
        record = move_at(place)
        record.n_moves = n_moves
        place += record.n_bytes
    run(call.team, call.moving.address, call.moving.end, call.state)


@kernel(call=DraftedPass)
def compute(call):
    """Move cells, then compute the pass and find the best tokens of each row."""
    n, start, n_moves, state = get_i64(call.sizes), get_i64(call.sizes + 8), get_i64(call.sizes + 16), call.state
    if n_moves > 0:
        move_cells(call, n_moves)
    if n == 0:
        return
    is_tree = False
    for i in range(n):
        parent, at = get_i32(call.parents + 4 * i), 8 * i
        put_i64(state.tokens + at, get_i32(call.tokens + 4 * i))
        put_i64(state.positions + at, start if i == 0 else get_i64(state.positions + 8 * parent) + 1)
        put_i64(state.slots + at, call.slot)
        put_i64(state.cells + at, start + i)
        put_i64(call.run_parents + at, parent)
        is_tree |= parent != i - 1
    segment = call.segment
    segment.first, segment.n, segment.slot, segment.parents = 0, n, call.slot, call.run_parents if is_tree else 0
    n_rows = get_i64(call.sizes + 24)
    if n_rows == 0:
        n_rows = n
    for r in range(n_rows):
        put_i64(state.rows + 8 * r, n - n_rows + r)
    state.n_tokens, state.n_rows, state.n_segments = n, n_rows, 1
    put_i64(call.times, simd.nanoseconds())
    tape = call.few if n <= call.n_few else call.many
    run(call.team, tape.address, tape.end, state)
    if call.k > 0:
        best(call.logits, call.maxima, call.stride, 0, n_rows, call.n_vocab, call.k, call.ids, call.scores)
        if call.names != 0:
            for place in range(call.ids, call.ids + 4 * n_rows * call.k, 4):
                if get_i32(place) >= 0:
                    put_i32(place, get_i32(call.names + 4 * get_i32(place)))
    put_i64(call.times + 8, simd.nanoseconds())


@kernel(call=DraftedPass)
def keep(call, places, n):
    """Keep the features of a pass's first token, and of those after it with n numbers."""
    for index in range(call.n_features):
        feature = call.features[index]
        for i in range(n + 1):
            row = 0 if i == 0 else 1 + get_i64(places + 8 * (i - 1))
            copy_row(feature.source + 4 * row * feature.size, feature.target, feature.size)
            feature.target += 4 * feature.size
