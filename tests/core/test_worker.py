"""No request is lost: whatever fails, and wherever, everyone who waits hears of the end, and the engine serves the next."""

import io
import logging
import sys
import threading

import pytest
from toys import ScriptedDrafter, ToyModel, toy_engine

from augury.engine import Engine
from augury.errors import AuguryError
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
    return {"loop": loop, "model": loop._model, "memory": loop._memory, "drafting": loop._drafting}[owner], method


def plain(prompt, n):
    return tuple(ToyModel().plain(prompt, n))


ALONE = ("memory.open", "memory.prepare", "memory.commit", "memory.room")
TOGETHER = ("model.forward", "drafting.propose")
NOBODY = ("memory.end", "drafter.end", "drafting.observe_round", "loop._on_round", "loop._on_request")


@pytest.mark.parametrize("error", [RuntimeError("planted"), SystemExit(1), KeyboardInterrupt(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("where", [*ALONE, *TOGETHER, *NOBODY])
def test_a_failure_anywhere_ends_only_whom_it_concerns(where, error):
    for n in (1, 2, 3, 5, 8, 12):
        with toy_engine(slots=2, drafter=ScriptedDrafter, observers=(ignore, ignore), kind=Engine) as engine:
            gate = threading.Event()
            engine._worker._loop._model.on_forward = lambda gate=gate: gate.wait(SECONDS)
            fault = Fault(error, n)
            fault.into(*site(engine, where))
            runnings = [engine.submit(prompt, max_tokens=9, **GREEDY) for prompt in PROMPTS]
            cancelled = engine.submit([9], max_tokens=9, **GREEDY)
            cancelled.cancel()
            gate.set()
            *found, late, logits = outcomes(
                [running.result for running in (*runnings, cancelled)] + [lambda engine=engine: engine.evaluate([1, 2])]
            )
            assert isinstance(late, Exception) or late.finish_reason == "cancelled"
            failed = [each for each in (*found, logits) if isinstance(each, Exception)]
            assert len(failed) <= (2 if where in TOGETHER else 1 if where in ALONE else 0)
            assert all("planted" in str(each) or type(error).__name__ in str(each) for each in failed)
            for prompt, each in zip(PROMPTS, found, strict=True):
                assert isinstance(each, Exception) or each.tokens == plain(prompt, 9)
            later = engine.generate([[1], [2]], max_tokens=5, **GREEDY)
            assert [each.tokens for each in later] == [plain([1], 5), plain([2], 5)]
            assert not engine._worker._loop._taken


def test_a_request_cancelled_in_a_round_that_fails_is_not_lost():
    with toy_engine(slots=2) as engine:
        model, has_begun, is_cancelled = engine._worker._loop._model, threading.Event(), threading.Event()
        model.on_forward = lambda: has_begun.set() or is_cancelled.wait(SECONDS)
        runnings = [engine.submit(prompt, **GREEDY) for prompt in PROMPTS]
        assert has_begun.wait(SECONDS)
        Fault(RuntimeError("planted"), 1).into(model, "forward")  # in the next round, which begins by dropping who is cancelled
        for running in (runnings[0], runnings[3]):
            running.cancel()
        is_cancelled.set()
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
        del engine._worker._loop._memory.end
        assert engine.generate([1], max_tokens=5, **GREEDY).tokens == plain([1], 5)


def test_what_memory_makes_of_a_pass_may_be_nonsense(monkeypatch):
    with toy_engine() as engine:
        monkeypatch.setattr(engine._worker._loop._memory, "prepare", lambda slot, n: None)
        (found,) = outcomes([engine.submit([1], **GREEDY).result])
        assert isinstance(found, AttributeError)
        monkeypatch.undo()
        assert isinstance(engine._worker._loop._memory, MemoryManager)
        assert engine.generate([1], max_tokens=5, **GREEDY).tokens == plain([1], 5)


class UnspeakableError(Exception):
    """Cannot even be written into a log."""

    def __repr__(self):
        raise SystemExit


@pytest.mark.parametrize(
    "error", [RuntimeError("planted"), UnspeakableError(), SystemExit()], ids=["error", "unspeakable", "exit"]
)
def test_a_warning_that_cannot_be_given_harms_nobody(error, monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    for name in ("augury.loop", "augury.drafting"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [logging.StreamHandler(closed)])
        monkeypatch.setattr(logging.getLogger(name), "level", logging.INFO)
        monkeypatch.setattr(logging.getLogger(name), "propagate", False)

    def failing(**seen):
        raise error

    with toy_engine(slots=2, drafter=ScriptedDrafter, observers=(failing, failing), kind=Engine) as engine:
        Fault(error, 1, n_times=99).into(engine._drafters[0], "end")
        runnings = [engine.submit(prompt, max_tokens=5, **GREEDY) for prompt in PROMPTS]
        runnings[1].cancel()
        found = outcomes([running.result for running in runnings])
    assert [each.finish_reason for each in found] == ["length", "cancelled", "length", "length", "length"]


@pytest.mark.parametrize("error", [RuntimeError("planted"), SystemExit()], ids=repr)
def test_when_the_thread_dies_everyone_learns_of_it(error, monkeypatch):
    engine = toy_engine(n_ctx=3000, slots=2, drafter=ScriptedDrafter)
    loop, gate = engine._worker._loop, threading.Event()
    loop._model.on_forward = lambda: gate.wait(SECONDS)
    runnings = [engine.submit(prompt, **GREEDY) for prompt in PROMPTS]
    monkeypatch.setattr(loop, "_drop_cancelled", lambda: (_ for _ in ()).throw(error))  # nothing of the loop's own should fail
    waits = [running.result for running in runnings] + [lambda: list(runnings[4]), lambda: engine.evaluate([1] * 2000)]
    gate.set()
    for found in outcomes(waits):
        assert isinstance(found, AuguryError)
        assert repr(error) in str(found)
    for call in (engine.submit, engine.generate, engine.stream, engine.evaluate):
        with pytest.raises(AuguryError, match="has ended because of an error"):
            call([1])
    engine.close()
    assert [drafter.events[-1] for drafter in engine._drafters] == [("close",)] * 2
