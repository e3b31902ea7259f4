"""The source that asks the Hugging Face Hub, against a Hub of a few files in memory."""

import functools
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace

import huggingface_hub
import pytest
from damage import disk_is_full
from huggingface_hub.errors import HFValidationError

from augury.errors import ModelFileError
from augury.interfaces import Progress
from augury.plugins.sources import huggingface
from augury.plugins.sources.huggingface import HuggingFaceSource, choose
from augury.testing.source import SOURCE_CHECKS, SourceSubject

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

    def model_info(self, repo, *, timeout, files_metadata):
        assert repo == "owner/tiny"
        assert timeout <= 5
        assert files_metadata
        if self.trouble:
            raise self.trouble
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name, size=2**20) for name in self.files])

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


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("reference", ["hf:owner/tiny:Q8_0", "hf:owner/tiny:BF16"])
@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.name)
def test_it_keeps_the_contracts_of_sources(check, reference):
    check.run(SourceSubject(HuggingFaceSource, reference, "hf:owner/tiny:Q5_0"))


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
    assert sorted(f"BF16/{file.name}" for file in tmp_path.rglob("*") if file.is_file()) == FILES[-2:]
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
        (["a-NVFP4.gguf", "a-UD-IQ1_S.gguf"], None, "2 models fit .* there are: NVFP4; IQ1_S"),
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


def test_a_model_that_is_there_needs_no_network(hub, tmp_path):
    file = HuggingFaceSource.fetch("hf:owner/tiny", tmp_path, Progress())
    hub.trouble = OSError("offline")
    assert HuggingFaceSource.fetch("hf:owner/tiny", tmp_path, Progress()) == file


def test_of_several_who_ask_at_once_one_downloads(hub, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: HuggingFaceSource.fetch("hf:owner/tiny:Q8_0", tmp_path, Progress()), range(4)))
    assert hub.fetched == (paths[0].name,)
    assert list(paths[0].parent.iterdir()) == [paths[0]]


def test_what_another_process_is_still_downloading_is_not_taken_for_the_file(hub, tmp_path):
    scratch = tmp_path / "huggingface" / "owner" / "tiny" / ".tiny-Q8_0.gguf.scratch"
    scratch.mkdir(parents=True)
    (scratch / "tiny-Q8_0.gguf").write_bytes(b"half")
    path = HuggingFaceSource.fetch("hf:owner/tiny:Q8_0", tmp_path, Progress())
    assert path.parent.name == "tiny"
    assert hub.fetched == (path.name,)


def test_offline_is_told_soon_even_where_the_network_swallows_everything(hub, tmp_path, monkeypatch):
    answered = Event()
    monkeypatch.setattr(hub, "model_info", lambda *_, **__: answered.wait())
    monkeypatch.setattr(huggingface, "_ANSWER_S", 0.05)
    with pytest.raises(
        ModelFileError, match=r"hf:owner/tiny:Q8_0: the Hub did not answer within 0\.05 s; check the connection$"
    ):
        HuggingFaceSource.fetch("hf:owner/tiny:Q8_0", tmp_path, Progress())
    answered.set()
    assert not list(tmp_path.iterdir())


def test_a_closed_port_is_told_at_once_in_one_sentence(tmp_path, monkeypatch):
    closed = functools.partial(huggingface_hub.HfApi, endpoint="http://127.0.0.1:1")
    monkeypatch.setattr(huggingface_hub, "HfApi", closed)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr("time.sleep", None)  # which huggingface_hub calls between tries
    with pytest.raises(
        ModelFileError, match=r"^hf:owner/tiny: cannot be downloaded: .*refused; check the name and the connection$"
    ):
        HuggingFaceSource.fetch("hf:owner/tiny", tmp_path, Progress())


def test_a_disk_that_fills_up_is_told_of_and_nothing_is_left(hub, tmp_path, monkeypatch):
    def fill(_, _repo, name, *, local_dir, **__):
        (local_dir / name).write_bytes(b"half")
        disk_is_full()

    monkeypatch.setattr(hub, "hf_hub_download", fill)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=3 * 2**18))
    with pytest.raises(ModelFileError, match=f"no room in {tmp_path}: 1 MiB are needed, 1 MiB are free"):
        HuggingFaceSource.fetch("hf:owner/tiny:Q8_0", tmp_path, Progress())
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.usefixtures("hub")
def test_a_folder_that_cannot_be_written_is_no_fault_of_the_connection(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"cannot be stored in .*: Not a directory; name another cache folder"):
        HuggingFaceSource.fetch("hf:owner/tiny:Q8_0", tmp_path / "file", Progress())


@pytest.mark.parametrize("reference", ["hf:", "hf:owner", "hf:../..:Q4_0", "hf:a/b/c", "hf:owner/tiny:", "hf:a/b:c/d"])
def test_what_names_no_repository_is_an_error(reference, tmp_path):
    with pytest.raises(ModelFileError, match="expected hf:OWNER/REPOSITORY"):
        HuggingFaceSource.fetch(reference, tmp_path, Progress())
