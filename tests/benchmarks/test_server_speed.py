"""What HTTP costs: the same requests by `augury serve` and by the library, in turns.

The bar: the time to the first token and the tokens per second are within 3 % of the library's, plainly and with drafts, and a
round costs at most 0.3 ms more per slot. On a machine that does nothing else.
"""

import json
from time import perf_counter

import httpx
import numpy as np
import pytest
from support.servers import serving

from augury import Engine

pytestmark = pytest.mark.bench

PAIRS = 8
LOADED = {"n_ctx": 2048, "slots": 4, "threads": 2}
STORY = "The sea, the sea, the open sea, the blue, the fresh, the ever free. " * 12
ASKED = {"max_tokens": 768, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
KINDS = {"plain": {"speculative": False}, "drafts": {"speculative": {"type": "suffix"}}}


@pytest.fixture(scope="module")
def engine():
    with Engine.load("smollm2", **LOADED) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def client():
    with serving("-m", "smollm2", "-c", LOADED["n_ctx"], "-np", LOADED["slots"], "-t", LOADED["threads"]) as server:
        yield server.client


def by_library(engine, asked):
    """Seconds to the first token, from there to the end, and what was said."""
    start = perf_counter()
    running = engine.submit(STORY, **asked)
    pieces = iter(running)
    texts = [next(pieces).text]
    first = perf_counter()
    texts += [piece.text for piece in pieces]
    return first - start, perf_counter() - first, "".join(texts), running.result().stats.n_rounds


def by_http(client: httpx.Client, asked):
    start, first, texts = perf_counter(), 0.0, []
    with client.stream("POST", "/v1/completions", json={"prompt": STORY, "stream": True, **asked}) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                first = first or perf_counter()
                event = json.loads(line[6:])
                texts.append(event["choices"][0]["text"])
                n_rounds = event.get("speculation", {}).get("rounds", 0)
    return first - start, perf_counter() - first, "".join(texts), n_rounds


@pytest.mark.parametrize("kind", KINDS)
def test_http_beside_the_library(benchmark, engine, client, kind):
    asked = ASKED | KINDS[kind]
    rows = {"library": [], "http": []}

    def pair():
        for way in ("library", "http", "http", "library"):
            rows[way].append(by_library(engine, asked) if way == "library" else by_http(client, asked))

    benchmark.pedantic(pair, rounds=PAIRS, warmup_rounds=1)
    assert len({row[2] for way in rows.values() for row in way}) == 1, "the texts differ"
    times = {way: np.array([row[:2] for row in each]).reshape(-1, 2, 2).mean(axis=1)[1:] for way, each in rows.items()}
    medians = {way: np.median(each, axis=0) for way, each in times.items()}
    n_rounds = rows["library"][0][3]
    benchmark.extra_info |= {
        "time to first token, http / library": round(float(np.median(times["http"][:, 0] / times["library"][:, 0])), 3),
        "tokens per second, http / library": round(float(np.median(times["library"][:, 1] / times["http"][:, 1])), 3),
        "ms to first token": {way: round(1e3 * float(each[0]), 2) for way, each in medians.items()},
        "ms more per round": round(1e3 * float(np.median(times["http"][:, 1] - times["library"][:, 1])) / n_rounds, 3),
        "tokens per second": {way: round((ASKED["max_tokens"] - 1) / float(each[1]), 1) for way, each in medians.items()},
    }
