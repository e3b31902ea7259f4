"""`/api/embed` and `/api/embeddings` by Ollama's own client."""

import numpy as np
import ollama
import pytest


def test_texts_are_vectors_of_length_1(ollama_client, client):
    found = ollama_client.embed("small", ["red", "the sea"])
    expected = client.post("/v1/embeddings", json={"input": ["red", "the sea"]}).json()
    assert [*map(list, found.embeddings)] == [each["embedding"] for each in expected["data"]]
    assert found.prompt_eval_count == expected["usage"]["prompt_tokens"]
    assert ollama_client.embed("small", "red").embeddings == found.embeddings[:1]
    assert ollama_client.embed("small", []).embeddings == []


def test_the_first_components_are_scaled_again(ollama_client):
    whole = np.array(ollama_client.embed("small", "red").embeddings[0])
    part = np.array(ollama_client.embed("small", "red", dimensions=8).embeddings[0])
    assert np.allclose(part, whole[:8] / np.linalg.norm(whole[:8]), rtol=1e-12)
    with pytest.raises(ollama.ResponseError, match="dimensions is 577, this model's embeddings have 576"):
        ollama_client.embed("small", "red", dimensions=577)


def test_a_text_beyond_the_context_is_cut_unless_it_may_not_be(ollama_client):
    text = "red " * 600
    assert ollama_client.embed("small", text).prompt_eval_count == 512
    with pytest.raises(ollama.ResponseError, match="512"):
        ollama_client.embed("small", text, truncate=False)


def test_the_older_form_is_not_scaled(ollama_client, client):
    body = {"content": "red", "pooling": "mean", "embd_normalize": -1}
    expected = client.post("/embedding", json=body).json()[0]["embedding"]
    found = ollama_client.embeddings("small", "red").embedding
    assert [*found] in ([*expected], expected[0])
    assert ollama_client.embeddings("small", "").embedding == []


def test_without_a_text_the_model_is_only_loaded(ollama_client, client):
    assert ollama_client.embed("small", "").embeddings == []
    assert client.post("/api/embed", json={"model": "small"}).json()["embeddings"] == []
