"""No request is lost: whatever fails, and wherever, everyone who waits hears of the end, and the engine serves the next."""

import asyncio
import gc
import io
import logging
import os
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.toys import Gate, ScriptedDrafter, ToyModel, toy_engine

from augury.engine.engine import Engine
from augury.errors import AuguryError, CapacityError, ModelFileError, OptionError, QueueFullError
from augury.interfaces import MemoryManager

GREEDY = {"temperature": 0.0}
PROMPTS = ([1], [2, 3], [4], [5, 6], [7])
SECONDS = 60  # after which a request counts as lost


def outcomes(waits):
    """What became of calls that wait, each on a thread of its own: what it returned or raised."""
    found = {}

    def wait(i):
        try:
            found[i] = waits[i]()
        except Exception as error:  # noqa: BLE001
            found[i] = error

    threads = [threading.Thread(target=wait, args=(i,), daemon=True) for i in range(len(waits))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert not any(thread.is_alive() for thread in threads), "a request was lost"
    return [found[i] for i in range(len(waits))]


def soon(condition):
    """Whether something that threads are about to do is done."""
    end = time.monotonic() + SECONDS
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.001)
    return found


class Fault:
    """Raises an error at the n-th call of one method, and at some calls after it."""

    def __init__(self, error, n, n_times=1):
        self.error, self.n, self.n_times, self.n_calls = error, n, n_times, 0

    def into(self, owner, name):
        call = getattr(owner, name)

        def faulty(*arguments, **keywords):
            self.n_calls += 1
            if self.n <= self.n_calls < self.n + self.n_times:
                raise self.error
            return call(*arguments, **keywords)

        setattr(owner, name, faulty)


def ignore(**seen):
    pass


def site(engine, where):
    """The object and method that `where` means."""
    owner, method = where.split(".")
    loop = engine._worker._loop
    if owner == "drafter":
        return engine._drafters[0], method
    context = loop._context
    return {"loop": loop, "model": context.model, "memory": context.memory, "drafting": loop._drafting}[owner], method


def plain(prompt, n):
    return tuple(ToyModel().plain(prompt, n))


ALONE = ("memory.open", "memory.prepare", "memory.commit", "memory.room")
TOGETHER = ("model.forward", "drafting.propose")
DRAFTER = ("drafter.begin", "drafter.draft", "drafter.accept", "drafter.end")
NOBODY = ("memory.end", *DRAFTER, "drafting.observe_round", "loop.on_round", "loop._on_request")


