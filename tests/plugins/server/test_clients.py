"""Programs that people use with OpenAI's interface, as they use them: `llm`, and agents of `pydantic-ai`."""

import asyncio
import os
import subprocess
import sys

import pytest
from pydantic import BaseModel, Field


@pytest.fixture(scope="module")
def llm(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llm")
    model = f"- model_id: here\n  model_name: smollm2\n  api_base: {server.url}/v1\n  supports_schema: true\n"
    (folder / "extra-openai-models.yaml").write_text(model)
    env = os.environ | {"LLM_USER_PATH": str(folder), "OPENAI_API_KEY": "none"}

    def run(*words):
        command = [sys.executable, "-m", "llm", *words]
        return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout

    return run


@pytest.mark.sample(0)  # a process of its own, which takes seconds to start, for every question
def test_llm_asks_goes_on_and_keeps_to_a_schema(llm):
    first = llm("-m", "here", "-o", "max_tokens", "12", "Name a colour.")
    assert first.strip()
    assert llm("-c", "-o", "max_tokens", "8", "Another one.").strip()
    assert llm("-m", "here", "--no-stream", "-o", "max_tokens", "12", "Name a colour.") == first
    assert llm("-m", "here", "--schema", "age int", "How old is the sea?").startswith('{"age"')


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=12)
    is_large: bool


@pytest.mark.parametrize("kind", ["OpenAIChatModel", "OpenAIResponsesModel"])
@pytest.mark.parametrize("output", ["tool", "schema"])
def test_an_agent_returns_what_its_type_says(server, kind, output):
    import openai  # these take seconds: not every process has these tests
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models import openai as models
    from pydantic_ai.providers.openai import OpenAIProvider

    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            model = getattr(models, kind)("smollm2", provider=OpenAIProvider(openai_client=client))
            agent = Agent(
                model,
                output_type=City if output == "tool" else NativeOutput(City),
                instructions="Answer about cities.",
                model_settings={"max_tokens": 120},
            )
            first = await agent.run("Where is the Colosseum?")
            return first, await agent.run("And the Louvre?", message_history=first.all_messages())

    for result in asyncio.run(ask()):
        assert isinstance(result.output, City)
