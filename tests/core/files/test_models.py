"""From what was typed to a file."""

import pytest

from augury.files import models
from augury.files.atomic_file import AtomicFile
from augury.interfaces import Progress
from augury.testing.toys import TINY_TARGET, registry_with_toys


@pytest.mark.parametrize("place", ["models/a.gguf", "packed/a.packed", "kernels/0/a.kernel"])
def test_a_start_removes_what_killed_ones_left_and_nothing_of_living_ones(tmp_path, monkeypatch, place):
    monkeypatch.setattr(models, "cache_folder", lambda kind="": tmp_path / kind)
    path = tmp_path / place
    scratch = path.with_name(f".{path.name}.scratch")
    scratch.mkdir(parents=True)
    (scratch / "model.whl").write_bytes(b"half")
    path.with_name(f".{path.name}.part").write_bytes(b"half")
    with AtomicFile(path.with_name("other")):
        models.resolve(TINY_TARGET, registry_with_toys(), Progress())
        assert [left.name for left in path.parent.iterdir()] == [".other.part"]
