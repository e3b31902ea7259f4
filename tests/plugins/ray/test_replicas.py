"""`augury serve --replicas`: answers are those of one engine, whoever computes them and whoever dies meanwhile."""

import json
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from oracles.adapters import adapter
from oracles.models import tiny_model
from support.commands import here, run
from support.servers import READY_S, serving

from augury import Engine
from augury.errors import AuguryError, CapacityError, OptionError

N_KILLS = int(os.environ.get("KILLS", "2"))  # in mid-stream
N_CTX = 512
WAYS = ({"temperature": 0}, {"seed": 5}, {"seed": 6, "mirostat": 2}, {"seed": 7, "repeat_penalty": 1.2})


@pytest.fixture(scope="module")
def engine():
    lora = {adapter("llama-dense", 0): 0.0}
    with Engine.load(tiny_model("llama-dense"), backend="reference", threads=1, n_ctx=N_CTX, slots=4, lora=lora) as found:
        yield found


@pytest.fixture(scope="module")
def server(nodes):
    words = ["-c", N_CTX, "-np", 4, "--replicas", 2, "--ray", nodes.address, "--metrics"]
    words += ["--lora", f"{adapter('llama-dense', 0)}:0"]
    with serving(*here(), *words, is_loaded=False) as found:
        found.wait_for("is ready, loaded in")
        yield found
        assert found.end() == 0
    assert not nodes.workers("ray::ServeReplica"), "the replicas end with the command"


def prompt(i, n=8):
    return np.random.default_rng(i).integers(0, 128, n).tolist()


