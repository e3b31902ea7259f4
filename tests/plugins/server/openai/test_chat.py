"""`/v1/chat/completions`, as the `openai` package asks."""

import asyncio
import json

import pytest

ASKED = {"model": "smollm2", "messages": [{"role": "user", "content": "Tell me about the sea."}], "max_completion_tokens": 16}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def answer(ai):
    return ai.chat.completions.create(**ASKED)


def test_an_answer_has_what_clients_look_at(answer):
    assert answer.object == "chat.completion"
    assert answer.model == "smollm2"
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "length", "assistant")
    assert choice.message.content
    assert answer.usage.completion_tokens == 16
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 16
    timings = answer.timings
    assert timings["predicted_n"] == 16
    assert timings["cache_n"] + timings["prompt_n"] == answer.usage.prompt_tokens
    proposed = [each["drafted"] for each in answer.speculation["drafters"].values()]
    assert max(proposed) <= timings["draft_n"] <= sum(proposed)  # a token that several proposed is one
    assert answer.speculation["effective"]["type"] == "suffix;recycle"


def text_of(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_a_stream_says_the_same_and_ends_with_timings_and_usage(ai, answer):
    chunks = list(ai.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True}))
    assert text_of(chunks) == answer.choices[0].message.content
    assert len({chunk.id for chunk in chunks}) == 1
    assert [(each.choices[0].delta.role, each.choices[0].delta.content) for each in chunks[:1]] == [("assistant", None)]
    assert {each.choices[0].delta.role for each in chunks[1:-1]} == {None}
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-2].timings["predicted_n"] == 16
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 16
    assert chunks[-1].timings == chunks[-2].timings


def test_reasoning_is_counted_apart(ai):
    thought = {"regex": r"<think>Hm, the sea\.</think>Blue\."}
    asked = {**ASKED, "max_completion_tokens": 40, "extra_body": thought}
    found = ai.chat.completions.create(**asked)
    message, n = found.choices[0].message, found.usage.completion_tokens_details.reasoning_tokens
    assert (message.reasoning_content, message.content) == ("Hm, the sea.", "Blue.")
    assert 4 <= n < found.usage.completion_tokens
    *_, last = ai.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert last.usage.completion_tokens_details.reasoning_tokens == n
    response = ai.responses.create(model="smollm2", input="Tell me about the sea.", max_output_tokens=40, extra_body=thought)
    assert response.usage.output_tokens_details.reasoning_tokens == n
    left = ai.chat.completions.create(**{**asked, "extra_body": thought | {"reasoning_format": "none"}})
    assert left.usage.completion_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_streams_tell_llama_cpps_progress_and_timings(client, path):
    prompt = "Whoever waits for a long prompt wants to know how long. " * 9
    body = {"messages": [{"role": "user", "content": prompt}]} if "chat" in path else {}
    body |= {"input": prompt} if "responses" in path else {"prompt": prompt} if not body else {}
    more = {"stream": True, "return_progress": True, "timings_per_token": True, "cache_prompt": False}
    lines = client.post(
        path, json=body | more | {"max_output_tokens" if "input" in body else "max_tokens": 4}
    ).text.splitlines()
    told = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    progress = [each["prompt_progress"] for each in told if "prompt_progress" in each]
    assert progress[0]["processed"] == 0 < progress[-1]["processed"] == progress[-1]["total"]
    timed = [each["timings"] for each in told if "timings" in each and each["timings"]["predicted_n"]]
    assert "chat" not in path or "timings" not in next(each for each in told if "prompt_progress" not in each)  # who speaks
    assert timed[0]["predicted_n"] < timed[-1]["predicted_n"]
    assert {each["prompt_n"] for each in timed} == {progress[-1]["total"]}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_each_event_tells_the_usage_so_far(client, path):
    more = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "max_tokens": 6}
    body = {"messages": ASKED["messages"]} if "chat" in path else {"prompt": "The sea"}
    lines = client.post(path, json=body | more).text.splitlines()
    *told, last = [json.loads(line.removeprefix("data: ")).get("usage") for line in lines if line.startswith("data: {")]
    used = [each for each in told if each is not None]
    assert [each["completion_tokens"] for each in used] == sorted(each["completion_tokens"] for each in used)
    assert used[-1] == {name: last[name] for name in used[-1]}
    more["stream_options"]["include_usage"] = False
    assert '"usage"' not in client.post(path, json=body | more).text


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_verbose_answer_tells_how_it_was_made(client, path, is_streamed):
    asked = {"messages": ASKED["messages"]} if "chat" in path else {"prompt": ["a", "Tell me about the sea."]}
    asked |= {"max_tokens": 3, "stop": "zzz", "logit_bias": {"5": -2}, "stream": is_streamed}
    answer = client.post(path, json=asked | {"verbose": True})
    events = [json.loads(each[6:]) for each in answer.text.splitlines() if each.startswith("data: {")]
    told = [each["__verbose"] for each in events if "__verbose" in each] if is_streamed else [answer.json()["__verbose"]]
    whole = next(each for each in told if each["index"] == is_streamed * ("chat" not in path))
    assert ("Tell me about the sea." in whole["prompt"]) == ("chat" in path or is_streamed)
    assert ("im_start" in whole["prompt"]) == ("chat" in path)
    assert whole["content"]
    assert (whole["stop_type"], whole["tokens_predicted"]) == ("limit", 3)
    settings = whole["generation_settings"]
    assert (settings["stop"], settings["logit_bias"]) == (["zzz"], [{"token": 5, "bias": -2.0}])
    assert "__verbose" not in client.post(path, json=asked | {"verbose": False}).text


