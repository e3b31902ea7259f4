"""What holds for every endpoint: keys, limits, origins, the form of errors, the life of the process."""

import asyncio
import gzip
import http.client
import json
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata

import httpx
import pytest
from support.commands import here, run
from support.servers import serving

from augury import extras
from augury.errors import AuguryError
from augury.extras import install_command
from augury.plugins.server.app import make_app
from augury.plugins.server.models import Models
from augury.plugins.server.server import Server, ServerOptions

KEY = {"Authorization": "Bearer two"}
ENDLESS = {"prompt": [1, 2, 3], "max_tokens": 4000, "ignore_eos": True, "logprobs": 0}
SHORT = {"prompt": [1, 2, 3], "max_tokens": 2}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/nothing", {"error": {"type": "not_found_error", "param": None, "code": None}}),
        ("/nothing", {"error": {"type": "not_found_error", "code": 404}}),
        ("/v1/messages/nothing", {"type": "error", "error": {"type": "not_found_error"}}),
    ],
)
def test_each_family_has_its_own_form_of_errors(client, path, body):
    answer = client.get(path)
    body["error"]["message"] = f"there is no path {path!r}; /docs lists what there is"
    assert (answer.status_code, answer.json()) == (404, body)


def test_a_method_that_a_path_does_not_take_is_named(client):
    answer = client.get("/v1/chat/completions")
    assert answer.status_code == 405
    assert "there is no GET of '/v1/chat/completions'" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "told", "param"),
    [
        ({"prompt": "a", "max_tokns": 5}, "there is no field 'max_tokns' here; did you mean 'max_tokens'?", "max_tokns"),
        ({"prompt": "a", "n_predikt": 5}, "did you mean 'n_predict'?", "n_predikt"),
        ({"prompt": "a", "chat_template": "{{ 1 }}"}, "did you mean the server's flag --chat-template-file, or 'c", None),
        ({"prompt": "a", "functions": []}, "there is no field 'functions' here; did you mean 'tools' in a chat?", "functions"),
        ({"prompt": "a", "structured_outputs": "a"}, "structured_outputs is 'a', expected an object", None),
        ({"prompt": "a", "structured_outputs": {"structural_tag": "a"}}, "has 'structural_tag', expected json, json_obj", None),
        ({"prompt": "a", "guided_regex": "a", "regex": "b"}, "guided_regex and regex both say how the output is", None),
        ({"prompt": "a", "num_ctx": "a"}, "num_ctx is 'a', which augury does not do; leave it out", None),
        ({"prompt": "a", "zzz": 5}, "there is no field 'zzz' here; leave it out", "zzz"),
        ({"prompt": "a", "max_tokens": 5, "n_predict": 6}, "max_tokens and n_predict mean the same here, but differ", None),
        ({}, "prompt is missing", "prompt"),
        ({"prompt": None}, "prompt is missing", "prompt"),
        ({"prompt": "a", "temperature": "hot"}, "temperature is 'hot', expected a number", "temperature"),
        ({"prompt": "a", "temperature": [1]}, "temperature is a list, expected a number", "temperature"),
        ({"prompt": "a", "top_p": 2}, "top_p is 2, expected at most 1", "top_p"),
        ({"prompt": "a", "temperature": -1}, "temperature is -1, expected at least 0", "temperature"),
        ({"prompt": "a", "seed": True}, "seed is true, expected a whole number", "seed"),
        ({"prompt": "a", "max_tokens": 2.5}, "max_tokens is 2.5, expected a whole number", "max_tokens"),
        ({"prompt": "a", "stop": 5}, "stop is 5, expected a text or a list", "stop"),
        ({"prompt": "a", "stop": ["b", 5]}, "stop.1 is 5, expected a text", "stop.1"),
        ({"prompt": "a", "stop": ["b"] * 129}, "stop has 129 items, expected at most 128", "stop"),
        ({"prompt": "a", "speculative": "no"}, "speculative is 'no', expected true or false or an object", "speculative"),
        ({"prompt": "a", "speculative": 1.0}, "speculative is 1.0, expected true or false or an object", "speculative"),
        ({"prompt": "a", "speculative": {"type": "nobody"}}, "nobody", None),
        ({"prompt": "a", "speculative": False, "speculative.n_max": 2}, "speculative.n_max is given as well", None),
        ({"prompt": "a b " * 600}, "exceeds the available context size of 512", None),
        ([], "not a JSON object", None),
    ],
)
def test_what_is_wrong_with_a_request_is_named(client, body, told, param):
    answer = client.post("/v1/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert told in error["message"]
    assert error["param"] == param or param is None


@pytest.mark.parametrize("sent", [{"guided_choice": ["a"]}, {"truncation": "auto"}, {"tfs_z": 1}, {"functions": []}], ids=str)
def test_strict_fields_refuse_what_other_servers_alone_have(strict_server, sent):
    answer = strict_server.client.post("/v1/completions", json={"prompt": [1], **sent}, headers={"x-api-key": "one"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(sent)))
    assert "which --strict-fields refuses" in answer.json()["error"]["message"]


def test_strict_fields_take_what_is_ignored_and_what_a_form_has_itself(strict_server):
    headers, asked = {"x-api-key": "one"}, {"prompt": [1], "n_predict": 1, "n_probs": 0, "user": "me", "lora": []}
    assert strict_server.client.post("/completion", json=asked, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("content", "kind"), [(b"{", "application/json"), (b'{"prompt": "a"}', "text/plain"), (b"\xff", "application/json")]
)
def test_what_is_no_json_is_refused(client, content, kind):
    answer = client.post("/v1/completions", content=content, headers={"Content-Type": kind})
    assert answer.status_code == 400
    assert "body" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", SHORT),
        ("/v1/messages", {"model": "any", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}),
        ("/completion", {"prompt": "a", "n_predict": 2}),
    ],
)
def test_a_compressed_body_is_refused_and_one_that_says_that_it_is_not_is_read(client, path, body):
    content, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    answer = client.post(path, content=gzip.compress(content), headers={**headers, "Content-Encoding": "GZip"})
    assert (answer.status_code, answer.headers["Accept-Encoding"]) == (415, "identity")
    assert answer.json()["error"]["message"] == "the body is compressed (Content-Encoding: 'GZip'); send it as it is"
    assert client.post(path, content=content, headers={**headers, "Content-Encoding": "identity"}).status_code == 200


