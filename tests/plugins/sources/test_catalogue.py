"""Short names: the first place that gives a model's file, of those that the catalogue names."""

import hashlib
import re

import pytest
from attrs import evolve
from support import local_hub

from augury.errors import ModelFileError
from augury.interfaces import Progress
from augury.plugins.sources import catalogue
from augury.plugins.sources.catalogue import CatalogueSource, Entry, entries
from augury.plugins.sources.huggingface import HuggingFaceSource
from augury.plugins.sources.pypi import PypiSource
from augury.plugins.sources.repository import KnownFile
from augury.testing.source import SOURCE_CHECKS, SourceSubject

DATA = b"GGUF" * 100


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with local_hub.serving(monkeypatch, tmp_path / "hub") as hub:
        hub.repositories["owner/tiny"] = {"tiny-Q8_0.gguf": DATA}
        yield hub


@pytest.fixture
def tiny(monkeypatch):
    """An entry whose first place cannot be reached."""
    known = KnownFile(hashlib.sha256(DATA).hexdigest(), len(DATA))
    entry = Entry("tiny, Q8_0", "MIT", ("pypi:tiny-model==1.0", "hf:owner/tiny:Q8_0"), known)
    found = {"tiny": entry}
    monkeypatch.setattr(catalogue, "entries", lambda: found)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return found


@pytest.mark.usefixtures("hub", "tiny")
def test_the_second_place_gives_what_the_first_does_not(tmp_path):
    path = CatalogueSource.fetch("tiny", tmp_path / "models", Progress())
    assert path.read_bytes() == DATA
    assert CatalogueSource.find("tiny", tmp_path / "models") == path


def test_a_model_that_any_place_has_stored_needs_no_network(hub, tiny, tmp_path, monkeypatch):
    path = HuggingFaceSource.fetch("hf:owner/tiny:Q8_0", tmp_path, Progress())
    hub.asked.clear()
    monkeypatch.setattr(PypiSource, "fetch", None)
    assert CatalogueSource.fetch("tiny", tmp_path, Progress()) == path
    assert hub.asked == []


def test_where_no_place_gives_it_the_reasons_of_all_are_told(hub, tiny, tmp_path):
    tiny["tiny"] = evolve(tiny["tiny"], file=KnownFile("0" * 64, len(DATA)))
    message = "^tiny: tiny-model==1.0: pip could not .*; hf:owner/tiny:Q8_0: the file there has sha256"
    with pytest.raises(ModelFileError, match=message):
        CatalogueSource.fetch("tiny", tmp_path / "models", Progress())
    assert hub.names("GET") == []


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.name)
def test_it_keeps_the_contracts_of_sources(check, monkeypatch):
    found = {name: Entry("", "", (f"hf:owner/tiny:{quant}",)) for name, quant in (("tiny", "Q8_0"), ("none", "Q4_0"))}
    monkeypatch.setattr(catalogue, "entries", lambda: found)
    check.run(SourceSubject(CatalogueSource, "tiny", "none"))


def test_every_entry_has_what_it_needs():
    for name, entry in entries().items():
        assert re.fullmatch(r"[a-z0-9.-]+", name)
        assert entry.about
        assert entry.licence
        assert entry.places
        assert all(CatalogueSource.handles(each) for each in (name, entry.draft or name))
        for place in entry.places:
            assert [source for source in (PypiSource, HuggingFaceSource) if source.handles(place)], place
        assert len(entry.places) == 1 or entry.file is not None, "places that may have different files"
    assert len(entries()) >= 24


def test_a_search_finds_all_words_and_a_draft_model_is_known():
    assert [found.reference for found in CatalogueSource.search("Qwen coder 7b")] == ["qwen2.5-coder-7b"]
    assert {found.reference for found in CatalogueSource.search("")} == set(entries())
    assert CatalogueSource.draft_of("qwen2.5-coder-7b") == "qwen2.5-coder-0.5b"
    assert CatalogueSource.draft_of("./model.gguf") is None
