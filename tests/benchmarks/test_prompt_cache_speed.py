"""What the prompt cache spares, and what it costs.

The bar: a conversation of 12,000 tokens goes on after a restart with a token within a second of the request, keeping costs less
than 2 % of decoding, and 40 conversations that take turns on 4 slots read each token once.
"""

from time import perf_counter

import numpy as np
import pytest

from augury import Engine
from augury.engine import prompt_files

pytestmark = pytest.mark.bench

N_TOLD, N_ANSWER = 12_000, 64
LOADED = {"n_ctx": 12_288, "spec_type": "none"}
ASKED = {"temperature": 0.0, "ignore_eos": True}


def first_token_s(engine, text):
    start = perf_counter()
    next(iter(running := engine.submit(text, max_tokens=2, **ASKED)))
    return perf_counter() - start, running.result().stats


def test_a_conversation_goes_on_within_a_second_of_a_restart(benchmark, monkeypatch, tmp_path):
    monkeypatch.setattr(prompt_files, "cache_folder", tmp_path.joinpath)
    text = np.random.default_rng(1).integers(1000, 40_000, N_TOLD).tolist()
    kept = {"cache_ram": 4096, "cache_disk": 4096}
    with Engine.load("smollm2", **LOADED, **kept) as engine:
        plain_s, _ = first_token_s(engine, text)
        cache, spent = engine._context.prompt_cache, []
        keep = cache.keep

        def timed(*args):
            start = perf_counter()
            keep(*args)
            spent.append(perf_counter() - start)

        cache.keep = timed
        start = perf_counter()
        answered = engine.generate(text, max_tokens=N_ANSWER, **ASKED)
        answer_s = perf_counter() - start
    text = [*text, *answered.tokens, 1234]
    with Engine.load("smollm2", **LOADED, **kept) as engine:
        again_s, stats = benchmark.pedantic(first_token_s, (engine, text), rounds=1)
    facts = {"first token, s": plain_s, "after a restart, s": again_s, "keeping, of decoding": spent[0] / answer_s}
    benchmark.extra_info.update(facts | {"n_reused": stats.n_reused})
    assert stats.n_reused == len(text) - 2
    assert again_s < 1
    assert spent[0] < 0.02 * answer_s


@pytest.mark.parametrize("cache_ram", [0, 4096])
def test_conversations_that_take_turns_on_four_slots_read_each_token_once(benchmark, cache_ram):
    n_first, n_answer, n_told, n_turns = 24, 5, 8, 3
    texts = np.random.default_rng(2).integers(1000, 40_000, (40, n_first)).tolist()
    with Engine.load("smollm2", n_ctx=512, slots=4, spec_type="none", cache_ram=cache_ram) as engine:

        def talk():
            for _ in range(n_turns):
                for text, result in zip(texts, engine.generate(texts, max_tokens=n_answer, **ASKED), strict=True):
                    text += [*result.tokens, *range(2000, 2000 + n_told)]

        benchmark.pedantic(talk, rounds=1)
        n_read = engine.stats().counts.n_prompt
    benchmark.extra_info.update({"prompt tokens computed": n_read})
    # an answer's last token is not computed when it is decoded
    assert (n_read == len(texts) * (n_first + (n_turns - 1) * (1 + n_told))) is bool(cache_ram)
