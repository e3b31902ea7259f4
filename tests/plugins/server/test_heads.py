"""A server whose drafters are heads: a request names one with its parameters, and is told what that did."""

import asyncio

import httpx
import pytest
from oracles.drafts import agreeing
from oracles.models import tiny_model
from support.drafter_specs import head_specs

from augury import Engine, Registry
from augury.plugins.server.app import make_app
from augury.plugins.server.metrics import Metrics
from augury.plugins.server.models import Models
from augury.plugins.server.server import Server, ServerOptions

MODELS = {"llama-dense": head_specs("llama-dense"), "mtp-deepseek2": {"draft-mtp": "draft-mtp"}}
ASKED = {"prompt": [3, 1, 4, 1, 5] * 20, "n_predict": 24, "temperature": 0, "return_tokens": True, "ignore_eos": True}


@pytest.mark.parametrize("name", MODELS)
def test_a_request_names_a_head_and_its_parameters(name):
    metrics, specs, registry = Metrics(), MODELS[name], Registry.discover()
    registry.hooks.register(metrics)
    path = tiny_model(name) if name == "llama-dense" else agreeing(name)
    how = {"backend": "numba-cpu", "threads": 1, "n_ctx": 192, "spec_type": ";".join(specs.values()), "spec_fixed": True}
    server = Server(ServerOptions(), lambda _: None, metrics=metrics)
    app = httpx.ASGITransport(make_app(Models([server])))

    async def ask():
        async with httpx.AsyncClient(transport=app, base_url="http://server") as client:

            async def post(speculative):
                answer = await client.post("/completion", json=ASKED | {"speculative": speculative, "cache_prompt": False})
                assert answer.status_code == 200, answer.text
                return answer.json()

            limits = ({"n_max": 2}, {"n_max": 2, "p_min": 1.0})
            told = {drafter: [await post({"type": drafter, **each}) for each in limits] for drafter in specs}
            return await post(False), told, (await client.get("/props")).json(), (await client.get("/metrics")).text

    with Engine.load(path, registry=registry, **how) as server._engine:
        plain, told, props, counted = asyncio.run(ask())
    for drafter, (free, strict) in told.items():
        assert free["tokens"] == strict["tokens"] == plain["tokens"]
        assert [*free["speculation"]["drafters"]] == [drafter]
        assert free["speculation"]["drafters"][drafter]["begin_ms"] > 0
        assert free["timings"]["draft_n_accepted"] > 0
        assert max(free["speculation"]["draft_lengths"]) <= 2
        assert strict["timings"]["draft_n"] < free["timings"]["draft_n"]
        assert props["speculative"][drafter]["p_min"] == 0  # for which the page has a field
        assert f'augury:spec_decode_prompt_seconds_total{{drafter="{drafter}"}}' in counted
