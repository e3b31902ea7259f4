"""Answers that go on without their client, and are read again."""

import asyncio
import json

import httpx
import pytest
from support.servers import settled

from augury.plugins.server import resumable
from augury.plugins.server.resumable import Answers, Resumable

NAME = {"X-Conversation-Id": "talk::owner/model"}
ASKED = {"prompt": "The sea is", "max_tokens": 8, "stream": True}


def texts(body):
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    return "".join(each["choices"][0]["text"] for each in events if each["choices"])


def read(client, start=0, name="talk::owner/model"):
    return client.get("/v1/stream", params={"conv_id": name, "from": start})


def test_an_answer_is_read_again_from_any_byte_on_until_it_is_stopped(client):
    first = client.post("/v1/completions", json=ASKED, headers=NAME)
    again, later = read(client), read(client, 100)
    assert (again.content, again.headers["content-type"]) == (first.content, first.headers["content-type"])
    assert later.content == first.content[100:]
    (told,) = client.post("/v1/streams/lookup", json={"conversation_ids": ["talk", "other"]}).json()
    assert (told["conversation_id"], told["is_done"], told["total_bytes"]) == ("talk::owner/model", True, len(first.content))
    assert [client.delete("/v1/stream", params={"conv_id": "talk::owner/model"}).status_code for _ in range(2)] == [204, 204]
    assert (gone := read(client)).status_code == 404
    assert "there is no answer of 'talk::owner/model'" in gone.json()["error"]["message"]


def test_an_answer_goes_on_when_its_client_leaves(server):
    asked = {**ASKED, "max_tokens": 200, "ignore_eos": True}
    with (
        httpx.Client(base_url=server.url) as leaving,  # whose connection closes
        leaving.stream("POST", "/v1/completions", json=asked, headers=NAME) as stream,
    ):
        next(stream.iter_bytes())
    resumed = read(server.client).text
    assert resumed.endswith("data: [DONE]\n\n")
    assert texts(resumed) == texts(server.client.post("/v1/completions", json=asked).text)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_an_answer_ends_where_it_is_stopped_or_replaced(server, is_replaced):
    client, asked = server.client, {**ASKED, "max_tokens": 480, "ignore_eos": True}
    with client.stream("POST", "/v1/completions", json=asked, headers=NAME) as stream:
        parts = stream.iter_text()
        begun = next(parts)
        if is_replaced:
            assert client.post("/v1/completions", json=ASKED, headers=NAME).status_code == 200
        else:
            client.delete("/v1/stream", params={"conv_id": NAME["X-Conversation-Id"]})
        assert "[DONE]" not in begun + "".join(parts)
    assert settled(lambda: sum(slot["is_processing"] for slot in client.get("/slots").json()), 0) == 0


def test_a_request_that_fails_leaves_nothing_and_keys_do_not_see_each_others_answers(client, strict_server):
    assert client.post("/v1/completions", json={"prompt": 5, "stream": True}, headers=NAME).status_code == 400
    assert read(client).status_code == 404
    asked = {"prompt": [1, 2], "max_tokens": 2, "stream": True}
    one, two = ({"x-api-key": name} for name in ("one", "two"))
    assert strict_server.client.post("/v1/completions", json=asked, headers={**NAME, **one}).status_code == 200
    params = {"conv_id": NAME["X-Conversation-Id"]}
    found = [strict_server.client.get("/v1/stream", params=params, headers=key).status_code for key in (one, two)]
    assert found == [200, 404]
    looked = [
        strict_server.client.post("/v1/streams/lookup", json={"conversation_ids": ["talk"]}, headers=key).json()
        for key in (one, two)
    ]
    assert [len(each) for each in looked] == [1, 0]


def test_long_answers_lose_their_beginning_and_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(resumable, "_N_BYTES", 4)
    monkeypatch.setattr(resumable, "_N_KEPT", 2)
    answers = Answers()
    for i in range(4):
        answer = answers.begin(("", str(i)))
        answer.add(b"abcdef")
        answer.ended_at = answer.started_at
    assert [name for _, name in answers] == ["2", "3"]
    assert (answer.n_lost, bytes(answer.kept)) == (2, b"cdef")
    assert asyncio.run(_all(answer.parts(3))) == [b"def"]
    assert asyncio.run(_all(answer.parts(1))) == []


async def _all(parts):
    return [part async for part in parts]


def test_a_request_that_is_stopped_before_its_answer_is_told_so():
    answers, sent = Answers(), []
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [(b"x-conversation-id", b"talk")]}

    async def app(_scope, receive, send):
        assert (await receive())["type"] == "http.request"
        answers.end(("", "talk"))
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 504, "headers": []})

    async def body():
        return {"type": "http.request", "body": b"{}"}

    async def collect(message):
        sent.append(message)

    asyncio.run(Resumable(app, answers)(scope, body, collect))
    assert sent[0]["status"] == 400
    assert b"was cancelled" in sent[1]["body"]
