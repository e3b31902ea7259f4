"""The source that asks the Hugging Face Hub, through huggingface_hub, against a Hub on this machine."""

import functools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import huggingface_hub
import pytest
from huggingface_hub import constants
from support import local_hub
from support.damage import disk_is_full

from augury.errors import ModelFileError
from augury.interfaces import Progress
from augury.plugins.sources import huggingface
from augury.plugins.sources.huggingface import HuggingFaceSource, _parsed
from augury.plugins.sources.repository import KnownFile
from augury.testing.source import SOURCE_CHECKS, SourceSubject

FILES = {
    name: name.encode() * 1000
    for name in (
        "README.md",
        "mmproj-tiny-F16.gguf",
        "tiny-Q4_K_M.gguf",
        "tiny-Q8_0.gguf",
        "BF16/tiny-BF16-00001-of-00002.gguf",
        "BF16/tiny-BF16-00002-of-00002.gguf",
    )
}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with local_hub.serving(monkeypatch, tmp_path / "hub") as hub:
        hub.repositories["owner/tiny"] = dict(FILES)
        yield hub


def fetch(reference, progress=None, **options):
    return HuggingFaceSource.fetch(reference, Path("unused"), progress or Progress(), **options)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.name)
def test_it_keeps_the_contracts_of_sources(check):
    check.run(SourceSubject(HuggingFaceSource, "hf:owner/tiny:Q8_0", "hf:owner/tiny:Q5_0"))


@pytest.mark.parametrize("reference", ["hf:owner/tiny:Q4_0", "owner/tiny", "owner/tiny:Q8_0", "hf.co/owner/tiny", "hf:"])
def test_prefixes_and_bare_repositories_are_handled(reference):
    assert HuggingFaceSource.handles(reference)


