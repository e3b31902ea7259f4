"""What blocks with a state per sequence have in common: where their states lie, and what is kept aside of drafted tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attrs import frozen

from augury.backends.numba_cuda.blocks.emitter import Emitter, Part
from augury.backends.numba_cuda.kernels import recurrence
from augury.backends.numba_cuda.kernels.convolution import CONVOLVE_THREADS, MAX_SIZE, convolve
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.recurrent_ends import gate_groups
from augury.backends.numba_cuda.rows import Operand
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.backends.numba_cuda.device import Device, Pointer
    from augury.backends.numba_cuda.kernels.dialect import Kernel
    from augury.backends.numba_cuda.rows import Rows
    from augury.backends.numba_cuda.tape import Tape
    from augury.blocks import (
        Block,
        Convolution,
        KimiDeltaAttention,
        LightningAttention,
        LinearRecurrence,
        Norm,
        SequenceState,
    )
    from augury.types import ModelOptions

__all__ = ["FedRow", "PlacedState", "RecurrentEmitter", "Steps", "Units", "columns_of"]


@frozen(eq=False)
class PlacedState:
    """Where a state of all slots is: as it is, as it was saved, and what was kept aside to be taken in."""

    values: Pointer
    saved: Pointer
    aside: Pointer
    added: Pointer  # of a matrix, what is added to its columns lies apart from what is the same for all of them
    n_bytes: int  # of one slot


@frozen(eq=False)
class FedRow:
    """Rows of what tokens feed a recurrence, and the columns where what begins."""

    rows: Rows
    query: int
    key: int
    value: int
    step: int  # decays, or betas where decays are made of them
    beta: int


def columns_of(block: KimiDeltaAttention | LightningAttention) -> tuple[int, int, int]:
    """Where keys, values and decays are in a token's row, behind its queries."""
    key, value = block.q.n_out, block.q.n_out + block.k.n_out
    return key, value, value + block.v.n_out


@frozen
class Units:
    """Heads of queries, and as many of keys, that become as long as 1; queries are then scaled."""

    n_heads: int
    size: int
    eps: float


@frozen(eq=False)
class Steps:
    """What decays and betas are made of, of so many heads, and the column where they go."""

    ends: Pointer
    dt: Pointer
    a: Pointer
    n: int
    column: int