def asked(server, **body):
    """The tokens of a stream, and the longest time between two of them."""
    tokens, times = [], []
    body = {"return_tokens": True, "stream": True, "ignore_eos": True, **body}
    with server.client.stream("POST", "/completion", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: "):
                last = json.loads(line[6:])
                tokens += last["tokens"]
                times.append(time.monotonic())
    assert last["stop"], last
    return tokens, max(np.diff(times))


def n_replicas(server):
    """How many replicas answer; one that starts has a process already."""
    answer = server.client.get("/slots")
    return len(answer.json()) // 4 if answer.status_code == 200 else 0


def expected(engine, *, prompt, n_predict, **how):
    return [*engine.generate(prompt, max_tokens=n_predict, ignore_eos=True, **how).tokens]


@pytest.mark.ray
def test_streams_go_on_where_replicas_are_killed(engine, server, nodes):
    killed, is_over, rng, n_read = [], threading.Event(), random.Random(3), []

    def kill():
        n_before = 0
        while not is_over.is_set() and len(killed) < N_KILLS:
            if len(n_read) >= n_before + 3 and n_replicas(server) == 2:
                killed.append(rng.choice(nodes.workers("ray::ServeReplica")))
                nodes.kill(killed[-1])
                n_before = len(n_read)
            time.sleep(0.05)

    def ask(i):
        how = {"prompt": prompt(i), "n_predict": 200, **WAYS[i % len(WAYS)]}
        tokens, gap_s = asked(server, **how)
        n_read.append(i)
        return how, tokens, gap_s

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    found = []
    with ThreadPoolExecutor(4) as pool:
        while len(killed) < N_KILLS and len(found) < 2000:
            found += pool.map(ask, range(len(found), len(found) + 8))
    is_over.set()
    assert len(killed) == N_KILLS
    assert all(tokens == expected(engine, **how) for how, tokens, _ in found)
    end = time.monotonic() + READY_S
    while n_replicas(server) < 2 and time.monotonic() < end:  # for the tests after this
        time.sleep(0.1)
    print(f"{len(found)} streams, {N_KILLS} kills, longest stall {max(gap_s for *_, gap_s in found):.3f} s")  # noqa: T201


@pytest.mark.ray
def test_the_server_s_interfaces_answer_as_over_an_engine(engine, server):
    for name in ("llama_cpp", "receipt"):
        body = {"prompt": prompt(1), "n_predict": 6, "seed": 3, **({"receipt": True} if name == "receipt" else {})}
        assert server.client.post("/completion", json=body).json()["tokens_predicted"] == 6
    body = {"prompt": prompt(2), "max_tokens": 5, "seed": 4, "n": 3, "logprobs": 0}
    answer = server.client.post("/v1/completions", json=body).json()
    assert answer["usage"]["completion_tokens"] == 15
    several = engine.generate(prompt(2), max_tokens=5, seed=4, n=3, logprobs=0)
    found = [each["logprobs"]["token_logprobs"] for each in answer["choices"]]
    assert found == [[*each.logprobs] for each in several]
    vector = server.client.post("/v1/embeddings", json={"input": prompt(3)}).json()["data"][0]["embedding"]
    assert np.array_equal(np.float32(vector), np.float32(engine.embed(prompt(3))))
    assert len(server.client.get("/slots").json()) == 8
    long = server.client.post("/completion", json={"prompt": prompt(1, N_CTX + 1)})
    assert (long.status_code, "tokens" in long.json()["error"]["message"]) == (400, True)
    wrong = server.client.post("/completion", json={"prompt": [999]})
    assert (wrong.status_code, "999" in wrong.json()["error"]["message"]) == (400, True)


@pytest.mark.ray
def test_adapters_count_in_all_replicas_as_the_server_is_told(engine, server):
    def asked(**body):
        body = {"prompt": prompt(4), "n_predict": 6, "temperature": 0, "return_tokens": True, **body}
        return server.client.post("/completion", json=body).json()["tokens"]

    one = [{"id": 0, "scale": 20.0}]
    plain, adapted = (expected(engine, prompt=prompt(4), n_predict=6, temperature=0, lora=lora) for lora in ([], one))
    assert plain != adapted
    assert (asked(), asked(lora=one)) == (plain, adapted)
    for scales, tokens in ((one, adapted), ([], plain)):
        assert server.client.post("/lora-adapters", json=scales).json() == {"success": True}
        assert asked() == tokens
    assert [each["scale"] for each in server.client.get("/lora-adapters").json()] == [0]


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`")  # by Serve
def test_a_replica_is_to_blame_for_its_end_and_a_request_for_all_else():
    from grpc import StatusCode
    from grpc.aio import AioRpcError, Metadata
    from ray.exceptions import ActorUnavailableError

    from augury.plugins.ray.replicas import _cause

    ended = AioRpcError(StatusCode.CANCELLED, Metadata(), Metadata())
    for error in (ended, ActorUnavailableError("gone", None), AuguryError("the engine has ended")):
        assert _cause(error) is None
    for error in (OptionError("not so"), CapacityError("too long")):
        assert _cause(error) is error


@pytest.mark.ray
def test_metrics_name_each_replica(server):
    lines = [
        line for line in server.client.get("/metrics").text.splitlines() if line.startswith("llamacpp:tokens_predicted_total")
    ]
    assert len({line.split('replica="')[1].split('"')[0] for line in lines}) == len(lines) == 2


@pytest.mark.ray
def test_who_asks_again_finds_what_a_replica_holds(server):
    def reused(text):
        body = {"prompt": text, "n_predict": 2, "seed": 1}
        return server.client.post("/completion", json=body).json()["timings"]["cache_n"]

    texts = [prompt(i, 64) for i in range(50, 54)]  # as many as one replica has slots, which may get all
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(reused, texts))
    assert [reused([*text, *prompt(9, 16)]) >= 64 for text in texts] == [True] * 4


def test_what_cannot_be_is_said(capsys):
    for words, told in (
        (["--replicas", "two"], "expected a number, or two such as 1-4"),
        (["--replicas", "4-1"], "expected the smaller number first: 1-4"),
        (["--replicas", "2", "--slot-save-path", "/tmp"], "leave one of the two out"),
    ):
        code, _, err = run(capsys, "serve", *here(), "--port", "0", *words)
        assert (code != 0, told in err) == (True, True), err
