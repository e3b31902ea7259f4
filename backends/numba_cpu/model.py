"""A loaded model: its memory, its threads, and the few Python steps around a pass."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from attrs import evolve

from augury.backends.numba.lowering import Parts
from augury.backends.numba.model import CompiledModel
from augury.backends.numba.passes import LastVocabularies, passes, runs_of
from augury.backends.numba_cpu.compiled_pass import TeamPass
from augury.backends.numba_cpu.kernels.isa import choose_isa
from augury.backends.numba_cpu.kernels.logits import MAX_BEST
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS
from augury.backends.numba_cpu.kernels.struct import dtype, index
from augury.backends.numba_cpu.kernels.team import PassState, Segment
from augury.backends.numba_cpu.lowering import Lowering
from augury.backends.numba_cpu.memory import Arena, SequenceUpdates
from augury.backends.numba_cpu.passes import BestTokens, KernelPass, NarrowOutput
from augury.backends.numba_cpu.tape import PRIVATE_TOKENS, Program
from augury.backends.numba_cpu.team import PassMemory, Team, limits
from augury.backends.numba_cpu.weights import Weights
from augury.batch import Batch
from augury.errors import UnsupportedError
from augury.files.gguf import ModelFile
from augury.interfaces import Progress
from augury.passes import Pass
from augury.profile import KernelTime, Limits
from augury.types import Allocation, ModelInfo

_N_TOKENS, _N_ROWS, _N_SEGMENTS = (index(PassState, name) for name in ("n_tokens", "n_rows", "n_segments"))
_COLUMNS = ("tokens", "positions", "slots", "cells", "rows")  # of a pass, see `PassState`
_FIRST_ROWS = 8  # rows of logits that there is room for at first; more are allocated when they are asked for
_CHAIN_ROWS = 16  # see `Model.chain_rows`


class NumbaCpuModel(CompiledModel):
    """A plan on the CPU."""

    def __init__(
        self,
        file: ModelFile,
        lowering: Lowering,
        n_threads: int,
        make_team: Callable[[int], Team],
        progress: Progress,
        *,
        keep: bool = False,
        n_free: int = sys.maxsize,
    ) -> None:
        super().__init__(ModelInfo.of(file, lowering.plan), lowering, self.tokens_of(file, lowering))
        self._lowering, self.n_threads = lowering, n_threads
        self._arena = Arena()
        self.isa = choose_isa(file.n_bytes)
        self._weights = Weights(file, self._plan, self._arena, self.isa, self.state_spec.n_slots)
        self._weights.load(lowering.kernels(), n_threads, progress, keep=keep, n_free=n_free)
        lowering.place(self._weights, n_threads, self._arena)
        for parts in lowering.every_part():  # which loads their weights
            for n in (1, MAX_TOKENS):
                lowering.program(n, parts)
        self._programs: dict[tuple[object, ...], Program] = {}  # by what `_program` looks at
        self._weights.close_file()
        self._narrow = LastVocabularies[NarrowOutput]()
        self._compiled: dict[tuple[object, ...], TeamPass] = {}  # by what `compiled_pass` is asked
        self._make_room(_FIRST_ROWS)
        self._inputs = np.zeros((len(_COLUMNS) + 1, MAX_TOKENS), np.int64)  # and each token's parent in its run
        self._runs = np.zeros((MAX_TOKENS, dtype(Segment).itemsize // 8), np.int64)
        n_aside = self.state_spec.draft_max
        self._sequences = None if n_aside is None else SequenceUpdates(max(n_aside, 1))
        self.chain_rows = 0 if self._sequences is not None or self._has_blocks else _CHAIN_ROWS
        self._team, self._memory = make_team(n_threads), PassMemory()
        state = self._memory.fields
        for row, name in enumerate(_COLUMNS):
            state[name] = self._inputs[row].ctypes.data
        state["segments"] = self._runs.ctypes.data
        state["scratch"] = self._arena.zeros(n_threads * lowering.scratch_bytes, "scratch")
        state["scratch_bytes"] = lowering.scratch_bytes
        if self._sequences is not None:
            state["sequences"] = self._sequences.records.ctypes.data
            self._states = lowering.states()
        arrays = self._inputs, self._runs, self._memory.array
        self._input_view, self._run_view, self._state_view = (each.data.cast("B").cast("q") for each in arrays)
        self._parents_address = self._inputs[-1].ctypes.data
        self._best = BestTokens()

    def forward(self, batch: Batch) -> Pass:
        tree = self._tree(batch)
        if self._plan.n_adapters:
            self._weights.scales[:] = 0 if batch.scales is None else batch.scales
        if batch.accepted is not None and len(moves := self._moved(batch)) and len(tape := self._lowering.moving(moves)):
            self._team.run(tape, self._memory)
        tokens, slots, positions, rows = batch.tokens, batch.slots, batch.positions, batch.rows
        cells, parents = (positions, None) if tree is None else (tree.cells, tree.parents)
        n, n_rows = len(tokens), len(rows)
        if n_rows > len(self._logits):
            self._make_room(n_rows)
        is_sorted = (of := slots.tolist()) == sorted(of)
        if not is_sorted:  # attention works on runs of one slot
            order = np.argsort(slots, kind="stable")
            tokens, slots, positions, cells = tokens[order], slots[order], positions[order], cells[order]
            places = np.empty(n + 1, np.int64)
            places[order] = np.arange(n)
            places[-1] = -1  # of no parent
            rows = places[rows]
            parents = None if parents is None else places[parents[order]]
        if self._sequences is not None:
            self._begin_sequences(self._sequences, batch, None if is_sorted else order)
        columns = (tokens, positions, slots, cells)
        hidden = batch.hidden if batch.hidden is None or is_sorted else batch.hidden[order]
        if not n:  # what comes before all tokens is done
            empty = {name: np.empty((0, self.features[name]), np.float32) for name in batch.features}
            return self._result(self._logits[:0], None, empty)
        if n <= MAX_TOKENS:
            program, narrow = self._program(batch, n)
            self._pass(columns, parents, rows, 0, 0, program, hidden)
            told = program.told(batch.features, slice(n) if is_sorted else places[:-1])
            return self._result(self._logits[:n_rows], narrow, told)
        features = {name: np.empty((n, self.features[name]), np.float32) for name in batch.features}
        written: list[np.ndarray] = []
        n_written = 0
        for span in passes(slots, parents, MAX_TOKENS, has_blocks=self._has_blocks and batch.part == "main"):
            here = np.flatnonzero((rows >= span.start) & (rows < span.stop))
            above = None if parents is None else parents[span] - span.start
            part = tuple(column[span] for column in columns)
            program, narrow = self._program(batch, span.stop - span.start)
            states = None if hidden is None else hidden[span]
            self._pass(part, above, rows[here] - span.start, n_written, span.start, program, states)
            for name, values in features.items():
                values[span] = program.features[name][: span.stop - span.start]
            written.append(here)
            n_written += len(here)
        logits = self._logits[:n_rows]
        if not is_sorted:
            logits[:] = logits[np.argsort(np.concatenate(written))]
            features = {name: values[places[:-1]] for name, values in features.items()}
        return self._result(logits, narrow, features)

    def forward_chain(self, batch: Batch, n_passes: int) -> Pass:
        """See `Model.forward_chain`: before each pass but the first only tokens, positions and hidden states are written."""
        n_rows = len(batch.rows)
        if n_passes == 1 or not n_rows or not self.chain_rows:
            return super().forward_chain(batch, n_passes)
        self._check_chain(batch, n_passes)
        if n_passes * n_rows > len(self._logits):
            self._make_room(n_passes * n_rows)
        passed, slots, positions, rows = self.forward(batch), batch.slots[batch.rows], batch.positions[batch.rows], batch.rows
        (program, narrow), order = self._program(batch, n_rows), np.argsort(slots, kind="stable")
        slots, places = slots[order], np.argsort(order)
        for first in range(n_rows, n_passes * n_rows, n_rows):
            tokens, positions = np.maximum(passed.argmax(), 0)[order], positions + 1
            hidden = None if batch.hidden is None else passed.features(*batch.features)[rows][order]
            self._pass((tokens, positions[order], slots, positions[order]), None, places, first, 0, program, hidden)
            features, rows = program.told(batch.features, places), np.arange(n_rows)
            passed = self._result(self._logits[first : first + n_rows], narrow, features, first)
        return self._result(self._logits[: n_passes * n_rows], narrow, features)

    def compiled_pass(
        self, slot: int, room: int, k: int, n_vocab: int, features: tuple[str, ...] = (), *, is_given: bool = False
    ) -> TeamPass | None:
        if not self.chain_rows or self._plan.n_adapters or room > MAX_TOKENS or k > MAX_BEST:
            return None
        if room > len(self._logits):
            self._make_room(room)
        key = slot, room, k, n_vocab, features, is_given
        if (made := self._compiled.get(key)) is None or made.rows is not self._logits:
            hidden = np.empty((1, 0), np.float32) if is_given else None  # of which the program alone is asked for
            batch = evolve(Batch.chain([0]), features=features, hidden=hidden)
            names = None if self._tokens is None else self._tokens.astype(np.int32)
            n_vocab = n_vocab if names is None else len(names)
            programs = [self._program(batch, n)[0] for n in (PRIVATE_TOKENS, MAX_TOKENS)]
            width, stride = self._lowering.logits_row
            runs = {"segment": self._runs.ctypes.data, "run_parents": self._parents_address, "state": self._memory.address}
            how = {
                "state": self._memory.address,
                "slot": slot,
                "n_vocab": n_vocab,
                "maxima": self._logits_address + 4 * width,
                "stride": stride,
                **runs,
            }
            given = self._team, programs, self._lowering.moving, self._logits, features, names
            made = self._compiled[key] = TeamPass(room, min(k, n_vocab), *given, **how)
        return made

    def _result(
        self, logits: np.ndarray, narrow: NarrowOutput | None, features: Mapping[str, np.ndarray], first: int = 0
    ) -> Pass:
        """A pass of rows of logits, which begin with row `first` of all, with its features."""
        tokens = self._tokens if narrow is None else narrow.tokens
        n, (width, stride) = self.info.n_vocab if tokens is None else len(tokens), self._lowering.logits_row
        passed = KernelPass(logits[:, :n], width, features, self._logits_address + 4 * first * stride, self._best)
        return self._named(passed, tokens)

    def profile(self, batch: Batch) -> Sequence[KernelTime]:
        """Compute a pass like `forward`, over tokens of one slot, and tell its steps in order.

        Raises:
            UnsupportedError: It would be computed in several passes.
        """
        if (n := len(batch.tokens)) > MAX_TOKENS:
            raise UnsupportedError(
                f"a profile of {n} tokens; more than {MAX_TOKENS} are computed in several passes, take fewer"
            )
        state, works = self._memory.fields, self._program(batch, n)[0].works
        times = np.zeros(len(works) + 1, np.int64)
        state["times"] = times.ctypes.data
        try:
            self.forward(batch)
        finally:
            state["times"] = 0
        seconds = np.diff(times) / 1e9
        n_rows = len(batch.rows)
        return [work.time(taken, batch.positions, n_rows) for work, taken in zip(works, seconds.tolist(), strict=True)]

    def limits(self) -> Limits:
        """Probe the limits of the model's threads."""
        return limits(self._team, self.isa)

    def check(self) -> None:
        self._weights.check()

    def slot_memory(self, slot: int, n: int, start: int | None = None) -> Sequence[np.ndarray]:
        self._require_open()
        return self._lowering.slot_memory(slot, n, start)

    def memory_table(self) -> Sequence[Allocation]:
        return (*self._arena.table(), Allocation("logits", self._logits.nbytes))

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            del self._team, self._arena, self._weights, self._lowering, self._programs, self._compiled, self._logits

    def _make_room(self, n_rows: int) -> None:
        """Allocate rows of logits. Their address is asked for once: of small models Python between passes is felt."""
        self._logits = np.zeros((n_rows, self._lowering.logits_row[1]), np.float32)
        self._logits_address = self._logits.ctypes.data

    def _program(self, batch: Batch, n: int) -> tuple[Program, NarrowOutput | None]:
        """The program of a pass of n tokens, and how its logits are to be read if they are of a vocabulary."""
        has_rows = len(batch.rows) > 0
        key = n > PRIVATE_TOKENS, batch.part, batch.layers, batch.features, batch.hidden is None, has_rows
        program = self._programs.get(key)  # by the shortest way: of small models Python between passes is felt
        if program is None:
            layers = batch.layers or self.info.parts[batch.part].layers
            # features of the layers before are there when the last one has stored its caches
            is_read = has_rows or not {"output", f"layer.{layers[1] - 1}"}.isdisjoint(batch.features)
            parts = Parts(layers, tuple(batch.features), batch.hidden is not None, is_read, name=batch.part)
            program = self._programs[key] = self._lowering.program(n, parts)
        if batch.vocabulary is None or self._tokens is not None or not has_rows:
            return program, None
        n_vocab, vocabulary = self.info.n_vocab, batch.vocabulary
        narrow = self._narrow.of(id(program), vocabulary, n_vocab, lambda: NarrowOutput.of(program, vocabulary, n_vocab))
        return narrow.program, narrow

    def _pass(
        self,
        columns: tuple[np.ndarray, ...],
        parents: np.ndarray | None,
        rows: np.ndarray,
        first_row: int,
        start: int,
        program: Program,
        hidden: np.ndarray | None,
    ) -> None:
        """Compute up to MAX_TOKENS tokens (id, position, slot, cell), sorted by slot; logits go to rows from `first_row` on.

        They are those of the batch from `start` on, with their hidden states (n, E) where it has such.
        """
        # a pass empties the caches, and NumPy's casts and comparisons then take 10 to 30 us each: so lists, and views of memory
        inputs, state, slots = self._input_view, self._state_view, columns[2].tolist()
        n, above = len(slots), None if parents is None else parents.tolist()
        for row, column in enumerate((*columns, rows)):
            inputs[row * MAX_TOKENS : row * MAX_TOKENS + len(column)] = array("q", column.tolist())
        runs: list[int] = []
        for first, size, slot, is_tree in runs_of(slots, above):
            runs += (first, size, slot, self._parents_address + 8 * first if is_tree else 0)
            if above is not None and is_tree:
                own = array("q", [max(parent - first, -1) for parent in above[first : first + size]])
                inputs[len(_COLUMNS) * MAX_TOKENS + first :][:size] = own
        self._run_view[: len(runs)] = array("q", runs)
        if self._sequences is not None:
            self._sequences.write(self._runs[: len(runs) // 4], start, columns[3])
        state[_N_TOKENS], state[_N_ROWS], state[_N_SEGMENTS] = n, len(rows), len(runs) // 4
        if program.hidden is not None:
            program.hidden[:n] = hidden
        program.write_to(self._logits_address + 4 * first_row * self._lowering.logits_row[1])
        self._team.run(program.records, self._memory, program.address)

    def _begin_sequences(self, sequences: SequenceUpdates, batch: Batch, order: np.ndarray | None) -> None:
        """Bring states up to date before a batch, whose tokens are taken in this order."""
        is_drafted = batch.is_drafted if order is None or batch.is_drafted is None else batch.is_drafted[order]
        if (runs := sequences.begin(batch, is_drafted)) is not None:
            self._runs[: len(runs)] = runs
            self._state_view[_N_TOKENS], self._state_view[_N_SEGMENTS] = 0, len(runs)
            self._team.run(self._states.records, self._memory)
