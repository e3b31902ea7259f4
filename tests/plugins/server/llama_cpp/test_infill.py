"""`/infill` on a real server, as editors ask."""

import pytest

FIM = {"input_prefix": "def area(r):\n", "input_suffix": "\n\nprint(area(2))\n", "prompt": "    return ", "n_predict": 16}
SAMPLED = {"top_k": 40, "top_p": 0.99, "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True}
LIMITS = {"n_indent": 4, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000}
EXTRA = [{"text": "def square(x):\n    return x * x\n", "time": [1, 2], "filename": "shapes.py"}]


def ask(client, **fields):
    answer = client.post("/infill", json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("extra", [[], EXTRA])
def test_llama_vim_is_answered(client, extra):
    wanted = ["content", "timings/prompt_n", "timings/predicted_per_second", "truncated", "tokens_cached"]
    found = ask(client, **FIM, **SAMPLED, **LIMITS, input_extra=extra, stream=False, seed=1, response_fields=wanted)
    assert [*found] == wanted
    assert all(line.startswith("    ") for line in found["content"].split("\n")[1:] if line.strip())


def test_llama_vscode_warms_the_cache_and_is_answered(client):
    warm = {"input_prefix": "", "input_suffix": "", "input_extra": EXTRA, "prompt": "", "n_predict": 0, "samplers": []}
    assert ask(client, **warm, cache_prompt=True, t_max_prompt_ms=500, t_max_predict_ms=1)["content"] == ""
    found = ask(client, **FIM, **SAMPLED, **LIMITS, input_extra=EXTRA, stream=False)
    assert found["timings"]["cache_n"] > 0


def test_an_answer_without_a_limit_has_room(client):
    found = ask(client, input_prefix="def area(r):\n" * 500, input_suffix="\n", ignore_eos=True, t_max_predict_ms=-1)
    assert found["tokens_evaluated"] == 448  # of 512
    assert found["tokens_predicted"] > 64


def test_adapters_that_are_not_there_are_refused(client):
    answer = client.post("/infill", json=FIM | {"lora": [{"id": 0, "scale": 0.5}]})
    assert (answer.status_code, "lora names adapter 0" in answer.json()["error"]["message"]) == (400, True)


def test_llama_vscode_edits_by_chat(client):
    sampling = {"samplers": "edkypmxt", "temperature": 0.8, "dynatemp_range": 0, "dynatemp_exponent": 1, "top_k": 40}
    penalties = {"repeat_last_n": 64, "repeat_penalty": 1, "dry_multiplier": 0, "dry_base": 1.75, "dry_penalty_last_n": -1}
    more = {"stream": False, "cache_prompt": True, "max_tokens": -1, "timings_per_token": False, "stop": ["."]}
    messages = [{"role": "system", "content": "You are an expert coder."}, {"role": "user", "content": "Say hello."}]
    answer = client.post("/v1/chat/completions", json={"messages": messages, **sampling, **penalties, **more})
    assert answer.status_code == 200, answer.text


def test_openais_suffix_is_a_gap_too(client):
    expected = ask(client, **FIM | {"prompt": "", "temperature": 0})["content"]
    body = {"prompt": FIM["input_prefix"], "suffix": FIM["input_suffix"], "max_tokens": FIM["n_predict"], "temperature": 0}
    assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == expected
