"""Threads that compute a tape together.

A tape is an array of int64: records, each a struct that begins as `Record` does and goes on with the kernel's operands.
Every thread runs every record's kernel with `(record, state, thread, n_threads)` and takes its part of the work. `state` is a
`PassState`, one for each model, which the threads share; after it comes the word by which they claim parts of a record's work.

The team itself is a `TeamState`. After it come words that several threads write, each on a cache line of its own, then a line
for each thread, see `ThreadState`.

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
class PassState:
    """The pass of a model that a tape computes."""

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
class TeamState:
    """The tape that the threads run."""

    n_threads: int
    tape: int  # address
    tape_end: int
    state: int  # of its pass, address


@struct
class ThreadState:
    """A thread, on a cache line, after the word that says whether it sleeps."""

    read: int  # the file that it reads to sleep
    write: int  # the file that others write to, to wake it
    core: int  # where it was last seen; -1: unknown
    wary: int  # in how many waits it is not to yield


LINE = 64  # bytes that cores take from each other at once
# Offsets of the words that several threads write, in bytes, and of the threads' lines.
_ARRIVED, _PHASE, _GENERATION, _ENDED, _THREADS = (LINE * line for line in range(1, 6))
CLAIMED = -(-dtype(PassState).itemsize // LINE) * LINE  # of a pass's state
PASS_BYTES = CLAIMED + LINE
thread_at = pointer_maker(ThreadState)


@struct
class Record:
    """The beginning of every record, whose kernel is given the pass's state, too."""

    beside: ClassVar[dict[str, type]] = {"state": PassState}
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
team_at = pointer_maker(TeamState)
state_at = pointer_maker(PassState)


def team_bytes(n_threads: int) -> int:
    """Bytes of a team's state, in whole cache lines."""
    return _THREADS + LINE * n_threads


@helper
def sleep_of(team, thread):
    """The address of the word that says whether a thread sleeps."""
    return team + _THREADS + LINE * thread


@helper
def thread_of(team, thread):
    """The state of a thread."""
    return thread_at(sleep_of(team, thread) + 8)


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
def show_core(team, thread):
    """Let the others see which core a thread is on."""
    own, core = thread_of(team, thread), simd.this_core()
    if own.core != core:  # a cache line that nobody writes stays with all
        own.core = core


@helper
def is_beside(team, thread):
    """Whether another thread was last seen on the core of this one: it cannot go on while this one spins."""
    core = thread_of(team, thread).core
    if core >= 0:
        for other in range(team.n_threads):
            if other != thread and thread_of(team, other).core == core:
                return True
    return False


@helper
def wait(team, thread, address, value, linger_ns):
    """Wait until the value at `address` is not `value`: spin, until `linger_ns` let others run, then sleep."""
    own, sleeps = thread_of(team, thread), sleep_of(team, thread)
    spins, began, spin_ns = 0, 0, SPIN_NS
    while atomic_load(address) == value:
        spins += 1
        if spins % SPINS != 0:
            simd.pause()
            continue
        now = simd.nanoseconds()
        if began == 0:
            began = now
            if is_beside(team, thread):
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
def change(team, address, value):
    """Store a value that others wait for, and wake sleeping threads."""
    simd.exchange(address, value)
    for thread in range(team.n_threads):
        sleeps = sleep_of(team, thread)
        if simd.ordered_load(sleeps) != 0 and simd.exchange(sleeps, 0) != 0:
            simd.give_token(thread_of(team, thread).write)


@helper
def barrier(team, state, thread, n_threads):
    """Wait until all threads are here. The last one resets the claims."""
    if n_threads == 1:
        put_i64(state + CLAIMED, 0)
        return
    show_core(team, thread)
    phase = atomic_load(team + _PHASE)
    if atomic_add(team + _ARRIVED, 1) == n_threads - 1:
        put_i64(state + CLAIMED, 0)
        put_i64(team + _ARRIVED, 0)
        change(team, team + _PHASE, phase + 1)
    else:
        wait(team, thread, team + _PHASE, phase, 0)


@helper
def run_tape(team, thread):
    """Run the tape as one of the threads; all return after the last barrier."""
    n_threads, place, end, state = team.n_threads, team.tape, team.tape_end, state_at(team.state)
    times = state.times
    if times != 0 and thread == 0:
        put_i64(times, simd.nanoseconds())
    while place < end:
        record = record_at(place)
        simd.invoke(record.kernel, (record, state, thread, n_threads))
        if record.waits != 0:
            barrier(team, state, thread, n_threads)
        place += record.n_bytes
        if times != 0:
            times += 8
            if thread == 0:
                put_i64(times, simd.nanoseconds())


@kernel
def run(place, tape, tape_end, state):
    """Run a tape over the state of its pass, together with the other threads of the team whose state is at `place`."""
    team = team_at(place)
    team.tape, team.tape_end, team.state = tape, tape_end, state
    change(team, team + _GENERATION, get_i64(team + _GENERATION) + 1)
    run_tape(team, 0)


@kernel
def follow(place, thread):
    """Run the tapes of `run`, until the team ends."""
    team, seen = team_at(place), 0
    while True:
        wait(team, thread, team + _GENERATION, seen, LINGER_NS)
        seen = atomic_load(team + _GENERATION)
        if get_i64(team + _ENDED) != 0:
            return
        run_tape(team, thread)


@kernel
def dismiss(place):
    """Let the other threads return."""
    team = team_at(place)
    put_i64(team + _ENDED, 1)
    change(team, team + _GENERATION, get_i64(team + _GENERATION) + 1)


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
