"""OpenAI's own clients."""

import openai
import pytest


@pytest.fixture(scope="session")
def ai(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def make_async_ai(server):
    return lambda: openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
