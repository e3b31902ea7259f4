"""`/v1/responses`, as the `openai` package asks."""

import asyncio
import json

import pytest

from augury.plugins.server.openai.responses import ResponsesRequest

ASKED = {"model": "smollm2", "input": "Tell me about the sea.", "max_output_tokens": 16}
TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture(scope="module")
def answer(ai):
    return ai.responses.create(**ASKED)


def test_a_response_is_what_chat_answers(ai, answer):
    chat = ai.chat.completions.create(model="smollm2", messages=[{"role": "user", "content": ASKED["input"]}], max_tokens=16)
    assert answer.output_text == chat.choices[0].message.content
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.usage.output_tokens == answer.timings["predicted_n"] == 16


def test_a_stream_grows_to_the_same_response(ai, answer):
    events = list(ai.responses.create(**ASKED, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == answer.output_text
    assert events[-1].response.output_text == answer.output_text
    assert events[-1].timings == events[-1].response.timings
    assert events[-1].response.completed_at >= events[-1].response.created_at


def test_the_client_accumulates_a_stream(make_async_ai, answer):
    async def ask():
        async with make_async_ai() as client, client.responses.stream(**ASKED) as stream:
            return [event async for event in stream]

    assert asyncio.run(ask())[-1].response.output_text == answer.output_text


def test_a_conversation_goes_on(ai, answer):
    instructed = {"instructions": "You are a sailor.", "max_output_tokens": 8, "model": "smollm2"}
    items = [
        {"role": "user", "content": ASKED["input"]},
        *(item.model_dump(exclude_none=True) for item in answer.output),
        {"role": "user", "content": [{"type": "input_text", "text": "And the sky?"}]},
    ]
    found = ai.responses.create(input=items, **instructed)
    messages = [
        {"role": "system", "content": "You are a sailor."},
        {"role": "user", "content": ASKED["input"]},
        {"role": "assistant", "content": answer.output_text},
        {"role": "user", "content": "And the sky?"},
    ]
    chat = ai.chat.completions.create(model="smollm2", messages=messages, max_tokens=8)
    assert found.output_text == chat.choices[0].message.content


def test_a_response_keeps_to_a_schema(ai):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    form = {"type": "json_schema", "name": "number", "schema": schema | {"additionalProperties": False}, "strict": True}
    found = ai.responses.create(model="smollm2", input="Choose a number.", text={"format": form}, max_output_tokens=40)
    assert json.loads(found.output_text).keys() == {"n"}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_a_tool_is_called_and_its_output_goes_back(ai, choice):
    asked = {"model": "smollm2", "tools": [TOOL], "parallel_tool_calls": False}
    question = {"role": "user", "content": "What is the weather in Rome?"}
    found = ai.responses.create(**asked, input=[question], tool_choice=choice, max_output_tokens=80)
    (call,) = found.output
    assert (call.type, call.name, found.status) == ("function_call", "get_weather", "completed")
    assert json.loads(call.arguments).keys() == {"city"}
    events = list(ai.responses.create(**asked, input=[question], tool_choice=choice, max_output_tokens=80, stream=True))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    items = [question, call.model_dump(exclude_none=True) | {"parsed_arguments": {}}, output]  # as the package parses it
    assert ai.responses.create(**asked, input=items, max_output_tokens=8).usage.input_tokens > found.usage.input_tokens


def test_of_allowed_tools_one_is_called(ai):
    parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    tools = [{"type": "function", "name": name, "parameters": parameters} for name in ("look", "wait")]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "wait"}]}
    asked = {"model": "smollm2", "input": "Look!", "tools": tools, "parallel_tool_calls": False, "max_output_tokens": 60}
    (call,) = ai.responses.create(**asked, tool_choice=choice).output
    assert (call.type, call.name) == ("function_call", "wait")


def test_what_codex_sends_unasked_changes_nothing(ai, answer):
    tools = [TOOL, {"type": "web_search"}, {"type": "custom", "name": "apply_patch"}]
    more = {"client_metadata": {"x": "y"}, "text": {"verbosity": "low"}, "include": ["reasoning.encrypted_content"]}
    found, plain = (ai.responses.create(**ASKED, tools=each, extra_body=more) for each in (tools, [TOOL]))
    assert [tool.type for tool in found.tools] == ["function"]
    assert found.usage.input_tokens == plain.usage.input_tokens
    said = {"phase": "commentary", "caller": None, "namespace": None}
    items = [{"role": "user", "content": "Hi"}, answer.output[0].model_dump() | said, {"role": "user", "content": "Go on."}]
    assert ai.responses.create(**ASKED | {"input": items}).status in {"completed", "incomplete"}


@pytest.mark.parametrize("tool", [{"type": "web_search"}, {"type": "custom", "name": "apply_patch"}, {"name": "x"}])
def test_tools_of_other_types_are_left_out_where_there_are_no_others(client, tool):
    found = [client.post("/v1/responses/input_tokens", json={"input": "Hi", "tools": tools}) for tools in ([tool], [])]
    assert [(each.status_code, each.json()) for each in found] == [(200, found[1].json())] * 2


def messages_of(items):
    return ResponsesRequest.model_validate({"input": [{"role": "user", "content": "Hi"}, *items]}).messages()[1:]


def test_what_another_model_did_with_tools_of_other_types_is_left_out():
    search = {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "x"}}
    shell = {"type": "local_shell_call", "call_id": "c", "status": "completed", "action": {"type": "exec", "command": ["ls"]}}
    found = [{"type": f"{kind}_output", "call_id": "c", "output": "x"} for kind in ("local_shell_call", "tool_search")]
    assert messages_of([search, shell, *found, {"type": "mcp_list_tools", "tools": []}]) == []
    patched = [
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "ok"}]},
    ]
    called, told = messages_of(patched)
    assert called["tool_calls"][0]["function"] == {"name": "patch", "arguments": {"input": "*** Begin"}}
    assert told == {"role": "tool", "tool_call_id": "c", "content": "ok"}


def test_a_refusal_of_another_model_is_what_it_said():
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert messages_of([refused]) == [{"role": "assistant", "content": "No."}]


@pytest.mark.parametrize("more", [{"input": []}, {"input": None}, {}], ids=str)
def test_instructions_alone_are_a_conversation(client, more):
    found = client.post("/v1/responses", json={"instructions": "Greet.", "max_output_tokens": 1} | more)
    assert found.status_code == 200
    none = client.post("/v1/responses", json={"max_output_tokens": 1} | more)
    assert none.status_code == 400
    assert none.json()["error"]["message"].endswith("input holds no message; send one, or instructions")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"previous_response_id": "resp_1"}, "nothing is stored here; send what went before as input"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "there are no tools"),
        ({"input": []}, "input holds no message"),
        ({"input": ""}, "input has 0 characters, expected at least 1"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input holds no message"),
        ({"input": [{"role": "user"}]}, "lacks its role or content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type is 'item_reference'"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"input": "a b " * 600}, "exceeds the available context size of 512"),
    ],
)
def test_what_cannot_be_answered_is_a_bad_request(ai, more, told):
    import openai

    with pytest.raises(openai.BadRequestError, match=told):
        ai.responses.create(**ASKED | more)
