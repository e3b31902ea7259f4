"""Extras are installed from where augury came from."""

import json
from importlib import metadata
from types import SimpleNamespace

import pytest

from augury import extras
from augury.errors import UnsupportedError
from augury.extras import install_command, require_libraries


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, "pip install 'augury[server]'"),
        ({"url": "file:///src/my%20augury", "dir_info": {"editable": True}}, "pip install -e '/src/my augury[server]'"),
        ({"url": "file:///src/augury", "dir_info": {}}, "pip install 'augury[server] @ file:///src/augury'"),
        ({"url": "file:///a.whl", "archive_info": {}}, "pip install 'augury[server] @ file:///a.whl'"),
        ({"url": "https://x/a.git", "vcs_info": {"vcs": "git"}}, "pip install 'augury[server] @ git+https://x/a.git'"),
    ],
)
def test_the_command_names_where_augury_came_from(origin, expected, monkeypatch):
    found = SimpleNamespace(read_text=lambda _: origin and json.dumps(origin))
    monkeypatch.setattr(metadata, "distribution", lambda _: found)
    assert install_command("server") == expected


def test_without_a_distribution_it_names_the_index(monkeypatch):
    monkeypatch.setattr(metadata, "distribution", lambda name: (_ for _ in ()).throw(metadata.PackageNotFoundError(name)))
    assert install_command("server") == "pip install 'augury[server]'"


def test_missing_libraries_are_named_with_the_extra_that_has_them(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in {"jax", "optax"} else name)
    require_libraries("serving needs", "server", "fastapi", "uvicorn")
    told = f"learning needs jax and optax, not installed here; install the extra: {install_command('learn')}"
    with pytest.raises(UnsupportedError) as caught:
        require_libraries("learning needs", "learn", "numpy", "jax", "optax")
    assert str(caught.value) == told
