"""The commands `list`, `rm`, `cache` and `search`, over a cache, a Hub and a store of Ollama's of their own."""

import json
import os
import shutil
from datetime import datetime
from pathlib import Path

import pytest
from support import local_hub

from augury.cli.command_line import main
from augury.files import cache
from augury.testing.tiny_model import write_tiny_model


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    return tmp_path


@pytest.fixture
def hub(home, monkeypatch):
    write_tiny_model(home / "tiny.gguf")
    with local_hub.serving(monkeypatch, home / "hub") as hub:
        hub.repositories["owner/tiny"] = {"tiny-Q8_0.gguf": (home / "tiny.gguf").read_bytes()}
        yield hub


def run(capsys, *words):
    code = main(words)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.usefixtures("hub")
def test_a_model_is_pulled_listed_removed_and_gone(home, capsys):
    code, out, _ = run(capsys, "pull", "owner/tiny")
    path = Path(out.strip())
    assert code == 0
    packed = home / "cache/augury/packed"
    packed.mkdir(parents=True)
    (packed / f"tiny-Q8_0-{'0' * 32}.packed").write_bytes(bytes(1000))
    os.utime(packed / f"tiny-Q8_0-{'0' * 32}.packed", (4e9, 1e9))  # each start tells when the copy was used
    others = sorted(f"tiny-Q8_0-{name}-{'0' * 32}.packed" for name in ("other", "coder", "f16"))  # of other models
    for name in others:
        (packed / name).write_bytes(bytes(1000))
    ((listed,),) = json.loads(run(capsys, "list", "--json")[1]).values()
    assert (listed["name"], listed["source"], listed["architecture"]) == ("hf:owner/tiny:Q8_0", "huggingface", "llama")
    assert (listed["n_bytes"], listed["n_packed_bytes"]) == (path.stat().st_size, 1000)
    assert datetime.fromisoformat(listed["used"]).timestamp() == 4e9
    assert "hf:owner/tiny:Q8_0" in run(capsys, "list")[1]
    assert run(capsys, "rm", "hf:owner/tiny")[:2] == (
        0,
        f"removed hf:owner/tiny: {listed['n_bytes'] / 1024 + 1000 / 1024:.1f} KiB\n",
    )
    assert not path.exists()
    assert sorted(file.name for file in packed.iterdir()) == others
    assert run(capsys, "list")[1].startswith("no models yet; `augury pull smollm2`")


@pytest.mark.usefixtures("hub")
def test_what_is_not_ours_is_not_removed(home, capsys):
    code, _, err = run(capsys, "rm", str(home / "tiny.gguf"))
    assert code == 1
    assert "which augury has not downloaded; remove the file yourself" in err
    assert run(capsys, "rm", "owner/tiny")[2] == "augury: owner/tiny is not on this machine; `augury list` shows what is\n"
    manifest = home / "ollama/manifests/registry.ollama.ai/library/tiny/latest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:1"}]}))
    (home / "ollama/blobs").mkdir()
    (home / "tiny.gguf").rename(home / "ollama/blobs/sha256-1")
    assert "ollama:tiny:latest" in run(capsys, "list")[1]
    assert run(capsys, "rm", "ollama:tiny")[2] == (
        "augury: ollama:tiny belongs to ollama, whose files augury only reads; remove it there\n"
    )
    assert (home / "ollama/blobs/sha256-1").is_file()


@pytest.mark.usefixtures("hub")
def test_a_model_that_was_put_into_the_cache_by_hand_is_listed_shown_and_removed(home, capsys):
    models = home / "cache/augury/models"
    models.mkdir(parents=True)
    shutil.copy(home / "tiny.gguf", models / "mine.gguf")
    ((listed,),) = json.loads(run(capsys, "list", "--json")[1]).values()
    assert (listed["name"], listed["source"], listed["architecture"]) == ("mine.gguf", "path", "llama")
    assert str(models / "mine.gguf") in run(capsys, "show", "mine.gguf")[1]
    assert run(capsys, "rm", "mine.gguf")[0] == 0
    assert not (models / "mine.gguf").exists()


def test_a_damaged_model_is_listed_as_such(home, capsys):
    models = home / "cache/augury/models"
    models.mkdir(parents=True)
    (models / "bad-1.0.gguf").write_bytes(b"nothing")
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert "pypi:bad==1.0" in out
    assert "unreadable" in out


def test_the_cache_is_shown_and_dropped_by_kind(home, capsys):
    for kind, n in (("models", 10), ("packed", 2000), ("kernels", 30)):
        folder = cache.cache_folder(kind)
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(bytes(n))
    assert run(capsys, "cache")[1].split()[3:6] == ["kernels", "30", "bytes"]
    assert run(capsys, "cache", "--drop", "packed", "kernels")[1] == "removed packed: 2.0 KiB\nremoved kernels: 30 bytes\n"
    assert sorted(path.name for path in cache.cache_folder().iterdir()) == ["models"]
    assert "remove them with `augury rm`" in run(capsys, "cache", "--drop", "models")[2]
    assert "holds nothing of kind 'packed'; it holds: models" in run(capsys, "cache", "--drop", "packed")[2]


@pytest.mark.usefixtures("hub")
def test_a_search_shows_short_names_and_repositories(capsys):
    assert "owner/tiny" in run(capsys, "search", "tiny")[1]
    assert "qwen2.5-coder-7b" in run(capsys, "search")[1]
    code, _, err = run(capsys, "search", "no such thing")
    assert code == 1
    assert "no model was found for 'no such thing'; try fewer words" in err


@pytest.mark.usefixtures("home")
def test_a_search_without_the_hub_shows_short_names(capsys, monkeypatch):
    monkeypatch.setattr("augury.plugins.sources.huggingface._in_time", lambda _: 1 / 0)
    code, out, err = run(capsys, "search", "qwen")
    assert code == 0
    assert "qwen3-4b" in out
    assert "the Hub does not give it: division by zero" in err


@pytest.mark.usefixtures("home")
def test_the_beginning_of_a_short_name_suggests_all_of_them(capsys):
    assert run(capsys, "pull", "qwen2.5-coder")[2] == (
        "augury: 'qwen2.5-coder' is neither a file, nor OWNER/REPOSITORY of the Hub, nor a known model; names that begin so: "
        "qwen2.5-coder-0.5b, qwen2.5-coder-1.5b, qwen2.5-coder-7b\n"
    )
