"""llama.cpp's `/completion` on a real server: its fields, its chunks, and the text that the library writes."""

import json

import pytest

SEA = {"prompt": "The sea is", "n_predict": 8}
LIST = "one two three four one two three four one two three four one two"


def ask(client, path="/completion", **fields):
    answer = client.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(client, **fields):
    answer = client.post("/completion", json=fields | {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]


def test_an_answer_is_told_whole(client):
    found = ask(client, **SEA, return_tokens=True, seed=7, speculative={"n_max": 3})
    assert len(found["tokens"]) == found["tokens_predicted"] == found["timings"]["predicted_n"] == 8
    assert (found["stop"], found["stop_type"], found["stopping_word"], found["truncated"]) == (True, "limit", "", False)
    assert (found["index"], found["model"], found["prompt"]) == (0, "smollm2", "The sea is")
    assert found["tokens_evaluated"] == found["timings"]["prompt_n"] + found["timings"]["cache_n"] == 3
    assert found["tokens_cached"] == 3 + 8 - 1
    settings = found["generation_settings"]
    assert (settings["n_predict"], settings["seed"], settings["temperature"]) == (8, 7, 0.0)
    assert (settings["stream"], settings["lora"], settings["min_keep"]) == (False, [], 0)
    assert found["speculation"]["effective"]["n_max"] == 3
    assert all(type(each) in (int, float) and each >= 0 for each in found["timings"].values())
    assert ask(client, "/completions", **SEA)["content"] == found["content"]
    assert ask(client, **SEA)["tokens"] == []
    assert client.post("/detokenize", json={"tokens": found["tokens"]}).json()["content"] == found["content"]


def test_a_stream_joins_to_the_same_answer_and_says_who_drafted(client):
    fields = {"prompt": LIST, "n_predict": 24, "temperature": 0, "n_probs": 2, "return_draft_origin": True}
    whole = ask(client, **fields, return_tokens=True, speculative=False)
    *chunks, last = events(client, **fields, timings_per_token=True)
    assert "".join(chunk["content"] for chunk in chunks) == whole["content"]
    assert [token for chunk in chunks for token in chunk["tokens"]] == whole["tokens"]
    probabilities = [each for chunk in chunks for each in chunk["completion_probabilities"]]
    assert probabilities == whole["completion_probabilities"]
    assert all(len(each["top_logprobs"]) == 2 for each in probabilities)
    assert [chunk["tokens_predicted"] for chunk in chunks] == [*range(1, 25)]
    assert not any(chunk["stop"] for chunk in chunks)
    assert (last["stop"], last["content"], last["tokens"]) == (True, "", [])
    assert last["timings"]["draft_n_accepted"] > 0
    told = chunks[-1]["timings"]
    assert (told["draft_n"], told["draft_n_accepted"]) == (last["timings"]["draft_n"], last["timings"]["draft_n_accepted"])
    drafted = [origin for chunk in chunks for origin in chunk["draft_origin"] if origin["drafter"]]
    assert len(drafted) == last["timings"]["draft_n_accepted"]


@pytest.mark.parametrize(
    ("fields", "kind", "word"),
    [
        ({"prompt": LIST, "stop": ["xyz", " four"]}, "word", " four"),
        ({"prompt": LIST, "n_predict": 3}, "limit", ""),
        ({"prompt": "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n", "n_predict": 100}, "eos", ""),
    ],
)
def test_it_says_why_an_answer_ended(client, fields, kind, word):
    found = ask(client, **{"n_predict": 40} | fields)
    assert (found["stop_type"], found["stopping_word"]) == (kind, word)
    assert events(client, **{"n_predict": 40} | fields)[-1]["stop_type"] == kind


def test_a_context_that_fills_up_ends_the_answer(client):
    found = ask(client, prompt=[5] * 500, ignore_eos=True)
    assert (found["truncated"], found["stop_type"], found["tokens_predicted"]) == (True, "limit", 13)


def test_several_prompts_are_several_answers_and_tokens_are_as_good_as_text(client):
    tokens = client.post("/tokenize", json={"content": "The sea is", "add_special": True}).json()["tokens"]
    several = ask(client, prompt=["The sea is", tokens, {"prompt_string": "The sea is"}, [*tokens[:1], " sea is"]], n_predict=8)
    assert [each["index"] for each in several] == [0, 1, 2, 3]
    assert len({each["content"] for each in several}) == 1
    assert ask(client, prompt=tokens, n_predict=8)["content"] == several[0]["content"]
    assert isinstance(ask(client, prompt=["The sea is"], n_predict=1), dict)
    new = {"prompt": "Two answers to a prompt that nobody has asked before are", "n_predict": 8, "temperature": 1.0}
    pair = ask(client, **new, n_cmpl=2, seed=3)
    assert pair[0]["timings"]["prompt_n"] > 1 >= pair[1]["timings"]["prompt_n"]  # which the first has processed
    assert pair[0]["content"] != pair[1]["content"] == ask(client, **new, seed=4)["content"]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_answer_ends_with_a_line_when_its_time_is_up(client, is_streamed):
    fields = {"prompt": "1.\n2.\n3.\n4.\n5.\n", "n_predict": 120, "ignore_eos": True, "n_cmpl": 2}
    limited = fields | {"t_max_predict_ms": 1}
    found = [each for each in events(client, **limited) if each["stop"]] if is_streamed else ask(client, **limited)
    for each in found:
        assert (each["stop_type"], each["has_new_line"]) == ("limit", True)
        assert each["tokens_predicted"] < 120
    unlimited = ask(client, **fields, t_max_predict_ms=10**6)
    assert [each["tokens_predicted"] for each in unlimited] == [120, 120]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_line_that_is_indented_too_little_ends_the_answer_before_its_text(client, is_streamed):
    asked = {"prompt": "Code:\n", "n_predict": 40, "regex": r"\n    one\n   two\n    three"}
    for n_indent, text in ((3, "\n    one\n   two\n    three"), (4, "\n    one\n   "), (5, "\n    ")):
        found = events(client, **asked, n_indent=n_indent) if is_streamed else [ask(client, **asked, n_indent=n_indent)]
        assert "".join(each["content"] for each in found) == text
        assert found[-1]["stop_type"] == ("eos" if n_indent == 3 else "limit")


def test_progress_and_timings_are_told_while_a_prompt_is_processed(client):
    asked = {"prompt": [7] * 200, "n_predict": 2, "cache_prompt": False, "return_progress": True, "timings_per_token": True}
    told = events(client, **asked)
    progress = [each["prompt_progress"] for each in told if "prompt_progress" in each]
    assert [(each["total"], each["cache"], each["processed"]) for each in (progress[0], progress[-1])] == [
        (200, 0, 0),
        (200, 0, 200),
    ]
    assert [each["time_ms"] for each in progress] == sorted(each["time_ms"] for each in progress)
    assert [each["tokens_predicted"] for each in told] == [0] * len(progress) + [1, 2, 2]
    assert all(each["timings"]["prompt_n"] == 200 for each in told[len(progress) :])
    assert [told[0]["timings"][name] for name in ("prompt_n", "prompt_ms", "predicted_n", "predicted_ms")] == [0, 0, 0, 0]
    assert not any("prompt_progress" in each for each in events(client, **asked | {"return_progress": False}))


def test_probabilities_after_sampling_are_those_that_tokens_were_drawn_from(client):
    asked = {"prompt": LIST, "n_predict": 12, "n_probs": 3, "post_sampling_probs": True}
    sampled = ask(client, **asked, temperature=1.0, seed=4, top_k=3, min_p=0, top_p=1)["completion_probabilities"]
    for each in sampled:
        assert sum(other["prob"] for other in each["top_probs"]) == pytest.approx(1)
        assert each["prob"] in [other["prob"] for other in each["top_probs"] if other["id"] == each["id"]]
    assert any(each["prob"] < 0.99 for each in sampled)
    for each in ask(client, **asked, temperature=0)["completion_probabilities"]:
        assert (each["prob"], [other["id"] for other in each["top_probs"]]) == (1, [each["id"]])


def test_a_context_that_is_full_is_shifted_where_it_is_asked_for(client):
    asked = {"prompt": [5] * 500, "n_predict": 40, "ignore_eos": True, "context_shift": True, "n_keep": 4, "n_discard": 15}
    found = ask(client, **asked)
    assert (found["truncated"], found["stop_type"], found["tokens_predicted"]) == (True, "limit", 40)
    assert (found["generation_settings"]["n_keep"], found["generation_settings"]["n_discard"]) == (4, 15)


def test_no_tokens_at_all_are_asked_for_to_warm_the_cache(client):
    prompt = "Rarely has a prompt been written that differs so much from others. " * 3
    warm = ask(client, prompt=prompt, n_predict=0, return_tokens=True)
    assert (warm["content"], warm["tokens"], warm["tokens_predicted"]) == ("", [], 0)
    assert [event["stop"] for event in events(client, prompt=prompt, n_predict=0)] == [True]
    assert ask(client, prompt=prompt, n_predict=1)["timings"]["prompt_n"] == 1
    assert ask(client, prompt=prompt, n_predict=1, cache_prompt=False)["timings"]["cache_n"] == 0


def test_settings_tell_what_is_forbidden(client):
    settings = ask(client, **SEA | {"n_predict": 1}, ignore_eos=True, logit_bias=[[5, 1.5]], backend_sampling=True)[
        "generation_settings"
    ]
    biases = {each["token"]: each["bias"] for each in settings["logit_bias"]}
    assert (biases.pop(5), set(biases.values())) == (1.5, {None})


def test_only_the_fields_that_are_wanted_are_sent(client):
    found = ask(client, **SEA, response_fields=["content", "generation_settings/n_predict", "nothing", "content/x"])
    assert found == {"content": found["content"], "generation_settings/n_predict": 8}


def test_a_bias_forbids_tokens_by_text(client):
    first = ask(client, **SEA | {"n_predict": 1})["content"]
    assert ask(client, **SEA | {"n_predict": 1}, logit_bias=[[first, False]])["content"] != first
    assert ask(client, **SEA | {"n_predict": 1}, logit_bias={first: -100})["content"] != first


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"lora": [{"id": 0, "scale": 1.0}]}, "lora names adapter 0, there are none"),
        ({"n_predikt": 1}, "n_predikt"),
        ({"prompt": []}, "empty list"),
        ({"prompt": [1, [2]]}, "tokens beside whole prompts"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": []}}, "prompt"),
        ({"id_slot": 4}, "there is no slot 4, expected 0 to 3; leave it out for any"),
        ({"samplers": ["imfill"]}, "did you mean 'infill'"),
        ({"logit_bias": [["a", True]]}, "logit_bias"),
    ],
)
def test_what_is_wrong_is_a_400_in_llama_cpps_form_that_names_it(client, fields, told):
    answer = client.post("/completion", json=SEA | fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (400, 400, "invalid_request_error")
    assert told in error["message"]


def test_a_prompt_that_is_too_long_is_told_with_both_lengths(client):
    error = client.post("/completion", json={"prompt": [5] * 600}).json()["error"]
    assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == ("exceed_context_size_error", 600, 512)