def test_a_verbose_server_gives_verbose_answers_unless_a_request_says_otherwise(strict_server):
    asked = {"json": {"prompt": [1, 2], "max_tokens": 1}, "headers": {"x-api-key": "one"}}
    assert strict_server.client.post("/v1/completions", **asked).json()["__verbose"]["tokens_evaluated"] == 2
    asked["json"]["verbose"] = False
    assert "__verbose" not in strict_server.client.post("/v1/completions", **asked).json()


def test_an_answer_is_sent_back_as_it_was_received_and_what_is_null_is_left_out(ai, answer):
    messages = [*ASKED["messages"], answer.choices[0].message.model_dump(), {"role": "user", "content": "Go on."}]
    messages[1] |= {"annotations": [], "reasoning": "Hm.", "parsed": {"colour": "red"}}
    nothing = dict.fromkeys(("n", "stream", "stop", "seed", "logprobs", "tools", "lora", "parallel_tool_calls"))
    more = nothing | {"modalities": ["text"], "verbosity": "low", "logprobs": False, "top_logprobs": 0}
    assert ai.chat.completions.create(**ASKED | {"messages": messages}, extra_body=more).choices[0].message.content


def test_the_asynchronous_client_asks_for_many_at_once(make_async_ai, answer):
    async def ask():
        async with make_async_ai() as client:

            async def streamed():
                return text_of([chunk async for chunk in await client.chat.completions.create(**ASKED, stream=True)])

            async def whole():
                return (await client.chat.completions.create(**ASKED)).choices[0].message.content

            return await asyncio.gather(*(each() for each in (streamed, whole) * 6))

    assert set(asyncio.run(ask())) == {answer.choices[0].message.content}


@pytest.mark.parametrize("speculative", [False, {"type": "suffix", "n_max": 3}])
def test_speculation_changes_no_answer_and_is_echoed(ai, answer, speculative):
    other = ai.chat.completions.create(**ASKED, extra_body={"speculative": speculative})
    assert other.choices[0].message.content == answer.choices[0].message.content
    effective = other.speculation["effective"]
    assert (effective["type"], effective["n_max"]) == (("suffix", 3) if speculative else ("none", effective["n_max"]))


def test_draft_origins_tell_of_every_token_who_drafted_it(ai):
    prompt = [{"role": "user", "content": "Repeat: one two three one two three one two three one two three"}]
    more = {"return_draft_origin": True, "speculative": {"n_max": 4}}
    chunks = list(ai.chat.completions.create(**{**ASKED, "messages": prompt}, stream=True, extra_body=more))
    origins = [each for chunk in chunks for each in getattr(chunk.choices[0], "draft_origin", [])]
    timings = chunks[-1].timings
    assert "".join(each["text"] for each in origins) == text_of(chunks)
    assert sum(each["drafter"] is not None for each in origins) == timings["draft_n_accepted"]
    assert [each["n_drafted"] for each in origins if each["n_drafted"] is not None][1:] == chunks[-1].speculation[
        "draft_lengths"
    ]


