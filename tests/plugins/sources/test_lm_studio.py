"""The source that reads LM Studio's folder."""

import pytest

from augury.errors import ModelFileError
from augury.interfaces import Progress
from augury.plugins.sources.local import LmStudioSource

FILES = ("tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf", "mmproj-tiny-F16.gguf")


@pytest.fixture(params=[".lmstudio/models", ".cache/lm-studio/models", "elsewhere/models"])
def store(tmp_path, monkeypatch, request):
    monkeypatch.setenv("HOME", str(tmp_path))
    home = tmp_path / request.param / "owner" / "tiny-GGUF"
    home.mkdir(parents=True)
    if request.param.startswith("elsewhere"):
        (tmp_path / ".lmstudio-home-pointer").write_text(f"{tmp_path}/elsewhere\n")
    for name in FILES:
        (home / name).write_bytes(b"GGUF")
    return home


def fetch(reference):
    return LmStudioSource.fetch(reference, None, Progress())


def test_a_model_is_found_by_repository_and_quant(store):
    assert fetch("lmstudio:owner/tiny-GGUF:q8_0") == store / "tiny-Q8_0.gguf"
    assert fetch("lmstudio:owner/tiny-GGUF") == store / "tiny-Q4_K_M.gguf"
    found = list(LmStudioSource.stored(None))
    assert [model.reference for model in found] == ["lmstudio:owner/tiny-GGUF:Q4_K_M", "lmstudio:owner/tiny-GGUF:Q8_0"]
    assert [fetch(model.reference) for model in found] == [model.files[0] for model in found]
    assert not any(model.is_removable for model in found)


@pytest.mark.usefixtures("store")
def test_what_it_does_not_have_is_an_error():
    with pytest.raises(
        ModelFileError, match=r"LM Studio has no such model in .*; did you mean 'lmstudio:owner/tiny-GGUF:Q8_0'"
    ):
        fetch("lmstudio:owner/tiny-GGUE:Q8_0")
    with pytest.raises(ModelFileError, match="nothing fits, expected one; add :QUANT, of which there are: Q4_K_M; Q8_0"):
        fetch("lmstudio:owner/tiny-GGUF:Q5_0")
    for reference in ("lmstudio:", "lmstudio:owner", "lmstudio:../..", "lmstudio:a/b/c"):
        with pytest.raises(ModelFileError, match="LM Studio has no such model"):
            fetch(reference)
