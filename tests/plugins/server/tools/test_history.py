"""What the server answers is taken back as history, by every template, in every interface, as the clients' objects write it."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from ollama import Message as OllamaMessage

from augury.plugins.server.anthropic import CountRequest
from augury.plugins.server.ollama.chat import ChatRequest as OllamaRequest, conversation
from augury.plugins.server.openai.chat import ChatRequest
from augury.plugins.server.openai.responses import ResponsesRequest
from augury.plugins.server.tools import ChatFormat
from augury.text.chat_template import ChatTemplate

TEMPLATES = sorted((Path(__file__).parents[3] / "data/templates").glob("*.jinja"))
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}, "y": {}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("look_up", "now")]
ASKED = {"role": "user", "content": "Hi"}

WORDS = st.text("ab 7\n\"'{}<>[]é☃", max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | WORDS, lambda inner: st.lists(inner, max_size=2), max_leaves=3
)
ARGUMENTS = st.fixed_dictionaries({"x": WORDS.map("word{}".format)}, optional={"y": VALUES})
CALLS = st.lists(st.tuples(st.sampled_from(["look_up", "now"]), ARGUMENTS), min_size=1, max_size=2)
THOUGHTS = st.sampled_from(["", "Hm.\nWell."])
TEXTS = st.sampled_from(["", "Let me look."])


def told(number, i):
    """The answer of a turn's tool; ids are the same in each turn, as some models write them."""
    return f"answer {number} {i}"


def chat(turns):
    """The messages of /v1/chat/completions, each answer as the openai package's object writes it."""
    from openai.types.chat import ChatCompletionMessage  # these take seconds: not every process has these tests

    messages = [ASKED]
    for number, (calls, thought, text) in enumerate(turns):
        made = [
            {"id": f"callidxx{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for i, (name, arguments) in enumerate(calls)
        ]
        answer = {"role": "assistant", "content": text or None, "tool_calls": made} | (
            {"reasoning_content": thought} if thought else {}
        )
        messages.append(ChatCompletionMessage.model_validate(answer).model_dump())
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": told(number, i)} for i, call in enumerate(made)]
    body = ChatRequest.model_validate({"messages": messages, "tools": TOOLS})
    return [message.for_template() for message in body.messages]


def responses(turns):
    from openai.types.responses import Response

    items = [{"role": "user", "content": "Hi"}]
    for number, (calls, thought, text) in enumerate(turns):
        output = [
            {"id": "rs_1", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]},
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}],
            },
        ]
        output = [each for each, said in zip(output, (thought, text), strict=True) if said]
        output += [
            {
                "id": f"fc_{i}",
                "type": "function_call",
                "call_id": f"callidxx{i}",
                "name": name,
                "arguments": json.dumps(arguments),
            }
            for i, (name, arguments) in enumerate(calls)
        ]
        whole = {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": output, "parallel_tool_calls": True}
        items += Response.model_validate(whole | {"tool_choice": "auto", "tools": []}).model_dump()["output"]
        items += [
            {"type": "function_call_output", "call_id": f"callidxx{i}", "output": told(number, i)} for i in range(len(calls))
        ]
    return ResponsesRequest.model_validate({"input": items}).messages()


def anthropic(turns):
    from anthropic.types import Message

    messages = [ASKED]
    for number, (calls, thought, text) in enumerate(turns):
        content = [{"type": "thinking", "thinking": thought, "signature": ""}] if thought else []
        content += [{"type": "text", "text": text}] if text else []
        content += [
            {"type": "tool_use", "id": f"callidxx{i}", "name": name, "input": arguments}
            for i, (name, arguments) in enumerate(calls)
        ]
        whole = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": content}
        whole |= {"stop_reason": "tool_use", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
        messages.append({"role": "assistant", "content": Message.model_validate(whole).model_dump()["content"]})
        results = [
            {"type": "tool_result", "tool_use_id": f"callidxx{i}", "content": told(number, i)} for i in range(len(calls))
        ]
        messages.append({"role": "user", "content": results})
    return CountRequest.model_validate({"messages": messages}).conversation()


def ollama(turns):
    messages = [ASKED]
    for number, (calls, thought, text) in enumerate(turns):
        made = [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls]
        answer = OllamaMessage(role="assistant", content=text, thinking=thought or None, tool_calls=made)
        messages.append(answer.model_dump())
        messages += [{"role": "tool", "content": told(number, i), "tool_name": name} for i, (name, _) in enumerate(calls)]
    return conversation(OllamaRequest.model_validate({"model": "m", "messages": messages}).messages)


@pytest.fixture(scope="module", params=TEMPLATES, ids=lambda path: path.stem)
def form(request):
    template = ChatTemplate(request.param.read_text("utf-8"))
    yield ChatFormat(template, None)
    template.close()


def _in_html(text):
    """As Jinja2's own `tojson` writes a text."""
    escaped = {letter: f"\\u{ord(letter):04x}" for letter in "<>&'"}
    return "".join(escaped.get(letter, letter) for letter in json.dumps(text)[1:-1])


def written(form, messages):
    return str(form.plan(messages, tools=TOOLS).params["prompt"])


@pytest.mark.parametrize("interface", [chat, responses, anthropic, ollama])
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(CALLS, THOUGHTS, TEXTS), min_size=1, max_size=2))
def test_an_answer_is_taken_back_and_its_calls_reach_the_prompt(form, interface, turns):
    prompt = written(form, interface(turns))
    answers = [prompt.find(told(number, i)) for number, (calls, _, _) in enumerate(turns) for i in range(len(calls))]
    assert -1 not in answers
    assert answers == sorted(answers)
    for calls, thought, text in turns:
        probe = written(form, chat([([("look_up", {"x": "a"})], thought, "Hear!")])).partition("Hi")[2]
        assert text in prompt or "Hear!" not in probe  # Mistral's and, after thinking, gpt-oss's tell no text beside a call
        for name, arguments in calls if "look_up" in probe else ():
            assert name in prompt.partition("Hi")[2]
            said = arguments["x"]
            forms = {said, json.dumps(said)[1:-1], json.dumps(said, ensure_ascii=False)[1:-1], repr(said)[1:-1], _in_html(said)}
            assert any(each in prompt for each in forms)