def test_what_is_wrong_in_one_of_several_forms_is_named(client):
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    answer = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": [picture]}]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "messages.0.content.0.type")
    assert (
        error["message"]
        == "messages.0.content.0.type is 'image_url', expected 'text' or 'refusal'; models here read text alone"
    )


def test_a_whole_number_may_be_written_with_a_point(client):
    asked = {"prompt": [504.0, 3726], "seed": 1.0, "speculative": {"n_max": 2.0}, "id_slot": 1.0}
    points = client.post("/v1/completions", json={"max_tokens": 3.0, **asked}).json()
    assert points["usage"]["completion_tokens"] == 3
    assert points["speculation"]["effective"]["n_max"] == 2
    asked = {"prompt": [504, 3726], "seed": 1, "id_slot": 1}
    plain = client.post("/v1/completions", json={"max_tokens": 3, **asked}).json()
    assert plain["choices"] == points["choices"]


USER = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/completion", {"prompt": "The sea"}),
        ("/infill", {"input_prefix": "The ", "input_suffix": " is"}),
        ("/v1/completions", {"prompt": "The sea"}),
        ("/v1/chat/completions", {"messages": USER}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/messages", {"messages": USER}),
        ("/api/generate", {"prompt": "Hi"}),
        ("/api/chat", {"messages": USER}),
    ],
)
def test_every_request_may_bound_its_drafts_and_have_a_negative_seed(client, path, fields):
    limit = {"/v1/responses": "max_output_tokens"}.get(path, "max_tokens")
    more = {"speculative": {"n_max": 4, "n_min": 0, "p_min": 0.75}, "seed": -42, "temperature": 3.0, limit: 6}
    more = {"stream": False, "options": more} if path.startswith("/api") else more
    answers = [client.post(path, json={"model": "smollm2", **fields, **more}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
    first, second = (re.findall(r'"(?:content|text|response)":"(.*?)"[,}]', answer.text) for answer in answers)
    assert first == second
    assert any(first)


def test_a_limit_may_have_both_of_its_names(client):
    limits = {"max_tokens": 3, "n_predict": 3}
    assert client.post("/v1/completions", json={"prompt": "The sea", **limits}).json()["usage"]["completion_tokens"] == 3
    assert client.post("/completion", json={"prompt": "The sea", **limits}).json()["tokens_predicted"] == 3


def test_what_openais_clients_send_without_a_meaning_here_is_ignored(client):
    more = {"user": "someone", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}
    assert client.post("/v1/completions", json={"prompt": "The sea", "max_tokens": 1, **more}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/openapi.json", "/nothing"])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer three"}, {"Authorization": "two"}, {"x-api-key": "on"}])
