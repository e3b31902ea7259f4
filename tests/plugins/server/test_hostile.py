"""Clients that mean harm, or make no sense: they are refused, or hung up on, and others notice nothing."""

import asyncio
import json
import re
import resource
import signal
import socket
import struct
import threading
import time
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import httpx
import pytest
import uvicorn
from hypothesis import given, strategies as st
from pydantic import ValidationError
from support.commands import here
from support.servers import serving, settled

from augury.engine.channel import Channel
from augury.engine.running import Running
from augury.errors import OptionError
from augury.plugins.server import embeddings, process
from augury.plugins.server.errors import RequestError
from augury.plugins.server.fields import EngineFields
from augury.plugins.server.generation import Generation
from augury.plugins.server.json_route import long_answer, pieces_of
from augury.plugins.server.llama_cpp import completion
from augury.plugins.server.llama_cpp.completion import CompletionFields, InfillRequest
from augury.plugins.server.openai.chat import ChatRequest
from augury.plugins.server.openai.completions import CompletionRequest
from augury.plugins.server.process import Connection
from augury.plugins.server.server import Server, ServerOptions
from augury.text.chat_template import ChatTemplate

JSON = {"Content-Type": "application/json"}
HALF = '"\\ud800"'  # of a surrogate pair, which no text has
HI = '"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1'
DEEP = "[" * 100_000


def tool(name, parameters="{}"):
    return f'"tools": [{{"type": "function", "function": {{"name": {name}, "parameters": {parameters}}}}}]'


def calling(arguments):
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return json.dumps([{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", DEEP),
        ("/v1/completions", f'{{"prompt": "Hi", {HALF}: 1}}'),
        ("/v1/completions", f'{{"prompt": {HALF}}}'),
        ("/v1/completions", '{"prompt": "Hi", "logit_bias": {"5": NaN}}'),
        ("/v1/completions", f'{{"prompt": "Hi", "seed": {"9" * 5000}}}'),
        ("/v1/completions", f'{{"prompt": "Hi", "stop": {json.dumps(["x"] * 129)}}}'),
        ("/v1/messages", f'{{{HI}, "stop_sequences": {json.dumps(["x"] * 129)}}}'),
        ("/v1/chat/completions", f"{{{HI}, {tool(HALF)}}}"),
        ("/v1/chat/completions", f'{{{HI}, "chat_template_kwargs": {{"x": Infinity}}}}'),
        ("/v1/responses", '{"input": "Hi", "tools": [{"type": "function", "name": "f", "x": NaN}]}'),
        ("/completion", f'{{"prompt": "Hi", "json_schema": "{DEEP}"}}'),
        ("/completion", f'{{"prompt": "Hi", "choice": "{DEEP}"}}'),
        ("/completion", '{"prompt": "Hi", "n_probs": 49152}'),
        ("/v1/embeddings", json.dumps({"input": [[1]] * 2049})),
        ("/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "Hi"}] * 16385})),
        ("/v1/responses", json.dumps({"input": [{"role": "user", "content": "Hi"}] * 16385})),
        *((path, json.dumps({"prompt": [[1]] * 2049})) for path in ("/v1/completions", "/completion")),
        ("/embedding", json.dumps({"content": [[1] * 500] * 20, "pooling": "none"})),
    ],
)
def test_what_is_no_sense_is_refused_and_leaves_no_trace(server, path, body):
    n_before = len(server.output)
    answer = server.client.post(path, content=body, headers=JSON)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]
    assert "Traceback" not in server.output[n_before:]


@pytest.mark.parametrize("arguments", ["[" * 200, '{"x": NaN}', f'{{"x": {HALF}}}', "{", "[]"])
def test_arguments_that_some_model_has_written_wrong_are_taken_as_text(server, arguments):
    answer = server.client.post(
        "/v1/chat/completions", content=f'{{"messages": {calling(arguments)}, "max_tokens": 1}}', headers=JSON
    )
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        (CompletionRequest, {"prompt": [None] * 9999}),
        (CompletionRequest, {"prompt": [[None]] * 9999}),
        (ChatRequest, {"messages": [{}] * 9999}),
        (EngineFields, dict.fromkeys(map(str, range(9999)), 1)),
        (InfillRequest, {"input_prefix": "", "input_suffix": "", "logit_bias": dict.fromkeys(map(str, range(9999)), "x")}),
    ],
)
def test_of_millions_of_errors_few_are_kept(fields, body):
    with pytest.raises(ValidationError) as raised:
        fields.model_validate(body)
    assert raised.value.error_count() < 20


