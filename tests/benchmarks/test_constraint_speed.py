"""What an answer that keeps to a schema takes, beside plain decoding of as many tokens without one, in turns.

In docs/benchmarks.md 300 tokens of JSON take at most 0.9 of the time, and all calls of the constraint under 3 % of a plain pass
per token.
"""

from time import perf_counter

import numpy as np
import pytest
from platformdirs import user_cache_path

from augury import Engine
from augury.plugins.constraints.guided import Guided

pytestmark = pytest.mark.bench

CACHE = user_cache_path("augury") / "models"
MODELS = {"smollm2": "smollm2"} | {path.stem: path for path in CACHE.glob("qwen2.5-coder-0.5b*.gguf")}
N, TURNS = 300, 3
PERSON = {"first_name": "string", "last_name": "string", "age": "integer", "city": "string", "occupation": "string"}
SCHEMA = {
    "type": "object",
    "properties": {
        "people": {
            "type": "array",
            "minItems": 20,
            "items": {
                "type": "object",
                "properties": {name: {"type": kind} for name, kind in PERSON.items()},
                "required": [*PERSON],
                "additionalProperties": False,
            },
        }
    },
    "required": ["people"],
    "additionalProperties": False,
}
PROMPT = (
    "Invent twenty people who live in the same street, and describe them as JSON, each with name, age, city and occupation."
)


@pytest.fixture(scope="module", params=MODELS)
def engine(request):
    with Engine.load(MODELS[request.param], backend="numba-cpu") as loaded:
        yield loaded


def test_json_beside_plain_decoding(benchmark, engine, monkeypatch):
    calls = []
    for name in ("allowed", "accept", "forced", "n_allowed"):
        monkeypatch.setattr(Guided, name, timed(getattr(Guided, name), calls))
    asked = {
        "messages": [{"role": "user", "content": PROMPT}],
        "temperature": 0.8,
        "seed": 1,
        "max_tokens": N,
        "ignore_eos": True,
    }
    ways = {
        "plain": {"speculative": False},
        "json": {"json_schema": SCHEMA, "speculative": False},
        "json, forced": {"json_schema": SCHEMA, "speculative": {"type": "forced"}},
        "json, auto": {"json_schema": SCHEMA},
    }
    seconds, results, called = {way: [] for way in ways}, {}, {}

    def round_of_all():
        for way in [*ways, *reversed(ways)]:
            calls.clear()
            results[way] = engine.generate(**asked, **ways[way])
            seconds[way].append(results[way].stats.timings.predict_s)
            called[way] = sum(calls) / N

    benchmark.pedantic(round_of_all, rounds=TURNS)
    assert {len(result.tokens) for result in results.values()} == {N}
    assert results["json"].tokens == results["json, forced"].tokens == results["json, auto"].tokens
    taken = {way: np.array(each).reshape(-1, 2).sum(axis=1) / 2 for way, each in seconds.items()}
    plain_s = float(np.median(taken["plain"])) / (N - 1)
    told = benchmark.extra_info
    told["ms per plain token"] = round(1e3 * plain_s, 2)
    for way in [*ways][1:]:
        ratios = np.percentile(taken[way] / taken["plain"], (50, 0, 100))
        told[f"{way} / plain"] = [round(float(each), 3) for each in ratios]
        told[f"{way}: rounds"] = results[way].stats.n_rounds
        told[f"{way}: calls of the constraint / plain pass"] = round(called[way] / plain_s, 4)


def timed(method, calls):
    """A method that notes what it took."""

    def wrapped(*arguments):
        start = perf_counter()
        try:
            return method(*arguments)
        finally:
            calls.append(perf_counter() - start)

    return wrapped
