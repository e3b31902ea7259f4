"""Extras are installed from where augury came from."""

import json
from importlib import metadata
from types import SimpleNamespace

import pytest

from augury.extras import install_command


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
