"""Threads that compute a tape together.

A tape is an array of int64: records, each a struct that begins as `Record` does and goes on with the kernel's operands.
Every thread runs every record's kernel with `(record, state, thread, n_threads)` and takes its part of the work.

`state` is a `TeamState`, which the threads share. After it come words that several threads write, each on a cache line of its
own, then a line for each thread, see `ThreadState`.

A thread that waits spins at first, which costs least while every thread has a core. One that waits longer has a teammate whose
core another process uses, or nothing to do: it sleeps, so that its share of the machine is there when there is work. Where a
teammate was last seen on its own core, as happens when another process is busy, it lets that one run instead of spinning.
A thread sleeps by reading from a file to which the thread writes that ends the wait. Every libc can do that.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.jit import address, helper, kernel
from augury.backends.numba_cpu.kernels.simd import atomic_add, atomic_load, get_i64, put_i64
from augury.backends.numba_cpu.kernels.struct import dtype, pointer_maker, pointer_to, struct, table

SPINS = 30  # pauses between looks at the clock
SPIN_NS = 50_000  # longer than the threads of a record differ while each has a core, far shorter than a time slice
YIELD_NS = 500_000  # beside a teammate: threads that sleep in turns look to the system as if one core were enough for them
SLICE_NS = 1_000_000  # a yield that takes longer gave a time slice to a stranger
WARY_WAITS = 64  # after such a yield
LINGER_NS = 2_000_000  # longer than a round's Python takes


@struct
class Segment:
    """A run of one slot's tokens."""

    first: int
    n: int
    slot: int
    parents: int  # (n,) int64, address: of each token its parent within the run; 0 if they are a chain


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
class TeamState:
    """The tape, and the pass that it computes."""

    n_threads: int
    tape: int  # address
    tape_end: int
    times: int  # (records + 1,) int64, when each begins and the last one ends, in nanoseconds, address; 0: nobody asks
    scratch: int  # of the threads, address
    scratch_bytes: int  # of each
    n_tokens: int
    n_rows: int  # that logits are wanted of
    n_segments: int
    segments: Any = pointer_to(Segment)
    sequences: Any = pointer_to(SequenceUpdate)  # of each segment
    tokens: int  # (n_tokens,) int64, ids, address; likewise the next three
    positions: int
    slots: int
    cells: int
    rows: int  # (n_rows,) int64, their tokens, address


@struct
class ThreadState:
    """A thread, on a cache line, after the word that says whether it sleeps."""

    read: int  # the file that it reads to sleep
    write: int  # the file that others write to, to wake it
    core: int  # where it was last seen; -1: unknown
    wary: int  # in how many waits it is not to yield


_LINE = 64
# Offsets of the words that several threads write, in bytes, and of the threads' lines.
ARRIVED, PHASE, GENERATION, CLAIMED, ENDED, _THREADS = (dtype(TeamState).itemsize + _LINE * line for line in range(6))
thread_at = pointer_maker(ThreadState)


@struct
class Record:
    """The beginning of every record, whose kernel is given the team's state, too."""

    beside: ClassVar[dict[str, type]] = {"state": TeamState}
    kernel: int  # address
    waits: bool  # whether a barrier follows
    n_bytes: int  # of the record


@struct
class StridedRows:
    """Rows of floats, or of operands, which every thread may have for itself."""

    address: int  # of the first row
    width: int  # floats from one row to the next
    thread_stride: int  # bytes from one thread's rows to the next's; 0 where all share them


def record_of(computes: Any, **fields: Any) -> np.ndarray:
    """The record of a kernel, (n,) int64: a barrier follows unless its field `is_private` says otherwise."""
    kind = computes.structs["record"]
    begin = {"kernel": address(computes), "waits": not fields.get("is_private", False), "n_bytes": dtype(kind).itemsize}
    return table([kind(**begin, **fields)]).view(np.int64)


record_at = pointer_maker(Record)
state_at = pointer_maker(TeamState)


def state_bytes(n_threads: int) -> int:
    """Bytes of a team's state, in whole cache lines."""
    return _THREADS + _LINE * n_threads


@helper
def sleep_of(state, thread):
    """The address of the word that says whether a thread sleeps."""
    return state + _THREADS + _LINE * thread


