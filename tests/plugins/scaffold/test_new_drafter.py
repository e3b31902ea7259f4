import functools
import re
import tomllib
from pathlib import Path

import pytest
from support.commands import run
from support.damage import disk_is_full

from augury.testing.drafter.suite import DRAFTER_CHECKS, drafter_subject

GUIDE = Path(__file__).parents[3] / "docs" / "write-a-drafter.md"


@pytest.fixture
def new_drafter(tmp_path, monkeypatch, capsys):
    """Run the command in an empty folder: the exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(run, capsys, "new-drafter")


def test_it_writes_a_whole_package(new_drafter, tmp_path):
    code, out, _ = new_drafter("trail-blazer")
    assert code == 0
    folder = tmp_path / "trail-blazer"
    written = {path.relative_to(tmp_path).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert written == set(out.split("\n\n")[0].splitlines())
    assert {"trail-blazer/augury_trail_blazer.py", "trail-blazer/tests/test_augury_trail_blazer.py"} < written
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == "augury-trail-blazer"
    assert project["project"]["entry-points"]["augury"] == {"trail-blazer": "augury_trail_blazer"}
    assert "python-version: ${{ matrix.python }}" in (folder / ".github/workflows/test.yml").read_text()
    assert not [path for path in written if "{{" in (tmp_path / path).read_text().replace("${{", "")]
    assert not [path for path in written if "://" in (tmp_path / path).read_text()], "it names no host"


def test_on_a_full_disk_it_names_a_file_and_leaves_no_half_package(new_drafter, tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", disk_is_full)
    code, _, err = new_drafter("trail")
    assert code == 1
    assert err == "augury: trail/pyproject.toml: No space left on device\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "check", DRAFTER_CHECKS[::6], ids=lambda check: check.name
)  # all of them: tests/packaging/test_strangers.py
def test_the_drafter_that_it_writes_keeps_contracts(new_drafter, tmp_path, check):
    new_drafter("trail")
    names = {}
    exec((tmp_path / "trail/augury_trail.py").read_text(), names)
    (drafter,) = names["augury_drafters"]()
    assert drafter.name == "trail"
    check.run(drafter_subject(drafter, backends=("toy",)))


def test_the_guide_shows_what_it_writes(new_drafter, tmp_path):
    _, out, _ = new_drafter("trail")
    shown, *_ = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert shown == (tmp_path / "trail/augury_trail.py").read_text()
    assert f"$ augury new-drafter trail\n{out.partition(chr(10) * 2)[0]}\n$ pip install" in GUIDE.read_text()


def test_what_is_there_is_left_alone(new_drafter, tmp_path):
    (tmp_path / "trail").mkdir()
    code, _, err = new_drafter("trail")
    assert code == 1
    assert err == "augury: trail already exists; choose another name, or move it away\n"
    assert not list((tmp_path / "trail").iterdir())


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Trail Blazer", "try 'trail-blazer'"),
        ("trail--blazer_", "try 'trail-blazer'"),
        ("../trail", "try 'trail'"),
        ("3-grams", "try 'grams'"),
        ("¿?", "try 'my-drafter'"),
        ("ngram-mod", "there is already a drafter 'ngram-mod', of augury"),
        ("draft-simple", "try 'my-draft-simple'"),
        ("auto", "try 'my-auto'"),
    ],
)
def test_a_bad_name_is_refused_with_a_good_one(new_drafter, tmp_path, name, told):
    code, _, err = new_drafter(name)
    assert code == 2
    assert told in err
    assert not list(tmp_path.iterdir())
