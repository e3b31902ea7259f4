"""A server of several models, as a process: each answers by its name, and none holds up another.

For longer, with figures: `PYTHONPATH=tests python tests/plugins/server/test_several.py MINUTES`.
"""

import asyncio
import json
import sys
import time
from random import Random

import httpx
import pytest
from oracles.models import tiny_model
from support.servers import serving

N_CLIENTS = 50
MODELS = ("llama-dense", "qwen2-dense", "gemma-dense")
WORDS = ["--backend", "reference", "-t", "1", "-c", "4096", "-np", "1", "--metrics", "--spec-type", "none"]
SHORT = {"prompt": [1, 2, 3], "n_predict": 4, "temperature": 0, "ignore_eos": True, "return_tokens": True}


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    """Two tiny models, a file that is damaged, and a third."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "damaged.gguf").write_bytes(b"GGUF, but no more")
    (folder / "gemma-dense.gguf").symlink_to(tiny_model("gemma-dense"))
    models = [word for name in MODELS[:2] for word in ("-m", tiny_model(name))]
    with serving(*WORDS, *models, "--models-dir", folder) as found:
        yield found


def completed(router, model, **fields):
    answer = router.client.post("/completion", json={**SHORT, "model": model, **fields})
    return answer.status_code, answer.json()


def states(router):
    return {each["id"]: each["status"]["value"] for each in router.client.get("/v1/models").json()["data"]}


def test_each_model_answers_by_its_name_and_the_first_to_requests_that_name_none(router):
    assert states(router) == {"llama-dense": "loaded"} | dict.fromkeys(("qwen2-dense", "damaged", "gemma-dense"), "unloaded")
    found = {name: completed(router, name)[1] for name in ("llama-dense", "qwen2-dense", None)}
    assert [each["model"] for each in found.values()] == ["llama-dense", "qwen2-dense", "llama-dense"]
    assert found["llama-dense"]["tokens"] == found[None]["tokens"]
    assert states(router)["qwen2-dense"] == "loaded"
    assert router.client.get("/props", params={"model": "qwen2-dense"}).json()["model_path"] == "qwen2-dense.gguf"
    counts = router.client.get("/metrics").text
    assert 'augury:requests_total{model="llama-dense"} 2.0' in counts
    assert 'augury:requests_total{model="qwen2-dense"} 1.0' in counts


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": [1], "model": "nobody"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "model": "nobody"}),
        ("/api/generate", {"prompt": "a", "model": "nobody"}),
    ],
)
def test_an_unknown_model_is_not_found_and_the_known_ones_are_named(router, path, body):
    answer = router.client.post(path, json=body)
    assert answer.status_code == 404
    assert "model 'nobody' not found; this server has llama-dense, qwen2-dense, damaged, gemma-dense" in answer.text


def test_a_stream_goes_on_while_other_models_load_read_prompts_and_fail(router):
    router.client.post("/models/unload", json={"model": "qwen2-dense"})
    with router.client.stream("POST", "/completion", json=SHORT | {"n_predict": 4000, "stream": True}) as stream:
        next(lines := stream.iter_lines())  # which is kept: the connection ends with it
        with httpx.Client(base_url=router.url, timeout=300) as other:

            def n_decoded():
                (slot,) = other.get("/slots").json()  # of the first model
                assert slot["is_processing"]
                return slot["next_token"][0]["n_decoded"]

            n = n_decoded()
            for model, status in (("damaged", 500), ("qwen2-dense", 200), ("qwen2-dense", 200)):
                asked = SHORT | {"model": model, "prompt": [1, 2, 3] * 50, "cache_prompt": False}
                assert other.post("/completion", json=asked).status_code == status
            assert n_decoded() > n  # in all, as one of these may be over between two tokens
        lines.close()
    assert {name: states(router)[name] for name in MODELS[:2]} == dict.fromkeys(MODELS[:2], "loaded")
    assert router.client.get("/models").json()["data"][2]["status"] == {"value": "unloaded", "failed": True}
    assert "damaged cannot be loaded: " in router.output


async def answered(client, model, *, streams):
    """The tokens of an answer, and the longest time between two of them, which of one that is no stream is not known."""
    tokens, longest, last = [], 0.0, None
    async with client.stream("POST", "/completion", json=SHORT | {"model": model, "stream": streams}) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith(("data: {", "{")):
                found = json.loads(line.removeprefix("data: "))["tokens"]
                tokens += found
                now = time.monotonic()
                if last is not None and found:
                    longest = max(longest, now - last)
                last = now
    return tokens, longest


async def talk(client, expected, seed, end):
    """Ask one thing after another until this time; returns how many were answered, and the longest time between two tokens."""
    random, n, longest = Random(seed), 0, 0.0
    while not n or time.monotonic() < end:
        model = random.choice([*expected])
        tokens, gap = await answered(client, model, streams=random.random() < 0.5)
        assert tokens == expected[model]
        n, longest = n + 1, max(longest, gap)
    return n, longest


async def talk_all(router, expected, end):
    async with httpx.AsyncClient(base_url=router.url, timeout=600) as client:  # one connection for each of them
        told = await asyncio.gather(*(talk(client, expected, seed, end) for seed in range(N_CLIENTS)))
    return sum(n for n, _ in told), max(longest for _, longest in told)


def test_many_clients_of_three_models_lose_nothing(router):
    expected = {model: completed(router, model)[1]["tokens"] for model in MODELS}
    assert asyncio.run(talk_all(router, expected, 0))[0] == N_CLIENTS


def test_ollama_s_clients_say_how_long_a_model_stays_loaded(router):
    def loaded():
        return [each["model"] for each in router.client.get("/api/ps").json()["models"]]

    def generate(**fields):
        answer = router.client.post("/api/generate", json={"model": "qwen2-dense:latest", **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()["done_reason"]

    assert generate(keep_alive="5m") == "load"
    assert "qwen2-dense:latest" in loaded()
    assert generate(keep_alive=0) == "unload"
    end = time.monotonic() + 60
    while "qwen2-dense:latest" in loaded():
        assert time.monotonic() < end
    assert generate(keep_alive=0) == "unload"
    assert "qwen2-dense:latest" not in loaded()  # it was not loaded to be unloaded
    assert router.client.post("/api/chat", json={"model": "llama-dense", "keep_alive": "soon"}).status_code == 400


if __name__ == "__main__":  # two of the three are loaded at a time
    words = [word for name in MODELS for word in ("-m", tiny_model(name))]
    with serving(*WORDS, *words, "--models-max", "2") as found:
        expected = {model: completed(found, model)[1]["tokens"] for model in MODELS}
        n, longest = asyncio.run(talk_all(found, expected, time.monotonic() + 60 * float(sys.argv[1])))
        n_loads = found.output.count(" is ready")
        print(f"{n} answers of {N_CLIENTS} clients, {n_loads} loads, {longest:.2f} s at most between two tokens")  # noqa: T201
