from types import SimpleNamespace

import numpy as np
import pytest

from augury.drafters.ngram_mod import NgramMod, NgramModOptions
from augury.types import Verdict

pytestmark = pytest.mark.bench
N_HISTORY = 100_000
KINDS = ["random", "repetitive", "phrases"]


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


def drafter_of():
    session = SimpleNamespace(n_slots=1, model=SimpleNamespace(n_vocab=50_000), shared=lambda _, make: make())
    return NgramMod(NgramModOptions(), session)


@pytest.mark.parametrize("is_right", [True, False], ids=["right", "wrong"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_round_at_a_history_of_100_000_takes_less_than_50_microseconds(benchmark, kind, is_right):
    n_rounds = 2000
    text = text_of(kind, N_HISTORY + n_rounds)
    drafter = drafter_of()
    drafter.begin(text[:N_HISTORY], 0)
    lengths = iter(range(N_HISTORY + 1, N_HISTORY + n_rounds + 1))
    drafts = []

    def one_round():
        history = text[: next(lengths)]
        draft = drafter.draft(history, 64)
        drafts.append(draft)
        n_accepted = len(draft) if is_right else 0
        drafter.accept(history, Verdict(len(draft), n_accepted, n_accepted + 1, is_used=len(draft) > 0))

    benchmark.pedantic(one_round, rounds=n_rounds)
    benchmark.extra_info["drafts"] = sum(len(draft) > 0 for draft in drafts)
    assert benchmark.stats.stats.median < 50e-6


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_of_100_000_tokens_is_learnt_for_less_than_a_microsecond_a_token(benchmark, kind):
    text = text_of(kind, N_HISTORY)
    drafter = drafter_of()
    benchmark.pedantic(lambda: drafter.begin(text, 0), rounds=5)
    benchmark.extra_info["ns_per_token"] = benchmark.stats.stats.median / N_HISTORY * 1e9
    assert benchmark.stats.stats.median / N_HISTORY < 1e-6
