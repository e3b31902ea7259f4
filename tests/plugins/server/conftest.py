"""Servers that several modules of tests share: starting one takes seconds."""

import pytest
from support.commands import here
from support.servers import serving


@pytest.fixture(scope="session")
def slot_folder(tmp_path_factory):
    """Where the server saves slots."""
    return tmp_path_factory.mktemp("slots")


@pytest.fixture(scope="session")
def server(slot_folder):
    """The default model on four slots, for whatever needs no flags of its own; greedy unless a request says otherwise."""
    words = "-m smollm2 -t 1 -c 512 -np 4 --temp 0 --alias smollm2,small --tags chat,tiny --metrics --slot-save-path"
    gap = (f"tokenizer.ggml.fim_{name}_token_id=int:{token}" for name, token in (("pre", 8), ("suf", 9), ("mid", 10)))
    with serving(*words.split(), slot_folder, "--override-kv", ",".join(gap)) as found:
        yield found


@pytest.fixture(scope="session")
def client(server):
    """Asks that server."""
    return server.client


@pytest.fixture(scope="session")
def strict_server():
    """A tiny model without a tokenizer on one slot, with keys and narrow limits."""
    words = "-c 4096 --strict-fields --api-key one,two --max-queue 1 --max-body-size 1 -v --cors-origins https://page.example,localhost"
    with serving(*here(), *words.split(), "-np", 1) as found:
        yield found
