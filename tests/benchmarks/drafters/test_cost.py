"""What drafters without a model cost at a history of 100,000 tokens."""

from types import SimpleNamespace

import pytest

from augury.registry import Registry

pytestmark = pytest.mark.bench
NS_PER_TOKEN = {"ngram-cache": 4000, "suffix": 4000}  # of a prompt; the others just index it
DRAFTERS = ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache", "suffix", "recycle", "self-spec"]


def drafter_of(name):
    cls = Registry.discover().drafters[name]
    session = SimpleNamespace(n_slots=1, model=SimpleNamespace(n_vocab=50_000), shared=lambda _, make: make())
    return cls(cls.options_class(), session)


@pytest.mark.parametrize("is_right", [True, False], ids=["right", "wrong"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_round_takes_less_than_50_microseconds(time_rounds, name, is_right):
    assert time_rounds(drafter_of(name), is_right=is_right) < 50e-6


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_prompt_takes_a_few_microseconds_a_token_at_most(time_prompt, name):
    assert time_prompt(lambda: drafter_of(name)) < NS_PER_TOKEN.get(name, 1000) * 1e-9