def test_nobody_without_a_key_is_served(strict_server, path, headers):
    answer = strict_server.client.get(path, headers=headers)
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    told = answer.json()["error"]["message"]
    assert told.endswith("is missing or unknown; send it as Authorization: Bearer KEY, or as x-api-key: KEY")


@pytest.mark.parametrize("headers", [KEY, {"x-api-key": "one"}, {"Authorization": "bearer one"}])
def test_every_key_opens(strict_server, headers):
    assert strict_server.client.get("/v1/models", headers=headers).status_code == 200


def test_health_needs_no_key(strict_server):
    assert strict_server.client.get("/health").json() == {"status": "ok"}


def test_a_server_tells_its_version_and_that_it_is_there(client):
    assert client.get("/version").json() == {"version": metadata.version("augury")}
    assert client.get("/ping").json() == client.post("/ping").json() == {"status": "ok"}


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/"])
def test_monitors_may_ask_without_a_body(client, path):
    answer = client.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert int(answer.headers["Content-Length"]) == len(client.get(path).content)


def test_requests_are_logged_where_the_log_is_wanted(server, strict_server):
    server.client.get("/health")
    strict_server.client.get("/health")
    assert strict_server.wait_for('"GET /health HTTP/1.1" 200')
    assert "GET /health" not in server.output


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_that_is_too_large_is_refused(strict_server, is_chunked):
    content = b" " * (1 << 20) + b"{}"
    sent = (content[i : i + 65536] for i in range(0, len(content), 65536)) if is_chunked else content
    with httpx.Client(base_url=strict_server.url) as client:
        answer = client.post("/v1/completions", content=sent, headers={**KEY, "Content-Type": "application/json"})
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("https://page.example", "https://page.example"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("https://other.example", None),
        ("https://localhost.other.example", None),
    ],
)
def test_only_named_origins_may_ask(strict_server, origin, allowed):
    preflight = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for answer in (
        strict_server.client.options("/v1/completions", headers=preflight),
        strict_server.client.get("/v1/models", headers={"Origin": origin}),  # the refusal, too, can be read there
    ):
        assert answer.headers.get("Access-Control-Allow-Origin") == allowed
        assert "Access-Control-Allow-Credentials" not in answer.headers


def test_no_origin_may_ask_unless_one_is_named(client):
    assert "Access-Control-Allow-Origin" not in client.get("/health", headers={"Origin": "http://localhost"}).headers


def test_a_server_listens_on_several_addresses_and_ends_a_request_when_its_time_is_up():
    words = "-c 4096 -np 2 --timeout 1 --host 127.0.0.1,127.0.0.2"
    with serving(*here(), *words.split()) as server, ThreadPoolExecutor() as pool:
        port = int(server.url.rpartition(":")[2])
        assert f"listens on http://127.0.0.1:{port} and http://127.0.0.2:{port} and loads" in server.output
        for address in ("127.0.0.1", "127.0.0.2"):
            assert httpx.get(f"http://{address}:{port}/health").json() == {"status": "ok"}
        bodies = [ENDLESS, {**ENDLESS, "stream": True}]
        answer, streamed = pool.map(lambda body: server.client.post("/v1/completions", json=body), bodies)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
        assert answer.headers["x-should-retry"] == "false"
        *_, last = streamed.text.strip().split("\n\n")
        assert '"code":"timeout"' in last