@pytest.mark.parametrize("interface", [chat, responses, anthropic, ollama])
def test_reasoning_reaches_the_template_with_the_calls_that_it_came_before(interface):
    source = (
        "{% if tools %}<tool_call>{% endif %}"
        "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content or '' }}|{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}|{{ c.function.name }}{% endfor %}{% endfor %}"
    )
    template = ChatTemplate(source)
    turn = ([("now", {"x": "a"})], "Hm.\nWell.", "Let me look.")
    try:
        prompt = written(ChatFormat(template, None), interface([turn]))
    finally:
        template.close()
    assert prompt.endswith("<assistant>Hm.\nWell.|Let me look.|now<tool>|answer 0 0")


@pytest.mark.parametrize("arguments", [None, "", "null", '{"x": "two\nlines"}', "{'x': 1}", '{"x": ', "[1]", "{}"])
def test_a_call_that_some_model_has_written_wrong_is_no_dead_end(form, arguments):
    call = {"id": "callidxx1", "type": "function", "function": {"name": "now", "arguments": arguments}}
    messages = [
        ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "callidxx1", "content": "42"},
    ]
    body = ChatRequest.model_validate({"messages": messages, "tools": TOOLS})
    assert "42" in written(form, [message.for_template() for message in body.messages])


def test_what_other_servers_answered_is_taken_back():
    content = [
        {"type": "redacted_thinking", "data": "x"},
        {"type": "tool_use", "id": "t", "name": "now", "input": {}, "caller": {"type": "direct"}},
    ]
    (called,) = CountRequest.model_validate({"messages": [{"role": "assistant", "content": content}]}).conversation()
    assert (called["content"], called["tool_calls"][0]["function"]["name"]) == ("", "now")
    marked = [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]  # as clients of several servers write it
    answer = {"role": "assistant", "content": "Yes.", "reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text"}]}
    body = ChatRequest.model_validate(
        {"messages": [{"role": "user", "content": marked, "cache_control": {"type": "ephemeral"}}, answer]}
    )
    assert [message.for_template() for message in body.messages] == [
        ASKED,
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."},
    ]
    messages = [{"role": "tool", "content": "noon", "name": "now"}]  # as Ollama's older clients write it
    (answer,) = conversation(OllamaRequest.model_validate({"model": "m", "messages": messages}).messages)
    assert answer["name"] == "now"
