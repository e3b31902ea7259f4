import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from oracles.models import tiny_file
from oracles.passes import run_of

from augury.backends.numba_cpu import NumbaCpu, NumbaCpuOptions
from augury.backends.numba_cpu.backend import physical_cores
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.simd import atomic_add, nanoseconds
from augury.backends.numba_cpu.kernels.struct import struct
from augury.backends.numba_cpu.kernels.team import SPIN_NS, Record, record_of
from augury.backends.numba_cpu.team import PassMemory, Team
from augury.errors import OptionError
from augury.interfaces import Progress
from augury.interruption import interrupted
from augury.plugins.architectures.llama import Llama
from augury.types import ModelOptions

LATE_NS = 4 * SPIN_NS  # of one thread, so that the others sleep
N_RECORDS = 60


@struct
class CountLate(Record):
    count: int  # address
    number: int
    late_ns: int


@kernel(record=CountLate)
def count_late(record, state, thread, n_threads):
    """Count to the number; one thread, another one in every record, comes late."""
    if record.number % n_threads == thread:
        end = nanoseconds() + record.late_ns
        while nanoseconds() < end:
            pass
    atomic_add(record.count, 1)


def tape_of(counts, n_records, late_ns):
    places = counts.ctypes.data + 8 * np.arange(n_records)
    return np.concatenate([record_of(count_late, count=count, number=n, late_ns=late_ns) for n, count in enumerate(places)])


@pytest.fixture(params=[1, 2, 3, 7])
def team(request):
    team = Team(request.param)
    yield team
    team.close()


def test_where_a_thread_cannot_start_those_before_it_end(monkeypatch):
    start, started = threading.Thread.start, []

    def fail_late(thread):
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_late)
    with pytest.raises(RuntimeError) as caught:
        Team(4)
    del caught  # which holds the team
    for thread in started:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("late_ns", [0, LATE_NS])
def test_every_thread_takes_part_in_every_record_however_long_it_waits(team, late_ns):
    counts = np.zeros(N_RECORDS, np.int64)
    tape = tape_of(counts, N_RECORDS, late_ns)

    for times in range(1, 6):
        team.run(tape, PassMemory())
        assert counts.tolist() == [times * team.n_threads] * N_RECORDS


@pytest.mark.parametrize("pause_s", [0.0, 0.0005, 0.003, 0.02])
def test_a_team_is_awake_after_any_pause(team, pause_s):
    counts = np.zeros(1, np.int64)
    tape = tape_of(counts, 1, 0)

    for times in range(1, 21):
        time.sleep(pause_s)
        team.run(tape, PassMemory())
        assert counts[0] == times * team.n_threads


def test_a_team_survives_signals_while_it_sleeps():
    team, counts = Team(3), np.zeros(N_RECORDS, np.int64)
    received = []
    before = signal.signal(signal.SIGUSR1, lambda *_: received.append(True))
    stop = threading.Event()

    def send():
        while not stop.wait(0.0005):
            for thread in threading.enumerate():
                if thread.name.startswith("augury-cpu"):
                    signal.pthread_kill(thread.ident, signal.SIGUSR1)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for _ in range(10):
            team.run(tape_of(counts, N_RECORDS, LATE_NS), PassMemory())
    finally:
        stop.set()
        sender.join()
        team.close()
        signal.signal(signal.SIGUSR1, before)

    assert received
    assert counts.tolist() == [30] * N_RECORDS


def test_a_closed_team_gives_its_files_back():
    def n_files():
        return len(list(Path("/dev/fd").iterdir()))

    Team(2).close()
    before = n_files()
    team = Team(5)
    assert n_files() > before
    team.close()
    team.close()

    assert n_files() == before


def test_a_waiting_team_takes_no_cpu_time():
    team, counts = Team(3), np.zeros(1, np.int64)
    team.run(tape_of(counts, 1, 0), PassMemory())
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    used = time.process_time() - before
    team.close()

    assert used < 0.05


