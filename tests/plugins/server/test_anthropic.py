"""Anthropic's interface, by its own client on a real server."""

import json

import pytest
from pydantic import BaseModel, Field
from support.servers import serving

HELLO = [{"role": "user", "content": "Say hello in five words."}]
WEATHER = {
    "name": "weather",
    "description": "Tells the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
ASKED = {"messages": [{"role": "user", "content": "How is the weather in Rome?"}], "tools": [WEATHER], "max_tokens": 60}


@pytest.fixture(scope="module")
def claude(server):
    """Anthropic's client of the server, imported here because that takes seconds: not every process has these tests."""
    from anthropic import Anthropic

    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as found:
        yield found


def ask(claude, **fields):
    return claude.messages.create(**{"model": "any", "max_tokens": 12, "messages": HELLO} | fields)


def chat(client, **fields):
    return client.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 12} | fields).json()


def test_an_answer_is_that_of_openais_chat(claude, client):
    found, other = ask(claude), chat(client)
    (block,) = found.content
    assert (found.type, found.role, found.model, block.type) == ("message", "assistant", "smollm2", "text")
    assert block.text == other["choices"][0]["message"]["content"]
    assert found.speculation["effective"] == other["speculation"]["effective"]
    assert "timings" not in found.model_extra
    usage = found.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == other["usage"]["prompt_tokens"]
    assert usage.output_tokens == other["usage"]["completion_tokens"]
    assert claude.messages.count_tokens(model="any", messages=HELLO).input_tokens == other["usage"]["prompt_tokens"]


def test_claude_codes_line_of_bills_is_left_out_so_that_the_prompt_stays_cached(client):
    def asked(system, path="/v1/messages/count_tokens"):
        return client.post(path, json={"messages": HELLO, "system": system, "max_tokens": 1}).json()

    def line(cch):
        return f"x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch={cch};"

    told = "You are a helpful assistant who knows what it said a moment ago, word for word."
    for system in (
        line("fa690") + told,
        f"{line('fa690')}\n{told}",
        [{"type": "text", "text": each} for each in (line(1), told)],
    ):
        assert asked(system) == asked(told)
    assert asked([{"type": "text", "text": line(1)}]) == asked([])
    used = [asked([{"type": "text", "text": each} for each in (line(cch), told)], "/v1/messages") for cch in ("fa690", "0aaa9")]
    assert used[1]["usage"]["input_tokens"] == 1


@pytest.mark.parametrize(
    ("fields", "reason", "word"),
    [
        ({"max_tokens": 3}, "max_tokens", None),
        ({"max_tokens": 60}, "end_turn", None),
        (
            {"messages": [{"role": "user", "content": "Count. " * 215}], "max_tokens": 500, "ignore_eos": True},
            "model_context_window_exceeded",
            None,
        ),
    ],
)
def test_it_says_why_an_answer_ended(claude, fields, reason, word):
    more = {name: fields.pop(name) for name in ("ignore_eos",) if name in fields}
    found = ask(claude, **fields, extra_body=more)
    assert (found.stop_reason, found.stop_sequence) == (reason, word)


def test_a_stop_sequence_is_told_and_left_out(claude):
    words = ask(claude, max_tokens=30).content[0].text.split()
    found = ask(claude, max_tokens=30, stop_sequences=["zzz", words[2]])
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", words[2])
    assert found.content[0].text.split() == words[:2]


def test_a_stream_comes_to_the_same_message(claude):
    whole = ask(claude, max_tokens=30, extra_body={"speculative": False})
    with claude.messages.stream(model="any", max_tokens=30, messages=HELLO) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    kinds = [event.type for event in ask(claude, max_tokens=2, stream=True)]
    assert kinds[:2] + kinds[-3:] == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_conversations_have_systems_blocks_and_beginnings_of_answers(claude, client):
    system = [{"type": "text", "text": "Answer in French.", "cache_control": {"type": "ephemeral"}}]
    blocks = [{"role": "user", "content": [{"type": "text", "text": "Say"}, {"type": "text", "text": " hello."}]}]
    begun = [*blocks, {"role": "assistant", "content": "Bon"}]
    unasked = {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "speed": "standard"}
    extra = {"top_k": 5, "temperature": 0.0} | unasked
    found = ask(claude, system=system, messages=begun, metadata={"user_id": "me"}, extra_body=extra)
    other = [{"role": "system", "content": "Answer in French."}, {"role": "user", "content": "Say hello."}, begun[-1]]
    assert found.content[0].text == chat(client, messages=other)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}])
