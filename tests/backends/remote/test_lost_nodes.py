"""Nodes that go: their requests wait, and go on to the same text when they are back, or end with one error."""

import signal
import threading
from contextlib import suppress
from time import monotonic

import pytest
from oracles.models import tiny_model
from support.nodes import NodeOnThread, NodeProcess

from augury import Engine, Placement, Registry
from augury.backends.remote import connection
from augury.backends.remote.model import RemoteModel
from augury.engine import loop
from augury.errors import AuguryError

REGISTRY = Registry.discover()
PROMPT = [3, 1, 4, 1, 5, 3, 1, 4, 1]
HOW = {"n_ctx": 128, "threads": 1, "registry": REGISTRY}


@pytest.fixture
def node():
    made = NodeOnThread(registry=REGISTRY)
    yield made
    made.stop()


def load(name, devices=None, **how):
    return Engine.load(tiny_model(name), placement=Placement(devices), **HOW, **how)


def texts(engine, disturb=lambda _: None):
    """Two sampled texts and a greedy one; `disturb` is called with the number of each of the last one's tokens."""
    others = engine.submit(PROMPT, n=2, temperature=0.9, seed=5, max_tokens=40)
    greedy = []
    for piece in engine.submit([*PROMPT, 7], temperature=0, max_tokens=40):
        disturb(len(greedy))
        greedy.append(piece.token)
    return [*(each.result().tokens for each in others), tuple(greedy)]


def answer_in_the_end(engine, n):
    """The answer of a request after others, if need be, that a node has not been back for in time."""
    end = monotonic() + 60
    while monotonic() < end:
        with suppress(AuguryError):
            return engine.generate(PROMPT, temperature=0, max_tokens=n).tokens
    raise AssertionError("the node is not back")


@pytest.mark.parametrize("spec_type", ["none", "suffix"])
@pytest.mark.parametrize(
    ("name", "places"), [("llama-dense", "CPU,{},CPU"), ("qwen35-dense", "CPU,{},CPU"), ("llama-dense", "{}")]
)
def test_texts_go_on_to_the_bit_when_a_node_is_back(node, name, places, spec_type):
    with load(name, spec_type=spec_type, slots=3) as engine:
        right = texts(engine)

    def disturb(n):
        if n in (3, 20):
            node.stop()
            node.start()

    with load(name, places.format(f"node:{node.address}"), spec_type=spec_type, slots=3) as engine:
        assert texts(engine, disturb) == right
        assert texts(engine) == right, "slots that were lost are not taken for those of the same text"


def test_requests_end_with_one_error_if_it_stays_away_and_later_ones_are_answered(node):
    with load("llama-dense", f"CPU,node:{node.address},CPU", spec_type="none", lost_timeout=0.3, slots=2) as engine:
        right = engine.generate(PROMPT, temperature=0, max_tokens=8).tokens
        node.stop()
        running = [engine.submit([*PROMPT, i], temperature=0, max_tokens=8) for i in range(3)]
        for each in running:
            with pytest.raises(AuguryError, match=r"a device did not come back within 0.3 s \(lost_timeout\): start it again"):
                each.result()
        cancelled = engine.submit(PROMPT, max_tokens=8)
        cancelled.cancel()
        node.start()
        assert answer_in_the_end(engine, 8) == right


@pytest.mark.parametrize("name", ["llama-dense", "qwen35-dense"])
def test_a_cancelled_request_neither_waits_for_a_node_nor_is_called_a_plugins_failure(node, name, monkeypatch, capsys):
    is_missed, regain = threading.Event(), RemoteModel.regain
    monkeypatch.setattr(RemoteModel, "regain", lambda *args: is_missed.set() or regain(*args))
    with load(name, f"CPU,node:{node.address},CPU", spec_type="none") as engine:
        engine.generate(PROMPT, max_tokens=1)
        node.stop()
        running = engine.submit([*PROMPT, 7], max_tokens=100)
        assert is_missed.wait(60)
        running.cancel()
        assert running.result().finish_reason == "cancelled"
        node.start()
        assert engine.generate(PROMPT, max_tokens=8).tokens
    assert "plugin failed" not in "".join(capsys.readouterr())


def test_a_node_that_is_back_as_another_one_is_not_taken(node, monkeypatch):
    now, regain = [1.0], RemoteModel.regain

    def regained(model, wait_s):
        try:
            return regain(model, wait_s)
        except AuguryError:
            now[0] += 60
            raise

    monkeypatch.setattr(loop, "monotonic", lambda: now[0])
    monkeypatch.setattr(RemoteModel, "regain", regained)
    with load("llama-dense", f"CPU,node:{node.address},CPU", spec_type="none") as engine:
        node.stop()
        node.start(backend="reference")
        with pytest.raises(AuguryError, match=r"within 60 s .*is back, but computes differently now"):
            engine.generate(PROMPT, max_tokens=8)


def test_an_evaluation_that_a_loss_interrupts_is_an_error_and_the_next_one_is_right(node):
    with load("llama-dense", f"CPU,node:{node.address},CPU", spec_type="none") as engine:
        right = engine.evaluate(PROMPT)
        node.stop()
        with pytest.raises(AuguryError, match="is gone"):
            engine.evaluate(PROMPT)
        node.start()
        engine.generate(PROMPT, max_tokens=1)
        assert (engine.evaluate(PROMPT) == right).all()


def test_a_silent_node_is_missed_within_four_seconds():
    assert connection._BEAT_MS + connection._SILENCE_MS < 4000


def test_a_node_that_is_killed_or_hangs_is_missed(monkeypatch):
    monkeypatch.setattr(connection, "_BEAT_MS", 100)
    node = NodeProcess()
    try:
        with load("llama-dense", f"CPU,node:{node.address},CPU", spec_type="none", lost_timeout=0) as engine:
            right = engine.generate(PROMPT, temperature=0, max_tokens=16).tokens
            node.send(signal.SIGSTOP)
            with pytest.raises(AuguryError, match="did not come back"):
                engine.generate(PROMPT, max_tokens=8)
            node.send(signal.SIGCONT)
            assert answer_in_the_end(engine, 16) == right
            node.send(signal.SIGSTOP)
            running = engine.submit(PROMPT, max_tokens=100)
            node.stop()
            with pytest.raises(AuguryError, match="did not come back"):
                running.result()
    finally:
        node.stop()