@helper
def thread_of(state, thread):
    """The state of a thread."""
    return thread_at(sleep_of(state, thread) + 8)


@helper
def own(rows, thread):
    """The address of the rows that a thread reads or writes."""
    return rows.address + thread * rows.thread_stride


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
    own, core = thread_of(state, thread), simd.this_core()
    if own.core != core:  # a cache line that nobody writes stays with all
        own.core = core


@helper
def is_beside(state, thread):
    """Whether another thread was last seen on the core of this one: it cannot go on while this one spins."""
    core = thread_of(state, thread).core
    if core >= 0:
        for other in range(state.n_threads):
            if other != thread and thread_of(state, other).core == core:
                return True
    return False


@helper
def wait(state, thread, address, value, linger_ns):
    """Wait until the value at `address` is not `value`: spin, until `linger_ns` let others run, then sleep."""
    own, sleeps = thread_of(state, thread), sleep_of(state, thread)
    spins, began, spin_ns = 0, 0, SPIN_NS
    while atomic_load(address) == value:
        spins += 1
        if spins % SPINS != 0:
            simd.pause()
            continue
        now = simd.nanoseconds()
        if began == 0:
            began = now
            if is_beside(state, thread):
                spin_ns, linger_ns = 0, YIELD_NS
            if own.wary > 0:
                own.wary -= 1
                linger_ns = 0
        if now - began < spin_ns:
            simd.pause()
        elif now - began < linger_ns:
            simd.give_way()
            if simd.nanoseconds() - now > SLICE_NS:
                own.wary = WARY_WAITS
                linger_ns = 0
        else:
            simd.exchange(sleeps, 1)
            # Either the thread that changes the value sees that this one sleeps, or this thread sees the change. Where both do,
            # the flag tells which was first: once it is taken, a token is on its way.
            if simd.ordered_load(address) == value or simd.exchange(sleeps, 0) == 0:
                while simd.take_token(own.read) != 8:  # a signal came between
                    pass


@helper
def change(state, address, value):
    """Store a value that others wait for, and wake sleeping threads."""
    simd.exchange(address, value)
    for thread in range(state.n_threads):
        sleeps = sleep_of(state, thread)
        if simd.ordered_load(sleeps) != 0 and simd.exchange(sleeps, 0) != 0:
            simd.give_token(thread_of(state, thread).write)


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
        change(state, state + PHASE, phase + 1)
    else:
        wait(state, thread, state + PHASE, phase, 0)


@helper
def run_tape(state, thread):
    """Run the tape as one of the threads; all return after the last barrier."""
    n_threads, place, end = state.n_threads, state.tape, state.tape_end
    times = state.times
    if times != 0 and thread == 0:
        put_i64(times, simd.nanoseconds())
    while place < end:
        record = record_at(place)
        simd.invoke(record.kernel, (record, state, thread, n_threads))
        if record.waits != 0:
            barrier(state, thread, n_threads)
        place += record.n_bytes
        if times != 0:
            times += 8
            if thread == 0:
                put_i64(times, simd.nanoseconds())


@kernel
def lead(team):
    """Compute the tape together with the other threads of the team whose state is at this address."""
    state = state_at(team)
    change(state, state + GENERATION, get_i64(state + GENERATION) + 1)
    run_tape(state, 0)


@kernel
def follow(team, thread):
    """Compute the passes of `lead`, until the team ends."""
    state, seen = state_at(team), 0
    while True:
        wait(state, thread, state + GENERATION, seen, LINGER_NS)
        seen = atomic_load(state + GENERATION)
        if get_i64(state + ENDED) != 0:
            return
        run_tape(state, thread)


@kernel
def dismiss(team):
    """Let the other threads return."""
    state = state_at(team)
    put_i64(state + ENDED, 1)
    change(state, state + GENERATION, get_i64(state + GENERATION) + 1)


@struct
class StateMemory:
    """Addresses of a state of all slots; see `State`."""

    values: int
    saved: int
    aside: int  # the inputs of n_aside drafted tokens of each slot
    added: int  # their additions to the columns of a matrix


@helper
def place_aside(state, token, n_aside):
    """Where a drafted token of the pass is kept aside, of `n_aside` places of its slot."""
    return get_i64(state.cells + 8 * token) % n_aside
