"""The updates of sequences' states in a pass, as kernels read them.

Beside each run of a slot's tokens stands how many of them are certain, and the other changes of the slot's states. In order:
the saved state is restored, or the state is emptied; accepted tokens of the slot's last pass are taken in, then the certain
ones. On top, but not into the state, come drafted tokens that an earlier part of the pass has kept aside, then those of the
run.
"""

from __future__ import annotations

from augury.backends.numba_cpu.kernels.jit import helper
from augury.backends.numba_cpu.kernels.simd import get_i64
from augury.backends.numba_cpu.kernels.struct import pointer_maker, struct
from augury.backends.numba_cpu.kernels.team import CELLS


@struct
class SequenceUpdate:
    """The tokens that a run's sequence takes in."""

    n_certain: int  # tokens of the run
    is_start: bool
    is_restored: bool
    save: int  # the state is saved after so many certain tokens; -1: it is not
    taken: int  # (n_accepted + n_before,) int64, places aside, address
    n_accepted: int  # tokens of the slot's last pass
    n_before: int  # drafted tokens of this batch


@struct
class StateMemory:
    """Addresses of a state of all slots; see `State`."""

    values: int
    saved: int
    aside: int  # the inputs of n_aside drafted tokens of each slot
    added: int  # their additions to the columns of a matrix


sequences_at = pointer_maker(SequenceUpdate)


@helper
def place_aside(state, token, n_aside):
    """Where a drafted token of the pass is kept aside, of `n_aside` places of its slot."""
    return get_i64(get_i64(state + CELLS) + 8 * token) % n_aside
