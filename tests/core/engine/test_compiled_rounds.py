"""Rounds by one call of compiled code: the tokens, drafts and states of rounds one by one, and none where Python is needed."""

import functools
import logging
from time import sleep

import numba
import numpy as np
import pytest
from oracles.drafts import copying_head, draft_file, predictable, target_of
from oracles.models import tiny_model

from augury import Engine, Registry
from augury.compiled import address_of, array_at, compiled
from augury.drafters.draft_heads import DraftEagle3
from augury.drafters.recycle import Recycle
from augury.engine import compiled_rounds
from augury.engine.loop import Loop
from augury.errors import AuguryError, ModelFileError
from augury.interfaces import CompiledDraft
from augury.log import DRAFT_LOGGER
from augury.speculation.costs import PassCosts
from augury.speculation.drafting import Drafting
from augury.speculation.planner import DraftPlanner

REGISTRY = Registry.discover()
GREEDY = {"temperature": 0.0, "ignore_eos": True}
N_CTX = 192
numbers = array_at(np.int32)
MODELS = {"repeating": predictable("llama-dense"), "random": tiny_model("llama-dense"), "windowed": tiny_model("gemma3-dense")}
RANDOM_HEADS = "eagle3-llama", "eagle3-qwen3-d2t"  # one that wants a feature that llama.cpp has not, one of some tokens alone
HEADS = dict.fromkeys(MODELS, copying_head("llama-dense")) | {name: draft_file(name) for name in RANDOM_HEADS}


def load(model="repeating", **how):
    given = {"backend": "numba-cpu", "n_ctx": N_CTX, "threads": 2, "registry": REGISTRY, "spec_type": "suffix;recycle", **how}
    given |= {"draft_model": HEADS[model]} if "draft-eagle3" in given["spec_type"] else {}
    return Engine.load(MODELS[model] if model in MODELS else tiny_model(target_of(model)), **given)


def prompts():
    rng = np.random.default_rng(5)
    phrases = [rng.integers(0, 128, 6).tolist() for _ in range(3)]
    return [phrases[i % 3] + phrases[(i + 1) % 3] + phrases[i % 3] for i in range(3)]


@functools.cache
def plain(model, n):
    with load(model, spec_type="none", threads=1) as engine:
        return [engine.generate(prompt, max_tokens=n, **GREEDY).tokens for prompt in prompts()]


@pytest.fixture
def calls(monkeypatch):
    """The rounds of each call: eight, however long passes take, where the text does not end before."""
    found, run = [], compiled_rounds.run_rounds
    monkeypatch.setattr(compiled_rounds, "LONGEST_S", 1e3)

    def kept(*arguments, **how):
        found.append(run(*arguments, **how))
        return found[-1]

    monkeypatch.setattr(compiled_rounds, "run_rounds", kept)
    return found


@pytest.fixture
def _drafts_pay(monkeypatch):
    """Passes of many tokens are cheap, and lookups asked in every round, whatever is measured."""
    curves = np.stack([np.linspace(1.0, 1.2, 65)] * 2)
    monkeypatch.setattr(PassCosts, "observe", lambda *_: None)
    monkeypatch.setattr(PassCosts, "curves", lambda *_: curves)
    monkeypatch.setattr(DraftPlanner, "asked", lambda _, drafters: [each for each in drafters if not each.profile.is_costly])
    monkeypatch.setattr(DraftPlanner, "n_resting", lambda *_, is_plain: 0)


@pytest.mark.usefixtures("_drafts_pay")
@pytest.mark.parametrize("model", MODELS)
def test_output_is_that_of_plain_decoding(model, calls):
    with load(model, slots=2) as engine:
        answers = [engine.generate(prompt, max_tokens=100, **GREEDY) for prompt in prompts() * 2]
        assert [each.tokens for each in answers] == plain(model, 100) * 2, "the second time lookups know it"
        again = engine.generate([*prompts()[2], *answers[-1].tokens[:50]], max_tokens=50, **GREEDY)
        assert again.tokens == answers[-1].tokens[50:], "of the states that the slot kept"
        assert again.stats.n_reused > 40
    rounds = [each for call in calls for each in call]
    assert {len(call) for call in calls} >= {8}
    assert sum(len(each.outcome.path) for each in rounds) > 100
    assert any(list(each.outcome.path) != [*range(len(each.outcome.path))] for each in rounds), "cells moved"
    assert any(len(each.outcome.path) < len(each.choice.nodes) for each in rounds)
    for each in answers:
        stats = each.stats
        assert stats.n_emitted == stats.n_rounds + stats.n_accepted, "the prompt's pass is a round"
        assert sum(drafter.drafted for drafter in stats.drafters.values()) >= stats.n_drafted


