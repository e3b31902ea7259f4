"""Times at load, on a model that refuses what no text could have led to."""

import itertools

import pytest

from augury.interruption import interrupted
from augury.speculation.costs import measure_passes
from augury.testing.toy_model import ToyModel, ToyRecurrentModel


@pytest.mark.parametrize("n_ctx", [1, 2, 16, 17, 511, 512, 513, 1024, 4096])
def test_a_model_that_knows_which_positions_hold_something_can_be_timed(n_ctx):
    model = ToyModel(n_ctx=n_ctx)
    costs = measure_passes(model, 17)
    assert 0 < costs.seconds(1, 0) <= costs.seconds(17, 0)
    depths = {int(batch.positions[0]) for batch in model.batches}
    assert depths == {0} if n_ctx < 512 else max(depths) >= 511


KINDS = {
    "recurrent": {},
    "hybrid": {"is_hybrid": True},
    "nothing aside": {"is_hybrid": True, "can_keep_aside": False},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_recurrent_state_follows_a_text_to_the_depth_that_is_timed(kind, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr("augury.speculation.costs.perf_counter", lambda: next(clock) * 1e-5)
    model = ToyRecurrentModel(n_ctx=2048, **KINDS[kind])
    costs = measure_passes(model, 17)
    assert 0 < costs.seconds(1, 0) <= costs.seconds(17, 0)
    deep = [batch for batch in model.batches if batch.positions[0] > 0 and len(batch.rows)]
    assert {(len(batch.tokens), int(batch.positions[0])) for batch in deep} == (
        set() if kind == "recurrent" else {(1, 1024), (4, 1024), (16, 1024)}
    )
    prefilled = [batch for batch in model.batches if not len(batch.rows)]
    assert sum(len(batch.tokens) for batch in prefilled) == (0 if kind == "recurrent" else 1024)
    drafted = {0 if batch.is_drafted is None else int(batch.is_drafted.sum()) for batch in model.batches if len(batch.rows) > 1}
    assert drafted == ({0} if kind == "nothing aside" else {n - 1 for n in (2, 3, 4, 5, 6, 8, 9, 12, 16, 17)})


def test_a_slow_model_s_depth_is_left_out(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr("augury.speculation.costs.perf_counter", lambda: next(clock) * 0.02)
    model = ToyRecurrentModel(n_ctx=2048, is_hybrid=True)
    assert measure_passes(model, 17).seconds(1, 1000) > 0
    assert all(batch.positions[0] == 0 or not len(batch.rows) for batch in model.batches)
    assert sum(len(batch.tokens) for batch in model.batches if not len(batch.rows)) < 256


def test_passes_are_timed_at_the_sizes_that_a_model_computes(monkeypatch):
    monkeypatch.setattr("augury.speculation.costs.perf_counter", lambda: 0.0)
    model = ToyRecurrentModel(n_ctx=256)
    model.pass_sizes = (1, 2, 4, 7, 8, 16, 20)
    measure_passes(model, 20)
    assert {len(batch.tokens) for batch in model.batches if len(batch.rows) == len(batch.tokens)} == {1, 2, 4, 7, 8, 16, 20}


def test_what_other_programs_take_from_a_timed_pass_is_not_its_cost(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("augury.speculation.costs.perf_counter", lambda: now[0])
    monkeypatch.setattr(interrupted, "seconds", 0.0)  # differences of whole seconds are exact
    model = ToyModel()

    def forward():
        now[0] += len(model.batches[-1].tokens) + 10
        interrupted.seconds += 10.0

    model.on_forward = forward
    costs = measure_passes(model, 8)
    assert [costs.seconds(n, 0) for n in (1, 2)] == [1, 2]


def test_a_pass_that_is_said_to_have_waited_for_longer_than_it_took_costs_what_it_took(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("augury.speculation.costs.perf_counter", lambda: now[0])
    monkeypatch.setattr(interrupted, "seconds", 0.0)  # differences of whole seconds are exact
    model = ToyModel()

    def forward():
        now[0] += len(model.batches[-1].tokens)
        interrupted.seconds += len(model.batches[-1].tokens)

    model.on_forward = forward
    costs = measure_passes(model, 8)
    assert [costs.seconds(n, 0) for n in (1, 2)] == [1, 2]


def test_drafts_of_any_length_have_a_cost_and_take_no_memory_for_it():
    costs = measure_passes(ToyModel(), 1_000_000)  # a table of so many passes by so many would be 8 TB
    assert 0 < costs.seconds(1000, 0) < costs.seconds(1_000_000, 0)
