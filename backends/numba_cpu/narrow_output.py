"""Logits of some tokens alone: products with those panels of the output matrix that hold their rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs
import numpy as np
from attrs import frozen

from augury.backends.numba_cpu.kernel_pass import KernelPass
from augury.backends.numba_cpu.kernels import step
from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.kernels.struct import dtype, view
from augury.batch import check_vocabulary

if TYPE_CHECKING:
    from augury.backends.numba_cpu.tape import Program

_PANEL_BYTES = 4 * step.PANEL_ROWS  # of logits
_ENTRIES = dtype(step.Multiply).fields["entries"][1] // 8  # also of what treats all of the logits, see `CapLogits`


@frozen(eq=False)
class NarrowOutput:
    """The tape that computes the logits of a vocabulary.

    Attributes:
        program: As the whole output's.
        tokens: (m,) int32, rising, of each logit: all rows of the panels.
    """

    program: Program
    tokens: np.ndarray


class NarrowOutputs:
    """The tapes of vocabularies, of which each kind of pass keeps the last one."""

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._kept: dict[int, tuple[np.ndarray, NarrowOutput]] = {}  # by the identity of tapes, which are kept elsewhere

    def of(self, program: Program, vocabulary: np.ndarray) -> NarrowOutput:
        """Make the tape of a vocabulary (m,) int32, or take the one that was made of the same array.

        Raises:
            OptionError: It holds no tokens, others than the model's, or they do not rise.
        """
        kept = self._kept.get(id(program))
        if kept is not None and kept[0] is vocabulary:
            return kept[1]
        check_vocabulary(vocabulary, self._n_vocab)
        panels = vocabulary // step.PANEL_ROWS
        panels = panels[np.append(True, panels[1:] != panels[:-1])].astype(np.int64)
        tokens = (step.PANEL_ROWS * panels[:, None] + np.arange(step.PANEL_ROWS)).ravel().astype(np.int32)
        made = NarrowOutput(_narrowed(program, panels), tokens[tokens < self._n_vocab])
        self._kept[id(program)] = vocabulary, made
        return made


def _narrowed(program: Program, panels: np.ndarray) -> Program:
    """The program with products of some panels (p,) int64, rising, alone; their logits follow one another."""
    is_first = np.diff(panels, prepend=-2) != 1
    places = np.flatnonzero(is_first)  # of the runs' first panels, among all
    firsts, sizes = panels[places], np.diff(places, append=len(panels))
    entries = np.repeat(program.logits, len(places) + 1)  # one more for the record that treats all of the logits
    entries["first"][:-1], entries["n_panels"][:-1] = firsts, sizes
    entries["n_rows"][-1] = step.PANEL_ROWS * len(panels)
    records = program.records.copy()
    for i in np.flatnonzero(records[:, _ENTRIES] == program.logits.ctypes.data):
        record = view(records[i], step.Multiply)
        record["entries"] = entries[-1:].ctypes.data
        if record["kernel"] == address(step.multiply):
            record["entries"], record["n_entries"], record["n_panels"] = entries.ctypes.data, len(places), len(panels)
    return attrs.evolve(program, records=records, logits=entries, places=_PANEL_BYTES * np.append(places - firsts, 0))


class NarrowPass(KernelPass):
    """Rows of the logits of some tokens; those of all others are -inf."""

    def __init__(
        self, array: np.ndarray, tokens: np.ndarray, n_vocab: int, features: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Take over logits (r, m) float32 of tokens (m,) int32, which rise, of `n_vocab`."""
        super().__init__(array, features)
        self._tokens = tokens
        self._n_vocab = n_vocab

    def argmax(self) -> np.ndarray:
        return self._named(super().argmax())

    def top_k(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Pass.top_k`; no more than have logits."""
        ids, logits = super().top_k(rows, k)
        return self._named(ids), logits

    def gather(self, row: int, ids: np.ndarray) -> np.ndarray:
        places = np.minimum(np.searchsorted(self._tokens, ids), len(self._tokens) - 1)
        logits: np.ndarray = np.where(self._tokens[places] == ids, self._array[row, places], np.float32(-np.inf))
        return logits

    def rows(self) -> np.ndarray:
        rows = np.full((len(self._array), self._n_vocab), -np.inf, np.float32)
        rows[:, self._tokens] = self._array
        return rows

    def row(self, row: int) -> np.ndarray:
        logits = np.full(self._n_vocab, -np.inf, np.float32)
        logits[self._tokens] = self._array[row]
        return logits

    def first(self, n: int) -> NarrowPass:
        m = int(np.searchsorted(self._tokens, n))
        return NarrowPass(self._array[:, :m], self._tokens[:m], n, self._features)

    def _named(self, places: np.ndarray) -> np.ndarray:
        """The tokens at some places of a row; -1 remains."""
        tokens: np.ndarray = np.where(places < 0, np.int32(-1), self._tokens[places])
        return tokens
