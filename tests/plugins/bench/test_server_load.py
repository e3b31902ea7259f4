"""Clients who ask a server at once, and the command that compares two servers by them."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from support.commands import here, run
from support.servers import serving

from augury.cli.prompts import Prompt
from augury.errors import AuguryError
from augury.plugins.bench.commands import servers
from augury.plugins.bench.server_runner import Load, TimedRequest, ask, run_load

ANSWERS = {  # lines that are streamed, by prompt
    "two": [{"content": "a", "tokens": [1], "stop": False}, {"content": "bc", "tokens": [2, 3], "stop": False}],
    "nothing": [{"content": "", "tokens": [], "stop": True}],
    "fault": [{"error": {"message": "it broke"}}],
}


class Handler(BaseHTTPRequestHandler):
    gate = threading.Barrier(3)

    def do_POST(self):
        prompt = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"]
        if prompt == "together":  # which end when three are there
            self.gate.wait(60)
        lines = ANSWERS["two"] if prompt == "together" else ANSWERS.get(prompt)
        self.send_response(400 if lines is None else 200)
        self.end_headers()
        for each in lines or []:
            self.wfile.write(b"data: " + json.dumps(each).encode() + b"\n\n")
        if lines is None:
            self.wfile.write(b'{"error": "prompt is odd"}')

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def url():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_answer_is_timed_token_by_token(url):
    found = ask(url, {"prompt": "two"})
    assert (found.text, found.n_tokens) == ("abc", 3)
    assert found.first_s > 0
    assert 0 <= found.token_s < found.first_s + 60


@pytest.mark.parametrize(
    ("prompt", "told"), [("odd", "refuses a request: .*prompt is odd"), ("nothing", "without a token"), ("fault", "it broke")]
)
def test_what_is_no_answer_is_an_error(url, prompt, told):
    with pytest.raises(AuguryError, match=told):
        run_load(url, [{"prompt": "two"}, {"prompt": prompt}], 2)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://127.0.0.1:9 /"])
def test_a_server_that_is_not_there_is_an_error(url):
    with pytest.raises(AuguryError, match="does not answer"):
        ask(url, {"prompt": "two"})


def test_as_many_ask_at_once_as_there_are_clients(url):
    load = run_load(url, [{"prompt": "together"}] * 6, 3)  # fewer would wait for ever, and more go by threes
    assert [each.text for each in load.requests] == ["abc"] * 6


def test_figures_are_those_of_the_requests():
    load = Load(2.0, tuple(TimedRequest("", 5, 0.1 * i, 0.01 * i) for i in range(1, 11)))
    assert (load.requests_per_second, load.tokens_per_second) == (5.0, 25.0)
    assert (load.quantile("first_s", 0.5), load.quantile("token_s", 0.95)) == (pytest.approx(0.6), 0.1)


@pytest.mark.sample(0)
def test_two_servers_are_compared_by_what_their_clients_see(capsys):
    words = ["-m", here()[1], "-t", 1, "-c", 64]
    with serving(*words, "-np", 2) as other:
        ask_for = ["--prompt-tokens", "1,2,3", "-n", 4, "--turns", 2, "--vs", other.url, "--clients", "1,2"]
        code, out, err = run(capsys, "bench", "servers", *words, *ask_for, "--json")
        assert code == 0, err
    found = json.loads(out)
    assert [level["clients"] for level in found["servers"]] == [1, 2]
    for level in found["servers"]:
        for side in ("plain", "speculative", "theirs"):
            assert level[side]["requests_per_s"] > 0
            assert level[side]["first_token_p95_ms"] >= level[side]["first_token_p50_ms"] > 0
        assert level["plain"]["interval"][0] <= level["plain"]["ratio"] <= level["plain"]["interval"][1]
        assert level["same_text"] == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--vs", "localhost:8080"], "--vs is 'localhost:8080', expected an address such as http://127.0.0.1:8080"),
        (["--vs", "http://x", "--clients", "0"], "--clients is '0'"),
        (["--vs", "http://x", "--draft-max", "3"], "augury bench servers has no flag --draft-max"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, words, told):
    code, _, err = run(capsys, "bench", "servers", *here(), *words)
    assert (code, told in err) == (2, True)


def test_both_servers_are_asked_for_what_follows_our_own_answers():
    asked = []

    def post(path, body):
        asked.append((path, body))
        texts = [message["content"] for message in body.get("messages", ())]
        return {"prompt": "|".join(texts)} if path == "/apply-template" else {"content": f"to {body['prompt']}"}

    chat = [{"role": "user", "content": "a"}, {"role": "assistant"}, {"role": "user", "content": "b"}]
    body = servers._body(SimpleNamespace(post=post), Prompt(messages=chat), 7)
    assert (body["prompt"], body["n_predict"], body["ignore_eos"]) == ("a|to a|b", 7, True)
    assert [path for path, _ in asked] == ["/apply-template", "/completion", "/apply-template"]
    assert asked[1][1]["ignore_eos"] is False, "the answer in a conversation has an end"