def test_paths_are_not_handled(tmp_path, monkeypatch):
    (tmp_path / "owner/tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for reference in ("owner/tiny", "./owner/other", "owner/other.gguf", "smollm2", "a/b/c"):
        assert not HuggingFaceSource.handles(reference)


@pytest.mark.parametrize("prefix", ["hf:", "", "https://huggingface.co/"])
def test_a_quant_is_downloaded_into_the_cache_of_the_hub_with_progress_and_not_again(hub, prefix):
    seen = []
    path = fetch(f"{prefix}owner/tiny:q8_0", lambda *args: seen.append(args))
    assert path.read_bytes() == FILES["tiny-Q8_0.gguf"]
    assert huggingface_hub.try_to_load_from_cache("owner/tiny", "tiny-Q8_0.gguf") == str(path)
    assert {task for task, _, _ in seen} == {"download tiny-Q8_0.gguf"}
    assert seen[-1][1:] == (14_000, 14_000)
    hub.asked.clear()
    assert fetch(f"{prefix}owner/tiny:Q8_0") == path
    assert hub.asked == []


@pytest.mark.usefixtures("hub")
def test_what_another_program_has_downloaded_is_not_downloaded_again():
    path = huggingface_hub.hf_hub_download("owner/tiny", "tiny-Q8_0.gguf")
    assert HuggingFaceSource.find("hf:owner/tiny:Q8_0", Path()) == Path(path)


def test_a_download_that_broke_off_is_resumed(hub):
    hub.cuts = 1
    assert fetch("hf:owner/tiny:Q8_0").read_bytes() == FILES["tiny-Q8_0.gguf"]
    assert hub.names("GET") == ["tiny-Q8_0.gguf"] * 2


def test_a_split_model_comes_whole_and_its_first_part_is_returned(hub):
    path = fetch("hf:owner/tiny:BF16")
    assert path.name == "tiny-BF16-00001-of-00002.gguf"
    assert sorted(hub.names("GET")) == ["tiny-BF16-00001-of-00002.gguf", "tiny-BF16-00002-of-00002.gguf"]
    path.with_name("tiny-BF16-00002-of-00002.gguf").unlink()
    assert HuggingFaceSource.find("hf:owner/tiny:BF16", Path()) is None
    fetch("hf:owner/tiny:BF16")
    assert path.with_name("tiny-BF16-00002-of-00002.gguf").is_file()


def test_a_head_in_safetensors_is_downloaded_as_a_folder_and_found_there(hub):
    weights = {f"model-{i:05}-of-00002.safetensors": bytes([i]) * 99 for i in (1, 2)}
    settings = b'{"architectures": ["LlamaForCausalLMEagle3"]}'
    kept = {"config.json": settings, "tokenizer.json": b"{}"} | weights
    hub.repositories["owner/head"] = {"README.md": b"", "pytorch_model.bin": b"0"} | kept
    folder = fetch("hf:owner/head")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept
    assert HuggingFaceSource.find("owner/head", Path()) == folder
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert HuggingFaceSource.find("owner/head", Path()) is None


def test_of_a_large_model_only_the_files_with_layers_for_further_tokens_are_downloaded(hub):
    shards = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
    names = ["model.embed_tokens.weight", "model.layers.1.mlp.x.weight", "model.layers.2.eh_proj.weight"]
    index = json.dumps({"weight_map": dict(zip(names, shards, strict=True))}).encode()
    settings = b'{"architectures": ["DeepseekV3ForCausalLM"], "text_config": {"num_hidden_layers": 2}}'
    own = {"config.json": settings, "model.safetensors.index.json": index, "tokenizer.model": b"t", "vocab.json": b"{}"}
    hub.repositories["owner/big"] = own | {name: name.encode() * 99 for name in shards}
    with pytest.raises(ModelFileError, match=r"no \.gguf files; .*: -md hf:owner/big:mtp"):
        fetch("hf:owner/big")
    folder = fetch("hf:owner/big:mtp")
    assert {path.name for path in folder.iterdir()} == {*own, shards[2]} - {"tokenizer.model"}
    hub.asked.clear()
    assert fetch("hf:owner/big:MTP") == HuggingFaceSource.find("hf:owner/big:mtp", Path()) == folder
    assert hub.asked == []
    (folder / shards[2]).unlink()
    assert HuggingFaceSource.find("hf:owner/big:mtp", Path()) is None
    hub.repositories["owner/none"] = {**own, "config.json": b'{"num_hidden_layers": 9}'}
    with pytest.raises(ModelFileError, match=r"no \.gguf files"):
        fetch("hf:owner/none:mtp")


@pytest.mark.parametrize("settings", [b'{"architectures": ["LlamaForCausalLM"]}', b"[]", b"{"])
def test_other_models_in_safetensors_are_not_downloaded(hub, settings):
    hub.repositories["owner/big"] = {"config.json": settings, "model.safetensors": b"0" * 99}
    with pytest.raises(ModelFileError, match=r"the repository has no \.gguf files"):
        fetch("hf:owner/big")
    assert hub.names("GET") == ["config.json"]


def test_a_file_other_than_the_known_one_is_not_downloaded(hub):
    with pytest.raises(ModelFileError, match=r"hf:owner/tiny:Q8_0: the file there has sha256 .*, expected 0000"):
        fetch("hf:owner/tiny:Q8_0", known=KnownFile("0" * 64, 14_000))
    assert hub.names("GET") == []


@pytest.mark.usefixtures("hub")
def test_without_a_network_what_is_there_is_taken_and_else_the_reason_told(monkeypatch):
    path = fetch("hf:owner/tiny")
    assert path.name == "tiny-Q4_K_M.gguf"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch("hf:owner/tiny") == path
    with pytest.raises(
        ModelFileError, match=r"hf:owner/tiny:Q8_0: the Hub is not asked, because HF_HUB_OFFLINE \(--offline\) is set"
    ):
        fetch("hf:owner/tiny:Q8_0")


@pytest.mark.usefixtures("hub")
def test_a_repository_that_does_not_exist_is_an_error():
    with pytest.raises(
        ModelFileError, match=r"^hf:owner/other: the Hub does not give it: .*; check the name and the connection$"
    ):
        fetch("hf:owner/other")


def test_offline_is_told_soon_even_where_the_network_swallows_everything(monkeypatch, tmp_path):
    answered = Event()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: answered.wait())
    monkeypatch.setattr(huggingface, "_ANSWER_S", 0.05)
    with pytest.raises(
        ModelFileError, match=r"hf:owner/tiny:Q8_0: the Hub did not answer within 0\.05 s; check the connection$"
    ):
        fetch("hf:owner/tiny:Q8_0")
    answered.set()
    assert not list(tmp_path.iterdir())


