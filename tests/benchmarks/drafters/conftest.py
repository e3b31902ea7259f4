"""Texts, and rounds of drafters over them."""

import numpy as np
import pytest

from augury.types import Verdict

N_HISTORY = 100_000
N_ROUNDS = 2000


def text_of(kind, n_tokens):
    rng = np.random.default_rng(1)
    match kind:
        case "random":
            return rng.integers(0, 50_000, n_tokens, dtype=np.int32)
        case "repetitive":
            return np.zeros(n_tokens, dtype=np.int32)
        case "phrases":
            phrases = rng.integers(0, 50_000, (40, 60), dtype=np.int32)
            return phrases[rng.integers(0, 40, n_tokens // 60 + 1)].reshape(-1)[:n_tokens]


@pytest.fixture(params=["random", "repetitive", "phrases"])
def text(request):
    """Tokens of a long prompt and of the rounds after it, (t,) int32."""
    return text_of(request.param, N_HISTORY + N_ROUNDS)


@pytest.fixture
def time_rounds(benchmark, text):
    """Time a drafter's rounds after a prompt of 100,000 tokens; drafts are accepted as a whole or not at all.

    Returns the median round in seconds.
    """

    def run(drafter, *, is_right):
        drafter.begin(text[:N_HISTORY], 0)
        lengths = iter(range(N_HISTORY + 1, N_HISTORY + N_ROUNDS + 1))
        drafts = []

        def one_round():
            history = text[: next(lengths)]
            draft = drafter.draft(history, 64)
            drafts.append(draft)
            n_accepted = len(draft) if is_right else 0
            drafter.accept(history, Verdict(len(draft), n_accepted, n_accepted + 1, is_used=len(draft) > 0))

        benchmark.pedantic(one_round, rounds=N_ROUNDS)
        benchmark.extra_info["drafts"] = sum(len(draft) > 0 for draft in drafts)
        return benchmark.stats.stats.median

    return run


@pytest.fixture
def time_prompt(benchmark, text):
    """Time how a drafter, made anew each time, begins with a prompt of 100,000 tokens; returns the median seconds per token."""

    def run(make):
        benchmark.pedantic(lambda drafter: drafter.begin(text[:N_HISTORY], 0), setup=lambda: ((make(),), {}), rounds=5)
        seconds = benchmark.stats.stats.median / N_HISTORY
        benchmark.extra_info["ns_per_token"] = seconds * 1e9
        return seconds

    return run
