import numpy as np
import pytest

from augury.drafters.suffix import Suffix, SuffixOptions

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


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_at_a_history_of_100_000_tokens(benchmark, kind):
    n_rounds = 2000
    text = text_of(kind, N_HISTORY + n_rounds)
    drafter = Suffix(SuffixOptions(), None)
    drafter.begin(text[:N_HISTORY], 0)
    lengths = iter(range(N_HISTORY + 1, N_HISTORY + n_rounds + 1))
    drafts = []
    benchmark.pedantic(lambda: drafts.append(drafter.draft(text[: next(lengths)], 64)), rounds=n_rounds)
    benchmark.extra_info["drafts"] = sum(len(draft) > 0 for draft in drafts)
    assert benchmark.stats.stats.median < 50e-6


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_of_100_000_tokens_is_learnt_for_a_few_microseconds_a_token(benchmark, kind):
    text = text_of(kind, N_HISTORY)
    benchmark.pedantic(lambda drafter: drafter.begin(text, 0), setup=lambda: ((Suffix(SuffixOptions(), None),), {}), rounds=5)
    benchmark.extra_info["ns_per_token"] = benchmark.stats.stats.median / N_HISTORY * 1e9
    assert benchmark.stats.stats.median / N_HISTORY < 4e-6
