"""The source that asks the Hugging Face Hub, against a Hub of a few files in memory."""

import huggingface_hub
import pytest
from huggingface_hub.errors import HFValidationError

from augury.errors import ModelFileError
from augury.interfaces import Progress
from augury.plugins.sources.huggingface import HuggingFaceSource, choose

FILES = [
    "README.md",
    "mmproj-tiny-F16.gguf",
    "tiny-Q4_K_M.gguf",
    "tiny-Q8_0.gguf",
    "BF16/tiny-BF16-00001-of-00002.gguf",
    "BF16/tiny-BF16-00002-of-00002.gguf",
]


class Hub:
    """What of HfApi is used; `trouble` is raised where the network would be."""

    files = FILES
    trouble = None
    fetched = ()

    def list_repo_files(self, repo):
        assert repo == "owner/tiny"
        if self.trouble:
            raise self.trouble
        return self.files

    def hf_hub_download(self, repo, name, *, local_dir, tqdm_class):
        assert repo == "owner/tiny"
        bar = tqdm_class(total=8, disable=True)
        bar.update(3)
        bar.update(5)
        bar.close()
        (local_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (local_dir / name).write_bytes(name.encode())
        type(self).fetched = (*self.fetched, name)


@pytest.fixture
def hub(monkeypatch):
    fake = type("FakeHub", (Hub,), {})
    monkeypatch.setattr(huggingface_hub, "HfApi", fake)
    return fake


def test_only_the_prefix_is_handled():
    assert HuggingFaceSource.handles("hf:owner/tiny:Q4_0")
    assert not HuggingFaceSource.handles("owner/tiny")


def test_a_quant_is_downloaded_with_progress_and_not_again(hub, tmp_path):
    seen = []
    path = HuggingFaceSource.fetch("hf:owner/tiny:q8_0", tmp_path, lambda *args: seen.append(args))
    assert path == tmp_path / "huggingface" / "owner" / "tiny" / "tiny-Q8_0.gguf"
    assert path.read_bytes() == b"tiny-Q8_0.gguf"
    assert seen == [("download tiny-Q8_0.gguf", 3, 8), ("download tiny-Q8_0.gguf", 8, 8)]
    hub.trouble = OSError("no network")
    assert HuggingFaceSource.fetch("hf:owner/tiny:Q8_0", tmp_path, Progress()) == path
    assert hub.fetched == ("tiny-Q8_0.gguf",)


def test_a_split_model_comes_whole_and_its_first_part_is_returned(hub, tmp_path):
    path = HuggingFaceSource.fetch("hf:owner/tiny:BF16", tmp_path, Progress())
    assert path.name == "tiny-BF16-00001-of-00002.gguf"
    assert hub.fetched == tuple(FILES[-2:])
    path.with_name("tiny-BF16-00002-of-00002.gguf").unlink()
    HuggingFaceSource.fetch("hf:owner/tiny:BF16", tmp_path, Progress())
    assert len(hub.fetched) == 4


def test_without_a_quant_the_only_model_or_the_usual_quant_is_taken():
    assert choose(["a.gguf", "x.txt"], "hf:o/r", None) == ["a.gguf"]
    assert choose(FILES, "hf:o/r", None) == ["tiny-Q4_K_M.gguf"]


@pytest.mark.parametrize(
    ("files", "quant", "message"),
    [
        (FILES, "Q5_0", "nothing fits, expected one; add :QUANT, of which there are: BF16; Q4_K_M; Q8_0"),
        (FILES, "K_M", "nothing fits"),
        (["a-Q4_0.gguf", "b-Q4_0.gguf"], "q4_0", r"2 models fit \(a-Q4_0, b-Q4_0\)"),
        (["a-Q4_0.gguf", "a-Q8_0.gguf"], None, "2 models fit .* there are: Q4_0; Q8_0"),
        (["README.md", "model.safetensors"], "Q4_0", "has no .gguf files"),
        (["a-Q4_0-00001-of-00003.gguf", "a-Q4_0-00003-of-00003.gguf"], "Q4_0", "has 2 of the 3 parts of a-Q4_0"),
    ],
)
def test_what_does_not_fit_one_model_is_an_error_that_lists_the_quants(files, quant, message):
    with pytest.raises(ModelFileError, match=f"hf:o/r: .*{message}"):
        choose(files, "hf:o/r", quant)


@pytest.mark.parametrize("trouble", [RuntimeError("no route"), OSError("no route"), HFValidationError("no route")])
def test_trouble_with_the_network_is_an_error(hub, tmp_path, trouble):
    hub.trouble = trouble
    with pytest.raises(ModelFileError, match="hf:owner/tiny:Q8_0: cannot be downloaded: no route; check"):
        HuggingFaceSource.fetch("hf:owner/tiny:Q8_0", tmp_path, Progress())


@pytest.mark.parametrize("reference", ["hf:", "hf:owner", "hf:../..:Q4_0", "hf:a/b/c", "hf:owner/tiny:", "hf:a/b:c/d"])
def test_what_names_no_repository_is_an_error(reference, tmp_path):
    with pytest.raises(ModelFileError, match="expected hf:OWNER/REPOSITORY"):
        HuggingFaceSource.fetch(reference, tmp_path, Progress())
