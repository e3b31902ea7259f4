"""A request's caller: threads, event loops, streams that are given up, and Ctrl-C between any two steps."""

import _thread
import asyncio
import contextlib
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.toys import Gate, ToyModel, toy_engine

import augury.engine.engine
import augury.engine.running
import augury.engine.worker
from augury.engine.channel import Channel
from augury.errors import AuguryError
from augury.types import Token

GREEDY = {"temperature": 0.0}
SECONDS = 60  # after which something counts as lost


def plain(prompt, n):
    return ToyModel().plain(prompt, n)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, SECONDS))


def wait_until_idle(engine):
    """Ask for something that comes after everything else; what nobody can cancel would be in its way for hours."""
    done = threading.Event()
    threading.Thread(target=lambda: engine.evaluate([1]) is not None and done.set(), daemon=True).start()
    assert done.wait(SECONDS), "a request goes on that nobody can cancel"
    assert engine._worker._loop.n_sequences == 0


def endless_engine(**options):
    """An engine whose requests end when they are cancelled, or in hours."""
    return toy_engine(n_ctx=200_000, **options)


def test_waiting_streams_hold_no_threads_and_delay_nobody_else():
    async def read(stream):
        return [piece.token async for piece in stream]

    async def go():
        tasks = [asyncio.create_task(read(engine.astream([1], max_tokens=3, **GREEDY))) for _ in range(200)]
        await asyncio.to_thread(gate.has_begun.wait, SECONDS)
        assert all(not task.done() for task in tasks)
        before = {thread.name for thread in threading.enumerate()}
        assert sum(name.startswith("asyncio") for name in before) == 1  # ours, just now
        await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80)  # which waits for one of the executor's threads
        gate.open()
        return await asyncio.gather(*tasks)

    with toy_engine(slots=2) as engine:
        gate = Gate(engine)
        assert run(go()) == [plain([1], 3)] * 200


def test_a_slow_reader_holds_up_nobody_and_is_woken_once():
    async def go():
        slow = engine.astream([1], max_tokens=50, **GREEDY)
        loop, tokens, n_woken = asyncio.get_running_loop(), [(await anext(slow)).token], 0
        call = loop.call_soon_threadsafe

        def counted(*arguments, **keywords):
            nonlocal n_woken
            n_woken += 1
            return call(*arguments, **keywords)

        loop.call_soon_threadsafe = counted
        # with a single slot: this one runs when the slow one is through, though nobody has read it
        other = await engine.submit([2], max_tokens=5, **GREEDY)
        assert n_woken == 1
        tokens += [piece.token async for piece in slow]
        assert n_woken == 1  # all was there
        return tokens, list(other.tokens)

    with toy_engine() as engine:
        assert run(go()) == (plain([1], 50), plain([2], 5))


def test_a_reader_that_waits_again_at_once_is_woken_by_the_next_token_alone():
    channel, woken = Channel(), []

    def read_and_wait_again():
        woken.append(channel.take())
        if len(woken) < 9:  # the engine's thread is still waking others
            channel.readers.append(read_and_wait_again)

    channel.readers.append(read_and_wait_again)
    for n in (1, 2):
        channel.tokens.append(Token(n, ""))
        channel.wake_readers()
        assert [token.token for token in woken] == [1, 2][:n]


def test_tokens_that_come_with_the_end_while_a_reader_looks_are_read_before_it():
    class Tokens(list):
        def __len__(self):
            n = super().__len__()
            if not n and channel.outcome is None:  # the engine's thread, after it was seen that there is nothing
                self.append(Token(1, ""))
                channel.finish("stop")
            return n

    channel = Channel()
    channel.tokens = Tokens()
    assert channel.take() is None
    assert channel.take().token == 1
    with pytest.raises(StopIteration):
        channel.take()


def test_a_result_is_waited_for_no_longer_than_asked_and_the_request_goes_on():
    with toy_engine() as engine, ThreadPoolExecutor(1) as pool:
        gate = Gate(engine)
        running = engine.submit([1], max_tokens=3, **GREEDY)
        assert gate.has_begun.wait(SECONDS)
        for timeout in (0, 0.01):
            with pytest.raises(TimeoutError, match=f"no result within {timeout:g} s"):
                running.result(timeout)
            with pytest.raises(TimeoutError):  # where no signal has to be noticed
                pool.submit(running.result, timeout).result(SECONDS)
        gate.open()
        assert list(running.result(timeout=SECONDS).tokens) == plain([1], 3)
        assert running.result(timeout=0).finish_reason == "length"


