"""Threads that compute a tape together.

A tape is an array of records of 16 int64: the address of the record's kernel, whether a barrier follows it, and its operands.
Every thread runs every record's kernel with `(record, state, thread, n_threads)` and takes its part of the work.

`state` is an array of int64 that the threads share; what several threads write lies on cache lines of its own.
"""

from __future__ import annotations

from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import exchange, give_way, invoke, ordered_load, pause
from augury.backends.numba_cpu.kernels.simd import atomic_add, atomic_load, atomic_store, get_i64, put_i64

# Offsets into the state, in bytes.
ARRIVED, PHASE, GENERATION, CLAIMED, WANTED = (64 * line for line in range(5))
TAPE, N_RECORDS, N_THREADS, N_PARKED, N_TOKENS, N_ROWS, N_SEGMENTS = (320 + 8 * field for field in range(7))
TOKENS, POSITIONS, SLOTS, ROWS, SEGMENTS, SCRATCH, SCRATCH_BYTES = (384 + 8 * field for field in range(7))
OWN = 448  # one line per thread: whether it is parked, the last generation that it ran
RECORD_BYTES = 128

SPINS = 200  # pauses before a waiting thread lets others run: about as long as the threads of one record differ
LINGERS = 3000  # yields before an idle thread goes back to Python: a millisecond or two, longer than a round's Python takes


@helper
def barrier(state, n_threads):
    """Wait until all threads are here. The last one resets the claims."""
    if n_threads == 1:
        put_i64(state + CLAIMED, 0)
        return
    phase = atomic_load(state + PHASE)
    if atomic_add(state + ARRIVED, 1) == n_threads - 1:
        put_i64(state + CLAIMED, 0)
        atomic_store(state + ARRIVED, 0)
        atomic_store(state + PHASE, phase + 1)
        return
    spins = 0
    while atomic_load(state + PHASE) == phase:
        spins += 1
        if spins < SPINS:
            pause()
        else:
            give_way()


@helper
def run_tape(state, thread):
    """Run the tape as one of the threads; all return after the last barrier."""
    n_threads = get_i64(state + N_THREADS)
    record = get_i64(state + TAPE)
    for _ in range(get_i64(state + N_RECORDS)):
        invoke(get_i64(record), (record, state, thread, n_threads))
        if get_i64(record + 8) != 0:
            barrier(state, n_threads)
        record += RECORD_BYTES


@kernel
def summon(state):
    """Keep the threads that are awake from parking, and count those that must be woken."""
    exchange(state + WANTED, 1)
    n_parked = 0
    for thread in range(1, get_i64(state + N_THREADS)):
        n_parked += ordered_load(state + OWN + 64 * thread)
    put_i64(state + N_PARKED, n_parked)


@kernel
def lead(state):
    """Compute the tape together with the other threads, all of which are awake or being woken."""
    atomic_store(state + GENERATION, get_i64(state + GENERATION) + 1)
    run_tape(state, 0)
    exchange(state + WANTED, 0)


@kernel
def follow(state, thread):
    """Compute what `lead` asks for, until nothing was asked for a while; then park."""
    own = state + OWN + 64 * thread
    exchange(own, 0)
    seen = get_i64(own + 8)
    idle = 0
    while True:
        generation = atomic_load(state + GENERATION)
        if generation != seen:
            seen = generation
            put_i64(own + 8, seen)
            run_tape(state, thread)
            idle = 0
        elif idle < LINGERS or atomic_load(state + WANTED) != 0:
            idle += 1
            if idle < SPINS:
                pause()
            else:
                give_way()
        else:
            # Either the leader sees that this thread is parked, or this thread sees that it is wanted.
            exchange(own, 1)
            if ordered_load(state + WANTED) == 0 and ordered_load(state + GENERATION) == seen:
                return
            exchange(own, 0)
            idle = 0
