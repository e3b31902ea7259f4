"""A server of few words: it sleeps when nobody asks, tells little, and fills gaps."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from support.servers import serving

from augury.plugins.server.conversation import plan_chat
from augury.plugins.server.fields import EngineFields
from augury.plugins.server.server import Server, ServerOptions
from augury.plugins.server.tools import ChatPlan

FIM = ",".join(f"tokenizer.ggml.fim_{name}_token_id=int:{token}" for name, token in (("pre", 11), ("suf", 12), ("mid", 13)))

TEMPLATE = "{% for message in messages %}[{{ message.content }}]{% endfor %}"


@pytest.fixture(scope="module")
def sleeper():
    """Sleeps after a second."""
    words = "-m smollm2 -t 2 -c 512 -np 1 --temp 0 --no-slots --no-ui --props --metrics --sleep-idle-seconds 1 --jinja"
    with serving(*words.split(), "--override-kv", FIM, "--chat-template", TEMPLATE) as found:
        yield found


def is_sleeping(client):
    return client.get("/props").json()["is_sleeping"]


def wait_for_sleep(client):
    end = time.monotonic() + 60
    while not is_sleeping(client):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_server_that_nobody_asks_sleeps_and_wakes_for_whoever_does(sleeper):
    client, sea = sleeper.client, {"prompt": "The sea is", "n_predict": 6}
    first = client.post("/completion", json=sea).json()
    wait_for_sleep(client)
    for path in ("/health", "/v1/models", "/props", "/metrics"):  # which do not wake it
        assert client.get(path).status_code == 200
    assert is_sleeping(client)
    predicted = "llamacpp:tokens_predicted_total 6.0"
    assert predicted in client.get("/metrics").text
    assert client.post("/completion", json=sea).json()["content"] == first["content"]
    assert not is_sleeping(client)
    assert predicted.replace("6", "12") in client.get("/metrics").text
    wait_for_sleep(client)
    assert client.post("/tokenize", json={"content": "a"}).status_code == 200


def test_a_gap_is_filled(sleeper):
    fields = {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n", "n_predict": 4}
    found = sleeper.client.post("/infill", json=fields).json()

    def encode(text):
        return sleeper.client.post("/tokenize", json={"content": text}).json()["tokens"]

    # the model has a token before a repository's name, and none before a file's
    prompt = [4, *encode("myproject\n"), 11, *encode(fields["input_prefix"]), 12, *encode(fields["input_suffix"]), 13]
    assert found["tokens_evaluated"] == len(prompt)
    assert found["content"] == sleeper.client.post("/completion", json={"prompt": prompt, "n_predict": 4}).json()["content"]


def test_what_is_switched_off_is_a_501_and_a_page_a_404(sleeper):
    assert sleeper.client.get("/").status_code == 404
    answers = [sleeper.client.get("/slots"), sleeper.client.post("/slots/0", params={"action": "erase"})]
    assert [answer.status_code for answer in answers] == [501, 501]
    assert "--slot-save-path" in answers[1].json()["error"]["message"]
    assert sleeper.client.post("/props", json={}).json() == {"success": True}
    assert sleeper.client.post("/props", json={"temperature": 1}).status_code == 400


def test_a_chat_template_takes_the_place_of_the_models_own(sleeper):
    hello = {"messages": [{"role": "user", "content": "Hello"}]}
    assert sleeper.client.post("/apply-template", json=hello).json() == {"prompt": "[Hello]"}
    assert sleeper.client.get("/props").json()["chat_template"] == TEMPLATE


def test_reasoning_stays_in_the_content_where_the_flag_says_so():
    options = ServerOptions(reasoning_format="none")

    class Format:
        template = None

        def plan(self, messages, **how):
            return ChatPlan({"messages": messages}, None, (), False, how["reasoning"])

    server = Server(options, lambda _: None)
    server._engine, server._chat_format = SimpleNamespace(chat_template=None), Format()
    for asked, expected in ((None, "none"), ("deepseek", "deepseek")):
        asking = {"tools": None, "tool_choice": "auto", "is_parallel": True, "json_schema": None}
        plan, _ = asyncio.run(plan_chat(EngineFields(), server, [], **asking, reasoning=asked))
        assert plan._tags == expected
