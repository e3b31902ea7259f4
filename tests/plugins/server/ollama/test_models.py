"""What Ollama's client is told of the model that is served."""

from datetime import UTC, datetime

import ollama
import pytest

from augury.plugins.server.ollama.models import _capabilities, _short
from augury.plugins.server.server import Server, ServerOptions, _is_single


def test_the_model_is_listed_by_each_of_its_names(ollama_client):
    found = ollama_client.list().models
    assert [each.model for each in found] == ["smollm2:latest", "small:latest"]
    assert found[0].size > 90e6
    assert found[0].details.model_dump() == {
        "parent_model": "",
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "134.52M",
        "quantization_level": "Q4_1",
    }
    assert found[0].modified_at < datetime.now(UTC)


def test_the_model_that_is_loaded_is_told(ollama_client):
    (found,) = ollama_client.ps().models
    assert (found.model, found.context_length) == ("smollm2:latest", 512)
    assert found.expires_at > datetime.now(UTC)


def test_the_model_is_described(ollama_client):
    found = ollama_client.show("small")
    assert found.capabilities == ["completion", "insert"]
    assert found.modelinfo["general.parameter_count"] == 134_515_008
    assert found.modelinfo["llama.block_count"] == 30
    assert "tokenizer.ggml.tokens" not in found.modelinfo
    assert "<|im_start|>" in found.template
    parameters = dict(line.split() for line in found.parameters.splitlines())
    assert (parameters["num_ctx"], float(parameters["temperature"])) == ("512", 0)
    assert not {"True", "False"} & {*parameters.values()}


def test_what_a_model_can_do_is_told_before_it_is_loaded():
    server = Server(ServerOptions(), load=lambda _: None)
    template = "{% if tools %}{{ tools }}{% endif %}<think>"
    facts = {"tokenizer.chat_template": template, "tokenizer.ggml.fim_mid_token_id": 5, "qwen3.pooling_type": 3}
    assert _capabilities(server, facts) == ["completion", "tools", "thinking", "insert", "embedding"]
    assert _capabilities(server, {}) == ["completion"]


def test_an_unknown_model_is_not_described(ollama_client):
    with pytest.raises(ollama.ResponseError, match="model 'other' not found") as found:
        ollama_client.show("other")
    assert found.value.status_code == 404


def test_the_version_is_one_of_ollama_s(client):
    assert client.get("/api/version").json() == {"version": "0.13.0"}
    for path in ("/", "/api/tags", "/api/version", "/health", "/v1/models"):  # as monitors ask
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-length"] == client.get(path).headers["content-length"]
    assert client.head("/api/chat").status_code == 405


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1, 2]])
def test_metadata_that_json_has_no_word_for_is_left_out(value):
    assert not _is_single(value)
    assert all(map(_is_single, ("a", True, 3, 0.5)))


@pytest.mark.parametrize(("n", "text"), [(0, "0.00"), (999, "999.00"), (134_515_008, "134.52M"), (7_615_616_512, "7.6B")])
def test_parameters_are_counted_in_words(n, text):
    assert _short(n) == text
