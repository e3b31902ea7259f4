"""`/api/generate` by Ollama's own client: with the chat template, as it stands, between two texts, and going on."""

import pytest

OPTIONS = {"num_predict": 8, "temperature": 0}


def test_a_prompt_is_a_conversation_of_one_message(ollama_client):
    message = {"role": "user", "content": "Name a colour."}
    expected = ollama_client.chat("small", [message], options=OPTIONS).message.content
    whole = ollama_client.generate("small", "Name a colour.", options=OPTIONS)
    assert (whole.response, whole.done_reason) == (expected, "length")
    parts = [*ollama_client.generate("small", "Name a colour.", options=OPTIONS, stream=True)]
    assert "".join(part.response for part in parts) == expected
    assert parts[-1].context == whole.context
    assert len(whole.context) == whole.prompt_eval_count + 8
    system = ollama_client.generate("small", "Name a colour.", system="Be brief.", options=OPTIONS)
    both = [{"role": "system", "content": "Be brief."}, message]
    assert system.response == ollama_client.chat("small", both, options=OPTIONS).message.content


def test_an_exchange_goes_on_from_its_context(ollama_client):
    first = ollama_client.generate("small", "Name a colour.", options=OPTIONS)
    second = ollama_client.generate("small", "Another.", context=first.context, options=OPTIONS)
    assert second.prompt_eval_count > first.prompt_eval_count + 8
    assert second.context[: len(first.context)] == first.context


def test_a_raw_prompt_stands_as_it_is(ollama_client, client):
    found = ollama_client.generate("small", "The sky is", raw=True, options=OPTIONS, logprobs=True)
    assert found.response == client.post("/completion", json={"prompt": "The sky is", "n_predict": 8}).json()["content"]
    assert found.context is None
    assert "".join(each.token for each in found.logprobs) == found.response
    parts = ollama_client.generate("small", "The sky is", raw=True, options=OPTIONS, stream=True)
    assert "".join(part.response for part in parts) == found.response


def test_a_gap_is_filled(ollama_client, client):
    body = {"input_prefix": "def f(", "input_suffix": "):", "n_predict": 8}
    assert (
        ollama_client.generate("small", "def f(", suffix="):", options=OPTIONS).response
        == (client.post("/infill", json=body).json()["content"])
    )


def test_an_empty_prompt_loads_the_model(ollama_client):
    answer = ollama_client.generate("small")
    assert (answer.response, answer.done, answer.done_reason) == ("", True, "load")


@pytest.mark.parametrize("more", [{"raw": True, "system": "s"}, {"suffix": "s", "context": [1]}, {"raw": True, "think": True}])
def test_what_needs_the_template_has_no_place_beside_a_raw_prompt(client, more):
    answer = client.post("/api/generate", json={"model": "small", "prompt": "a"} | more)
    assert answer.status_code == 400
    assert "has no place beside" in answer.json()["error"]