def test_threads_that_wait_for_a_late_one_leave_their_cores_to_others():
    team, counts = Team(3), np.zeros(5, np.int64)
    start, before = time.perf_counter(), time.process_time()
    team.run(tape_of(counts, 5, 50_000_000), PassMemory())
    wall, used = time.perf_counter() - start, time.process_time() - before
    team.close()

    assert used < 1.5 * wall  # spinning, three threads would use up to three times as much


def passes_per_second(model, seconds):
    n, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        model.forward(run_of([n % 128], start=n % 500))
        n += 1
    return n / (time.perf_counter() - start)


def test_busy_processes_cost_their_share_and_not_the_whole_machine():
    file = tiny_file("llama-dense-q4_k")
    model = NumbaCpu(NumbaCpuOptions()).load(file, Llama.plans(file)["main"], ModelOptions(threads=2, n_ctx=512), Progress())
    passes_per_second(model, 0.1)
    alone = passes_per_second(model, 0.3)
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(len(os.sched_getaffinity(0)))]
    try:
        time.sleep(0.3)
        # a half is fair, and a test may run beside others; a barrier that spins for a thread without a core gives a hundredth
        assert any(passes_per_second(model, 0.5) > alone / 25 for _ in range(8))
    finally:
        for other in others:
            other.kill()
            other.wait()
        model.close()


def test_what_other_processes_take_from_a_pass_is_told():
    core = min(os.sched_getaffinity(0))
    counts, before = np.zeros(1, np.int64), os.sched_getaffinity(0)
    team, other = Team(1), subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for pid in (0, other.pid):
            os.sched_setaffinity(pid, {core})
        tape, start, lost = tape_of(counts, 1, 50_000_000), time.perf_counter(), interrupted.seconds
        busy = time.thread_time()
        for _ in range(20):
            team.run(tape, PassMemory())
        wall, own, lost = time.perf_counter() - start, time.thread_time() - busy, interrupted.seconds - lost
    finally:
        os.sched_setaffinity(0, before)
        other.kill()
        other.wait()
        team.close()
    assert lost > 0.2 * wall, "the other process has the core half of the time"
    assert abs(wall - lost - own) < 0.1 * wall


@pytest.mark.parametrize(
    ("processor_s", "n_displaced", "lost_s"),
    [(0.004, 1, 0.006), (0.004, 0, 0), (0.0091, 1, 0), (0.01, 5, 0)],
    ids=["interrupted", "idle", "hardly", "not"],
)
def test_threads_that_idle_for_each_other_are_not_interrupted(processor_s, n_displaced, lost_s, monkeypatch):
    team, counts, clocks = Team(3), np.zeros(1, np.int64), {"wall": iter((0.0, 0.01)), "own": 0.0}
    displaced = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw + 1000

    def processor(clock):
        clocks["own"] += processor_s / 3  # of each of three threads, before the tape and after it
        return clocks["own"]

    monkeypatch.setattr("augury.backends.numba_cpu.team.perf_counter", lambda: next(clocks["wall"]))
    monkeypatch.setattr("augury.backends.numba_cpu.team.time.clock_gettime", processor)
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_nivcsw=displaced + n_displaced))
    team._n_displaced, before = displaced, interrupted.seconds
    team.run(tape_of(counts, 1, 0), PassMemory())
    team.close()
    assert interrupted.seconds - before == pytest.approx(lost_s)


def test_with_affinity_each_thread_stays_on_a_core_of_its_own():
    file = tiny_file("llama-dense")
    cores = physical_cores()
    options = ModelOptions(threads=len(cores), n_ctx=64)
    plain = NumbaCpu(NumbaCpuOptions()).load(file, Llama.plans(file)["main"], options, Progress())
    kept = NumbaCpu(NumbaCpuOptions(affinity="cores")).load(file, Llama.plans(file)["main"], options, Progress())
    seen = []

    def run():  # a thread of its own: the caller of a pass is kept on a core, too
        before = {int(thread.name) for thread in Path("/proc/self/task").iterdir()}
        seen.append(kept.forward(run_of([1, 2, 3])).rows().copy())
        seen.append(os.sched_getaffinity(0))
        seen.append([os.sched_getaffinity(thread) for thread in sorted(before)])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    right = plain.forward(run_of([1, 2, 3])).rows().copy()
    plain.close()
    kept.close()
    logits, own, everyone = seen
    assert np.array_equal(logits, right)
    assert own == {cores[0]}
    assert [cpus for cpus in everyone if len(cpus) == 1 and cpus != own] == [{core} for core in cores[1:]]


