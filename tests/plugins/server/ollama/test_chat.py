"""`/api/chat` by Ollama's own client, and what it makes of calls, thoughts and histories."""

import asyncio
import json
from types import SimpleNamespace

import ollama
import pytest

from augury.plugins.server.ollama.answer import Answer, Clock
from augury.plugins.server.ollama.chat import ChatRequest, Message, _said, conversation
from augury.plugins.server.tools import Delta
from augury.types import Result, Summary, Token

MESSAGES = [{"role": "user", "content": "Name a colour."}]
OPTIONS = {"num_predict": 8, "temperature": 0, "num_ctx": 4096, "num_thread": 2, "keep_alive": "5m"}


def test_an_answer_is_that_of_chat_whole_and_streamed(ollama_client, client):
    body = {"messages": MESSAGES, "max_tokens": 8}
    expected = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    whole = ollama_client.chat("smollm2:latest", MESSAGES, options=OPTIONS)
    assert (whole.message.content, whole.model, whole.done_reason, whole.eval_count) == (
        expected,
        "smollm2:latest",
        "length",
        8,
    )
    parts = [*ollama_client.chat("smollm2", MESSAGES, options=OPTIONS, stream=True)]
    assert "".join(part.message.content for part in parts) == expected
    assert [part.done for part in parts[-2:]] == [False, True]
    assert parts[-1].prompt_eval_count == whole.prompt_eval_count
    assert min(parts[-1].total_duration, parts[-1].eval_duration, whole.prompt_eval_duration) > 0


def test_the_asynchronous_client_streams(server):
    async def ask():
        async with ollama.AsyncClient(server.url) as client:
            stream = await client.chat("smollm2", MESSAGES, stream=True, options=OPTIONS)
            return [part.message.content async for part in stream]

    assert len(asyncio.run(ask())) > 4


@pytest.mark.parametrize("form", ["json", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}])
def test_an_answer_has_the_form_that_is_asked_for(ollama_client, form):
    answer = ollama_client.chat("smollm2", MESSAGES, format=form, options=OPTIONS | {"num_predict": 40})
    assert isinstance(json.loads(answer.message.content), dict)


def test_log_probabilities_are_those_of_the_tokens(ollama_client):
    whole = ollama_client.chat("smollm2", MESSAGES, options=OPTIONS, logprobs=True, top_logprobs=2)
    assert "".join(each.token for each in whole.logprobs) == whole.message.content
    assert all(len(each.top_logprobs) == 2 and each.logprob <= 0 for each in whole.logprobs)
    parts = ollama_client.chat("smollm2", MESSAGES, options=OPTIONS, logprobs=True, stream=True)
    assert [each.logprob for part in parts for each in part.logprobs or ()] == [each.logprob for each in whole.logprobs]


def test_older_and_newer_fields_of_ollamas_are_taken(client):
    options = OPTIONS | {"num_gqa": 1, "rope_frequency_base": 1e4}
    body = {"model": "small", "messages": MESSAGES, "options": options, "stream": False, "truncate": True}
    told = [client.post("/api/chat", json=body | {"shift": shift}).json()["message"] for shift in (True, False)]
    assert told[0] == told[1] == client.post("/api/chat", json=body).json()["message"]


def test_an_answer_goes_on_in_a_full_context_where_it_may_shift(client):
    options = {"num_predict": 64, "ignore_eos": True, "temperature": 0}
    body = {"model": "small", "prompt": "red " * 490, "raw": True, "options": options, "stream": False}
    counts = {shift: client.post("/api/generate", json=body | {"shift": shift}).json()["eval_count"] for shift in (True, False)}
    assert counts[False] < counts[True] == 64