class RecurrentEmitter(Emitter):
    """A block that keeps states of sequences, of float32."""

    def __init__(self, block: Block, options: ModelOptions) -> None:
        super().__init__(block, options)
        self._n_aside = max(options.draft_max, 1)
        for state in self.states:
            is_matrix = len(state.shape) == 3
            if is_matrix and (state.shape[1] > recurrence.MAX_ROWS or state.shape[2] % recurrence.COLUMNS):
                expected = f"keys of {recurrence.MAX_ROWS} at most and values in fours"
                raise UnsupportedError(f"a state of {state.shape}, backend numba-cuda computes {expected}; choose another one")
            if not is_matrix and not 0 < state.shape[0] < MAX_SIZE:
                found = f"a convolution of {state.shape[0] + 1} inputs"
                raise UnsupportedError(f"{found}, backend numba-cuda computes 2 to {MAX_SIZE}; choose another one")

    @property
    def states(self) -> Sequence[SequenceState]:
        """What it keeps of a sequence."""
        states: Sequence[SequenceState] = self.block.states()
        return states

    def bytes_per_sequence(self) -> int:
        """See `Emitter.bytes_per_sequence`."""
        return sum(4 * state.size for state in self.states)

    def place(self, device: Device) -> None:
        """See `Emitter.place`."""
        self._placed = [self._place(state, device) for state in self.states]

    def _place(self, state: SequenceState, device: Device) -> PlacedState:
        n_slots, n_added = self.options.n_slots, 0 if len(state.shape) == 2 else state.shape[0] * state.shape[2]
        values, saved = (device.allocate(4 * n_slots * state.size, purpose).at(0) for purpose in ("states", "saved states"))
        sizes = (state.n_fed - n_added, n_added)
        aside, added = (
            device.allocate(4 * n_slots * self._n_aside * n, "drafted tokens kept aside").at(0) if n else values for n in sizes
        )
        return PlacedState(values, saved, aside, added, 4 * state.size)

    def slot_memory(self, slot: int, n: int) -> Sequence[Part]:  # noqa: ARG002 - as of blocks that keep positions
        """See `Emitter.slot_memory`."""
        return [(state.values.at(slot * state.n_bytes), state.n_bytes) for state in self._placed]

    def _convolve(
        self,
        tape: Tape,
        conv: Convolution,
        state: PlacedState,
        x: Rows,
        y: Rows,
        *,
        gates: tuple[Pointer, Pointer] | None = None,
        has_silu: bool = False,
        taps: Pointer | None = None,
        to: Operand | None = None,
        steps: Steps | None = None,
    ) -> None:
        """Write a convolution of rows x; gates lie in rows as far apart. Its taps may be others than the file's.

        What comes of it is in y, and, if products read it, in `to`. Beside it, what `steps` says, whose rows are as far apart.
        """
        taps = taps or tape.weights.taps(conv)
        bias = taps if conv.bias is None else tape.weights.flat(conv.bias, conv.shapes[conv.bias])
        places = (x.at, *(gates or (x.at, x.at)), taps, bias, state.values, state.saved, state.aside, y.at)
        flags = (int(gates is not None), int(conv.bias is not None), int(has_silu))
        steps = steps or Steps(x.at, x.at, x.at, 0, 0)
        n_blocks = sum(-(-n // CONVOLVE_THREADS) for n in (conv.n_channels, steps.n))
        sizes = (x.width, y.width, conv.n_channels, conv.state.shape[0] + 1, self._n_aside)
        out = to or Operand(y.at, y.at, y.at, y.at, 0)
        read = (out.floats, out.quantised, out.factors, out.sums, out.width, int(out.as_floats), int(out.as_bytes))
        made = (steps.ends, steps.dt, steps.a, x.width, steps.n, steps.column)
        tape.add(convolve, (n_blocks, self._n_runs(tape)), CONVOLVE_THREADS, *places, *sizes, *flags, *read, *made)

    def _recur(
        self, tape: Tape, heads: LinearRecurrence, state: PlacedState, row: FedRow, y: Pointer, table: Pointer | None = None
    ) -> None:
        """Write a recurrence."""
        kind = recurrence.BY_CHANNEL if heads.is_by_channel else recurrence.BY_KEY if heads.is_by_key else recurrence.BY_HEAD
        n_steps = heads.value_dim if heads.is_by_channel else heads.n_heads * (heads.key_dim if heads.is_by_key else 1)
        x, n_keys = row.rows, heads.n_key_heads * heads.key_dim
        places = (x.at, table or x.at, state.values, state.saved, state.aside, state.added, y)
        sizes = (x.width, heads.n_heads, heads.n_key_heads, heads.key_dim, heads.value_dim, int(heads.is_tiled))
        columns = (row.query, row.key, row.value, row.step, row.beta)
        grid = (heads.n_heads * heads.value_dim // recurrence.COLUMNS, self._n_runs(tape))
        tape.add(recurrence.RECUR[kind, heads.has_delta], grid, WARP, *places, *sizes, *columns, n_steps, self._n_aside)
        self._kept = (x.at, state.aside), (x.width, row.key, n_keys, row.step, self._n_aside, n_keys + n_steps)

    def _add_decays(
        self,
        tape: Tape,
        kernel: Kernel,
        places: Sequence[Pointer],
        columns: Sequence[int],
        n: int,
        *,
        units: Units | None = None,
        floor: Sequence[float] = (),
    ) -> None:
        """Write what makes n decays, and heads of length 1."""
        n_units, *sizes = (0, 0, 0) if units is None else (2 * units.n_heads, units.n_heads, units.size)
        numbers = (*floor, 0.0, 0.0) if units is None else (*floor, units.eps, 1.0 / math.sqrt(units.size))
        grid = (n_units + -(-n // WARP), tape.size.n_tokens)
        tape.add(kernel, grid, WARP, *places, *columns, n_units, *sizes, *numbers)

    def _gate(
        self,
        tape: Tape,
        y: Rows,
        gates: Rows,
        to: Operand,
        norm: Norm | None,
        *,
        values: Rows | None = None,
        skip: Pointer | None = None,
        is_gated_first: bool = False,
        is_sigmoid: bool = False,
    ) -> None:
        """Write what becomes of a recurrence's outputs, and that drafted tokens are kept aside; `skip`: factors of values."""
        group = norm.size if norm is not None else y.width if y.width % WARP else WARP
        step = 0 if norm is None or norm.weight_shape is None else norm.size
        weight = y.at if norm is None else tape.weights.norm(norm, y.width // group if step else 1)
        places = (y.at, (values or y).at, skip or y.at, gates.at, weight, to.floats, to.quantised, to.factors, to.sums)
        sizes = (y.width, (values or y).width, gates.width, group, step, to.width)
        flags = (int(skip is not None), int(norm is not None), int(is_gated_first), int(is_sigmoid), int(to.as_bytes))
        eps, (kept, kept_sizes), n_groups = 0.0 if norm is None else norm.eps, self._kept, y.width // group
        per_block = n_groups if group % WARP else THREADS // WARP
        grid = (tape.size.n_tokens, -(-n_groups // per_block))
        tape.add(gate_groups, grid, THREADS, *places, *kept, *sizes, *flags, *kept_sizes, per_block, eps)

    def _n_runs(self, tape: Tape) -> int:
        return min(tape.size.n_tokens, self.options.n_slots)
