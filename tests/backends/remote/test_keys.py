"""Nodes with a key: who has it connects, and nobody else."""

import pytest
from support.nodes import node_on_thread

from augury import Registry
from augury.backends.remote import RemoteBackend
from augury.backends.remote.connection import KEY_FILE, secret_key
from augury.errors import LostDeviceError, OptionError

REGISTRY = Registry.discover()


@pytest.fixture
def key(tmp_path):
    return secret_key(tmp_path / "node.key", may_make=True)


def test_who_has_the_key_connects_and_nobody_else(key, tmp_path, monkeypatch):
    with node_on_thread(registry=REGISTRY, key=key) as node:
        name = f"node:{node.address}"
        with pytest.raises(LostDeviceError, match="does not take this key, or is no node; name its key file"):
            RemoteBackend.device(name)
        secret_key(tmp_path / "other.key", may_make=True)
        monkeypatch.setenv(KEY_FILE, str(tmp_path / "other.key"))
        with pytest.raises(LostDeviceError, match="does not take this key, or is no node; name its key file"):
            RemoteBackend.device(name)
        monkeypatch.setenv(KEY_FILE, str(tmp_path / "node.key"))
        assert RemoteBackend.device(name).description.startswith("numba-cpu on ")


def test_a_key_is_made_once_for_its_owner_alone(key, tmp_path):
    path = tmp_path / "node.key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert secret_key(path, may_make=True) == key
    path.chmod(0o644)
    with pytest.raises(OptionError, match="can be read by others than its owner; chmod 600"):
        secret_key(path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(OptionError, match="holds 5 bytes, expected a key of 40 characters"):
        secret_key(path)
    with pytest.raises(OptionError, match="No such file or directory; augury node --key FILE makes one"):
        secret_key(tmp_path / "none")
