"""What a node does with messages that are none: it ends the connection's model, and serves the others."""

import json
import threading
from contextlib import closing
from time import monotonic

import numpy as np
import pytest
import zmq
from attrs import evolve
from hypothesis import given, strategies as st
from oracles.models import tiny_model
from oracles.passes import run_of
from support.nodes import node_on_thread

from augury import Registry
from augury.backends.remote import RemoteBackend, RemoteOptions, connection as connection_module
from augury.backends.remote.backend import hello, request_of, versions
from augury.backends.remote.connection import Connection, Endpoint
from augury.backends.remote.wire import Message, WireError
from augury.errors import LostDeviceError, UnsupportedError
from augury.files.models import open_model
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()
OPTIONS = ModelOptions(n_slots=2, n_ctx=32, threads=1, draft_max=4)
PASS = {"n_passes": 1, "n_first": 0, "n_top": 0, "normalizers": False, "layers": None, "features": [], "part": "main"}


def whole_numbers(*values):
    return np.array(values, np.int32)


@pytest.fixture(scope="module")
def node():
    with node_on_thread(registry=REGISTRY) as made:
        yield made


@pytest.fixture(scope="module")
def talk(node):
    """Send a frame, or several, to a node, by a socket of its own; what it answers."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(f"tcp://{node.address}")

    def asked(*frames):
        socket.send_multipart(frames)
        while (answer := Message.of(socket.recv_multipart())).kind == "there":
            pass
        return answer

    yield asked
    context.destroy(linger=0)


def load_message():
    file = open_model(tiny_model("llama-dense"), REGISTRY, Progress())
    return request_of("load", file, plan_of(file, REGISTRY), OPTIONS)


def test_a_node_is_asked_for_no_adapters():
    file = open_model(tiny_model("llama-dense"), REGISTRY, Progress())
    with pytest.raises(UnsupportedError, match="nodes compute no adapters; load the model without them"):
        request_of("load", file, evolve(plan_of(file, REGISTRY), n_adapters=1), OPTIONS)


def batch(**arrays):
    one = {name: whole_numbers(0) for name in ("tokens", "slots", "positions", "rows")}
    return one | arrays


def test_messages_survive_the_way():
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros((0, 4), bool), "c": np.int32([[7]])}
    again = Message.of([Message("forward", {"n": 1, "x": None}, arrays).frame()])
    assert (again.kind, again.facts) == ("forward", {"n": 1, "x": None})
    assert all(
        np.array_equal(again.arrays[name], array) and again.arrays[name].dtype == array.dtype for name, array in arrays.items()
    )


def framed(header, arrays=b""):
    header += b" " * (-(4 + len(header)) % 8)
    return len(header).to_bytes(4, "little") + header + arrays


HEADERS = {
    "no JSON": b"{",
    "deep": b"[" * 100_000,
    "a list": b"[]",
    "no kind": json.dumps({"facts": {}, "arrays": []}).encode(),
    "facts that are none": json.dumps({"kind": "hello", "facts": [], "arrays": []}).encode(),
    "an array that is missing": json.dumps({"kind": "hello", "facts": {}, "arrays": [["a", "f4", [1]]]}).encode(),
    "not text": b"\xff\xfe",
    "long": b" " * (1 << 20) + b"{}",
}


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_that_is_none_is_refused(header):
    with pytest.raises(WireError):
        Message.of([framed(HEADERS[header])])


@pytest.mark.parametrize(
    ("dtype", "shape", "n"), [("O", [1], 8), ("f4", [-1], 4), ("f4", [2**40, 2**40], 4), ("f4", [2], 4), ("f4", [True], 4)]
)
def test_an_array_that_is_none_is_refused(dtype, shape, n):
    header = json.dumps({"kind": "x", "facts": {}, "arrays": [["a", dtype, shape]]}).encode()
    with pytest.raises(WireError):
        Message.of([framed(header, b"\0" * n)])


BAD_PASSES = {
    "rows beyond": batch(rows=whole_numbers(1)),
    "rows that fall": batch(rows=whole_numbers(0, 0)),
    "no slots": {name: array for name, array in batch().items() if name != "slots"},
    "slots of another length": batch(slots=whole_numbers(0, 0)),
    "tokens of floats": batch(tokens=np.float32([0])),
    "restores beyond": batch(restores=whole_numbers(2)),
    "saves below": batch(saves=np.int32([[-1, 0]])),
    "saves beyond": batch(saves=np.int32([[0, 2]])),
    "vocabulary beyond": batch(vocabulary=whole_numbers(1, 4096)),
    "hidden of a row": batch(hidden=np.zeros(4, np.float32)),
}


@pytest.mark.parametrize("bad", BAD_PASSES)
def test_a_pass_that_breaks_the_format_ends_the_connection_s_layers(talk, bad):
    assert talk(load_message().frame()).kind == "done"
    assert talk(Message("forward", PASS, batch()).frame()).arrays["argmax"].shape == (1,)
    answer = talk(Message("forward", PASS, BAD_PASSES[bad]).frame())
    assert answer.facts["error"] == "WireError"
    assert "load some first" in talk(Message("forward", PASS, batch()).frame()).facts["text"]


CHECKED_BY_THE_MODEL = {
    "a token": batch(tokens=whole_numbers(4096)),
    "a slot": batch(slots=whole_numbers(2)),
    "a position": batch(positions=whole_numbers(32)),
    "a move": batch(accepted=np.int32([[0, 99, 0]])),
    "a tree": batch(parents=whole_numbers(3)),
}


def test_a_pass_that_the_model_refuses_is_an_error_and_no_more(talk):
    talk(load_message().frame())
    for bad in CHECKED_BY_THE_MODEL.values():
        assert talk(Message("forward", PASS, bad).frame()).facts["error"] in {"CapacityError", "OptionError"}
    assert talk(Message("forward", PASS, batch()).frame()).kind == "done"


@given(st.data())
def test_noise_ends_nobody_s_layers_but_its_own(node, talk, data):
    text = load_message() if data.draw(st.booleans()) else Message("forward", PASS, batch())
    frame = bytearray(text.frame())
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from([0, 2, 8, len(frame) - 8, len(frame)]))
    frames = [frame[:end]] if data.draw(st.booleans()) else [frame[:end], frame[end:]]
    assert talk(*frames).kind in {"done", "error"}
    assert hello(Endpoint(node.address)).text("backend") == "numba-cpu"


def test_a_node_that_is_there_is_waited_for_however_busy_it_is(node, monkeypatch):
    question, receive, may_answer = Message("hello", {"versions": versions()}), Connection.receive, threading.Event()

    def received(own, timeout_s=None):
        answer = receive(own, timeout_s)
        may_answer.set()
        return answer

    with closing(Endpoint(node.address).connect()) as connection:
        connection.ask(question)
        monkeypatch.setattr(connection_module, "_CONNECT_S", 0.0)
        monkeypatch.setattr(Connection, "receive", received)
        monkeypatch.setattr(node, "_handler", lambda _: lambda *_: (may_answer.wait(60), ({"n": 1}, {}))[1])
        assert connection.ask(question).whole("n") == 1


def test_layers_of_a_connection_that_has_ended_are_closed(node):
    file = open_model(tiny_model("llama-dense"), REGISTRY, Progress())
    before = len(node._loaded)
    model = RemoteBackend(RemoteOptions(node.address)).load(file, plan_of(file, REGISTRY), OPTIONS, Progress())
    assert len(node._loaded) == before + 1
    model.close()
    with pytest.raises(LostDeviceError):
        model.forward(run_of([1]))
    end = monotonic() + 60
    while len(node._loaded) > before and monotonic() < end:
        hello(Endpoint(node.address))
    assert len(node._loaded) == before
    assert versions()["augury"]