def test_a_closed_port_is_told_at_once_in_one_sentence(tmp_path, monkeypatch):
    closed = functools.partial(huggingface_hub.HfApi, endpoint="http://127.0.0.1:1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "HfApi", closed)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr("time.sleep", None)  # which huggingface_hub calls between tries
    with pytest.raises(ModelFileError, match=r"^hf:owner/tiny: the Hub does not give it: .*refused; check the name and the"):
        fetch("hf:owner/tiny")


@pytest.mark.usefixtures("hub")
def test_a_disk_that_fills_up_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.HfApi, "hf_hub_download", lambda *_, **__: disk_is_full())
    with pytest.raises(ModelFileError, match=f"hf:owner/tiny:Q8_0: the disk has no room in {tmp_path}/hub: .* in HF_HOME$"):
        fetch("hf:owner/tiny:Q8_0")


@pytest.mark.usefixtures("hub")
def test_a_folder_that_cannot_be_written_is_no_fault_of_the_connection(tmp_path):
    (tmp_path / "hub").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"cannot be stored in .*; name another cache folder in HF_HOME"):
        fetch("hf:owner/tiny:Q8_0")


@pytest.mark.parametrize("reference", ["hf:", "hf:owner", "hf:../..:Q4_0", "hf:a/b/c", "hf:owner/tiny:", "hf:a/b:c/"])
def test_what_names_no_repository_is_an_error(reference):
    with pytest.raises(ModelFileError, match="expected hf:OWNER/REPOSITORY"):
        fetch(reference)


def test_a_file_in_a_folder_may_be_named_with_it():
    assert _parsed("owner/tiny:story/tiny") == ("owner/tiny", "story/tiny")


@pytest.mark.usefixtures("hub")
def test_of_several_who_ask_at_once_all_get_the_file():
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: fetch("hf:owner/tiny:Q8_0"), range(4)))
    assert {path.read_bytes() for path in paths} == {FILES["tiny-Q8_0.gguf"]}


def test_whole_models_are_listed_and_removed_alone(hub, tmp_path):
    assert list(HuggingFaceSource.stored(tmp_path)) == []
    fetch("hf:owner/tiny:Q8_0")
    fetch("hf:owner/tiny:BF16").unlink()
    (model,) = HuggingFaceSource.stored(tmp_path)
    assert model.reference == "hf:owner/tiny:Q8_0"
    kept = fetch("hf:owner/tiny:Q4_K_M")
    HuggingFaceSource.remove(model, tmp_path)
    assert [each.reference for each in HuggingFaceSource.stored(tmp_path)] == ["hf:owner/tiny:Q4_K_M"]
    assert kept.is_file()
    hub.asked.clear()
    fetch("hf:owner/tiny:Q8_0")
    assert hub.names("GET") == ["tiny-Q8_0.gguf"]


@pytest.mark.usefixtures("hub")
def test_with_its_last_model_a_repository_is_removed(tmp_path):
    fetch("hf:owner/tiny:Q8_0")
    (model,) = HuggingFaceSource.stored(tmp_path)
    HuggingFaceSource.remove(model, tmp_path)
    assert not list((tmp_path / "hub").glob("models--*"))


@pytest.mark.usefixtures("hub")
def test_the_hub_is_searched_for_repositories_with_such_files():
    assert [found.reference for found in HuggingFaceSource.search("tin")] == ["owner/tiny"]
    assert HuggingFaceSource.search("") == []
