"""Functions that another process compiles while a backend compiles its kernels."""

import subprocess

import pytest
from support.more_toys import registry_with_toys

from augury import compiled
from augury.compiled import CompiledAhead
from augury.engine import engine
from augury.interfaces import Progress
from augury.testing.toys import TINY_TARGET


@pytest.fixture
def cores(monkeypatch):
    monkeypatch.setattr(compiled.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)


@pytest.fixture
def module(monkeypatch, tmp_path):
    """A module that leaves a file when it is imported."""
    (tmp_path / "leaves_a_file.py").write_text(f"open({str(tmp_path / 'left')!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path)
    return "leaves_a_file"


def test_modules_are_imported_once_the_backend_compiles(module, cores, tmp_path):
    told = []
    ahead = CompiledAhead(lambda *each: told.append(each))
    ahead.add([module])
    ahead("read", 0, 2)
    assert not (tmp_path / "left").exists()
    ahead("compile", 0, 2)
    ahead("compile", 1, 2)
    ahead.wait()
    assert (tmp_path / "left").exists()
    assert told == [("read", 0, 2), ("compile", 0, 2), ("compile", 1, 2)]


def test_none_begins_once_the_drafters_are_made(module, cores, monkeypatch):
    monkeypatch.setattr(compiled, "Popen", lambda *_, **__: pytest.fail("nobody would wait for it"))
    ahead = CompiledAhead(Progress())
    ahead.add([module])
    ahead.wait()
    ahead("compile", 0, 1)
    assert ahead._process is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("os.sched_getaffinity", lambda _: {0}),  # the backend has the only core
        ("sys.executable", "/usr/sbin/uwsgi"),  # a program that Python is a part of
        ("Popen", lambda *_, **__: (_ for _ in ()).throw(OSError("no more processes"))),
    ],
)
def test_where_there_can_be_no_other_process_there_is_none(name, value, module, cores, monkeypatch, tmp_path):
    monkeypatch.setattr(f"augury.compiled.{name}", value)
    ahead = CompiledAhead(Progress())
    ahead.add([module])
    ahead("compile", 0, 2)
    ahead.wait()
    ahead.close()
    assert not (tmp_path / "left").exists()


def test_the_process_ends_with_a_load_that_fails(cores, monkeypatch, tmp_path):
    (tmp_path / "sleeps.py").write_text("import time\ntime.sleep(600)")
    monkeypatch.syspath_prepend(tmp_path)
    started = []
    monkeypatch.setattr(compiled, "Popen", lambda *args, **how: started.append(subprocess.Popen(*args, **how)) or started[0])
    ahead = CompiledAhead(Progress())
    ahead.add(["sleeps"])
    ahead("compile", 0, 1)
    ahead.close()
    assert started[0].poll() is not None


@pytest.mark.parametrize(
    ("spec_type", "modules"),
    [
        ("none", []),
        ("ngram-simple", ["augury.speculation.round_kernel"]),
        ("recycle;suffix", ["augury.speculation.round_kernel", *["augury.drafters.ngram.compiled_drafts"] * 2]),
    ],
)
def test_an_engine_names_what_its_drafters_run(spec_type, modules, monkeypatch):
    named = []
    monkeypatch.setattr(engine.CompiledAhead, "add", lambda _, names: named.extend(names))
    with engine.Engine.load(TINY_TARGET, backend="toy", registry=registry_with_toys(), spec_type=spec_type):
        assert named == modules