def test_a_conversation_without_messages_loads_the_model(ollama_client):
    answer = ollama_client.chat("smollm2", [])
    assert (answer.message.content, answer.done, answer.done_reason) == ("", True, "load")


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (
            {"model": "other", "messages": MESSAGES},
            404,
            "model 'other' not found; this server has smollm2, small",
        ),
        ({"messages": MESSAGES}, 400, "model is missing"),
        (
            {"model": "small", "messages": [{"role": "user", "images": ["aGk="]}]},
            400,
            "images has 1 items, expected none; models here read text",
        ),
        ({"model": "small", "messages": MESSAGES, "options": {"tfs_z": 0.5}}, 400, "tfs_z is 0.5, which augury does not do"),
        (
            {"model": "small", "messages": MESSAGES, "options": {"num_predict": "8"}},
            400,
            "options.num_predict is '8', expected a whole number",
        ),
        ({"model": "small", "messages": MESSAGES, "options": {"num_keep": -5}}, 400, "options.num_keep is -5, expected"),
        (
            {"model": "small", "messages": MESSAGES, "options": {"num_predict": 4, "max_tokens": 5}},
            400,
            "num_predict and max_tokens mean the same here, but differ",
        ),
        ({"model": "small", "messages": MESSAGES, "top_logprobs": 2}, 400, "top_logprobs needs logprobs"),
        ({"model": "small", "messages": MESSAGES, "format": "yaml"}, 400, "format is 'yaml', expected"),
    ],
)
def test_what_cannot_be_is_one_text(client, body, status, told):
    answer = client.post("/api/chat", json=body)
    assert answer.status_code == status
    assert told in answer.json()["error"]


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "application/x-www-form-urlencoded"}])
def test_a_body_is_json_whatever_its_type_says(client, headers):
    """As LiteLLM sends it, and curl with -d alone."""
    body = json.dumps({"model": "small", "messages": MESSAGES, "options": OPTIONS, "stream": False})
    answer = client.post("/api/chat", content=body, headers=headers)
    assert answer.status_code == 200
    assert answer.json()["message"]["content"]


def test_calls_of_a_history_and_their_answers_belong_together():
    calls = [{"function": {"name": name, "arguments": {"n": 1}}} for name in ("f", "g", "f")]
    answers = [{"role": "tool", "content": name, "tool_name": name} for name in ("g", "f", "f")]
    first, *rest = conversation([Message(**each) for each in ({"role": "assistant", "tool_calls": calls}, *answers)])
    f, g, other = [call["id"] for call in first["tool_calls"]]
    assert len({f, g, other}) == 3
    assert [each["tool_call_id"] for each in rest] == [g, f, other]
    assert first["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"n":1}'}


def test_an_answer_of_a_tool_without_a_name_is_that_of_the_next_call():
    calls = [{"id": name, "function": {"name": "f"}} for name in ("a", "b")]
    history = [{"role": "assistant", "tool_calls": calls}, {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    assert [each.get("tool_call_id") for each in conversation([Message(**each) for each in history])] == [None, "a", "b"]


def test_what_an_answer_holds_is_accepted_as_history(ollama_client):
    message = ollama.Message(
        role="assistant",
        thinking="Hm.",
        tool_calls=[ollama.Message.ToolCall(function=ollama.Message.ToolCall.Function(name="f", arguments={"a": "b"}))],
    )
    body = ChatRequest(model="small", messages=[message.model_dump(), {"role": "tool", "content": "", "tool_name": "f"}])
    first, second = conversation(body.messages)
    assert (first["reasoning_content"], first["tool_calls"][0]["id"]) == ("Hm.", second["tool_call_id"])


class Reader:
    """Reads prepared deltas, one list for each piece."""

    def __init__(self, *found):
        self.found = [*found]

    def read(self, _):
        return self.found.pop(0)


def test_calls_are_streamed_whole():
    reader = Reader(
        [Delta(reasoning="hm"), Delta(content="yes")],
        [Delta(call=0, name="f"), Delta(call=0, arguments='{"a":')],
        [Delta(call=0, arguments="1}"), Delta(call=1, name="g"), Delta(call=1, arguments='{"b": 2')],
        [],
    )

    async def lines():
        async def pieces():
            for i in range(3):
                yield 0, Token(i, "x")
            yield 0, Result((1, 2, 3), "", "stop", Summary())

        return [
            json.loads(each) async for each in Answer("m", reader, _said, Clock(SimpleNamespace(state=None))).lines(pieces())
        ]

    *found, end = asyncio.run(lines())
    assert [each["message"].get("thinking") for each in found] == ["hm", None, None, None]
    assert [each["message"]["content"] for each in found] == ["", "yes", "", ""]
    calls = [call["function"] for each in found for call in each["message"].get("tool_calls", ())]
    assert calls == [{"index": 0, "name": "f", "arguments": {"a": 1}}, {"index": 1, "name": "g", "arguments": {}}]
    assert (end["done"], end["done_reason"], end["message"]["content"]) == (True, "stop", "")
