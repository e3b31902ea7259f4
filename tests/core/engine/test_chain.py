"""Plain decoding in chains of passes: the same tokens with a quarter of the waits, and no chain where the host is needed."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from support.toys import ScriptedDrafter, ToyModel, planner_of, toy_engine

from augury.engine.round_pass import n_chained
from augury.errors import ModelFileError
from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.planner import DraftPlanner

GREEDY = {"temperature": 0.0}
ROWS = 42


@pytest.fixture(autouse=True)
def _passes_are_short(monkeypatch):
    """However long the machine takes for one."""
    monkeypatch.setattr("augury.engine.round_pass.LONGEST_S", 1e6)


class Chained(ToyModel):
    """A model that is waited for once for several passes, of which it counts the lengths."""

    chain_rows = ROWS

    def __init__(self, **params):
        super().__init__(**params)
        self.chains = []
        self.on_chain = lambda: None

    def forward_chain(self, batch, n_passes):
        self.chains.append(n_passes)
        passed = super().forward_chain(batch, n_passes)
        self.on_chain()
        return passed


def model_of(engine):
    return engine._worker._loop._context.model


@settings(max_examples=40)
@given(
    prompts=st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=5), min_size=1, max_size=4),
    lengths=st.lists(st.integers(1, 14), min_size=4, max_size=4),
    stops=st.frozensets(st.integers(0, 15), max_size=2),
    slots=st.integers(1, 4),
)
def test_chains_give_the_tokens_states_and_statistics_of_passes_one_by_one(prompts, lengths, stops, slots):
    found = []
    for kind in (ToyModel, Chained):
        with toy_engine(slots=slots, target=kind) as engine:
            asked = zip(prompts, lengths, strict=False)
            running = [engine.submit(prompt, max_tokens=n, stop_token_ids=stops, logprobs=2, **GREEDY) for prompt, n in asked]
            results = [each.result() for each in running]
            again = [
                engine.generate([*prompt, *result.tokens, 3], max_tokens=5, **GREEDY)
                for prompt, result in zip(prompts, results, strict=True)
            ]
        pieces = [
            [(piece.token, piece.drafter, piece.logprob, piece.top_logprobs) for piece in each.pieces] for each in results
        ]
        rounds = [(each.finish_reason, each.stats.n_rounds, each.stats.draft_lengths) for each in results]
        reused = [each.stats.n_reused for each in again] if slots == 1 else ()
        found.append((pieces, rounds, reused, [each.tokens for each in again]))
    assert found[0] == found[1]


def test_a_text_is_waited_for_once_for_four_tokens_after_its_first():
    with toy_engine(target=Chained) as engine:
        result = engine.generate([1, 2, 3], max_tokens=12, **GREEDY)
        stats, model = engine.stats(), model_of(engine)
    assert list(result.tokens) == ToyModel().plain([1, 2, 3], 12)
    assert model.chains == [4, 4, 3], "the first token comes alone, with the prompt"
    assert (result.stats.n_rounds, stats.counts.n_emitted, len(result.stats.timings.round_s)) == (12, 12, 11)


def test_a_stop_within_a_chain_wastes_three_passes_at_most_and_leaves_the_slot_as_it_was():
    text = ToyModel().plain([1, 2, 3], 12)
    place = next(i for i in range(3, 12) if text.index(text[i]) == i and i % 4 == 2)  # the second of a chain
    with toy_engine(target=Chained) as engine:
        result = engine.generate([1, 2, 3], max_tokens=12, stop_token_ids=[text[place]], **GREEDY)
        again = engine.generate([1, 2, 3, *text[:place], 9], max_tokens=1, **GREEDY)
        n_passes = sum(len(batch.tokens) == 1 for batch in model_of(engine).batches)
    assert (list(result.tokens), result.finish_reason) == (text[: place + 1], "stop")
    assert n_passes - place <= 3 + 1  # one for the last request
    assert again.stats.n_reused == 3 + place


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.8, "seed": 1},
        {"temperature": 0.0, "repeat_penalty": 1.3},
        {"temperature": 0.0, "logit_bias": {3: 1.0}},
        {"temperature": 0.0, "logits_processors": [lambda history, ids, logits: (ids, logits)]},
        {"temperature": 0.0, "hidden_states": ["output"], "on_hidden_states": lambda *_: None},
    ],
)
def test_no_chain_is_begun_where_the_host_chooses_or_sees_every_token(params):
    with toy_engine(target=Chained) as engine:
        engine.generate([1, 2], max_tokens=9, **params)
        assert model_of(engine).chains == []


class Resting(DraftPlanner):
    """Lets drafters rest for six tokens after each that they are asked for."""

    def n_resting(self, drafters, *, is_plain):
        return 6


@pytest.mark.parametrize(
    ("planner", "wants_features", "chains"), [(None, False, []), (Resting, False, [4, 2]), (Resting, True, [])]
)
def test_requests_with_drafters_have_chains_while_these_rest_alone(planner, wants_features, chains):
    costs = PassCosts([PassTime(1, 0, 1.0), PassTime(9, 0, 9.0)], 64)
    how = {} if planner is None else {"planner": planner_of(costs, False, kind=planner)}
    found = []
    for kind in (ToyModel, Chained):
        with toy_engine(target=kind, drafter=lambda model: ScriptedDrafter(model, [(0, 1)]), **how) as engine:
            model, engine._worker._loop._drafting.wants_features = model_of(engine), wants_features
            result = engine.generate([1, 2], max_tokens=16, **GREEDY)
            found.append((result.tokens, result.stats.n_rounds, result.stats.draft_lengths, engine._drafters[0].n_calls))
    assert found[0] == found[1]
    assert model.chains[:2] == chains


def test_a_costly_drafter_waits_as_long_at_rest_and_saves_up_for_its_next_try():
    costs, found = PassCosts([PassTime(1, 0, 1.0), PassTime(9, 0, 9.0)], 64), []
    for kind in (DraftPlanner, Resting):
        planner = planner_of(costs, True, kind=kind)
        (profile,) = planner.profiles
        profile.interval, profile.budget.seconds = 1000, -1.0
        with toy_engine(drafter=lambda model: ScriptedDrafter(model, [(0, 1)]), planner=planner) as engine:
            assert engine.generate([1, 2], max_tokens=15, **GREEDY).stats.n_drafted == 0
            assert engine._drafters[0].n_calls == 0
        found.append(profile)
    awake, at_rest = found
    assert at_rest.n_waited == awake.n_waited == 14
    assert min(at_rest.budget.seconds, awake.budget.seconds) > -1.0


def test_no_chain_is_begun_while_somebody_waits_or_a_prompt_is_read():
    with toy_engine(target=Chained, slots=2, n_ctx=200) as engine:
        model, came = model_of(engine), threading.Event()
        before = []

        def comes():
            if not before:
                before.append(len(model.batches))
                others.append(engine.submit([5] * 150, max_tokens=2, **GREEDY))
                others.append(engine.submit([7], max_tokens=2, **GREEDY))
                came.set()

        others, model.on_chain = [], comes
        running = engine.submit([1, 2], max_tokens=40, **GREEDY)
        assert came.wait(60)
        results = [each.result() for each in (running, *others)]
        sizes = [len(batch.tokens) for batch in model.batches[before[0] :]]
    assert sizes[0] == 1 + 128, "the prompt's first part is in the pass after the chain that it came in"
    assert [list(each.tokens) for each in results] == [
        ToyModel(n_ctx=200).plain(prompt, n) for prompt, n in (([1, 2], 40), ([5] * 150, 2), ([7], 2))
    ]


def test_a_cancelled_text_ends_after_its_chain():
    with toy_engine(target=Chained, n_ctx=500) as engine:
        running, is_there = [], threading.Event()

        def cancel():
            assert is_there.wait(60)
            running[0].cancel()

        model_of(engine).on_chain = cancel
        running.append(engine.submit([1, 2], max_tokens=400, **GREEDY))
        is_there.set()
        result = running[0].result()
    assert (result.finish_reason, len(result.tokens)) == ("cancelled", 1 + 4)


def test_logits_that_are_no_numbers_end_a_text_in_mid_chain_as_they_do_without():
    class Broken(Chained):
        def logits(self, tokens, *, n_layers=None):
            found = super().logits(tokens, n_layers=n_layers)
            return found * np.nan if len(tokens) == 7 else found

    for rows in (ROWS, 0):
        with toy_engine(target=Broken) as engine:
            engine._worker._loop._context.chain_rows = rows
            running, tokens = engine.submit([1, 2], max_tokens=20, **GREEDY), []
            with pytest.raises(ModelFileError, match="after 7 tokens are not finite"):
                tokens.extend(piece.token for piece in running)
            assert tokens == ToyModel().plain([1, 2], 5)[: len(tokens)]
            assert len(engine.generate([3], max_tokens=3, **GREEDY).tokens) == 3


@pytest.mark.parametrize(("rows", "n_left", "n"), [(5, 9, 1), (6, 9, 2), (9, 9, 3), (ROWS, 9, 4), (ROWS, 3, 3), (ROWS, 1, 1)])
def test_a_chain_has_rows_for_all_sequences_and_goes_past_no_limit(rows, n_left, n):
    given = {
        "is_drafted": False,
        "request": SimpleNamespace(hidden_states=()),
        "sampler": SimpleNamespace(is_best_allowed=True),
    }
    sequences = [SimpleNamespace(n_left=each, **given) for each in (20, n_left, 30)]
    assert n_chained(SimpleNamespace(chain_rows=rows), None, sequences, 0.0) == n
    assert n_chained(SimpleNamespace(chain_rows=rows), None, [], 0.0) == 1


@pytest.mark.parametrize(("pass_s", "n"), [(0.005, 4), (0.006, 3), (0.0066, 3), (0.0067, 2), (0.01, 2), (0.0101, 1), (1.0, 1)])
def test_a_chain_takes_a_fiftieth_of_a_second_at_most(monkeypatch, pass_s, n):
    monkeypatch.undo()
    request, sampler = SimpleNamespace(hidden_states=()), SimpleNamespace(is_best_allowed=True)
    sequences = [SimpleNamespace(n_left=20, is_drafted=False, request=request, sampler=sampler)]
    assert n_chained(SimpleNamespace(chain_rows=ROWS), None, sequences, pass_s) == n


@pytest.mark.parametrize(
    "forbidden", [{"logit_bias": dict.fromkeys(range(5), -np.inf)}, {"min_tokens": 7, "stop_token_ids": [*range(8)]}]
)
def test_a_chain_is_over_with_a_token_that_its_next_pass_was_not_given(forbidden):
    found = []
    for kind in (ToyModel, Chained):
        with toy_engine(target=kind) as engine:
            result = engine.generate([1, 2, 3], max_tokens=12, **GREEDY, **forbidden)
            found.append((result.tokens, result.finish_reason, engine.stats().counts.n_emitted))
            model = model_of(engine)
    assert found[0] == found[1]
    assert model.chains


def test_padding_may_be_the_best_token():
    found = []
    for kind in (ToyModel, Chained):
        with toy_engine(target=kind) as engine:
            engine._worker._loop._n_vocab = 11  # of 16
            found.append(engine.generate([1, 2, 3], max_tokens=14, logprobs=1, **GREEDY).tokens)
    assert found[0] == found[1]
    assert max(found[1]) < 11
    text = ToyModel().plain([1, 2, 3], 14)
    assert max(text) >= 11, "it must come to padding"
