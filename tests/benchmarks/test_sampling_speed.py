"""What it takes to choose a token of a vocabulary of 49,152, as SmolLM2's is, from logits in memory."""

import numpy as np
import pytest

from augury.engine.sampler import Sampler
from augury.passes import ArrayPass
from augury.sampling import SamplingParams

pytestmark = pytest.mark.bench

V, N = 49_152, 50
WAYS = {
    "default": {},
    "top_n_sigma": {"top_n_sigma": 1.0},
    "min_p alone": {"top_k": 0, "top_p": 1.0, "min_p": 0.05},
    "mirostat 1": {"mirostat": 1},
    "mirostat 2": {"mirostat": 2},
    "temperature alone": {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_token_is_chosen(benchmark, way):
    rng = np.random.default_rng(1)
    rows = np.stack([-1.4 * np.log(1 + rng.permutation(V)) for _ in range(N)]).astype(np.float32)  # by Zipf's law
    logits, history = ArrayPass(rows), [0]
    sampler = Sampler(SamplingParams(seed=1, **WAYS[way]), n_vocab=V)

    def text():
        for i in range(N):
            history.append(sampler.choose(logits, i, np.array(history[-64:], np.int32), i))

    benchmark.pedantic(text, rounds=3, warmup_rounds=1)
    benchmark.extra_info["ms per token"] = round(1e3 * benchmark.stats.stats.median / N, 3)
