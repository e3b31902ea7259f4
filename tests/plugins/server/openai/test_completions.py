"""`/v1/completions` and `/v1/models`, as the `openai` package asks."""

import pytest

ASKED = {"model": "smollm2", "prompt": "The sea is", "max_tokens": 8}


@pytest.fixture(scope="module")
def answer(ai):
    return ai.completions.create(**ASKED)


def test_a_text_goes_on(answer):
    assert (answer.object, answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("text_completion", "length", 8)
    assert answer.timings["predicted_n"] == 8


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


def test_an_echo_begins_with_the_prompt(ai, answer):
    found = ai.completions.create(**ASKED, echo=True, logprobs=2).choices[0]
    assert found.text == ASKED["prompt"] + answer.choices[0].text
    assert len(found.logprobs.tokens) == len(found.logprobs.top_logprobs) == 8
    assert [
        found.text[i : i + len(token)] for i, token in zip(found.logprobs.text_offset, found.logprobs.tokens, strict=False)
    ] == (found.logprobs.tokens)


def test_log_probabilities_are_streamed(ai):
    whole = ai.completions.create(**ASKED, logprobs=1).choices[0].logprobs
    chunks = [chunk.choices[0].logprobs for chunk in ai.completions.create(**ASKED, logprobs=1, stream=True)]
    found = [each for each in chunks if each is not None]
    assert [token for each in found for token in each.tokens] == whole.tokens
    assert [lp for each in found for lp in each.token_logprobs] == whole.token_logprobs


@pytest.mark.parametrize(
    ("more", "told"), [({"best_of": 3}, "best_of is 3"), ({"suffix": "x"}, "suffix"), ({"prompt": ""}, "prompt is empty")]
)
def test_what_cannot_be_done_is_a_bad_request(ai, more, told):
    import openai

    with pytest.raises(openai.BadRequestError, match=told):
        ai.completions.create(**ASKED | more)


def test_a_context_that_fills_up_is_a_limit(ai):
    found = ai.completions.create(model="smollm2", prompt="word " * 500, extra_body={"ignore_eos": True})
    assert (found.choices[0].finish_reason, found.usage.total_tokens) == ("length", 513)  # the last token needs no place


def test_the_model_is_listed_by_all_its_names(ai):
    assert [model.id for model in ai.models.list()] == ["smollm2", "small"]
    assert ai.models.retrieve("small").owned_by == "augury"
    import openai

    with pytest.raises(openai.NotFoundError, match="this server has smollm2, small"):
        ai.models.retrieve("gpt-4o")
