"""Tools in chats, as the `openai` package asks for them."""

import json

import pytest

ASKED = {"model": "smollm2", "messages": [{"role": "user", "content": "What is the weather in Rome?"}], "max_tokens": 120}


def tool(name):
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("get_weather"), tool("get_tides")]
NAMED = {"type": "function", "function": {"name": "get_tides"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
CHOICES = [("required", {"get_weather", "get_tides"}), (NAMED, {"get_tides"}), (ALLOWED, {"get_tides"})]


@pytest.mark.parametrize(("choice", "names"), CHOICES)
def test_calls_that_must_be_made_fit_their_schema_streamed_and_not(ai, choice, names):
    asked = ASKED | {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    (found,) = ai.chat.completions.create(**asked).choices
    assert found.finish_reason == "tool_calls"
    (call,) = found.message.tool_calls
    assert call.function.name in names
    arguments = json.loads(call.function.arguments)
    assert arguments.keys() == {"city", "days"}
    assert 1 <= arguments["days"] <= 9
    told = {"name": "", "arguments": "", "ids": set()}
    for chunk in ai.chat.completions.create(**asked, stream=True):
        for each in chunk.choices[0].delta.tool_calls or ():
            told["name"] += each.function.name or ""
            told["arguments"] += each.function.arguments or ""
            told["ids"].add(each.id)
    assert (told["name"], told["arguments"]) == (call.function.name, call.function.arguments)
    assert len(told["ids"] - {None}) == 1


def test_of_allowed_tools_the_model_is_told_alone(client):
    def prompt(tools, **more):
        return client.post("/apply-template", json={"messages": ASKED["messages"], "tools": tools} | more).json()["prompt"]

    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
    assert prompt(TOOLS, tool_choice=allowed) == prompt(TOOLS[1:]) != prompt(TOOLS)


@pytest.mark.parametrize(
    ("allowed", "told"),
    [
        (["get_tides"], r"allowed_tools is \['get_tides'\], expected {'mode': 'auto' or"),
        (
            {"mode": "auto", "tools": [{"type": "function", "function": {"name": "sail"}}]},
            "allows 'sail', which is none of the",
        ),
    ],
)
def test_wrong_choices_of_tools_are_told(ai, allowed, told):
    from openai import BadRequestError

    with pytest.raises(BadRequestError, match=told):
        ai.chat.completions.create(**ASKED, tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})


def test_a_refusal_goes_back(ai):
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]}
    messages = [*ASKED["messages"], refused, {"role": "user", "content": "Try."}]
    assert ai.chat.completions.create(**ASKED | {"messages": messages, "max_tokens": 8}).choices[0].message.content


def test_a_call_that_a_stop_text_cuts_is_none_to_be_made(ai):
    asked = ASKED | {"tools": TOOLS, "tool_choice": NAMED, "stop": ["days"]}
    assert ai.chat.completions.create(**asked).choices[0].finish_reason == "stop"
    *_, last = ai.chat.completions.create(**asked, stream=True)
    assert last.choices[0].finish_reason == "stop"


def test_a_call_and_what_it_returned_go_back(ai):
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome", "days": 1}'}}
    messages = [
        *ASKED["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    found = ai.chat.completions.create(**ASKED | {"messages": messages, "tools": TOOLS, "max_tokens": 8})
    assert found.choices[0].message.content


def test_strict_functions_leave_the_model_the_choice_and_so_does_a_form_of_the_answer(ai):
    strict = [{"type": "function", "function": each["function"] | {"strict": True}} for each in TOOLS]
    asked = ASKED | {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}
    texts = [ai.chat.completions.create(**asked | {"tools": each}).choices[0].message.content for each in (TOOLS, strict)]
    assert texts[0] == texts[1] != ""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["a", "b"]}, "strict": True}}
    found = ai.chat.completions.create(**asked | {"tools": strict, "response_format": form}).choices[0]
    assert found.message.tool_calls or found.message.content in ('"a"', '"b"')


def test_tools_that_may_not_be_called_change_nothing(ai):
    plain = ai.chat.completions.create(**ASKED | {"max_tokens": 8})
    found = ai.chat.completions.create(**ASKED | {"max_tokens": 8, "tools": TOOLS, "tool_choice": "none"})
    assert found.choices[0].message.content == plain.choices[0].message.content


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_rich"}}}, "get_rich"),
        ({"tools": [{"type": "function"}]}, "tool"),
        ({"tools": TOOLS, "tool_choice": "required", "extra_body": {"grammar": "root ::= [a]"}}, "grammar cannot be honoured"),
    ],
)
def test_tools_that_cannot_be_meant_are_a_bad_request(ai, more, told):
    import openai

    with pytest.raises(openai.BadRequestError, match=told):
        ai.chat.completions.create(**ASKED | more)
