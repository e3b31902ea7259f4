"""`/v1/completions` and `/v1/models`, as the `openai` package asks."""

import pytest

ASKED = {"model": "smollm2", "prompt": "The sea is", "max_tokens": 8}


@pytest.fixture(scope="module")
def answer(ai):
    return ai.completions.create(**ASKED)


def test_a_text_goes_on(answer, client):
    assert (answer.object, answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("text_completion", "length", 8)
    assert answer.timings["predicted_n"] == 8
    assert answer.system_fingerprint == client.get("/props").json()["build_info"]
    assert answer.system_fingerprint[0] == "b"


def test_a_stream_says_the_same(ai, answer):
    chunks = list(ai.completions.create(**ASKED, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == answer.choices[0].text
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage == answer.usage or chunks[-1].usage.completion_tokens == 8


def test_several_prompts_each_have_n_answers(ai, answer):
    found = ai.completions.create(**ASKED | {"prompt": ["The sea is", "A cat"]}, n=2)
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in found.choices[:2]] == [answer.choices[0].text] * 2
    assert found.usage.completion_tokens == 32
    assert found.usage.prompt_tokens == 5  # each prompt once
    texts = [""] * 4
    for chunk in ai.completions.create(**ASKED | {"prompt": ["The sea is", "A cat"]}, n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in found.choices]


def test_prompts_may_be_token_ids(ai):
    one = ai.completions.create(**ASKED | {"prompt": [504, 3726, 314]})
    two = ai.completions.create(**ASKED | {"prompt": [[504, 3726, 314], [504, 3726, 314]]})
    assert [choice.text for choice in two.choices] == [one.choices[0].text] * 2


def test_an_echo_begins_with_the_prompt_and_its_log_probabilities(ai, answer):
    found = ai.completions.create(**ASKED, echo=True, logprobs=2).choices[0]
    assert found.text == ASKED["prompt"] + answer.choices[0].text
    told = found.logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset) == 3 + 8
    assert [found.text[i : i + len(token)] for i, token in zip(told.text_offset, told.tokens, strict=True)] == told.tokens
    assert told.token_logprobs[0] is told.top_logprobs[0] is None
    assert all(value < 0 and len(top) == 2 for value, top in zip(told.token_logprobs[1:], told.top_logprobs[1:], strict=True))


def test_a_prompt_is_scored_without_going_on(ai):
    prompt = [504, 3726, 314, 1234]
    whole = ai.completions.create(**ASKED | {"prompt": prompt}, echo=True, logprobs=1).choices[0].logprobs
    asked = ASKED | {"prompt": [prompt, prompt[:2]], "max_tokens": 0}
    found = ai.completions.create(**asked, echo=True, logprobs=1, extra_body={"prompt_logprobs": 2})
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (6, 0)
    one, other = found.choices
    assert (one.text, one.finish_reason) == ("".join(one.logprobs.tokens), "length")
    assert one.logprobs.token_logprobs == whole.token_logprobs[:4]
    assert one.logprobs.top_logprobs == whole.top_logprobs[:4]
    assert one.logprobs.token_logprobs[:2] == other.logprobs.token_logprobs
    assert one.prompt_logprobs[0] is None
    for i in range(1, 4):
        token, ranked = str(prompt[i]), one.prompt_logprobs[i]
        assert next(iter(ranked)) == token  # then the best two, among which it may be
        assert ranked[token]["logprob"] == one.logprobs.token_logprobs[i]
        best = min(ranked.values(), key=lambda each: each["rank"])
        assert {best["decoded_token"]: best["logprob"]} == one.logprobs.top_logprobs[i]
        assert {each["rank"] for each in ranked.values()} == {1, 2, ranked[token]["rank"]}


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_each_of_n_answers_to_several_prompts_has_the_log_probabilities_of_its_own_prompt(ai, max_tokens):
    prompts = [[504, 3726, 314], [1234, 504], [28, 3726, 504, 314, 29]]
    how = ASKED | {"max_tokens": max_tokens, "echo": True, "logprobs": 1, "extra_body": {"prompt_logprobs": 1}}
    alone = [ai.completions.create(**how | {"prompt": prompt}).choices[0] for prompt in prompts]
    found = ai.completions.create(**how | {"prompt": prompts, "n": 2}).choices
    assert [choice.index for choice in found] == [*range(6)]
    for choice, expected in zip(found, (each for each in alone for _ in range(2)), strict=True):
        assert choice.logprobs == expected.logprobs
        assert choice.prompt_logprobs == expected.prompt_logprobs
        assert choice.text == expected.text
    assert len({tuple(choice.logprobs.tokens) for choice in found}) == 3


def test_offsets_count_characters_where_tokens_are_parts_of_them(ai):
    text = "é🌊 海"
    told = ai.completions.create(**ASKED | {"prompt": text, "max_tokens": 0}, echo=True, logprobs=0).choices[0].logprobs
    assert len(told.tokens) > len(text)
    assert told.text_offset == sorted(told.text_offset)
    assert {0, 1, 2} <= set(told.text_offset) <= {0, 1, 2, 3}
    assert told.top_logprobs[1:] == [{}] * (len(told.tokens) - 1)


def test_log_probabilities_are_streamed(ai):
    whole = ai.completions.create(**ASKED, logprobs=1).choices[0].logprobs
    chunks = [chunk.choices[0].logprobs for chunk in ai.completions.create(**ASKED, logprobs=1, stream=True)]
    found = [each for each in chunks if each is not None]
    assert [token for each in found for token in each.tokens] == whole.tokens
    assert [lp for each in found for lp in each.token_logprobs] == whole.token_logprobs


def test_a_gap_is_filled_as_by_infill(ai, client):
    asked = {"input_prefix": "def f(", "input_suffix": "):", "n_predict": 8}
    right = client.post("/infill", json=asked).json()["content"]
    found = ai.completions.create(**ASKED | {"prompt": "def f(", "suffix": "):"})
    assert found.choices[0].text == right
    assert right != ai.completions.create(**ASKED | {"prompt": "def f("}).choices[0].text


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"best_of": 3}, "best_of is 3"),
        ({"suffix": "x", "echo": True}, "suffix with echo"),
        ({"prompt": ""}, "prompt is empty"),
        ({"max_tokens": 0, "echo": True}, "max_tokens is 0, which needs"),
        ({"stream": True, "echo": True, "logprobs": 1}, "cannot be streamed"),
    ],
)
def test_what_cannot_be_done_is_a_bad_request(ai, more, told):
    import openai

    with pytest.raises(openai.BadRequestError, match=told):
        ai.completions.create(**ASKED | more)


