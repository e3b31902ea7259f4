"""Logits of some tokens alone: products with those panels of the output matrix that hold their rows."""

from __future__ import annotations

import attrs
import numpy as np
from attrs import frozen

from augury.backends.numba.vocabulary import groups_of, tokens_of
from augury.backends.numba_cpu.kernels import step
from augury.backends.numba_cpu.kernels.logits import MultiplyLogits
from augury.backends.numba_cpu.kernels.struct import index, view
from augury.backends.numba_cpu.tape import Program

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

    @classmethod
    def of(cls, program: Program, vocabulary: np.ndarray, n_vocab: int) -> NarrowOutput:
        """That of a vocabulary (m,) int32, rising."""
        panels = groups_of(vocabulary, step.PANEL_ROWS).astype(np.int64)
        tokens = tokens_of(panels, step.PANEL_ROWS)
        return cls(_narrowed(program, panels), tokens[tokens < n_vocab])


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
