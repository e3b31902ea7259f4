"""Logits of some tokens alone: products with those panels of the output matrix that hold their rows."""

from __future__ import annotations

import attrs
import numpy as np
from attrs import frozen

from augury.backends.numba_cpu.kernels import step
from augury.backends.numba_cpu.kernels.logits import MultiplyLogits
from augury.backends.numba_cpu.kernels.struct import index, view
from augury.backends.numba_cpu.tape import Program
from augury.batch import check_vocabulary

_PANEL_BYTES = 4 * step.PANEL_ROWS  # of logits
_ENTRIES = index(MultiplyLogits, "entries")


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
        """Make the tape of a vocabulary (m,) int32, or take the one of the same array.

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
    firsts = panels[places]
    entries = np.repeat(program.logits, len(places))
    entries["first"], entries["n_panels"] = firsts, np.diff(places, append=len(panels))
    records = program.records.copy()
    (i,) = np.flatnonzero(records == program.logits.ctypes.data)
    record = view(records[i - _ENTRIES :], MultiplyLogits)
    record["entries"], record["n_panels"] = entries.ctypes.data, len(panels)
    return attrs.evolve(program, records=records, logits=entries, places=_PANEL_BYTES * (places - firsts))
