"""OpenAI's own clients, which are imported where they are used: that takes seconds, and not every process has such tests."""

import pytest


@pytest.fixture(scope="session")
def ai(server):
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def make_async_ai(server):
    import openai

    return lambda: openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