def test_requests_beyond_the_queue_are_told_to_come_later(strict_server):
    body = {**ENDLESS, "stream": True}
    with httpx.Client(base_url=strict_server.url, headers=KEY) as client:
        with client.stream("POST", "/v1/completions", json=body), client.stream("POST", "/v1/completions", json=body):
            for path, asked in (("completions", SHORT), ("embeddings", {"input": [[1], [2, 3]]})):
                refused = client.post(f"/v1/{path}", json=asked)
                assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
                assert refused.json()["error"]["type"] == "rate_limit_error"
        while (answer := client.post("/v1/completions", json=SHORT)).status_code == 429:
            pass
        assert answer.status_code == 200


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_leaves_cancels_its_request(strict_server, is_streamed):
    n_before = len(strict_server.output)
    body = {**ENDLESS, "stream": is_streamed, "logprobs": None}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{strict_server.url}/v1/completions", json=body, headers=KEY, timeout=0.2)
    told = strict_server.wait_for("request done", after=n_before)
    assert int(told.split("emitted=")[1].split()[0]) < ENDLESS["max_tokens"]


@pytest.mark.parametrize(
    ("path", "fields", "sign"),
    [
        ("/completion", {"prompt": "The sea"}, [": ping"]),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}]}, ["event: ping", 'data: {"type":"ping"}']),
    ],
)
def test_a_stream_without_news_gives_a_sign_of_life(client, path, fields, sign):
    endless = {"prompt": "The sea", "stream": True, "ignore_eos": True, "context_shift": True, "id_slot": 3}
    waiting = {"max_tokens": 2, "stream": True, "id_slot": 3, "sse_ping_interval": 1}
    with client.stream("POST", "/completion", json=endless) as running:
        answer = running.iter_lines()
        next(answer)  # it has the slot
        with client.stream("POST", path, json=fields | waiting, timeout=60) as queued:
            lines = queued.iter_lines()
            assert [next(lines) for _ in sign] == sign


def test_the_events_of_a_round_are_sent_together(server):
    asked = {"messages": [{"role": "user", "content": "Count to nine."}], "max_tokens": 32, "ignore_eos": True}
    text = server.client.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"]["content"]
    foreseen = {
        "stream": True,
        "prediction": {"type": "content", "content": text},
        "speculative": {"type": "prediction", "n_max": 7},
    }
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    headers = {"Content-Type": "application/json", "Connection": "close"}
    connection.request("POST", "/v1/chat/completions", json.dumps(asked | foreseen), headers)
    answer = connection.getresponse()
    chunks, n = [], 1
    while n:  # as they are on the wire
        n = int(answer.fp.readline(), 16)
        chunks.append(answer.fp.read(n))
        answer.fp.readline()
    connection.close()
    events = [json.loads(line) for line in b"".join(chunks).decode().split("data: ") if line.startswith("{")]
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == text
    n_rounds = events[-1]["speculation"]["rounds"]
    assert len(chunks) <= n_rounds + 2  # the end of the answer, and that of the stream


def test_several_answers_that_do_not_all_find_room_leave_nothing_behind(strict_server):
    with httpx.Client(base_url=strict_server.url, headers=KEY) as client:
        assert client.post("/v1/completions", json={**SHORT, "n": 9}).status_code == 429
        while (answer := client.post("/v1/completions", json={**SHORT, "n": 2})).status_code == 429:
            pass  # what was cancelled is there until the round ends
        assert answer.status_code == 200


def make_client(models):
    return httpx.AsyncClient(transport=httpx.ASGITransport(make_app(models)), base_url="http://server")


