"""Threads that compute a tape together.

A tape is an array of int64: records, each a struct that begins as `Record` does and goes on with the kernel's operands.
Every thread runs every record's kernel with `(record, state, thread, n_threads)` and takes its part of the work.

`state` is an array of int64 that the threads share; words that several threads write are on cache lines of their own.

A thread that waits spins at first, which costs least while every thread has a core. One that waits longer has a teammate whose
core another process uses, or nothing to do: it sleeps, so that its share of the machine is there when there is work. Where a
teammate was last seen on its own core, as happens when another process is busy, it lets that one run instead of spinning.
A thread sleeps by reading from a file to which the thread writes that ends the wait. Every libc can do that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import machine
from augury.backends.numba_cpu.kernels.jit import address, helper, kernel
from augury.backends.numba_cpu.kernels.simd import atomic_add, atomic_load, get_i64, put_i64
from augury.backends.numba_cpu.kernels.struct import dtype, pointer_maker, struct, table

# Offsets into the state, in bytes.
ARRIVED, PHASE, GENERATION, CLAIMED, ENDED = (64 * line for line in range(5))
TAPE, TAPE_END, N_THREADS, TIMES, N_TOKENS, N_ROWS, N_SEGMENTS, SEQUENCES = (320 + 8 * field for field in range(8))
TOKENS, POSITIONS, SLOTS, ROWS, SEGMENTS, SCRATCH, SCRATCH_BYTES, CELLS = (384 + 8 * field for field in range(8))
# One line per thread: whether it sleeps; the files that it reads and others write to wake it; its core; in how many waits it is
# not to yield.
OWN = 448
READ, WRITE, CORE, WARY = 8, 16, 24, 32

SPINS = 30  # pauses between looks at the clock
SPIN_NS = 50_000  # longer than the threads of a record differ while each has a core, far shorter than a time slice
YIELD_NS = 500_000  # beside a teammate: threads that sleep in turns look to the system as if one core were enough for them
SLICE_NS = 1_000_000  # a yield that takes longer gave a time slice to a stranger
WARY_WAITS = 64  # after such a yield
LINGER_NS = 2_000_000  # longer than a round's Python takes


@struct
class Record:
    """The beginning of every record."""

    kernel: int  # address
    waits: bool  # whether a barrier follows
    n_bytes: int  # of the record


@struct
class Segment:
    """A run of one slot's tokens."""

    first: int
    n: int
    slot: int
    parents: int  # (n,) int64, address: of each token its parent within the run; 0 if they are a chain


@struct
class StridedRows:
    """Rows of floats, or of operands, which every thread may have for itself."""

    address: int  # of the first row
    width: int  # floats from one row to the next
    apart: int  # bytes from one thread's rows to the next's; 0 where all share them


def record_of(computes: Any, **fields: Any) -> np.ndarray:
    """The record of a kernel, (n,) int64: a barrier follows unless its field `is_private` says otherwise."""
    kind = computes.structs["record"]
    begin = {"kernel": address(computes), "waits": not fields.get("is_private", False), "n_bytes": dtype(kind).itemsize}
    return table([kind(**begin, **fields)]).view(np.int64)


record_at = pointer_maker(Record)
segments_at = pointer_maker(Segment)


@helper
def own(rows, thread):
    """The address of the rows that a thread reads or writes."""
    return rows.address + thread * rows.apart


@helper
def row_of(rows, t):
    """The address of a row."""
    return rows.address + 4 * t * rows.width


@helper
def own_row(rows, thread, t):
    """The address of a row of those that a thread reads or writes."""
    return own(rows, thread) + 4 * t * rows.width


@helper
def show_core(state, thread):
    """Let the others see which core a thread is on."""
    place = state + OWN + 64 * thread + CORE
    core = machine.this_core()
    if get_i64(place) != core:  # a cache line that nobody writes stays with all
        put_i64(place, core)


@helper
def is_beside(state, thread):
    """Whether another thread was last seen on the core of this one: it cannot go on while this one spins."""
    core = get_i64(state + OWN + 64 * thread + CORE)
    if core >= 0:
        for other in range(get_i64(state + N_THREADS)):
            if other != thread and get_i64(state + OWN + 64 * other + CORE) == core:
                return True
    return False