def test_a_tool_that_must_be_called_is_called_with_what_fits_its_schema(claude, choice):
    found = ask(claude, **ASKED, tool_choice=choice)
    calls = [block for block in found.content if block.type == "tool_use"]
    assert calls
    assert all(call.name == "weather" and call.input["city"] in {"Oslo", "Rome"} for call in calls)
    assert found.stop_reason == "tool_use"
    with claude.messages.stream(model="any", **ASKED, tool_choice=choice) as stream:
        streamed = stream.get_final_message()
    assert [(call.name, call.input) for call in streamed.content] == [(call.name, call.input) for call in calls]
    assert streamed.stop_reason == "tool_use"


def test_strict_tools_are_held_to_their_schema(claude):
    asked = {"model": "any", "max_tokens": 4, "messages": HELLO, "tool_choice": {"type": "auto"}}
    from anthropic import BadRequestError

    beyond = {"name": "f", "input_schema": {"type": "object", "not": {}}}
    assert claude.messages.create(**asked, tools=[beyond | {"strict": False, "eager_input_streaming": True}])
    with pytest.raises(BadRequestError, match="not"):
        claude.messages.create(**asked, tools=[beyond | {"strict": True}])


def test_documents_that_are_text_are_read(claude, client):
    def n_tokens(content):
        return claude.messages.count_tokens(model="any", messages=[{"role": "user", "content": content}]).input_tokens

    source = {"type": "text", "media_type": "text/plain", "data": "The sea is blue."}
    document = {"type": "document", "source": source, "title": "Colours", "context": "A note."}
    text = "Colours\nA note.\nThe sea is blue.\n\nWhich colour?"
    assert n_tokens([document, {"type": "text", "text": "Which colour?"}]) == n_tokens(text)
    result = {"type": "tool_result", "tool_use_id": "t", "content": [document]}
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    history = [*HELLO, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    assert ask(claude, messages=history).content
    picture = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}}
    answer = client.post("/v1/messages", json={"max_tokens": 1, "messages": [{"role": "user", "content": [picture]}]})
    assert answer.status_code == 400
    assert "source.type is 'base64', expected 'text'" in answer.json()["error"]["message"]


def test_examples_of_tools_and_what_concerns_anthropic_alone_are_taken(claude):
    more = {"inference_geo": "us", "diagnostics": {"previous_message_id": "m"}, "user_profile_id": "u"}
    tools = [WEATHER | {"input_examples": [{"city": "Rome"}]}]
    assert ask(claude, tools=tools, extra_body=more).content


def test_a_system_message_may_stand_among_the_others(claude):
    told = claude.messages.count_tokens(model="any", messages=[{"role": "system", "content": "Be brief."}, *HELLO])
    assert told == claude.messages.count_tokens(model="any", system="Be brief.", messages=HELLO)


