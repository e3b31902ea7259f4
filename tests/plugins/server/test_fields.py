"""Fields of requests, without a server: what is null is left out, of every object that a request holds."""

from itertools import chain

import pytest
from hypothesis import given, strategies as st

from augury.plugins.server import app  # noqa: F401 - all forms of requests
from augury.plugins.server.anthropic import MessagesRequest
from augury.plugins.server.embeddings import EmbeddingRequest
from augury.plugins.server.fields import Fields
from augury.plugins.server.llama_cpp.completion import InfillRequest
from augury.plugins.server.llama_cpp.tokenize import TokenizeRequest
from augury.plugins.server.openai.chat import ChatRequest
from augury.plugins.server.openai.responses import ResponsesRequest

OWN = {"input_schema", "parameters", "schema", "chat_template_kwargs", "tool_calls", "citations", "cache_control"}
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", None]}}, "default": None}
TEXT = {"type": "text", "text": "Hi"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
REQUESTS = [
    (
        ChatRequest,
        {
            "messages": [
                {"role": "user", "content": [TEXT]},
                {"role": "assistant", "reasoning_content": "Hm.", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "1", "content": "Sunny."},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
            "stream_options": {"include_usage": True},
            "prediction": {"type": "content", "content": [TEXT]},
            "speculative": {"n_max": 3, "suffix": {"n_max": 5}},
            "constraint": {"grammar": {"text": "x"}},
            "chat_template_kwargs": {"x": None},
        },
    ),
    (
        ResponsesRequest,
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": "Sunny."},
            ],
            "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
            "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
            "reasoning": {"effort": "low"},
            "stream_options": {},
        },
    ),
    (
        MessagesRequest,
        {
            "max_tokens": 5,
            "system": [TEXT],
            "messages": [
                {"role": "user", "content": [TEXT | {"cache_control": {"type": "ephemeral", "ttl": None}}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm."},
                        {"type": "tool_use", "id": "1", "name": "f", "input": {"city": None}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [TEXT]}]},
            ],
            "tools": [{"name": "f", "input_schema": SCHEMA}],
            "tool_choice": {"type": "auto"},
            "thinking": {"type": "enabled", "budget_tokens": 9},
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        },
    ),
    (InfillRequest, {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c"}], "speculative": {"n_max": 3}}),
]


def below(form):
    return [form, *chain.from_iterable(map(below, form.__subclasses__()))]


FORMS = below(Fields)
NAMES = sorted({"speculative.p_min", "unheard_of", *chain.from_iterable(chain.from_iterable(form.names()) for form in FORMS)})


def smallest(schema, defs):
    """The smallest value of a form that a JSON schema describes."""
    if "$ref" in schema:
        return smallest(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in schema or "oneOf" in schema:
        return smallest((schema.get("anyOf") or schema["oneOf"])[0], defs)
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    if schema.get("type", "object") == "object":  # or anything
        return {name: smallest(schema["properties"][name], defs) for name in schema.get("required", ())}
    if schema["type"] == "array":
        return [smallest(schema["items"], defs)] * schema.get("minItems", 0)
    return {"string": "x", "integer": schema.get("minimum", 0), "number": 0.5}[schema["type"]]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.__module__.rpartition('.')[2]}.{form.__name__}")
def test_every_optional_field_of_every_object_may_be_null(form):
    schema = form.model_json_schema()
    found = smallest(schema, schema.get("$defs", {}))
    nulls = dict.fromkeys([*chain.from_iterable(form.names()), "unheard_of"])
    assert form.model_validate(nulls | found) == form.model_validate(found)


@given(st.data())
@pytest.mark.parametrize(("form", "body"), REQUESTS, ids=lambda each: getattr(each, "__name__", ""))
def test_nulls_anywhere_in_a_request_change_nothing(form, body, data):
    def with_nulls(value):
        if isinstance(value, list):
            return [with_nulls(each) for each in value]
        if not isinstance(value, dict):
            return value
        nulls = data.draw(st.sets(st.sampled_from(NAMES), max_size=5)) - value.keys()
        is_call = value.get("type") == "tool_use"
        kept = {key: each if key in OWN or (is_call and key == "input") else with_nulls(each) for key, each in value.items()}
        return kept | dict.fromkeys(nulls)

    assert form.model_validate(with_nulls(body)) == form.model_validate(body)


def test_what_is_the_clients_own_keeps_its_nulls():
    chat, responses, messages, _ = (form.model_validate(body) for form, body in REQUESTS)
    assert chat.tools[0]["function"]["parameters"] == responses.tools[0]["parameters"] == SCHEMA
    assert chat.response_format.schema_of_answer() == responses.schema_of_answer() == SCHEMA
    assert chat.chat_template_kwargs == {"x": None}
    assert messages.messages[1].content[1].input == {"city": None}
    assert messages.tools[0].input_schema == messages.output_config.format.schema_ == SCHEMA


def test_two_names_of_a_field_agree_in_any_object():
    def message(**more):
        return ChatRequest.model_validate({"messages": [{"role": "assistant", "content": "a"} | more]}).messages[0]

    assert message(reasoning="Hm.", reasoning_content="Hm.") == message(reasoning="Hm.")
    with pytest.raises(ValueError, match="reasoning_content and reasoning mean the same here, but differ"):
        message(reasoning="Hm.", reasoning_content="Oh.")


ASKED = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("sent", "name", "meant"),
    [
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA),
        ({"guided_choice": ["a", "b"]}, "choice", ["a", "b"]),
        ({"guided_regex": "a*", "guided_json": None}, "regex", "a*"),
        ({"structured_outputs": {"grammar": 'root ::= "a"', "json": None}}, "grammar", 'root ::= "a"'),
        ({"structured_outputs": {"json_object": True}}, "json_schema", {"type": "object"}),
        ({"structured_outputs": {"json_object": False}}, "json_schema", None),
        ({"functions": [{"name": "f"}]}, "tools", [{"type": "function", "function": {"name": "f"}}]),
        ({"function_call": "none"}, "tool_choice", "none"),
        ({"function_call": {"name": "f"}}, "tool_choice", {"type": "function", "function": {"name": "f"}}),
        ({"think": False}, "chat_template_kwargs", {"enable_thinking": False}),
        ({"think": True, "chat_template_kwargs": {"x": 1}}, "chat_template_kwargs", {"enable_thinking": True, "x": 1}),
        ({"enable_thinking": False}, "chat_template_kwargs", {"enable_thinking": False}),
        ({"thinking": {"type": "disabled"}}, "chat_template_kwargs", {"enable_thinking": False}),
        ({"think": "low"}, "reasoning_effort", "low"),
        ({"documents": [{"text": "a"}]}, "chat_template_kwargs", {"documents": [{"text": "a"}]}),
        ({"truncation": "auto", "truncate_prompt_tokens": -1, "priority": 3, "bad_words": []}, "tools", None),
        ({"ttl": 60, "draft_model": "a", "top_a": 0.0, "return_token_ids": False}, "tools", None),
        ({"add_special_tokens": False, "num_ctx": 4096, "tfs_z": 1, "n_probs": 0}, "tools", None),
    ],
)
def test_fields_of_other_servers_mean_what_they_mean_there(sent, name, meant):
    assert getattr(ChatRequest.model_validate(ASKED | sent), name) == meant


