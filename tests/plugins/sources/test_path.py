"""The source of files that are here already."""

import pytest

from augury.errors import ModelFileError
from augury.interfaces import Progress
from augury.plugins.sources.local import PathSource
from augury.testing.source import SOURCE_CHECKS, SourceSubject


@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.name)
def test_it_keeps_the_contracts_of_sources(check, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"x")
    check.run(SourceSubject(PathSource, str(tmp_path / "model.gguf"), "./absent.gguf"))


def test_an_existing_file_stands_for_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").write_bytes(b"x")
    for reference in ("model", "./model", str(tmp_path / "model")):
        assert PathSource.handles(reference)
        assert PathSource.fetch(reference, tmp_path / "cache", Progress()).samefile(tmp_path / "model")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("reference", ["smollm2", "hf:o/r:Q4_0", "pypi:a==1", "hf:o/r.gguf", "a/b"])
def test_names_of_other_sources_are_left_to_them(reference):
    assert not PathSource.handles(reference)


@pytest.mark.parametrize(
    "reference",
    ["./absent", "/absent/model", "absent.gguf", "~nobody-of-this-name/m.gguf", "x" * 5000 + ".gguf", "/" + "x" * 5000],
)
def test_a_path_to_nothing_is_an_error_that_names_it(reference, tmp_path):
    assert PathSource.handles(reference)
    with pytest.raises(ModelFileError, match=reference):
        PathSource.fetch(reference, tmp_path, Progress())


def test_a_mistyped_name_is_told_with_the_file_that_was_meant(tmp_path):
    (tmp_path / "model-q4_0.gguf").write_bytes(b"x")
    mistyped, meant = tmp_path / "model-q4_O.gguf", tmp_path / "model-q4_0.gguf"
    with pytest.raises(ModelFileError, match=f"no such file; did you mean '{meant}'?"):
        PathSource.fetch(str(mistyped), tmp_path, Progress())


def test_a_text_longer_than_any_path_is_none():
    assert not PathSource.handles("x" * 5000)
