"""A model whose weights, slots and passes are on a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
from attrs import evolve

from augury.backends.numba.lowering import Parts
from augury.backends.numba.model import CompiledModel
from augury.backends.numba.passes import passes
from augury.backends.numba_cuda.device import Copy, Pointer, Program
from augury.backends.numba_cuda.gpu import Gpu
from augury.backends.numba_cuda.kernels import inputs
from augury.backends.numba_cuda.kernels.inputs import MAX_ROWS, MAX_TOKENS
from augury.backends.numba_cuda.lowering import PASS_SIZES, Lowering, size_of
from augury.backends.numba_cuda.narrow_output import NarrowOutput
from augury.backends.numba_cuda.operations.rows import SCALES
from augury.backends.numba_cuda.passes import DevicePass, GatheredPass, Logits, RowReader
from augury.backends.numba_cuda.slot_memory import SequenceUpdates
from augury.backends.numba_cuda.tape import Size
from augury.batch import Batch, Tree
from augury.errors import UnsupportedError
from augury.passes import ArrayPass, Pass
from augury.types import Allocation, ModelInfo

_MOST_PROGRAMS = 48  # graphs take memory of the device
_CHAIN_ROWS = MAX_ROWS * 2 // 3  # of two passes or more; beside them there is room for those of a pass


class CudaModel(CompiledModel):
    """Copies the inputs of a pass to the device in one piece, and runs the program of its size."""

    pass_sizes = PASS_SIZES
    is_asynchronous = True

    def __init__(self, info: ModelInfo, lowering: Lowering, device: Gpu, tokens: np.ndarray | None = None) -> None:
        """Take over memory on a device; of an output of some `tokens` (m,) int32 also these."""
        super().__init__(info, lowering, tokens)
        self._lowering, self._device, self.memory_layout = lowering, device, f"{self.options.n_ctx} positions"
        self._inputs, self._fetched = device.staging(inputs.SIZE), device.staging(2 * MAX_ROWS)
        self._n_rows = device.staging(1)  # of a chain
        self._scales = device.staging(lowering.options.n_slots * lowering.plan.n_adapters)  # see `Batch.scales`
        self._moves, self._staged_moves = device.allocate(12 * MAX_TOKENS, "scratch"), device.staging(3 * MAX_TOKENS)
        places = (lowering.inputs, lowering.buffers["logits"], lowering.buffers["best of chunks"])
        self._n_logits = info.n_vocab if tokens is None else len(tokens)
        self._names: Pointer | None = None  # the tokens on the device
        if tokens is not None:
            self._names = device.allocate(tokens.nbytes, "scratch")
            device.write(self._names, tokens.astype(np.int32))
        self._logits_of = partial(Logits, *places)
        self._reader = RowReader(device, self._logits_of(self._n_logits))
        self._readers = {self._n_logits: self._reader}  # by the width of a row
        self._programs: dict[tuple[Size, Parts, bool], Program] = {}
        self._n_most = MAX_TOKENS  # of a pass
        n_aside = lowering.state_spec.draft_max
        self._sequences = None if n_aside is None else SequenceUpdates(max(n_aside, 1))
        is_chained = self._sequences is None and not self._has_blocks
        self.chain_rows = _CHAIN_ROWS if is_chained else 0
        self._states: Program | None = None  # see `Lowering.states`
        self._staged: dict[
            tuple[str, int], np.ndarray
        ] = {}  # arrays for features, and for the hidden states that passes are given
        self._copies: list[tuple[Pointer, np.ndarray]] = []  # of a slot's memory

    def forward(self, batch: Batch) -> Pass:
        return self._passed(batch)

    def forward_chain(self, batch: Batch, n_passes: int) -> Pass:
        """See `Model.forward_chain`: the device names the tokens of each pass but the first."""
        if n_passes == 1 or n_passes * len(batch.rows) > self.chain_rows or len(batch.tokens) > self._n_most:
            passed = super().forward_chain(batch, n_passes)
            features = {name: passed.features(name) for name in batch.features}
            is_named = n_passes == 1 or self._tokens is not None
            return passed if is_named else GatheredPass(self._reader, passed.rows(), features)
        self._check_chain(batch, n_passes)
        return self._passed(batch, n_passes)

    def _passed(self, batch: Batch, n_passes: int = 1) -> Pass:
        """Compute one pass, or a chain of passes whose first one is not cut, and name the tokens of its logits."""
        narrow = self._narrowed(batch)
        return self._named(self._forward(batch, n_passes, narrow), self._tokens if narrow is None else narrow.tokens)

    def _most_of(self, batch: Batch) -> int:
        """How many tokens of a batch share a pass: fewer of a tree, and where more have logits than a pass gives."""
        are_few = batch.parents is not None or len(batch.rows) > MAX_ROWS
        return min(self._n_most, MAX_ROWS) if are_few else self._n_most

    def _narrowed(self, batch: Batch) -> NarrowOutput | None:
        """The matrices of a batch's vocabulary, if one pass computes its logits."""
        if (
            batch.vocabulary is None
            or self._tokens is not None
            or not 0 < len(batch.rows) <= len(batch.tokens) <= self._most_of(batch)
        ):
            return None
        self._require_open()
        return self._lowering.narrowed(batch.part, batch.vocabulary)

    def _forward(self, batch: Batch, n_passes: int = 1, narrow: NarrowOutput | None = None) -> Pass:
        """See `_passed`."""
        tree = self._tree(batch)
        n_most = self._most_of(batch)
        self._device.wait()  # until the staging arrays are free
        self._move(batch)
        if self._sequences is not None:
            self._begin_sequences(self._sequences, batch, tree)
        n, n_rows = len(batch.tokens), len(batch.rows)
        is_read = n_rows > 0 or len(batch.features) > 0 or batch.part == "main"
        layers, is_narrow = batch.layers or self.info.parts[batch.part].layers, narrow is not None
        parts = Parts(layers, tuple(batch.features), batch.hidden is not None, is_read, is_narrow, batch.part)
        if n <= n_most:
            return self._pass(batch, tree, slice(0, n), parts, n_passes=n_passes, narrow=narrow)
        features = {name: np.empty((n, self.features[name]), np.float32) for name in batch.features}
        logits = np.empty((n_rows, self._n_logits), np.float32)
        before_s, has_blocks = 0.0, self._has_blocks and batch.part == "main"
        spans: Iterable[slice] = (slice(start, min(start + n_most, n)) for start in range(0, n, n_most))
        if has_blocks:  # all tokens of a slot are in one pass
            order = np.argsort(batch.slots, kind="stable")
            places = np.argsort(order)
            columns = {name: getattr(batch, name)[order] for name in ("tokens", "slots", "positions")}
            spans = passes(columns["slots"], None, n_most, has_blocks=True)
            rows = places[batch.rows]
            batch = evolve(batch, **columns, rows=np.sort(rows).astype(np.int32))
        for span in spans:
            first, end = np.searchsorted(batch.rows, (span.start, span.stop))
            if span.start:
                before_s += self._device.wait() or 0.0
            passed = self._pass(batch, tree, span, parts, before_s)
            if first == 0 and end == n_rows and not features and span.stop == n and not has_blocks:
                return passed  # the last tokens alone have logits, as of a prompt
            logits[first:end] = passed.rows()
            for name, values in features.items():
                values[span] = passed.features(name)
        if has_blocks:
            logits = logits[np.searchsorted(batch.rows, rows)]
            features = {name: values[places] for name, values in features.items()}
        return GatheredPass(self._reader, logits, features)

    def _pass(
        self,
        batch: Batch,
        tree: Tree | None,
        span: slice,
        parts: Parts,
        before_s: float = 0.0,
        *,
        n_passes: int = 1,
        narrow: NarrowOutput | None = None,
    ) -> Pass:
        """Begin to compute as many of a batch's tokens as a pass may have; those before them took `before_s`."""
        positions = batch.positions[span]
        rows = batch.rows[np.searchsorted(batch.rows, span.start) : np.searchsorted(batch.rows, span.stop)] - span.start
        n = len(positions)
        self._write_inputs(batch, tree, span, rows)
        if self._plan.n_adapters:
            self._scales.view(np.float32)[:] = 0 if batch.scales is None else batch.scales.reshape(-1)
            self._device.send(self._scales, self._lowering.buffers[SCALES])
        if batch.hidden is not None:
            staged = self._staging("hidden", batch.hidden.shape[1])[: batch.hidden[span].size]
            staged.view(np.float32)[:] = batch.hidden[span].reshape(-1)
            self._device.send(staged, self._lowering.hidden)
        self._device.mark()
        if n:
            self._program(size_of(n, int(positions.max()), is_run=self._is_run(n)), parts)()
        if not self._lowering.chooses:
            return self._as_arrays(len(rows), n, parts.features)
        row_slots = np.tile(batch.slots[span][rows], n_passes)
        width = self._n_logits if narrow is None else len(narrow.tokens)
        if (reader := self._readers.get(width)) is None:
            reader = self._readers[width] = RowReader(self._device, self._logits_of(width))
        if n_passes > 1:
            names = self._names if narrow is None else narrow.names
            self._go_on(reader.logits, names, rows, n_passes, int(positions.max()), parts)
            n = len(rows)
        begun = reader.begin_pass(row_slots, batch.tokens[span], batch.slots[span])
        self._device.mark()
        features = {name: self._begin_feature(name, n) for name in parts.features}
        return DevicePass(reader, self._fetched, row_slots, features, width, begun, before_s)

    def _as_arrays(self, n_rows: int, n: int, names: Sequence[str]) -> Pass:
        """A pass in memory: all of its rows are wanted, and none of them is chosen from."""
        self._device.mark()
        features = {name: self._begin_feature(name, n) for name in names}
        rows = np.empty((n_rows, self._n_logits), np.float32)
        self._device.read(self._lowering.buffers["logits"], rows)
        return ArrayPass(rows, {name: values.copy() for name, values in features.items()})

    def _begin_feature(self, name: str, n: int) -> np.ndarray:
        """Begin to fetch a feature (n, F) of the first tokens of a pass."""
        width = self.features[name]
        staged = self._staging(name, width)[: n * width]
        self._device.fetch(self._lowering.buffers[name], staged)
        values: np.ndarray = staged.view(np.float32).reshape(n, width)
        return values

    def _staging(self, name: str, width: int) -> np.ndarray:
        """A staging array for rows of all tokens of a pass."""
        key = name, width  # layers that predict further tokens may be given wider hidden states than others
        if key not in self._staged:
            self._staged[key] = self._device.staging(MAX_TOKENS * width)
        return self._staged[key]

    def _go_on(self, logits: Logits, names: Pointer | None, rows: np.ndarray, n_passes: int, last: int, parts: Parts) -> None:
        """Begin the further passes of a chain after one with `rows` (r,), and let the rows of all be in order."""
        device, best, n_rows = self._device, self._lowering.buffers["best"], len(rows)
        n_bytes = 4 * n_rows * logits.n_vocab
        places = [logits.at.at(i * n_bytes) for i in range(n_passes + 1)]
        program = self._program(size_of(n_rows, last + n_passes - 1), parts, (names, 0 if names is None else logits.n_vocab))
        # every pass leaves its rows in the first place; so those of the first one wait in the last, which is one too many
        for i in range(1, n_passes):
            device.copy(Copy(places[0], places[i - 1 or n_passes], n_bytes))
            if parts.takes_hidden:
                self._hand_on(parts.features[0], [(0, n_rows)] if i > 1 else [(row, 1) for row in rows.tolist()])
            program()
        device.copy(Copy(places[0], places[n_passes - 1], n_bytes))
        device.copy(Copy(places[n_passes], places[0], n_bytes))
        self._n_rows[0] = n_rows = n_passes * n_rows
        device.send(self._n_rows, self._lowering.inputs.at(4 * inputs.N_ROWS))
        device.launch(logits.best_of_chunks(n_rows, logits.n_vocab))
        device.launch(logits.best(n_rows, logits.n_vocab, 1, best, best.at(4 * MAX_ROWS)))
        device.fetch(best, self._fetched)

    def _hand_on(self, name: str, runs: Sequence[tuple[int, int]]) -> None:
        """Let a feature of tokens of the last pass, the first of each run and how many, be hidden states of the next one."""
        made, n_bytes = self._lowering.buffers[name], 4 * self.features[name]
        for i, (first, n) in enumerate(runs):
            self._device.copy(Copy(made.at(n_bytes * first), self._lowering.hidden.at(n_bytes * i), n_bytes * n))

    def _write_inputs(self, batch: Batch, tree: Tree | None, span: slice, rows: np.ndarray) -> None:
        to, n = self._inputs, span.stop - span.start
        positions = batch.positions[span]
        cells, branches = positions if tree is None else tree.cells[span], positions + 1
        if self._has_blocks:
            for own in (batch.slots[span] == slot for slot in np.unique(batch.slots[span])):
                branches[own] = branches[own].max()
        to[inputs.N_TOKENS], to[inputs.N_ROWS] = n, len(rows)
        for at, values in (
            (inputs.TOKENS, batch.tokens[span]),
            (inputs.SLOTS, batch.slots[span]),
            (inputs.POSITIONS, positions),
            (inputs.CELLS, cells),
            (inputs.BRANCHES, branches),
            (inputs.ROWS, rows),
        ):
            to[at : at + len(values)] = values
        end = inputs.TABLE
        for t in np.flatnonzero(cells != positions).tolist():
            assert tree is not None
            seen = tree.seen(span.start + t)
            branch = int(np.argmax(seen != np.arange(len(seen))))
            if end + len(seen) - branch > inputs.SIZE:
                raise UnsupportedError(f"a tree of {n} tokens, whose paths are too long for one pass; draft fewer tokens")
            to[inputs.BRANCHES + t], to[inputs.PATHS + t] = branch, end
            to[end : end + len(seen) - branch] = seen[branch:]
            end += len(seen) - branch
        if self._sequences is not None:
            self._sequences.write(to, span, end)

    def _is_run(self, n: int) -> bool:
        """Whether the inputs' tokens, of which there are several, are a run; see `Size`."""
        slots, positions, branches = (self._inputs[at : at + n] for at in (inputs.SLOTS, inputs.POSITIONS, inputs.BRANCHES))
        is_straight = (slots == slots[0]) & (positions - positions[0] == np.arange(n)) & (branches > positions)
        return n > 1 and bool(is_straight.all())

    def _begin_sequences(self, sequences: SequenceUpdates, batch: Batch, tree: Tree | None) -> None:
        """Bring states of sequences up to date before a batch."""
        sequences.begin(batch, tree)
        for _ in sequences.write_first(self._inputs):
            if self._states is None:
                self._states = self._lowering.states(self._inputs, self._fetched)
            self._states()
            self._device.wait()

    def _program(self, size: Size, parts: Parts, named: tuple[Pointer | None, int] | None = None) -> Program:
        """The program of a size; programs that were not used for longest are dropped.

        One for a further pass of a chain is `named`: it has the tokens of logits on the device, or None, and their number.
        """
        key = (size, parts, named is not None)
        program = self._programs.pop(key, None)
        if program is None:
            if named is not None:
                program = self._lowering.following(size, parts, *named)
            else:
                program = self._lowering.program(size, parts, self._inputs, self._fetched)
            if len(self._programs) == _MOST_PROGRAMS:
                self._device.wait()
                del self._programs[next(iter(self._programs))]
        self._programs[key] = program
        return program

    def _move(self, batch: Batch) -> None:
        """Move the cells of accepted tokens."""
        if batch.accepted is None:
            return
        moves = self._moved(batch)
        for start in range(0, len(moves), MAX_TOKENS):
            some = moves[start : start + MAX_TOKENS]
            if start:
                self._device.wait()
            self._staged_moves[: 3 * len(some)] = some.reshape(-1)
            self._device.send(self._staged_moves[: 3 * len(some)], self._moves)
            for launch in self._lowering.moving(self._moves, len(some)):
                self._device.launch(launch)

    def slot_memory(self, slot: int, n: int, start: int | None = None) -> Sequence[np.ndarray]:
        """See `Model.slot_memory`: copies of the device's memory."""
        self._require_open()
        parts = self._lowering.slot_memory(slot, n, start)
        self._copies = [(at, np.empty(n_bytes, np.uint8)) for at, n_bytes in parts if n_bytes]
        for at, array in self._copies:
            self._device.read(at, array)
        return [array for _, array in self._copies]

    def slot_written(self) -> None:
        """See `Model.slot_written`: the copies go to the device."""
        for at, array in self._copies:
            self._device.write(at, array)

    def memory_table(self) -> Sequence[Allocation]:
        return self._device.table()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._programs.clear()
            self._states = None
            self._device.close()
