"""A loaded model: its memory, its threads, and the few Python steps around a pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.backends.numba_cpu import lowering
from augury.backends.numba_cpu.kernels import team as offsets
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS
from augury.backends.numba_cpu.loading import Weights
from augury.backends.numba_cpu.memory import Arena
from augury.backends.numba_cpu.tape import PRIVATE_TOKENS
from augury.backends.numba_cpu.team import Team
from augury.errors import AuguryError, CapacityError, OptionError
from augury.interfaces import Model
from augury.logits import ArrayLogits
from augury.types import Allocation, ModelInfo, StateSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.blocks import Plan
    from augury.gguf import ModelFile
    from augury.interfaces import Logits, Progress
    from augury.types import Batch, ModelOptions

_FIRST_ROWS = 8  # rows of logits that there is room for at first; more are allocated when they are asked for


class NumbaCpuModel(Model):
    """A plan on the CPU."""

    def __init__(self, file: ModelFile, plan: Plan, options: ModelOptions, n_threads: int, progress: Progress) -> None:
        self.info = ModelInfo.of(file, plan)
        n_bytes = lowering.bytes_per_position(plan, options)
        self.state_spec = StateSpec(options.n_slots, options.n_ctx, n_bytes)
        self._n_tokens_known = plan.embedding.n_vocab
        self._arena = Arena()
        self._weights = Weights(file, plan, self._arena)
        self._weights.load(lowering.kernels(plan, options), n_threads, progress)
        self._lowered = lowering.lower(plan, self._weights, options, n_threads, self._arena)
        self._weights.close_file()
        self._logits = np.zeros((_FIRST_ROWS, self._lowered.logits_width), np.float32)
        # per token of a pass: id, position, slot, wanted row; then runs of one slot: first token, tokens, slot
        self._inputs = np.zeros((7, MAX_TOKENS), np.int64)
        self._runs = self._inputs[4:].reshape(-1)
        self.n_threads = n_threads
        self._team = Team(n_threads)
        self._is_closed = False
        fields = {
            offsets.TOKENS: self._inputs[0].ctypes.data,
            offsets.POSITIONS: self._inputs[1].ctypes.data,
            offsets.SLOTS: self._inputs[2].ctypes.data,
            offsets.ROWS: self._inputs[3].ctypes.data,
            offsets.SEGMENTS: self._runs.ctypes.data,
            offsets.SCRATCH: self._arena.zeros(n_threads * lowering.scratch_bytes(plan), "scratch"),
            offsets.SCRATCH_BYTES: lowering.scratch_bytes(plan),
        }
        for offset, value in fields.items():
            self._team.state[offset // 8] = value

    def forward(self, batch: Batch) -> Logits:
        """Compute one pass."""
        self._check(batch)
        tokens, slots, positions, rows = batch.tokens, batch.slots, batch.positions, batch.rows
        n, n_rows = len(tokens), len(rows)
        if n_rows > len(self._logits):
            self._logits = np.zeros((n_rows, self._lowered.logits_width), np.float32)
        is_sorted = n == 1 or bool((slots[1:] >= slots[:-1]).all())
        if not is_sorted:  # attention works on runs of one slot
            order = np.argsort(slots, kind="stable")
            tokens, slots, positions = tokens[order], slots[order], positions[order]
            places = np.empty(n, np.int64)
            places[order] = np.arange(n)
            rows = places[rows]
        if n <= MAX_TOKENS:
            self._pass(tokens, slots, positions, rows, 0, batch.n_layers)
            return ArrayLogits(self._logits[:n_rows, : self.info.n_vocab])
        written: list[np.ndarray] = []
        n_written = 0
        for start in range(0, n, MAX_TOKENS):
            end = min(start + MAX_TOKENS, n)
            here = np.flatnonzero((rows >= start) & (rows < end))
            span = slice(start, end)
            self._pass(tokens[span], slots[span], positions[span], rows[here] - start, n_written, batch.n_layers)
            written.append(here)
            n_written += len(here)
        logits = self._logits[:n_rows, : self.info.n_vocab]
        return ArrayLogits(logits if is_sorted else logits[np.argsort(np.concatenate(written))])

    def memory_table(self) -> Sequence[Allocation]:
        """Weights, KV cache and what a pass needs."""
        return (*self._arena.table(), Allocation("logits", self._logits.nbytes))

    def close(self) -> None:
        """End the threads and give back the memory."""
        if not self._is_closed:
            self._is_closed = True
            self._team.close()
            del self._arena, self._weights, self._lowered, self._logits

    def _pass(
        self,
        tokens: np.ndarray,
        slots: np.ndarray,
        positions: np.ndarray,
        rows: np.ndarray,
        first_row: int,
        n_layers: int | None,
    ) -> None:
        """Compute up to MAX_TOKENS tokens, sorted by slot; their logits go to the rows from `first_row` on."""
        n, inputs, state = len(tokens), self._inputs, self._team.state
        inputs[0, :n] = tokens
        inputs[1, :n] = positions
        inputs[2, :n] = slots
        inputs[3, : len(rows)] = rows
        if n == 1 or slots[0] == slots[-1]:
            n_runs = 1
            self._runs[:3] = (0, n, slots[0])
        else:
            starts = np.flatnonzero(np.diff(slots, prepend=slots[0] - 1))
            n_runs = len(starts)
            self._runs[: 3 * n_runs].reshape(-1, 3)[:] = np.stack([starts, np.diff(starts, append=n), slots[starts]], axis=1)
        state[offsets.N_TOKENS // 8] = n
        state[offsets.N_ROWS // 8] = len(rows)
        state[offsets.N_SEGMENTS // 8] = n_runs
        way = 0 if n <= PRIVATE_TOKENS else 1
        self._lowered.outputs[way][0, 4] = self._logits.ctypes.data + first_row * self._logits.strides[0]
        self._team.run(self._lowered.tapes(n_layers)[way])

    def _check(self, batch: Batch) -> None:
        """Refuse what would be read or written beside an array: kernels do not look."""
        if self._is_closed:
            raise AuguryError(f"model {self.info.name!r} is closed")
        spec = self.state_spec
        if _is_outside(batch.positions, spec.n_ctx):
            raise CapacityError(f"position {batch.positions.max()} does not fit into a slot of {spec.n_ctx} positions")
        if _is_outside(batch.slots, spec.n_slots):
            raise CapacityError(f"slot {batch.slots.max()} does not exist; there are {spec.n_slots}")
        if _is_outside(batch.tokens, self._n_tokens_known):
            message = (
                f"tokens from {batch.tokens.min()} to {batch.tokens.max()}, expected ids from 0 to {self._n_tokens_known - 1}"
            )
            raise OptionError(message)
        if batch.n_layers is not None and not 1 <= batch.n_layers <= self.info.n_layers:
            raise OptionError(f"a pass through {batch.n_layers} layers, expected 1 to {self.info.n_layers}")


def _is_outside(indices: np.ndarray, n: int) -> bool:
    # one reduction, not two, for this is done thrice a pass: negative numbers are large as unsigned ones
    return bool(len(indices) and indices.view(np.uint32).max() >= n)