def own_threads():
    return sum(thread.name.startswith("augury-cpu") for thread in threading.enumerate())


def test_models_of_one_backend_share_threads_until_the_last_is_closed():
    n_before, backend, separate = own_threads(), NumbaCpu(NumbaCpuOptions()), NumbaCpu(NumbaCpuOptions())

    def load(by, name, threads):
        file = tiny_file(name)
        return by.load(file, Llama.plans(file)["main"], ModelOptions(threads=threads, n_ctx=64), Progress())

    first, second = load(backend, "llama-dense", 3), load(backend, "llama-dense-q4_k", 3)
    assert own_threads() - n_before == 2
    other = load(backend, "llama-dense", 2)
    assert own_threads() - n_before == 3, "another number of threads is another team"
    batch = run_of([1, 2, 3])
    for model, name in ((first, "llama-dense"), (second, "llama-dense-q4_k")):
        with closing(load(separate, name, 3)) as alone:
            right = alone.forward(batch).rows().copy()
        for _ in range(2):
            first.forward(run_of([4]))
            assert np.array_equal(model.forward(batch).rows(), right)
    first.close()
    assert own_threads() - n_before == 3
    assert np.array_equal(second.forward(batch).rows(), right)
    second.close()
    other.close()
    assert own_threads() == n_before
    with closing(load(backend, "llama-dense-q4_k", 3)) as again:
        assert np.array_equal(again.forward(batch).rows(), right)


def test_models_that_share_threads_may_be_asked_at_once():
    backend, found = NumbaCpu(NumbaCpuOptions()), {}
    names = "llama-dense", "llama-dense-q4_k"
    models = []
    for name in names:
        file = tiny_file(name)
        models.append(backend.load(file, Llama.plans(file)["main"], ModelOptions(threads=2, n_ctx=64), Progress()))

    def ask(i):
        found[i] = [models[i].forward(run_of([1 + i, 2, 3, 4])).rows().copy() for _ in range(60)]

    right = [model.forward(run_of([1 + i, 2, 3, 4])).rows().copy() for i, model in enumerate(models)]
    threads = [
        threading.Thread(target=ask, args=(i,), daemon=True) for i in range(2)
    ]  # which would wait for each other for ever
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == [0, 1]
    assert all(np.array_equal(rows, right[i]) for i, every in found.items() for rows in every)
    for model in models:
        model.close()


def test_more_threads_than_cores_cannot_each_have_one():
    file = tiny_file("llama-dense")
    n = len(physical_cores())
    with pytest.raises(OptionError, match=f"there are {n} cores"):
        NumbaCpu(NumbaCpuOptions(affinity="cores")).load(
            file, Llama.plans(file)["main"], ModelOptions(threads=n + 1), Progress()
        )


def test_clocks_are_read_seldom_while_nothing_interrupts_and_in_every_tape_after_an_interruption(monkeypatch):
    team, tape = Team(2), tape_of(np.zeros(1, np.int64), 1, 0)
    watched, is_interrupted, n = [], False, 0

    def processor_s():
        watched.append(n)
        return 0.0 if is_interrupted else time.perf_counter()  # no thread computed at all, or each all the time

    monkeypatch.setattr(team, "_processor_s", processor_s)
    monkeypatch.setattr(team, "_was_displaced", lambda: is_interrupted)
    monkeypatch.setattr("augury.backends.numba_cpu.team._SLICE_S", 0.0)
    while n < 400:
        n += 1
        team.run(tape, PassMemory())
    assert sorted(set(watched)) == [*range(1, 257), *range(272, 401, 16)]
    is_interrupted, before = True, interrupted.seconds
    while n < 432:
        n += 1
        team.run(tape, PassMemory())
    assert interrupted.seconds > before
    assert sorted(set(watched))[-18:] == [400, *range(416, 433)], "the first that is watched finds it, then all are"
    team.close()