@pytest.mark.usefixtures("_drafts_pay")
@pytest.mark.parametrize("drafters", ["suffix;recycle", "draft-eagle3"])
@pytest.mark.parametrize("model", ["repeating", "random"])
def test_rounds_one_by_one_draft_and_teach_what_rounds_of_python_do(model, drafters, calls, monkeypatch):
    monkeypatch.setattr(compiled_rounds, "LONGEST_S", 1e-9)
    settle, told = Drafting.settle, []

    def watched(drafting, choice, outcome):
        path = [choice.draft.tokens[node] for node in outcome.path]
        settle(drafting, choice, outcome)
        chances = [each.chances.values.tolist() for each in choice.proposals.drafters.every]
        draft = choice.draft.tokens.tolist(), choice.draft.above.tolist(), choice.names
        told[-1].append((*draft, path, outcome.n_emitted, chances))

    monkeypatch.setattr(Drafting, "settle", watched)
    for is_compiled in (True, False):
        told.append([])
        if not is_compiled:
            monkeypatch.setattr(Loop, "_run_compiled", lambda _: False)
        with load(model, spec_type=drafters) as engine:
            for prompt in prompts():
                engine.generate(prompt, max_tokens=60, **GREEDY)
    compiled, of_python = told
    assert len(calls) > 20
    assert any(above != [*range(-1, len(above) - 1)] for _, above, *_ in compiled)
    assert compiled == of_python


@pytest.mark.usefixtures("_drafts_pay")
@pytest.mark.parametrize("drafters", ["draft-eagle3", "suffix;recycle;draft-eagle3"])
@pytest.mark.parametrize("model", ["repeating", "random"])
def test_a_head_drafts_in_rounds_without_python(model, drafters, calls):
    """And its states serve texts that go on from there, in rounds of both kinds."""
    with load(model, slots=2, spec_type=drafters) as engine:
        for prompt, expected in zip(prompts() * 2, plain(model, 100) * 2, strict=True):
            assert engine.generate(prompt, max_tokens=100, **GREEDY).tokens == expected
            again = engine.generate([*prompt, *expected[:50]], max_tokens=50, **GREEDY)
            assert again.tokens == expected[50:]
            assert again.stats.n_reused > 40
    rounds = [each for call in calls for each in call]
    assert {len(call) for call in calls} >= {8}
    assert [name for each in rounds for name in each.choice.names].count("draft-eagle3") > 30


@pytest.mark.usefixtures("_drafts_pay")
def test_what_is_done_for_a_head_before_the_first_round_is_its_time(calls, monkeypatch):
    begin = DraftEagle3.compiled_draft
    monkeypatch.setattr(DraftEagle3, "compiled_draft", lambda *given: sleep(0.02) or begin(*given))
    with load(spec_type="suffix;recycle;draft-eagle3") as engine:
        engine.generate(prompts()[0], max_tokens=60, **GREEDY)
    n_asked = 0
    for call in calls:
        seconds = [s for each in call for drafter, s in each.drafter_s().items() if drafter.profile.is_costly]
        n_asked += bool(seconds)
        assert not seconds or sum(seconds) > 0.015  # lookups have a share of each round
    assert n_asked > 1


@pytest.mark.usefixtures("_drafts_pay")
@pytest.mark.parametrize("model", ["repeating", "random", *RANDOM_HEADS])
def test_a_head_drafts_as_in_rounds_of_python_after_each_text(model, calls, monkeypatch):
    """Some further, some less far: what a call's rounds teach counts from the next one on."""
    settle, chains = Drafting.settle, []

    def watched(drafting, choice, outcome):
        for proposal in choice.proposals.by_drafter.values():
            chains[-1][-1][choice.proposals.n_context] = proposal.draft.trunk()[0].tokens.tolist()
        settle(drafting, choice, outcome)

    monkeypatch.setattr(Drafting, "settle", watched)
    for is_compiled in (True, False):
        chains.append([])
        if not is_compiled:
            monkeypatch.setattr(Loop, "_run_compiled", lambda _: False)
        with load(model, spec_type="draft-eagle3") as engine:
            for prompt in prompts():
                chains[-1].append({})
                engine.generate(prompt, max_tokens=100, **GREEDY)
    assert {len(call) for call in calls} >= {8}
    pairs = [(one[n], other[n]) for one, other in zip(*chains, strict=True) for n in one.keys() & other.keys()]
    assert sum(min(map(len, pair)) for pair in pairs) > (20 if model in RANDOM_HEADS else 60)
    for one, other in pairs:
        n = min(len(one), len(other))
        assert one[:n] == other[:n]


