"""Receipts in answers, by which anyone who has the model can check them."""

import json

import pytest

from augury import Engine
from augury.engine.receipts import SETTINGS, drafting_to_verify
from augury.registry import Registry

ASKED = {"receipt": True, "max_tokens": 8, "temperature": 0.9, "seed": 3}
HELLO = {"messages": [{"role": "user", "content": "Say hello."}]}


def last(response):
    """The last object of a stream that has a receipt."""
    lines = [line.removeprefix("data: ") for line in response.text.splitlines()]
    return next(found for line in reversed(lines) if line.startswith("{") and "receipt" in (found := json.loads(line)))


@pytest.fixture(scope="module")
def told(client):
    def ask(path, **fields):
        response = client.post(path, json=fields)
        assert response.status_code == 200, response.text
        return last(response) if fields.get("stream") else response.json()

    both = ask("/v1/completions", prompt="The sea", n=2, **ASKED)["receipt"]
    options = {"receipt": True, "num_predict": 8, "seed": 3}
    return {
        "chat": ask("/v1/chat/completions", **HELLO, **ASKED)["receipt"],
        "chat, streamed": ask("/v1/chat/completions", stream=True, **HELLO, **ASKED)["receipt"],
        "completions": both[0],
        "completions, the second": both[1],
        "completions, streamed": ask("/v1/completions", prompt="The sea", stream=True, **ASKED)["receipt"],
        "completion": ask("/completion", prompt="The sea", **ASKED)["receipt"],
        "messages": ask("/v1/messages", **HELLO, **ASKED)["receipt"],
        "responses": ask("/v1/responses", input="Say hello.", max_output_tokens=16, receipt=True, seed=3)["receipt"],
        "ollama": ask("/api/chat", model="smollm2", **HELLO, stream=False, options=options)["receipt"],
        "ollama, streamed": ask("/api/generate", model="smollm2", prompt="The sea", stream=True, options=options)["receipt"],
    }


def test_answers_have_receipts_that_are_equal(told):
    settings = {name: value for name, value in told["chat"]["settings"].items() if name in SETTINGS and name != "placement"}
    with Engine.load("smollm2", threads=1, **settings, **drafting_to_verify(Registry.discover())) as engine:
        found = {name: engine.verify(receipt) for name, receipt in told.items()}
    assert {name: each.reason for name, each in found.items() if not each.is_equal} == {}
    assert told["chat"]["tokens"] == told["chat, streamed"]["tokens"]
    assert told["completions"]["tokens"] == told["completions, streamed"]["tokens"] != told["completions, the second"]["tokens"]


def test_answers_have_none_unless_asked(client):
    assert "receipt" not in client.post("/v1/chat/completions", json={**HELLO, "max_tokens": 1}).json()
    refused = client.post("/v1/chat/completions", json={**HELLO, "receipt": "yes"})
    assert (refused.status_code, "receipt is 'yes', expected true or false" in refused.text) == (400, True)
