"""Ollama's own client, asking the server that several modules share."""

import ollama
import pytest


@pytest.fixture(scope="session")
def ollama_client(server):
    with ollama.Client(server.url) as client:
        yield client