@pytest.mark.parametrize("how", ["stream", "result"])
def test_a_task_that_is_cancelled_cancels_its_request_at_once(how):
    async def go():
        running = engine.submit([1], **GREEDY)
        stream = aiter(running)  # held, so that only its task's end can cancel
        task = asyncio.create_task(anext(stream) if how == "stream" else running._finished())
        await asyncio.to_thread(gate.has_begun.wait, SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert running._channel.cancels
        gate.open()
        return await running

    with endless_engine() as engine:
        gate = Gate(engine)
        assert run(go()).finish_reason == "cancelled"
        wait_until_idle(engine)


def test_several_event_loops_and_threads_read_at_once():
    found = {}

    async def read(prompt):
        found[prompt] = [piece.token async for piece in engine.astream([prompt], max_tokens=20, **GREEDY)]

    def ask(prompt):
        found[prompt] = [piece.token for piece in engine.stream([prompt], max_tokens=20, **GREEDY)]

    with toy_engine(slots=3) as engine:
        threads = [threading.Thread(target=lambda i=i: run(read(i)) if i % 2 else ask(i), daemon=True) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
    assert found == {prompt: plain([prompt], 20) for prompt in range(8)}


def test_readers_of_one_request_share_its_tokens_and_its_result():
    async def go():
        running = engine.submit([1], max_tokens=40, **GREEDY)
        found = await asyncio.gather(*(asyncio.to_thread(list, running) for _ in range(3)), *(_list(running) for _ in range(3)))
        results = await asyncio.gather(running._finished(), asyncio.to_thread(running.result))
        return [piece for pieces in found for piece in pieces], results

    async def _list(running):
        return [piece async for piece in running]

    with toy_engine() as engine:
        pieces, (one, other) = run(go())
    assert one is other
    assert {id(piece) for piece in pieces} <= {id(piece) for piece in one.pieces}
    assert len(pieces) == len(one.pieces) or one.finish_reason == "cancelled"


def test_an_event_loop_that_is_closed_while_it_streams_harms_nobody():
    with endless_engine(slots=1) as engine:
        gate, loop = Gate(engine), asyncio.new_event_loop()
        running = engine.submit([1], **GREEDY)
        task = loop.create_task(anext(aiter(running)))
        loop.run_until_complete(asyncio.wait([task], timeout=0))  # it waits now
        loop.close()
        gate.open()
        wait_until_idle(engine)
        assert running.result().finish_reason == "cancelled"


@pytest.mark.parametrize("error", [RuntimeError("RuntimeError"), SystemExit(), StopIteration(), StopAsyncIteration()], ids=repr)
def test_errors_reach_every_kind_of_reader(error):
    def fail():
        raise error

    async def result():
        return await engine.submit([1])

    async def stream():
        return [piece async for piece in engine.astream([1])]

    with toy_engine() as engine:
        engine._worker._loop._context.model.on_forward = fail
        for call in (engine.submit([1]).result, lambda: list(engine.stream([1])), lambda: run(result()), lambda: run(stream())):
            with pytest.raises((RuntimeError, AuguryError), match=type(error).__name__):
                call()


def test_what_nobody_holds_is_cancelled():
    with endless_engine() as engine:
        gate = Gate(engine)
        engine.submit([1], **GREEDY)
        engine.stream([1], **GREEDY)  # before its first token, too
        engine.astream([1], **GREEDY)
        iter(engine.stream([1], **GREEDY)).close()
        held = engine.stream([2], max_tokens=3, **GREEDY)
        gate.open()
        assert len(list(held)) == 3
        wait_until_idle(engine)


@pytest.mark.parametrize("close", [lambda stream: stream.close(), lambda stream: run(stream.aclose())], ids=["close", "aclose"])
def test_a_stream_that_is_held_is_cancelled_when_it_is_closed(close):
    with endless_engine() as engine:
        running = engine.submit([1], **GREEDY)
        stream = iter(running)
        next(stream)
        assert not running._channel.cancels
        close(stream)
        assert running._channel.cancels
        assert running.result().finish_reason == "cancelled"


WHERE = {Path(module.__file__) for module in (augury.engine.engine, augury.engine.worker, augury.engine.running)}


class Interrupter:
    """Raises KeyboardInterrupt at the n-th instruction that this thread runs of the modules between caller and engine."""

    def __init__(self, n):
        self.n, self.n_steps = n, 0

    def __enter__(self):
        sys.settrace(self.trace)

    def __exit__(self, *exception):
        sys.settrace(None)

    def trace(self, frame, event, argument):
        if Path(frame.f_code.co_filename) not in WHERE:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.n_steps += 1
        if self.n_steps == self.n:
            raise KeyboardInterrupt
        return self.trace


CALLS = {
    "submit": lambda engine: engine.submit([1], **GREEDY).cancel(),
    "generate": lambda engine: engine.generate([1], max_tokens=2, **GREEDY),
    "stream": lambda engine: next(engine.stream([1], **GREEDY)),
    "evaluate": lambda engine: engine.evaluate([1, 2]),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_between_any_two_steps_leaves_nothing_running(call):
    with endless_engine(slots=2) as engine:
        n, steps = 0, Interrupter(0)
        while steps.n_steps >= n:
            n, steps = n + 1, Interrupter(n + 1)
            with contextlib.suppress(KeyboardInterrupt), steps:
                CALLS[call](engine)
        wait_until_idle(engine)
    assert n > 50


def test_an_interrupt_while_an_engine_is_made_leaves_no_thread():
    before, n, steps = set(threading.enumerate()), 0, Interrupter(0)
    while steps.n_steps >= n:
        n, steps = n + 1, Interrupter(n + 1)
        with contextlib.suppress(KeyboardInterrupt), steps:
            toy_engine().close()
    for thread in set(threading.enumerate()) - before:
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert n > 50


@pytest.mark.parametrize("wait", [next, lambda stream: stream._running.result()], ids=["stream", "result"])
def test_an_interrupt_while_waiting_cancels_what_is_held(wait, monkeypatch):
    def interrupted(channel, wakers, *end):
        raise KeyboardInterrupt

    with endless_engine() as engine:
        gate, stream = Gate(engine), engine.stream([1], **GREEDY)
        with monkeypatch.context() as patch:
            patch.setattr(Channel, "block", interrupted)
            with pytest.raises(KeyboardInterrupt):
                wait(stream)
        gate.open()
        wait_until_idle(engine)
        del stream


def test_an_interrupt_just_before_a_caller_waits_is_noticed():
    def interrupt():
        assert gate.has_begun.wait(SECONDS)
        _thread.interrupt_main()  # which wakes nobody, as a signal does not that comes before the wait

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with toy_engine() as engine:
            gate = Gate(engine)
            too_late = threading.Timer(SECONDS / 2, gate.open)
            too_late.start()
            threading.Thread(target=interrupt, daemon=True).start()
            with pytest.raises(KeyboardInterrupt):
                engine.generate([1], **GREEDY)
            too_late.cancel()
            assert not gate.is_open()
            gate.open()
    finally:
        signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize("n_prompts", [1, 2])
def test_an_interrupt_cancels_what_a_shell_holds_with_the_traceback(n_prompts, monkeypatch):
    with endless_engine() as engine:
        put = engine._worker._engine_thread.put

        def interrupted(work):
            put(work)
            if work.request.prompt[0] == n_prompts:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(engine._worker._engine_thread, "put", interrupted)
            with pytest.raises(KeyboardInterrupt) as held:
                engine.generate([[1], [2]][:n_prompts], **GREEDY)
        wait_until_idle(engine)
        assert held.tb is not None


def test_waiting_on_the_engine_s_own_thread_is_an_error_and_no_hang(monkeypatch):
    errors, block = [], Channel.block

    def checked(channel, wakers, *end):
        assert threading.current_thread().name != "augury-engine", "it waits for itself"
        block(channel, wakers, *end)

    monkeypatch.setattr(Channel, "block", checked)

    def watch(**seen):
        if errors:
            return
        running = engine.submit([1], max_tokens=2, **GREEDY)  # which is allowed
        held.append(running)
        for call in (
            lambda: engine.generate([1]),
            lambda: engine.evaluate([1]),
            lambda: next(engine.stream([1])),
            lambda: engine.submit([1]).result(),
            lambda: run(running._finished()),
        ):
            with pytest.raises(AuguryError, match="would wait for ever") as caught:
                call()
            errors.append(caught.value)

    held = []
    with toy_engine(observers=(watch, None)) as engine:
        assert list(engine.generate([1], max_tokens=5, **GREEDY).tokens) == plain([1], 5)
        assert len(errors) == 5
        assert held[0].result().finish_reason == "cancelled"
        wait_until_idle(engine)