def test_a_context_that_fills_up_is_a_limit(ai):
    found = ai.completions.create(model="smollm2", prompt="word " * 500, extra_body={"ignore_eos": True})
    assert (found.choices[0].finish_reason, found.usage.total_tokens) == ("length", 513)  # the last token needs no place


def test_the_model_is_listed_by_all_its_names(ai, client):
    assert [model.id for model in ai.models.list()] == ["smollm2", "small"]
    assert [(model["id"], model["aliases"]) for model in client.get("/models").json()["data"]] == [
        ("smollm2", ["smollm2", "small"])
    ]
    found = ai.models.retrieve("small").model_dump()
    assert (found["owned_by"], found["aliases"], found["tags"]) == ("augury", ["smollm2", "small"], ["chat", "tiny"])
    assert found["architecture"] == {"input_modalities": ["text"], "output_modalities": ["text"]}
    assert found["meta"].items() >= {"n_ctx": 512, "n_embd": 576}.items()
    assert found["meta"]["size"] == client.get("/api/tags").json()["models"][0]["size"]
    import openai

    with pytest.raises(openai.NotFoundError, match="this server has smollm2, small"):
        ai.models.retrieve("gpt-4o")


def test_an_evaluation_harness_finds_the_tokenizer_and_scores_a_choice_by_its_tokens(client):
    # what lm-evaluation-harness sends with tokenizer_backend=remote
    told = client.get("/tokenizer_info").json()
    assert (told["bos_token"], told["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert "messages" in told["chat_template"]
    asked = {"prompt": "The capital of France is Paris", "add_special_tokens": False}
    ids = client.post("/tokenize", json=asked).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": ids}).json()["prompt"] == asked["prompt"]
    body = {"prompt": [ids], "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234, "model": "small"}
    found = client.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    scored = client.post("/v1/completions", json={"prompt": ids, "max_tokens": 0, "prompt_logprobs": 1}).json()
    expected = [
        None if each is None else each[str(token)]["logprob"]
        for each, token in zip(scored["choices"][0]["prompt_logprobs"], ids, strict=True)
    ]
    assert found["token_logprobs"][: len(ids)] == expected
    assert found["token_logprobs"][len(ids) - 1] == max(found["top_logprobs"][len(ids) - 1].values())  # Paris is the likeliest
    assert len(found["token_logprobs"]) == len(ids) + 1
