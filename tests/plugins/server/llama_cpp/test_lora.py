"""`/lora-adapters` and `lora` of requests, as llama.cpp's server has them."""

import asyncio

import httpx
import pytest
from oracles import adapters
from oracles.models import tiny_model

from augury import Engine
from augury.plugins.server.app import make_app
from augury.plugins.server.models import Models
from augury.plugins.server.server import Server, ServerOptions

PROMPT = [*range(1, 9)]


@pytest.fixture
def ask():
    paths = [adapters.adapter("llama-dense", number) for number in (0, 1)]
    server = Server(ServerOptions(params={"temperature": 0.0}), lambda _: None)
    app = httpx.ASGITransport(make_app(Models([server])))

    async def answer(method, path, body):
        async with httpx.AsyncClient(transport=app, base_url="http://server") as client:
            return await client.request(method, path, json=body)

    how = {"backend": "reference", "n_ctx": 64, "spec_type": "none"}
    with Engine.load(tiny_model("llama-dense"), lora={paths[0]: 0.5, paths[1]: 0.0}, **how) as engine:
        server._engine = engine
        yield lambda method, path, body=None: asyncio.run(answer(method, path, body))


def test_adapters_are_listed_and_scaled_for_requests_that_do_not_say(ask):
    listed = ask("GET", "/lora-adapters").json()
    paths = [str(adapters.adapter("llama-dense", number)) for number in (0, 1)]
    assert [(each["id"], each["path"], each["scale"]) for each in listed] == [(0, paths[0], 0.5), (1, paths[1], 0.0)]
    assert (listed[0]["task_name"], listed[0]["prompt_prefix"]) == ("", "")
    asked = {"prompt": PROMPT, "n_predict": 4, "n_probs": 1}

    def chosen(**more):
        found = ask("POST", "/completion", asked | more).json()
        return [each["logprob"] for each in found["completion_probabilities"]], found["generation_settings"]["lora"]

    first, said = chosen()
    assert said == []
    assert chosen(lora=[{"id": 0, "scale": 0.5}]) == (first, [{"id": 0, "scale": 0.5}])
    second, _ = chosen(lora=[{"id": 1, "scale": 2}])
    assert first != second
    assert ask("POST", "/lora-adapters", [{"id": 1, "scale": 2.0}]).json() == {"success": True}
    assert [each["scale"] for each in ask("GET", "/lora-adapters").json()] == [0.0, 2.0]
    assert chosen()[0] == second
    assert chosen(lora=[])[0] not in (first, second)


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/lora-adapters", [{"id": 2, "scale": 1}], "names adapter 2, there are 0 to 1"),
        ("/lora-adapters", [{"id": 0}], "0.scale is missing"),
        ("/lora-adapters", [5], "0 is 5, expected an object"),
        ("/lora-adapters", {"id": 0, "scale": 1}, "the body is not a JSON list; send one"),
        ("/lora-adapters", None, "the body is not a JSON list; send one"),
        ("/completion", {"prompt": PROMPT, "lora": [{"id": 2, "scale": 1}]}, "names adapter 2"),
        ("/v1/completions", {"prompt": PROMPT, "lora": [{"id": "a", "scale": 1}]}, "lora"),
    ],
)
def test_adapters_that_are_not_there_are_refused(ask, path, body, word):
    answer = ask("POST", path, body)
    assert answer.status_code == 400
    assert word in answer.json()["error"]["message"]