@pytest.mark.usefixtures("_drafts_pay")
@pytest.mark.parametrize("n_resting", [0, 3])
def test_a_head_that_is_not_asked_is_fed_what_rounds_of_python_feed_it(n_resting, calls, monkeypatch):
    """And is asked again when it is due, whether lookups draft meanwhile or rest."""
    feed, asks, fed, n_asked = Drafting.feed, DraftPlanner.asks, [], 0

    def watched(drafting, sequence, start, tokens, features):
        assert features
        rows = {name: values.copy() for name, values in features.items()}
        for i, token in enumerate(tokens.tolist()):
            fed[-1][-1][start + i] = token, [values[i].tolist() for values in rows.values()]
        feed(drafting, sequence, start, tokens, features)

    def counted(planner, slots, n_others=0):
        nonlocal n_asked
        found = asks(planner, slots, n_others)
        for profile in planner.profiles:
            if profile.n_waited >= profile.interval:
                profile.n_waited, profile.interval = 0, 8  # as if it had been tried, and wrong
        n_asked += 1
        return found

    monkeypatch.setattr(Drafting, "feed", watched)
    monkeypatch.setattr(DraftPlanner, "asks", counted)
    monkeypatch.setattr(DraftPlanner, "_best_length", lambda *_: (0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(DraftPlanner, "n_resting", lambda *_, is_plain: n_resting)
    for is_compiled in (True, False):
        fed.append([])
        if not is_compiled:
            monkeypatch.setattr(Loop, "_run_compiled", lambda _: False)
        with load(spec_type="suffix;recycle;draft-eagle3") as engine:
            for prompt, expected in zip(prompts(), plain("repeating", 100), strict=True):
                fed[-1].append({})
                assert engine.generate(prompt, max_tokens=100, **GREEDY).tokens == expected
    assert fed[0] == fed[1]
    assert [len(each) for each in fed[0]] == [len(prompt) + 99 for prompt in prompts()]
    assert n_asked > 4
    rounds = [each for call in calls for each in call]
    assert any(each.outcome.path for each in rounds)
    assert any(not each.choice.proposals.by_drafter for each in rounds) is bool(n_resting)


@pytest.mark.usefixtures("_drafts_pay")
def test_a_text_ends_at_its_last_token_wherever_that_stands_in_a_draft(calls):
    (answer, *_) = plain("repeating", 100)
    with load() as engine:
        engine.generate(prompts()[0], max_tokens=100, **GREEDY)  # which lookups know from then on
        for n in range(2, 30):
            found = engine.generate(prompts()[0], max_tokens=n, **GREEDY)
            assert (found.tokens, found.finish_reason) == (answer[:n], "length")
        for token in {*answer[3:40]} - {answer[0]}:
            end = answer.index(token) + 1
            found = engine.generate(prompts()[0], max_tokens=100, stop_token_ids=[token], **GREEDY)
            assert (found.tokens, found.finish_reason) == (answer[:end], "stop")
        whole = engine.generate(prompts()[0], **GREEDY)
        assert whole.finish_reason == "context"
        assert len(prompts()[0]) + len(whole.tokens) == N_CTX + 1
        assert whole.tokens[:100] == answer
        after = engine.generate(prompts()[1], max_tokens=100, **GREEDY)
        assert after.tokens == plain("repeating", 100)[1]
    assert any(each.outcome.is_stopped for call in calls for each in call)


@pytest.mark.usefixtures("_drafts_pay")
def test_rounds_of_both_kinds_follow_one_another(calls):
    """What is told of tokens takes rounds of Python, which go on from moved cells, and are gone on from."""
    (answer, *_) = plain("repeating", 100)
    with load() as engine:
        for i in range(8):
            text = [*prompts()[0], *answer[: 10 * i]]
            how = {"logprobs": 1} if i % 2 else {}
            assert engine.generate(text, max_tokens=12, **GREEDY, **how).tokens == answer[10 * i : 10 * i + 12]
    assert len(calls) > 2


@pytest.mark.usefixtures("_drafts_pay")
@pytest.mark.parametrize(
    "how",
    [
        {"logprobs": 0},
        {"temperature": 0.7, "seed": 1},
        {"stop": ["zz"]},
        {"logit_bias": {3: 5.0}},
        {"speculative": False},
        {"constraint": {"regex": "a*"}},
        {"hidden_states": ["output"], "on_hidden_states": lambda *_: None},
    ],
    ids=lambda how: next(iter(how)),
)
def test_what_needs_python_has_no_compiled_rounds(how, calls):
    with load() as engine:
        try:
            engine.generate(prompts()[0], max_tokens=8, **{**GREEDY, **how})
        except AuguryError:
            assert {"constraint", "stop"} & how.keys(), "without a tokenizer"
    assert not calls


@pytest.mark.usefixtures("_drafts_pay")
def test_requests_beside_each_other_take_rounds_together(calls):
    with load(slots=2) as engine:
        running = [engine.submit(prompt, max_tokens=60, **GREEDY) for prompt in prompts()[:2]]
        assert [each.result().tokens for each in running] == [tokens[:60] for tokens in plain("repeating", 100)[:2]]
    assert sum(map(len, calls)) < 60


@pytest.mark.usefixtures("_drafts_pay")
def test_a_drafter_without_functions_or_whose_functions_fail_leaves_the_output_as_it_is(calls, monkeypatch):
    def broken(*_):
        raise ValueError("broken")

    with load(spec_type="suffix;ngram-simple:n=2") as engine:
        assert engine.generate(prompts()[0], max_tokens=60, **GREEDY).tokens == plain("repeating", 100)[0][:60]
    assert not calls
    monkeypatch.setattr(Recycle, "compiled_draft", broken)
    with load() as engine:
        found = engine.generate(prompts()[0], max_tokens=60, **GREEDY)
    assert found.tokens == plain("repeating", 100)[0][:60]
    assert "broken" in found.stats.drafters["recycle"].failed
    assert found.stats.drafters["suffix"].failed is None


@pytest.mark.usefixtures("_drafts_pay")
def test_a_cancelled_request_ends_after_a_call_and_its_slot_serves_the_next(calls):
    with load() as engine:
        running = engine.submit(prompts()[0], **GREEDY)
        tokens = iter(running)
        first = [next(tokens).token for _ in range(3)]
        running.cancel()
        result = running.result()
        assert result.finish_reason == "cancelled"
        assert [*result.tokens[:3]] == first
        assert engine.generate(prompts()[1], max_tokens=100, **GREEDY).tokens == plain("repeating", 100)[1]


def test_a_call_has_as_many_rounds_as_nobody_notices(calls, monkeypatch):
    monkeypatch.setattr(compiled_rounds, "LONGEST_S", 0.0)
    monkeypatch.setattr(DraftPlanner, "asked", lambda _, drafters: drafters)
    with load() as engine:
        engine.generate(prompts()[0], max_tokens=30, **GREEDY)
    assert {len(call) for call in calls} == {1}


@pytest.mark.usefixtures("_drafts_pay")
def test_a_row_of_which_no_token_can_be_chosen_ends_the_request(calls, monkeypatch):
    run = compiled_rounds.run_rounds

    def spoilt(*arguments, **how):
        rounds = run(*arguments, **how)
        last = rounds[-1]
        return [*rounds[:-1], last._replace(tokens=[*last.tokens[:-1], -1])]

    with load() as engine:
        engine.generate(prompts()[0], max_tokens=20, **GREEDY)
        monkeypatch.setattr(compiled_rounds, "run_rounds", spoilt)
        with pytest.raises(ModelFileError, match="not finite numbers"):
            engine.generate(prompts()[0], max_tokens=40, **GREEDY)
        monkeypatch.setattr(compiled_rounds, "run_rounds", run)
        assert engine.generate(prompts()[1], max_tokens=100, **GREEDY).tokens == plain("repeating", 100)[1]


@pytest.mark.usefixtures("_drafts_pay")
@pytest.mark.parametrize("odd", ["token", "parent", "bucket", "length"])
def test_a_function_that_writes_no_draft_leaves_its_drafter_out(odd, calls, monkeypatch):
    table = {"token": (128, -1, 0), "parent": (5, 0, 0), "bucket": (5, -1, 999), "length": (5, -1, 0)}[odd]
    (token, parent, bucket), k = table, -1 if odd == "length" else 1

    @compiled(*[numba.int64] * 6)
    def draft(state, text, n, limit, draft, room):
        rows = numbers(draft, (3, room))
        rows[0, 0], rows[1, 0], rows[2, 0] = token, parent, bucket
        return k

    monkeypatch.setattr(Recycle, "compiled_draft", lambda *_: CompiledDraft(address_of(draft), 0, 0))
    with load() as engine:
        found = engine.generate(prompts()[0], max_tokens=60, **GREEDY)
    assert found.tokens == plain("repeating", 100)[0][:60]
    assert "is no draft of" in found.stats.drafters["recycle"].failed
    assert found.stats.drafters["suffix"].failed is None
    assert calls


@pytest.mark.usefixtures("_drafts_pay")
def test_who_logs_drafts_has_each_round_of_its_own(calls):
    level = DRAFT_LOGGER.level
    DRAFT_LOGGER.setLevel(logging.DEBUG)
    try:
        with load() as engine:
            engine.generate(prompts()[0], max_tokens=20, **GREEDY)
    finally:
        DRAFT_LOGGER.setLevel(level)
    assert not calls