def test_while_the_model_loads_the_server_says_how_far_it_is():
    is_read = threading.Event()

    def load(progress):
        progress("compiling", 3, 10)
        is_read.set()
        while not progress.is_stopped:
            time.sleep(0.001)
        progress("compiling", 4, 10)

    async def ask():
        models = Models([server])
        models.start()
        async with make_client(models) as client:
            await asyncio.to_thread(is_read.wait)
            answers = [await client.get(path) for path in ("/health", "/v1/models")]
        await models.close()  # ends loading at its next step
        assert (server.is_ready, models.failure) == (False, None)
        return answers

    server = Server(ServerOptions(), load)
    for answer in asyncio.run(ask()):
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert answer.json()["error"]["progress"] == {"task": "compiling", "done": 3, "total": 10}


def test_a_model_that_cannot_be_loaded_ends_the_server(tmp_path):
    with serving("-m", tmp_path / "missing.gguf", is_loaded=False) as server:
        assert server.wait(60) == 1
        assert "missing.gguf" in server.output


def test_a_port_that_is_taken_is_told_before_anything_is_loaded(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, _, err = run(capsys, "serve", *here(), "--port", other.getsockname()[1])
    assert code == AuguryError.exit_code
    assert "choose another with --host and --port" in err


def test_without_its_libraries_the_command_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "uvicorn" else name)
    code, _, err = run(capsys, "serve", *here())
    assert (code, err.count("\n")) == (1, 1)
    assert f"the server needs uvicorn, not installed here; install the extra: {install_command('server')}" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--ssl-key-file", "key.pem"], "both --ssl-key-file and --ssl-cert-file"),
        (["--api-key-file", "missing.txt"], "missing.txt"),
        (["--api-key", ""], "--api-key names no key; leave it out to serve everyone"),
        (["--no-such-flag"], "has no flag --no-such-flag"),
        (["smollm2", "x"], "'x' was not expected here; a model is given by -m, quote text that contains spaces"),
        (["--host", ","], "--host names no address"),
        (["--port", "99999"], "port is '99999', expected 0 to 65535"),
        (["--cors-origins", "page.example"], "origins such as https://chat.example"),
        (["--cors-origins", "http://["], "origins such as https://chat.example"),
    ],
)
def test_flags_that_cannot_be_meant_are_errors(capsys, words, told):
    code, _, err = run(capsys, "serve", *here(), *words)
    assert code != 0
    assert told in err


def test_keys_in_a_file_are_lines_that_are_no_comments(capsys, tmp_path):
    (tmp_path / "keys").write_text("# nobody\n\n")
    code, _, err = run(capsys, "serve", *here(), "--api-key-file", tmp_path / "keys")
    assert (code, "holds no keys" in err) == (2, True)


@pytest.mark.parametrize(
    ("seconds", "number", "n_tokens", "last"),
    [
        (60, signal.SIGTERM, 80, "data: [DONE]"),
        (60, signal.SIGHUP, 80, "data: [DONE]"),
        (0, signal.SIGINT, 4000, "the server ends, and with it the answer"),
    ],
    ids=["finish", "hang up", "cancel"],
)
def test_a_signal_finishes_what_runs_or_cancels_it(seconds, number, n_tokens, last):
    with serving(*here(), "-c", 4096, "--shutdown-timeout", seconds) as server:
        body = {**ENDLESS, "max_tokens": n_tokens, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as running:
            lines = running.iter_lines()
            next(lines)
            server.signal(number)
            rest = [line for line in lines if line]
        assert server.wait(60) == 0
        assert last in rest[-1]
        assert "Traceback" not in server.output


def test_a_second_signal_ends_what_runs():
    with serving(*here(), "-c", 4096, "--shutdown-timeout", 3600) as server:
        body = {**ENDLESS, "max_tokens": 4000, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as running:
            lines = running.iter_lines()
            next(lines)
            server.signal(signal.SIGINT)
            with suppress(httpx.NetworkError):  # also of a connection that was accepted before
                while httpx.get(f"{server.url}/health"):
                    time.sleep(0.1)
            assert server.end(signal.SIGINT) == 0
            assert "the server ends, and with it the answer" in [line for line in lines if line][-1]
        assert "the server has ended" in server.output
        assert "Traceback" not in server.output
