"""`/v1/embeddings`, as the `openai` package asks."""

import base64

import numpy as np
import pytest

TEXTS = ["The sea is blue.", "The ocean is blue.", "def f(x): return x + 1"]


@pytest.fixture(scope="module")
def vectors(ai):
    return np.array([each.embedding for each in ai.embeddings.create(model="smollm2", input=TEXTS, extra_body=MEAN).data])


MEAN = {"pooling": "mean"}


def test_embeddings_are_of_length_one_and_tell_what_is_alike(vectors):
    assert vectors.shape == (3, 576)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_both_encodings_and_one_text_give_the_same(ai, vectors, encoding):
    found = ai.embeddings.create(model="smollm2", input=TEXTS[0], encoding_format=encoding, extra_body=MEAN)
    embedding = found.data[0].embedding
    one = np.frombuffer(base64.b64decode(embedding), "<f4") if isinstance(embedding, str) else np.array(embedding)
    assert np.array_equal(one.astype(np.float32), vectors[0].astype(np.float32))
    assert found.usage.prompt_tokens == found.usage.total_tokens == 5


def test_llama_cpps_forms_of_prompts_are_taken(client, vectors):
    ids = client.post("/tokenize", json={"content": TEXTS[1]}).json()["tokens"]
    rest = client.post("/detokenize", json={"tokens": ids[2:]}).json()["content"]
    parts = [{"type": "text", "text": text} for text in (TEXTS[2][:5], TEXTS[2][5:])]
    body = MEAN | {"input": [{"prompt_string": TEXTS[0]}, [*ids[:2], rest], {"content": parts}]}
    found = [each["embedding"] for each in client.post("/v1/embeddings", json=body).json()["data"]]
    assert np.array_equal(np.array(found, np.float32), vectors.astype(np.float32))


def test_poolings_differ_and_lengths_may_be_kept(ai, vectors):
    more = {"pooling": "last", "normalize": False}
    last = np.array(ai.embeddings.create(model="smollm2", input=[504, 3726], extra_body=more).data[0].embedding)
    assert abs(np.linalg.norm(last) - 1) > 0.1


def test_fewer_dimensions_are_the_first_ones_scaled_again(ai, vectors):
    found = ai.embeddings.create(model="smollm2", input=TEXTS[0], dimensions=10, encoding_format="base64", extra_body=MEAN)
    first = np.frombuffer(base64.b64decode(found.data[0].embedding), "<f4")
    whole = ai.embeddings.create(model="smollm2", input=TEXTS[0], dimensions=10, extra_body={**MEAN, "normalize": False})
    assert np.allclose(first, vectors[0][:10] / np.linalg.norm(vectors[0][:10]), atol=1e-6)
    assert np.allclose(first, np.array(whole.data[0].embedding) / np.linalg.norm(whole.data[0].embedding), atol=1e-6)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"dimensions": 577}, "this model's embeddings have 576"),
        ({"input": []}, "prompt is an empty list"),
        ({"input": "a b " * 600}, "is too large: it has .* exceeds the available context size of 512"),
        ({"extra_body": {"pooling": "max"}}, "pooling"),
    ],
)
def test_what_cannot_be_embedded_is_a_bad_request(ai, more, told):
    import openai

    with pytest.raises(openai.BadRequestError, match=told):
        ai.embeddings.create(**{"model": "smollm2", "input": "a"} | more)