@pytest.fixture(scope="module")
def hasty_server():
    """A tiny model, and no more than a second for anything."""
    with serving(*here(), "-c", 4096, "-np", 1, "--timeout", 1) as found:
        yield found


def heard(server, *parts):
    """What is answered to these bytes, up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=60) as found:
        for part in parts:
            found.sendall(part)
        answer = b""
        while data := found.recv(65536):
            answer += data
    return answer


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 40\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n"


def test_a_client_that_does_not_go_on_is_hung_up_on(hasty_server):
    started = time.monotonic()
    assert heard(hasty_server) == heard(hasty_server, HEAD[:50]) == b""
    assert heard(hasty_server, HEALTH + b"\r\n", HEALTH).count(b"HTTP/1.1 200") == 1
    answer = heard(hasty_server, HEAD, b'{"prompt": ')
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"the body is not complete after 1 s" in answer
    parts = (part for part in (HEAD, *[b" "] * 39) if time.sleep(0.05) is None)  # it goes on, but slowly
    answer = heard(hasty_server, *parts)
    assert b"the body is not complete after 1 s" in answer
    assert time.monotonic() - started < 30


def test_a_client_that_goes_on_after_it_was_refused_is_cut_off(hasty_server):
    head = HEAD.replace(b"/v1/completions", b"/nowhere").replace(b": 40", b": 4000")
    with socket.create_connection(("127.0.0.1", int(hasty_server.url.rpartition(":")[2])), timeout=60) as found:
        found.sendall(head)
        assert found.recv(65536).startswith(b"HTTP/1.1 404")
        found.settimeout(0.05)
        answer, end = None, time.monotonic() + 30
        while answer != b"" and time.monotonic() < end:
            with suppress(TimeoutError):
                found.sendall(b" ")
                answer = found.recv(65536)
    assert answer == b""


def test_of_too_many_connections_those_end_that_wait_longest_for_a_request(server):
    """Among them clients that send a body byte by byte."""
    pid, before = server.process.pid, resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    n_most = 4 * server.n_descriptors + 60  # a third as many are left for its own, and for those that come at once
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (n_most * 4 // 3, before[1]))
    try:
        with ExitStack() as stack:
            dripping = [stack.enter_context(socket.create_connection(address)) for _ in range(3 * n_most)]
            for each in dripping:
                with suppress(OSError):
                    each.sendall(HEAD + b"{")
            started = time.monotonic()
            assert httpx.get(f"{server.url}/health").status_code == 200
            assert time.monotonic() - started < 10
            assert "out of system resource" not in server.output
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_of_connections_one_too_many_is_refused_where_all_others_are_being_answered(monkeypatch):
    async def talk():
        import uvicorn
        from uvicorn.server import ServerState

        state, wires = ServerState(), [Wire() for _ in range(4)]
        limits = {"head_s": 1000, "body_s": 1000, "read_s": 1000}
        connections = [Connection(uvicorn.Config(lambda: None, log_config=None), state, {}, **limits) for _ in wires]
        monkeypatch.setattr(process, "most_connections", lambda: 2)
        for each, wire in zip(connections[:2], wires, strict=False):
            each.connection_made(wire)
        connections[0]._stop_waiting("head")  # of a request that is complete
        connections[2].connection_made(wires[2])
        assert [wire.is_aborted for wire in wires] == [False, True, False, False]
        connections[2]._stop_waiting("head")
        connections[3].connection_made(wires[3])
        return wires

    wires = asyncio.run(talk())
    assert [wire.is_aborted for wire in wires] == [False, True, False, False]
    assert [wire.written[:12] for wire in wires] == [b"", b"", b"", b"HTTP/1.1 503"]
    assert wires[3].is_closed


def test_a_text_that_cannot_fit_costs_next_to_nothing(server):
    text = "The quick brown fox jumps. " * 300_000  # 8 MB, encoded in 2 GB and 20 s
    before, started = server.n_resident_bytes, time.monotonic()
    for path, body in (
        ("/v1/completions", {"prompt": text}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
        ("/v1/embeddings", {"input": [text]}),
        ("/completion", {"prompt": text}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": text}]}),
        ("/infill", {"input_prefix": text, "input_suffix": ""}),
        ("/tokenize", {"content": text}),
    ):
        answer = server.client.post(path, json=body)
        assert answer.status_code == 400
        assert re.search(
            "at least 1[0-9]+ tokens, which exceeds the available context size of 512|characters of text, expected 1048576",
            answer.text,
        )
    assert server.n_resident_bytes < before + (300 << 20)
    assert time.monotonic() - started < 30
    assert server.client.post("/tokenize", json={"content": "a " * 1000}).status_code == 200


def test_answers_on_one_connection_follow_each_other_at_once(server):
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as found:
        seconds = []
        for _ in range(15):
            started = time.perf_counter()
            found.sendall(HEALTH + b"\r\n")
            answer = b""
            while b'{"status":"ok"}' not in answer:
                answer += found.recv(65536)
            seconds.append(time.perf_counter() - started)
    assert sorted(seconds)[7] < 0.02  # an answer in two parts waits 40 ms for an acknowledgement where small ones are held back


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", b"400"),
        (b"".join(b"X-%d: %s\r\n" % (i, b"a" * 50) for i in range(1500)), b"431"),
        (b"".join(b"X-%d: %s\r\n" % (i, b"a" * 50) for i in range(900)), b"200"),
    ],
)
def test_a_head_that_is_ambiguous_or_too_large_is_refused_and_the_connection_closed(server, lines, status):
    close = b"Connection: close\r\n" if status == b"200" else b""
    body = b"2\r\n{}\r\n0\r\n\r\n" if b"chunked" in lines else b""
    answer = heard(server, HEALTH + close + lines + b"\r\n" + body + HEALTH + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.count(b"HTTP/1.1") == 1


def test_requests_that_come_together_are_all_answered(server):
    body = b'{"prompt": [1, 2], "max_tokens": 2     }'
    both = heard(server, HEALTH + b"\r\n" + HEAD + body + HEALTH + b"Connection: close\r\n\r\n")
    assert both.count(b"HTTP/1.1 200") == 3


def test_clients_that_vanish_leave_nothing_behind(hasty_server):
    n_before = hasty_server.n_descriptors
    for part in (b"", HEAD, HEAD + b'{"prompt": [1, 2]', HEAD + b'{"prompt": [1, 2], "max_tokens": 4000   }') * 10:
        with socket.create_connection(("127.0.0.1", int(hasty_server.url.rpartition(":")[2]))) as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # by a reset
            found.sendall(part)
    assert hasty_server.client.get("/health").status_code == 200
    assert settled(lambda: hasty_server.n_descriptors, n_before) <= n_before
    assert "Traceback" not in hasty_server.output


class Wire:
    """A transport that keeps what is done with it."""

    def __init__(self):
        self.is_aborted = self.is_closed = False
        self.written = b""

    def write(self, data):
        self.written += data

    def close(self):
        self.is_closed = True

    def abort(self):
        self.is_aborted = True

    def get_extra_info(self, name):
        return None


def test_a_client_that_does_not_read_is_hung_up_on():
    async def talk():
        import uvicorn
        from uvicorn.server import ServerState

        config = uvicorn.Config(lambda: None, log_config=None)
        wires = [Wire(), Wire()]
        for wire in wires:
            connection = Connection(config, ServerState(), {}, head_s=1000, body_s=1000, read_s=0)
            connection.connection_made(wire)
            connection.pause_writing()
            if wire is wires[1]:
                connection.resume_writing()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        connection.connection_lost(ConnectionResetError())
        return [wire.is_aborted for wire in wires]

    assert asyncio.run(talk()) == [True, False]


@pytest.mark.parametrize("timeout_s", [60, 0])
def test_embeddings_end_with_the_client_or_the_time(timeout_s):
    async def ask():
        has_begun, has_ended = asyncio.Event(), asyncio.Event()

        async def receive():
            await (asyncio.Event() if timeout_s == 0 else has_begun).wait()
            return {"type": "http.disconnect"}

        async def aembed(texts, **how):
            has_begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                has_ended.set()

        server = Server(ServerOptions(timeout_s=timeout_s), lambda _: None)
        server._engine = SimpleNamespace(config={"n_slots": 2, "n_ctx": 8}, aembed=aembed)
        with pytest.raises(RequestError) as raised:
            await embeddings._embed(server, SimpleNamespace(receive=receive), [[1]] * 9, pooling=None, normalize=True)
        await asyncio.sleep(0)
        return raised.value.status_code, has_begun.is_set(), has_ended.is_set()

    status, has_begun, has_ended = asyncio.run(ask())
    assert status == 504
    assert has_ended == has_begun  # what never began has nothing to end
    assert has_begun or timeout_s == 0


@pytest.mark.parametrize("way", ["whole", "one", "several"])
def test_the_time_is_up_also_where_a_plugin_s_call_never_returns(way):
    async def ask():
        channels = [Channel() for _ in range(2 if way == "several" else 1)]
        worker = SimpleNamespace(wait_async=lambda channel: channel.sleep(channel.waiters), check_may_wait=lambda: None)
        server = Server(ServerOptions(timeout_s=0.05), lambda _: None)
        runnings = [Running(channel, worker, "x") for channel in channels]
        generation = Generation(server, runnings, None, None, {})
        asked = (
            generation.results(SimpleNamespace(receive=asyncio.Event().wait)) if way == "whole" else anext(generation.pieces())
        )
        with pytest.raises(RequestError) as raised:
            await asked
        return raised.value.status_code, all(channel.cancels for channel in channels)

    assert asyncio.run(asyncio.wait_for(ask(), 10)) == (504, True)


def test_a_third_signal_ends_the_process_where_nothing_else_can(monkeypatch):
    ends = []
    monkeypatch.setattr(process.os, "_exit", ends.append)
    ending = process._process(SimpleNamespace(), uvicorn.Config(None))
    for _ in range(3):
        assert not ends
        ending.handle_exit(signal.SIGTERM, None)
    assert ends == [143]


@pytest.mark.parametrize("where", ["body", "message"])
def test_objects_of_too_many_fields_are_not_looked_into(client, where):
    many = dict.fromkeys(map(str, range(300)), 1)
    answer = client.post("/v1/chat/completions", json=many if where == "body" else {"messages": [many]})
    assert answer.status_code == 400
    assert "300 fields, expected 256 at most" in answer.text


@pytest.mark.parametrize("many", [dict.fromkeys(map(str, range(300_000))), [[]] * 300_000], ids=["keys", "lists"])
def test_bodies_of_too_many_parts_are_not_looked_into(client, many):
    answer = client.post("/v1/chat/completions", json={"messages": [], "tools": [many]})
    assert answer.status_code == 400
    assert "colons and brackets, expected 262144 at most" in answer.text


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_an_answer_in_pieces_is_the_same_json(value):
    assert json.loads("".join(pieces_of(value))) == value
    assert json.loads("".join(pieces_of({"a": [iter([value, 1])], "b": iter([])}))) == {"a": [[value, 1]], "b": []}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/completion", {"prompt": "a", "n_probs": 2}),
        ("/v1/completions", {"prompt": "a", "logprobs": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "logprobs": True}),
    ],
)
def test_alternatives_are_told_in_parts(client, path, fields):
    with client.stream("POST", path, json=fields | {"max_tokens": 2}) as answer:
        assert answer.status_code == 200
        assert "content-length" not in answer.headers  # which is known of what is written at once, on the event loop
        assert json.loads(answer.read())


def test_long_answers_are_written_in_parts_beside_the_event_loop():
    threads = set()

    def pieces():
        for piece in ("[", *["1," * 10_000] * 10, "1]"):
            threads.add(threading.current_thread())
            yield piece

    async def ask():
        return [part async for part in long_answer(pieces()).body_iterator]

    parts = asyncio.run(ask())
    assert json.loads("".join(parts)) == [1] * 100_001
    assert max(map(len, parts)) < 100_000
    assert threading.main_thread() not in threads


def test_texts_of_biases_do_not_hold_up_the_event_loop():
    threads = []

    class Tokenizer:
        def encode(self, text, **how):
            threads.append(threading.current_thread())
            raise OptionError("enough")

    server = SimpleNamespace(engine=SimpleNamespace(tokenizer=Tokenizer()))
    body = CompletionFields(logit_bias=[["a", 1]])
    with pytest.raises(OptionError, match="enough"):
        asyncio.run(completion.answer(body, [[1]], None, server, is_list=False))
    assert threads != [threading.main_thread()]


def test_a_template_that_fails_with_some_messages_alone_is_not_broken():
    template = ChatTemplate(
        "{% for m in messages %}{{ m.content + '' }}{{ (m.tool_calls or []) | tojson }}{% endfor %}{{ (x or 1) / 1 }}"
    )
    with pytest.raises(OptionError, match=r"fails: TypeError.* so check messages, tools and chat_template_kwargs"):
        template.render([{"role": "user", "content": "Hi"}], kwargs={"x": "a"})