@helper
def wait(state, thread, address, value, linger_ns):
    """Wait until the value at `address` is not `value`: spin, until `linger_ns` let others run, then sleep."""
    own = state + OWN + 64 * thread
    spins, began, spin_ns = 0, 0, SPIN_NS
    while atomic_load(address) == value:
        spins += 1
        if spins % SPINS != 0:
            machine.pause()
            continue
        now = machine.nanoseconds()
        if began == 0:
            began = now
            if is_beside(state, thread):
                spin_ns, linger_ns = 0, YIELD_NS
            if get_i64(own + WARY) > 0:
                put_i64(own + WARY, get_i64(own + WARY) - 1)
                linger_ns = 0
        if now - began < spin_ns:
            machine.pause()
        elif now - began < linger_ns:
            machine.give_way()
            if machine.nanoseconds() - now > SLICE_NS:
                put_i64(own + WARY, WARY_WAITS)
                linger_ns = 0
        else:
            machine.exchange(own, 1)
            # Either the thread that changes the value sees that this one sleeps, or this thread sees the change. Where both do,
            # the flag tells which was first: once it is taken, a token is on its way.
            if machine.ordered_load(address) == value or machine.exchange(own, 0) == 0:
                while machine.take_token(get_i64(own + READ)) != 8:  # a signal came between
                    pass


@helper
def change(state, n_threads, address, value):
    """Store a value that others wait for, and wake sleeping threads."""
    machine.exchange(address, value)
    for thread in range(n_threads):
        own = state + OWN + 64 * thread
        if machine.ordered_load(own) != 0 and machine.exchange(own, 0) != 0:
            machine.give_token(get_i64(own + WRITE))


@helper
def barrier(state, thread, n_threads):
    """Wait until all threads are here. The last one resets the claims."""
    if n_threads == 1:
        put_i64(state + CLAIMED, 0)
        return
    show_core(state, thread)
    phase = atomic_load(state + PHASE)
    if atomic_add(state + ARRIVED, 1) == n_threads - 1:
        put_i64(state + CLAIMED, 0)
        put_i64(state + ARRIVED, 0)
        change(state, n_threads, state + PHASE, phase + 1)
    else:
        wait(state, thread, state + PHASE, phase, 0)


@helper
def run_tape(state, thread):
    """Run the tape as one of the threads; all return after the last barrier."""
    n_threads, place, end = get_i64(state + N_THREADS), get_i64(state + TAPE), get_i64(state + TAPE_END)
    times = get_i64(state + TIMES)
    if times != 0 and thread == 0:
        put_i64(times, machine.nanoseconds())
    while place < end:
        record = record_at(place)
        machine.invoke(record.kernel, (record, state, thread, n_threads))
        if record.waits != 0:
            barrier(state, thread, n_threads)
        place += record.n_bytes
        if times != 0:
            times += 8
            if thread == 0:
                put_i64(times, machine.nanoseconds())


@kernel
def lead(state):
    """Compute the tape together with the other threads."""
    change(state, get_i64(state + N_THREADS), state + GENERATION, get_i64(state + GENERATION) + 1)
    run_tape(state, 0)


@kernel
def follow(state, thread):
    """Compute the passes of `lead`, until the team ends."""
    seen = 0
    while True:
        wait(state, thread, state + GENERATION, seen, LINGER_NS)
        seen = atomic_load(state + GENERATION)
        if get_i64(state + ENDED) != 0:
            return
        run_tape(state, thread)


@kernel
def dismiss(state):
    """Let the other threads return."""
    put_i64(state + ENDED, 1)
    change(state, get_i64(state + N_THREADS), state + GENERATION, get_i64(state + GENERATION) + 1)


@struct
class SequenceUpdate:
    """The updates of a sequence's states in a pass, beside each run of its tokens.

    In order: the saved state is restored, or the state is emptied; accepted tokens of the slot's last pass are taken in, then
    the certain ones. On top, but not into the state, come drafted tokens that an earlier part of the pass has kept aside, then
    those of the run.
    """

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
