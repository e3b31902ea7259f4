"""What a pass does to the states of the sequences that take part in it, as kernels read it.

Beside each run of a slot's tokens lies a record: how many of them are certain, and what else the slot's states take in. In
order: what was saved is restored, or the state is emptied; accepted tokens of the slot's last pass are taken in, then the
certain ones. On top, but not into the state, come drafted tokens that an earlier part of the pass has kept aside, then those
of the run.
"""

from __future__ import annotations

from augury.backends.numba_cpu.kernels.jit import helper
from augury.backends.numba_cpu.kernels.simd import get_i64
from augury.backends.numba_cpu.kernels.team import CELLS

# Offsets into the record of a run, in bytes.
SEQUENCE_BYTES = 64
N_CERTAIN, IS_START, IS_RESTORED, SAVE, TAKEN, N_ACCEPTED, N_BEFORE = (8 * field for field in range(7))


@helper
def place_aside(state, token, n_aside):
    """Where a drafted token of the pass is kept aside, of `n_aside` places of its slot."""
    return get_i64(get_i64(state + CELLS) + 8 * token) % n_aside