def test_the_answers_of_tools_go_back_into_the_conversation(claude, client):
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Sunny."}]}
    conversation = [*ASKED["messages"], {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    found = claude.messages.count_tokens(model="any", messages=conversation, tools=[WEATHER])
    function = {"name": "weather", "arguments": json.dumps({"city": "Rome"})}
    other = [
        *ASKED["messages"],
        {"role": "assistant", "content": "", "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "Sunny."},
    ]
    described = {
        "type": "function",
        "function": {"name": "weather", "description": WEATHER["description"], "parameters": WEATHER["input_schema"]},
    }
    assert found.input_tokens == chat(client, messages=other, tools=[described])["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages.0.content.0.type is 'image', expected one of 'text', 'thinking'",
        ),
        ({"messages": [{"role": "user", "content": [{"text": "Hi"}]}]}, "messages.0.content.0.type is missing"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "budget_tokens"),
        ({"tool_choice": {"type": "any"}}, "there are no tools"),
        ({"container": "c"}, "container"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management is an object, which"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "long " * 600}]}, "512"),
    ],
)
def test_what_cannot_be_done_is_refused_in_anthropics_form(claude, fields, told):
    extra = {name: fields.pop(name) for name in ("container", "context_management") if name in fields}
    from anthropic import BadRequestError

    with pytest.raises(BadRequestError, match=told) as refused:
        ask(claude, **fields, extra_body=extra)
    assert refused.value.body["type"] == "error"
    assert refused.value.body["error"]["type"] == "invalid_request_error"


def test_a_key_is_asked_for_in_anthropics_header(strict_server):
    from anthropic import Anthropic, APIStatusError, AuthenticationError

    with Anthropic(base_url=strict_server.url, api_key="wrong", max_retries=0) as claude, pytest.raises(AuthenticationError):
        ask(claude)
    with (
        Anthropic(base_url=strict_server.url, api_key="one", max_retries=0) as claude,
        pytest.raises(APIStatusError, match="chat template"),
    ):
        ask(claude)


def test_a_stream_begins_with_what_the_prompt_is_and_tells_pings_by_their_name(client):
    body = {"max_tokens": 4, "messages": HELLO, "stream": True}
    events = [json.loads(line[6:]) for line in client.post("/v1/messages", json=body).text.splitlines() if line[:6] == "data: "]
    begun, ended = events[0]["message"]["usage"], events[-2]["usage"]
    assert begun == ended | {"output_tokens": 0}
    assert begun["input_tokens"] > 0


class Colour(BaseModel):
    """A colour."""

    name: str = Field(max_length=10)


def test_an_answer_keeps_to_the_schema_that_its_type_is(claude):
    asked = {"model": "any", "max_tokens": 60, "messages": [{"role": "user", "content": "Name a colour."}]}
    assert isinstance(claude.messages.parse(output_format=Colour, **asked).parsed_output, Colour)


THINKING = "{{ messages[0].content }}<think>{# </think> #}"


@pytest.fixture(scope="module")
def thinking_server():
    """A model whose chats begin with reasoning, of which it finds no end by itself."""
    with serving("-m", "smollm2", "-t", 1, "-c", 256, "-np", 1, "--temp", 0, "--chat-template", THINKING) as found:
        yield found


def test_thinking_ends_with_its_budget(thinking_server):
    asked = {"max_tokens": 40, "messages": HELLO, "ignore_eos": True}
    blocks = {}
    for budget in (6, 12):
        thinking = {"type": "enabled", "budget_tokens": budget}
        answer = thinking_server.client.post("/v1/messages", json=asked | {"thinking": thinking}).json()
        thought, text = answer["content"]
        assert (thought["type"], text["type"]) == ("thinking", "text")
        blocks[budget] = thought["thinking"]
    assert blocks[12].startswith(blocks[6])
    assert len(blocks[12]) > len(blocks[6]) > 0
    answer = thinking_server.client.post("/v1/chat/completions", json=asked | {"reasoning_budget_tokens": 6}).json()
    assert answer["choices"][0]["message"]["reasoning_content"] == blocks[6]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_thinking_may_be_left_out_of_the_answer(thinking_server, is_streamed):
    from anthropic import Anthropic

    thinking = {"type": "enabled", "budget_tokens": 6}
    asked = {"model": "any", "max_tokens": 40, "messages": HELLO, "extra_body": {"ignore_eos": True}}
    with Anthropic(base_url=thinking_server.url, api_key="none", max_retries=0) as claude:

        def blocks(**more):
            if is_streamed:
                with claude.messages.stream(**asked, thinking=thinking | more) as stream:
                    return stream.get_final_message().content
            return claude.messages.create(**asked, thinking=thinking | more).content

        told, silent = blocks(), blocks(display="omitted")
    assert [block.type for block in silent] == ["thinking", "text"]
    assert told[0].thinking
    assert not silent[0].thinking
    assert told[1].text == silent[1].text


def test_a_budget_is_kept_beside_a_schema(thinking_server):
    schema = {"format": {"type": "json_schema", "schema": Colour.model_json_schema()}}
    body = {"max_tokens": 60, "messages": HELLO, "thinking": {"type": "enabled", "budget_tokens": 6}, "output_config": schema}
    answer = thinking_server.client.post("/v1/messages", json=body).json()
    thought, text = answer["content"]
    assert thought["thinking"]
    assert Colour.model_validate_json(text["text"])


def test_flags_about_thinking_and_pooling_hold_for_all_requests():
    flags = "--reasoning-budget 6 --reasoning off --reasoning-effort low --pooling mean"
    template = "{{ messages[0].content }}{{ dict(enable_thinking=enable_thinking, reasoning_effort=reasoning_effort) }}"
    words = f"-m smollm2 -t 1 -c 256 -np 1 --temp 0 {flags} --chat-template"
    with serving(*words.split(), THINKING.replace("{{ messages[0].content }}", template)) as server:
        asked = {"max_tokens": 60, "messages": HELLO}

        def n_reasoning(**more):
            answer = server.client.post("/v1/chat/completions", json=asked | more).json()
            return answer["usage"]["completion_tokens_details"]["reasoning_tokens"]

        budgets = {"reasoning_budget_tokens": 12}, {}, {"reasoning_budget_tokens": -1}
        longer, usual, unsaid = (n_reasoning(**budget) for budget in budgets)
        assert longer > usual == unsaid > 0
        assert server.client.post("/v1/chat/completions", json=asked | {"regex": "[a-z]{9}"}).status_code == 200
        variables = server.client.post("/apply-template", json=asked).json()["prompt"]
        assert variables.endswith("{'enable_thinking': False, 'reasoning_effort': 'low'}<think>")
        found, usual = ({"input": "The sea", **more} for more in ({}, {"pooling": "mean"}))
        assert len({server.client.post("/v1/embeddings", json=each).text for each in (found, usual)}) == 1


def test_a_budget_of_thinking_leaves_a_model_alone_that_does_not_think(claude):
    asked = {"model": "any", "max_tokens": 4, "messages": HELLO}
    first = claude.messages.create(**asked)
    again = claude.messages.create(thinking={"type": "enabled", "budget_tokens": 1024}, **asked)
    assert again.content == first.content
