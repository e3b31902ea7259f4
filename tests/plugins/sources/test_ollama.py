"""The source that reads Ollama's store, written here as Ollama writes it."""

import json

import pytest

from augury.errors import ModelFileError, UnsupportedError
from augury.interfaces import Progress
from augury.plugins.sources.local import OllamaSource

DIGEST = "sha256:" + "ab" * 32
LAYERS = {"model": DIGEST, "template": "sha256:" + "cd" * 32, "params": "sha256:" + "ef" * 32}


def write(root, name, layers):
    manifest = root / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    described = [{"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest} for kind, digest in layers.items()]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": described}))
    (root / "blobs").mkdir(exist_ok=True)
    (root / "blobs" / DIGEST.replace(":", "-")).write_bytes(b"GGUF")


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    for name in ("registry.ollama.ai/library/qwen3/4b", "registry.ollama.ai/library/qwen3/latest"):
        write(tmp_path, name, LAYERS)
    write(tmp_path, "registry.ollama.ai/someone/tuned/v1", LAYERS)
    write(tmp_path, "hf.co/owner/tiny-GGUF/Q8_0", LAYERS)
    return tmp_path


def fetch(reference):
    return OllamaSource.fetch(reference, None, Progress())


@pytest.mark.parametrize(
    "name", ["qwen3:4b", "qwen3", "someone/tuned:v1", "hf.co/owner/tiny-GGUF:Q8_0", "library/qwen3:latest"]
)
def test_a_name_as_ollama_writes_it_is_the_file_of_its_weights(store, name):
    assert fetch(f"ollama:{name}") == store / "blobs" / ("sha256-" + "ab" * 32)


@pytest.mark.usefixtures("store")
def test_an_unknown_name_is_an_error_with_the_nearest():
    with pytest.raises(ModelFileError, match="ollama:qwen3:8b: Ollama has no such model here; did you mean 'ollama:qwen3:4b'"):
        fetch("ollama:qwen3:8b")
    for name in ("", "/", "../../etc/passwd", "a/b/c/d", "..:.."):
        with pytest.raises(ModelFileError, match="Ollama has no such model"):
            fetch(f"ollama:{name}")


def test_without_a_store_the_places_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "none"))
    with pytest.raises(ModelFileError, match=f"Ollama has no models here; looked in {tmp_path}/none; OLLAMA_MODELS names"):
        fetch("ollama:qwen3")


@pytest.mark.parametrize(
    ("layers", "error", "message"),
    [
        ({**LAYERS, "adapter": DIGEST}, UnsupportedError, "names an adapter"),
        ({"template": DIGEST}, UnsupportedError, "names no GGUF file, but template"),
        ({"model": "sha256:00"}, ModelFileError, "names sha256-00, which is not there"),
    ],
)
def test_what_is_no_file_of_weights_alone_is_refused(store, layers, error, message):
    write(store, "registry.ollama.ai/library/odd/latest", layers)
    with pytest.raises(error, match=message):
        fetch("ollama:odd")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"layers": 3}', '{"layers": [{}]}', '{"layers": [{"mediaType": 1}]}'])
def test_a_damaged_manifest_is_an_error_and_is_not_listed(store, text):
    (store / "manifests/registry.ollama.ai/library/qwen3/bad").write_text(text)
    with pytest.raises(ModelFileError, match="bad is no manifest of Ollama's"):
        fetch("ollama:qwen3:bad")
    assert "ollama:qwen3:bad" not in [model.reference for model in OllamaSource.stored(None)]


def test_models_are_listed_as_ollama_writes_them_and_are_not_ours_to_remove(store):
    found = list(OllamaSource.stored(None))
    assert [model.reference for model in found] == [
        "ollama:hf.co/owner/tiny-GGUF:Q8_0",
        "ollama:qwen3:4b",
        "ollama:qwen3:latest",
        "ollama:someone/tuned:v1",
    ]
    for model in found:
        assert fetch(model.reference) == model.files[0]
        assert not model.is_removable