@pytest.mark.parametrize(
    "sent",
    [
        {"bad_words": ["a"]},
        {"top_a": 0.2},
        {"truncate_prompt_tokens": 5},
        {"return_token_ids": True},
        {"truncation": "left"},
        {"best_of": True},
        {"thinking": {"type": "enabled", "budget_tokens": 5}},
        {"documents": "a"},
    ],
    ids=str,
)
def test_a_value_that_would_change_the_answer_is_refused(sent):
    with pytest.raises(ValueError, match=next(iter(sent))):
        ChatRequest.model_validate(ASKED | sent)


@pytest.mark.parametrize("form", [ChatRequest, ResponsesRequest, MessagesRequest, InfillRequest, EmbeddingRequest])
def test_neutral_values_are_left_out_of_any_request(form):
    schema = form.model_json_schema()
    asked = smallest(schema, schema.get("$defs", {}))
    neutral = {"priority": 1, "num_ctx": 4096, "request_id": "a", "truncation": "disabled", "user": "me"}
    assert form.model_validate(asked | neutral) == form.model_validate(asked)


@pytest.mark.parametrize(
    ("sent", "is_begun"),
    [({"prompt": "a"}, True), ({"content": "a"}, False), ({"prompt": "a", "add_special": False}, False)],
    ids=str,
)
def test_vllms_name_of_a_text_to_tokenize_has_vllms_default(sent, is_begun):
    assert TokenizeRequest.model_validate(sent).add_special is is_begun