@pytest.mark.sample(15)
@pytest.mark.parametrize("error", [RuntimeError("planted"), KeyboardInterrupt(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("where", [*ALONE, *TOGETHER, *NOBODY])
def test_a_failure_anywhere_ends_only_whom_it_concerns(where, error):
    for n in (1, 2, 4, 7, 12):
        with toy_engine(slots=2, drafter=ScriptedDrafter, observers=(ignore, ignore), kind=Engine) as engine:
            gate = Gate(engine)
            fault = Fault(error, n)
            fault.into(*site(engine, where))
            runnings = [engine.submit(prompt, max_tokens=9, **GREEDY) for prompt in PROMPTS]
            cancelled = engine.submit([9], max_tokens=9, **GREEDY)
            cancelled.cancel()
            gate.open()
            *found, late, logits = outcomes(
                [running.result for running in (*runnings, cancelled)] + [lambda engine=engine: engine.evaluate([1, 2])]
            )
            assert isinstance(late, Exception) or late.finish_reason == "cancelled"
            failed = [each for each in (*found, logits) if isinstance(each, Exception)]
            assert len(failed) <= (2 if where in TOGETHER else 1 if where in ALONE else 0)
            assert all("planted" in str(each) or type(error).__name__ in str(each) for each in failed)
            for prompt, each in zip(PROMPTS, found, strict=True):
                assert isinstance(each, Exception) or each.tokens == plain(prompt, 9)
            fault.n_times = 0  # where so many calls were not made
            later = engine.generate([[1], [2]], max_tokens=5, **GREEDY)
            assert [each.tokens for each in later] == [plain([1], 5), plain([2], 5)]
            assert not engine._worker._loop.slots.in_use


def test_drafting_that_fails_ends_nobody_who_has_no_drafters():
    with toy_engine(slots=2, drafter=ScriptedDrafter, kind=Engine) as engine:
        gate = Gate(engine)
        Fault(RuntimeError("planted"), 3, n_times=10**9).into(*site(engine, "drafting.propose"))
        drafted = engine.submit([1], max_tokens=9, **GREEDY)
        alone = engine.submit([2], max_tokens=9, speculative=False, **GREEDY)
        gate.open()
        assert alone.result().tokens == plain([2], 9)
        with pytest.raises(RuntimeError, match="planted"):
            drafted.result()


def test_a_request_cancelled_in_a_round_that_fails_is_not_lost():
    with toy_engine(slots=2) as engine:
        gate = Gate(engine)
        runnings = [engine.submit(prompt, **GREEDY) for prompt in PROMPTS]
        assert gate.has_begun.wait(SECONDS)
        Fault(RuntimeError("planted"), 1).into(
            *site(engine, "model.forward")
        )  # in the next round, which begins by dropping who is cancelled
        for running in (runnings[0], runnings[3]):
            running.cancel()
        gate.open()
        found = outcomes([running.result for running in runnings])
    assert [getattr(each, "finish_reason", "failed") for each in found][:4] == ["cancelled", "failed", "failed", "cancelled"]


def test_a_slot_that_cannot_be_freed_is_asked_for_again_and_nobody_waits_for_it_for_ever():
    with toy_engine(slots=1) as engine:
        Fault(RuntimeError("planted"), 1, n_times=10**9).into(*site(engine, "memory.end"))
        first, *others = outcomes([engine.submit(prompt, max_tokens=5, **GREEDY).result for prompt in PROMPTS])
        assert first.tokens == plain([1], 5)
        assert all("has no free slot" in str(each) for each in others)
        with pytest.raises(AuguryError, match="has no free slot"):
            engine.evaluate([1])
        del engine._worker._loop._context.memory.end
        assert engine.generate([1], max_tokens=5, **GREEDY).tokens == plain([1], 5)


def test_a_slot_is_freed_once():
    with toy_engine(slots=2) as engine:
        memory = engine._worker._loop._context.memory
        freed, end = [], memory.end
        memory.end = lambda slot: freed.append(slot) or end(slot)
        Fault(RuntimeError("planted"), 1).into(*site(engine, "memory.end"))
        for prompt in ([1], [2], [3]):
            engine.generate(prompt, max_tokens=2, **GREEDY)
    assert freed == [0, 1, 0]  # and the first in vain before


def test_a_slot_that_was_freed_with_an_error_is_not_freed_again_while_it_is_in_use():
    with toy_engine() as engine:
        memory = engine._worker._loop._context.memory
        end = memory.end

        def fail(slot):
            end(slot)
            raise RuntimeError("planted")

        memory.end = fail
        found = outcomes([engine.submit([i], max_tokens=9, **GREEDY).result for i in range(4)])
    assert [each.tokens for each in found] == [plain([i], 9) for i in range(4)]


def test_what_memory_makes_of_a_pass_may_be_nonsense(monkeypatch):
    with toy_engine() as engine:
        monkeypatch.setattr(engine._worker._loop._context.memory, "prepare", lambda *_: None)
        (found,) = outcomes([engine.submit([1], **GREEDY).result])
        assert isinstance(found, AttributeError)
        monkeypatch.undo()
        assert isinstance(engine._worker._loop._context.memory, MemoryManager)
        assert engine.generate([1], max_tokens=5, **GREEDY).tokens == plain([1], 5)


def test_a_changed_model_file_refuses_requests_as_they_start():
    def check():
        raise ModelFileError("was changed")

    with toy_engine(slots=1) as engine:
        gate = Gate(engine)
        context = engine._worker._loop._context
        engine._loader.contexts.append(context)
        runnings = [engine.submit(prompt, max_tokens=5, **GREEDY) for prompt in PROMPTS[:2]]
        assert gate.has_begun.wait(SECONDS)
        context.model.check = check
        gate.open()
        first, second, logits = outcomes([running.result for running in runnings] + [lambda: engine.evaluate([1])])
        assert first.tokens == plain([1], 5)  # it had begun
        assert isinstance(second, ModelFileError)
        assert isinstance(logits, ModelFileError)
        del context.model.check
        assert engine.generate([1], max_tokens=5, **GREEDY).tokens == plain([1], 5)


class UnspeakableError(Exception):
    """Cannot even be written into a log."""

    def __repr__(self):
        raise SystemExit

    __str__ = __repr__


def test_an_error_that_cannot_say_what_it_is_reaches_its_request():
    with toy_engine() as engine:
        Fault(UnspeakableError(), 1).into(*site(engine, "model.forward"))
        (found,) = outcomes([engine.submit([1], **GREEDY).result])
    assert isinstance(found, UnspeakableError)


@pytest.mark.parametrize(
    "error", [RuntimeError("planted"), UnspeakableError(), SystemExit()], ids=["error", "unspeakable", "exit"]
)
def test_a_warning_that_cannot_be_given_harms_nobody(error, monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    for name in ("augury.engine.loop", "augury.speculation.drafting"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [logging.StreamHandler(closed)])
        monkeypatch.setattr(logging.getLogger(name), "level", logging.INFO)
        monkeypatch.setattr(logging.getLogger(name), "propagate", False)

    def failing(**seen):
        raise error

    with toy_engine(slots=2, drafter=ScriptedDrafter, observers=(failing, failing), kind=Engine) as engine:
        gate = Gate(engine)
        Fault(error, 1, n_times=99).into(engine._drafters[0], "end")
        runnings = [engine.submit(prompt, max_tokens=5, **GREEDY) for prompt in PROMPTS]
        runnings[1].cancel()
        gate.open()
        found = outcomes([running.result for running in runnings])
    assert [each.finish_reason for each in found] == ["length", "cancelled", "length", "length", "length"]


@pytest.mark.parametrize(
    "error", [RuntimeError("planted"), SystemExit(), UnspeakableError()], ids=["error", "exit", "unspeakable"]
)
def test_when_the_thread_dies_everyone_learns_of_it(error, monkeypatch):
    engine = toy_engine(n_ctx=3000, slots=2, drafter=ScriptedDrafter)
    loop, gate = engine._worker._loop, Gate(engine)
    runnings = [engine.submit(prompt, **GREEDY) for prompt in PROMPTS]
    monkeypatch.setattr(loop, "_schedule", lambda: (_ for _ in ()).throw(error))  # nothing of the loop's own should fail
    waits = [running.result for running in runnings] + [lambda: list(runnings[4]), lambda: engine.evaluate([1] * 2000)]
    gate.open()
    for found in outcomes(waits):
        assert isinstance(found, AuguryError)
        assert type(error).__name__ in str(found)
    for call in (engine.submit, engine.generate, engine.stream, engine.evaluate):
        with pytest.raises(AuguryError, match="has ended because of an error"):
            call([1])
    engine.close()
    assert [drafter.events[-1] for drafter in engine._drafters] == [("close",)] * 2


# The engine's life


def test_a_full_queue_refuses_with_how_many_wait():
    with toy_engine(slots=2, max_queue=3) as engine:
        gate = Gate(engine)
        runnings = [engine.submit([1], max_tokens=3, **GREEDY) for _ in range(5)]  # two of which run
        assert gate.has_begun.wait(SECONDS)
        with pytest.raises(CapacityError, match=r"3 requests wait for a slot already.*max_queue"):
            engine.submit([1])
        gate.open()
        assert [each.finish_reason for each in outcomes([running.result for running in runnings])] == ["length"] * 5
        for _ in range(9):  # what has ended counts no more
            engine.generate([[1]] * 5, max_tokens=1, **GREEDY)


def test_evaluations_wait_in_the_queue_that_requests_wait_in_and_a_full_one_refuses_them():
    with toy_engine(max_queue=3) as engine, ThreadPoolExecutor(9) as threads:
        gate = Gate(engine)
        running = engine.submit([1], max_tokens=3, **GREEDY)
        assert gate.has_begun.wait(SECONDS)
        evaluating = [threads.submit(engine.embed, [[1, 2]] * 9), *(threads.submit(engine.evaluate, [1, 2]) for _ in range(2))]
        inbox = engine._worker._engine_thread.inbox
        assert soon(lambda: inbox.qsize() == 3)
        assert engine.stats().n_waiting == 3
        for call in (engine.submit, engine.evaluate, engine.embed, lambda ids: asyncio.run(engine.aembed(ids))):
            with pytest.raises(QueueFullError, match="3 requests wait for a slot already"):
                call([1])
        gate.open()
        assert [len(each.result(SECONDS)) for each in evaluating] == [9, 2, 2]
        assert running.result().finish_reason == "length"


def test_as_many_evaluations_as_there_are_slots_take_turns_and_the_others_follow_in_order():
    with toy_engine(slots=2) as engine, ThreadPoolExecutor(9) as threads:
        worker, turns = engine._worker, []
        gate = Gate(engine)
        running = engine.submit([1], max_tokens=1, **GREEDY)
        assert gate.has_begun.wait(SECONDS)

        def steps(name, n):
            for _ in range(n):
                turns.append(name)
                yield None
            yield name

        found = []
        for i, name in enumerate("abcd"):
            found.append(threads.submit(worker.answer, lambda _, name=name: steps(name, 3)))
            assert soon(lambda n=i + 1: worker._engine_thread.inbox.qsize() == n)
        found.append(threads.submit(worker.do, lambda _: turns.append("now") or "now"))
        assert soon(lambda: worker._engine_thread.inbox.qsize() == 5)
        gate.open()
        assert [each.result(SECONDS) for each in found] == ["a", "b", "c", "d", "now"]
        assert "".join(turns).removeprefix("now") == "abababcdcdcd"
        assert turns[0] == "now", "what is no evaluation waits for none"
        running.result()


def test_a_request_that_cannot_be_taken_in_learns_of_it(monkeypatch):
    with toy_engine() as engine:
        monkeypatch.setattr(engine._worker._loop, "add", lambda _: (_ for _ in ()).throw(MemoryError("planted")))
        (found,) = outcomes([engine.submit([1], **GREEDY).result])
    assert isinstance(found, MemoryError | AuguryError)


def test_those_wait_too_whose_slot_is_taken_while_another_is_free():
    with toy_engine(slots=2, max_queue=2) as engine:
        passes = Gate(engine), Gate(engine)
        coming = iter(passes)
        engine._worker._loop._context.model.on_forward = lambda: next(coming, passes[1]).wait()
        runnings = [engine.submit([1], max_tokens=3, slot=0, **GREEDY)]
        assert passes[0].has_begun.wait(SECONDS)
        runnings += [engine.submit([1], max_tokens=3, slot=0, **GREEDY) for _ in range(2)]
        passes[0].open()
        assert passes[1].has_begun.wait(SECONDS)  # they were taken in, and slot 1 is free
        with pytest.raises(CapacityError, match="2 requests wait for a slot already"):
            engine.submit([1])
        passes[1].open()
        assert [each.finish_reason for each in outcomes([running.result for running in runnings])] == ["length"] * 3


@pytest.mark.parametrize("max_queue", [0, -1, 1.5, "many"])
def test_a_queue_of_no_length_is_refused(max_queue):
    with pytest.raises(OptionError, match="max_queue is"):
        Engine.load("/absent.gguf", max_queue=max_queue)


def test_several_threads_close_while_others_submit():
    engine = toy_engine(slots=2, drafter=ScriptedDrafter)
    gate, is_closing = Gate(engine), threading.Event()

    def close():
        is_closing.set()
        engine.close()
        return [drafter.events[-1] for drafter in engine._drafters]

    def submit():
        assert is_closing.wait(SECONDS)
        ended = [engine.submit([1], **GREEDY).result().finish_reason]
        while len(ended) < 10**6:
            ended.append(engine.generate([1], **GREEDY).finish_reason)
        return ended

    waiting = [engine.submit(prompt, **GREEDY).result for prompt in PROMPTS]
    threading.Timer(0.05, gate.open).start()
    *found, first, second, third, fourth = outcomes([*waiting, close, close, submit, submit])
    assert {each.finish_reason for each in found} <= {"cancelled", "context"}  # the latter where closing threads begin late
    assert first == second == [("close",)] * 2  # both return when everything is given back
    assert all(isinstance(each, AuguryError) and "engine is closed" in str(each) for each in (third, fourth))


def test_what_comes_while_an_engine_closes_is_refused(monkeypatch):
    seen = []
    engine = toy_engine(observers=(None, lambda summary: seen.append(summary.id)))
    gate = Gate(engine)
    first = engine.submit([1], id="first", **GREEDY)
    assert gate.has_begun.wait(SECONDS)
    engine._worker._engine_thread.inbox.put(None)  # as `close` does before it waits
    late = engine.submit([2], id="late", **GREEDY)
    threading.Timer(0.05, gate.open).start()
    first, late, logits = outcomes([first.result, late.result, lambda: engine.evaluate([1])])
    assert first.finish_reason == "cancelled"
    engine.close()
    assert sorted(seen) == ["first", "late"]
    monkeypatch.setattr(engine._worker, "check", lambda: None)  # it looked just before the end
    latest, *_ = outcomes([engine.submit([3], **GREEDY).result])
    for found in (late, logits, latest):
        assert "engine is closed" in str(found)


def test_an_engine_closed_by_a_hook_ends_after_the_round(caplog):
    engine = toy_engine(n_ctx=5000, drafter=ScriptedDrafter, observers=(lambda **seen: engine.close(), None))
    gate = Gate(engine)
    running, other = engine.submit([1], **GREEDY), engine.submit([2], **GREEDY)
    gate.open()
    assert [each.finish_reason for each in outcomes([running.result, other.result])] == ["cancelled", "cancelled"]
    assert outcomes([engine.close]) == [None]
    assert engine._drafters[0].events[-1] == ("close",)
    assert caplog.text == ""


def test_what_cannot_be_closed_keeps_nothing_else_open(caplog):
    class Stubborn(ScriptedDrafter):
        def close(self):
            super().close()
            raise SystemExit

    engine = toy_engine(slots=2, drafter=Stubborn)
    last = engine._loader.shared.get("first", ToyModel)
    engine._loader.shared.get("second", lambda: Stubborn(None))  # closed before the first
    engine.close()
    assert [drafter.events for drafter in engine._drafters] == [[("close",)]] * 2
    assert last.is_closed
    assert caplog.text.count("SystemExit") == 3


@pytest.mark.parametrize("is_used", [False, True])
def test_an_engine_that_nobody_holds_gives_everything_back(is_used):
    engine = toy_engine(drafter=ScriptedDrafter)
    drafter, model, thread = engine._drafters[0], weakref.ref(engine._worker._loop._context.model), engine._worker._thread
    stream = engine.stream([1], max_tokens=5, **GREEDY) if is_used else ()
    del engine
    assert len(list(stream)) == 5 * is_used  # who reads still holds it
    del stream
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert drafter.events[-1] == ("close",)
    drafter.model = None
    gc.collect()
    assert model() is None


FORKED = """
import os, sys, traceback
from support.toys import toy_engine
from augury.engine.engine import Engine
from augury.errors import AuguryError, CapacityError, ModelFileError, OptionError
engine = toy_engine(n_ctx=100_000, slots=2)
running = engine.submit([1])
next(iter(engine.submit([2])))
if (child := os.fork()) == 0:
    def tried(call):
        try:
            call()
        except AuguryError as error:
            return "forked off" in str(error)
    calls = [running.result, lambda: list(running), lambda: engine.submit([1]), lambda: engine.stream([1])]
    calls += [lambda: engine.generate([1]), lambda: engine.evaluate([1])]
    is_right = all([tried(call) for call in calls]) and engine.close() is None
    del engine, running, calls
    os._exit(0 if is_right else 1)
_, status = os.waitpid(child, 0)
running.cancel()
assert running.result().finish_reason == "cancelled"
assert len(engine.generate([1], max_tokens=3).tokens) == 3
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_an_engine_used_after_fork_is_an_error_and_no_hang():
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED],
        env=environment,
        timeout=SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