def test_n_answers_differ_by_their_seeds_and_are_the_same_again(ai):
    messages = [{"role": "user", "content": "Tell me several things about the wide blue sky."}]
    asked = ASKED | {"messages": messages, "n": 3, "seed": 7, "temperature": 1.5}
    first, again = (ai.chat.completions.create(**asked) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert len(set(texts)) == 3
    assert [choice.message.content for choice in again.choices] == texts
    assert [timings["predicted_n"] for timings in first.timings] == [16] * 3
    assert [timings["prompt_n"] for timings in first.timings][1:] == [1, 1], "the prompt is processed once"
    streamed = dict.fromkeys(range(3), "")
    for chunk in ai.chat.completions.create(**asked, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert [*streamed.values()] == texts


def test_log_probabilities_are_told_of_every_token(ai, answer):
    asked = ASKED | {"logprobs": True, "top_logprobs": 2}
    entries = ai.chat.completions.create(**asked).choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == answer.choices[0].message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 2
        assert entry.id == entry.top_logprobs[0].id
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0
    streamed = [chunk.choices[0].logprobs for chunk in ai.chat.completions.create(**asked, stream=True)]
    assert [entry for found in streamed if found for entry in found.content] == entries


def test_sampling_fields_reach_the_engine(ai, answer):
    content = answer.choices[0].message.content
    stopped = ai.chat.completions.create(**ASKED, stop=[content[5:8]]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == (content[:5], "stop")
    first = ai.chat.completions.create(**ASKED, logprobs=True).choices[0].logprobs.content[0]
    _, begun, *_ = ai.chat.completions.create(**ASKED, stream=True, extra_body={"return_draft_origin": True})
    token = begun.choices[0].draft_origin[0]["token"]
    biased = ai.chat.completions.create(**ASKED, logit_bias={str(token): -100}, logprobs=True)
    assert biased.choices[0].logprobs.content[0].token != first.token
    penalised = ai.chat.completions.create(**ASKED | {"frequency_penalty": 2.0, "presence_penalty": 2.0})
    assert penalised.timings["predicted_n"] == 16


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_answer_keeps_to_a_schema(ai, is_streamed):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    found = ai.chat.completions.create(**ASKED | {"max_completion_tokens": 60}, response_format=form, stream=is_streamed)
    person = json.loads(text_of(found) if is_streamed else found.choices[0].message.content)
    assert person.keys() == {"name", "age"}


def test_an_answer_may_be_any_json_object(ai):
    asked = {**ASKED, "max_completion_tokens": 60, "response_format": {"type": "json_object"}}
    assert ai.chat.completions.create(**asked).choices[0].message.content.startswith("{")


def test_a_prediction_is_drafted_from(ai, answer):
    content = answer.choices[0].message.content
    for text, drafters, is_used in ((content, "prediction", True), ("Zebra! " * 40, None, False)):
        speculative = (
            {"speculative": {"type": drafters}} if drafters else {}
        )  # without it, those that know the answer draft, too
        more = {"prediction": {"type": "content", "content": text}, "extra_body": speculative}
        found = ai.chat.completions.create(**ASKED, **more)
        assert found.choices[0].message.content == content
        assert (found.usage.completion_tokens_details.accepted_prediction_tokens > 0) == is_used


def test_contents_may_come_in_parts_and_a_developer_is_the_system(ai):
    parts = [{"type": "text", "text": "Name three"}, {"type": "text", "text": "animals."}]
    n = set()
    for role in ("system", "developer"):
        for content in (parts, "Name three\nanimals."):
            messages = [{"role": role, "content": "Be short."}, {"role": "user", "content": content}]
            n.add(ai.chat.completions.create(**ASKED | {"messages": messages}).usage.prompt_tokens)
    assert len(n) == 1


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"messages": []}, "messages has 0 items, expected at least 1"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages.0.content"),
        ({"response_format": {"type": "json_schema"}}, "response_format lacks json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no"}}}}, "schema"),
        ({"messages": [{"role": "user", "content": "a b " * 600}]}, "exceeds the available context size of 512"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs"),
        ({"messages": [{"role": "assistant", "content": "a"}] * 2}, "the last two messages are the assistant's"),
        ({"max_completion_tokens": 0}, "max_tokens is 0"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ],
)
def test_what_cannot_be_answered_is_a_bad_request(ai, more, told):
    import openai

    with pytest.raises(openai.BadRequestError, match=told):
        ai.chat.completions.create(**ASKED | more)


def test_a_prompt_that_is_too_long_has_openais_code(ai):
    import openai

    with pytest.raises(openai.BadRequestError) as caught:
        ai.chat.completions.create(**ASKED | {"messages": [{"role": "user", "content": "a b " * 600}]})
    assert caught.value.code == "context_length_exceeded"


def test_a_conversation_s_own_tokens_are_scored_in_vllms_form(client):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "prompt_logprobs": 1}
    found = client.post("/v1/chat/completions", json=body).json()
    scored = found["prompt_logprobs"]
    assert scored[0] is None
    assert len(scored) == found["usage"]["prompt_tokens"]
    prompt = client.post("/apply-template", json={"messages": body["messages"]}).json()["prompt"]
    ids = client.post("/tokenize", json={"content": prompt}).json()["tokens"]
    same = client.post("/v1/completions", json={"prompt": ids, "max_tokens": 0, "prompt_logprobs": 1}).json()
    assert scored == same["choices"][0]["prompt_logprobs"]
    refused = client.post("/v1/chat/completions", json=body | {"stream": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")
