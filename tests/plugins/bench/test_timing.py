"""Measures of a model: what is computed for each, and that repetitions are the same passes."""

from itertools import pairwise

import numpy as np
import pytest
from support.toys import ToyModel

from augury.errors import CapacityError
from augury.plugins.bench.timing import Measurement, ModelRunner, Runner, Timing, sweep


class Watched(ToyModel):
    """Remembers the passes that it computed."""

    def __init__(self):
        super().__init__(n_slots=1, n_ctx=64)
        self.passes = []

    def forward(self, batch):
        self.passes.append((batch.tokens.copy(), batch.positions.copy(), len(batch.rows)))
        return super().forward(batch)


def test_a_pass_of_the_curve_has_the_logits_of_all_its_tokens():
    model = Watched()
    assert ModelRunner(model).seconds(Measurement("curve", 5, 0)) > 0
    ((tokens, positions, n_rows),) = model.passes
    assert len(tokens) == n_rows == 5
    assert np.array_equal(positions, np.arange(5))


def test_a_prompt_has_the_logits_of_its_last_token():
    model = Watched()
    ModelRunner(model).seconds(Measurement("prefill", 7, 0))
    ((tokens, _, n_rows),) = model.passes
    assert (len(tokens), n_rows) == (7, 1)


def test_generation_feeds_each_best_token_to_the_next_pass():
    model = Watched()
    runner = ModelRunner(model)
    runner.prepare(3)
    runner.seconds(Measurement("decode", 4, 3))
    prefix, *singles = model.passes
    assert prefix[2] == 0
    assert [int(positions[0]) for _, positions, _ in singles] == [3, 4, 5, 6]
    history = list(prefix[0])
    for (tokens, _, n_rows), (following, _, _) in pairwise(singles):
        history += list(tokens)
        assert n_rows == 1
        assert following[0] == best_after(history)


def best_after(history):
    model = Watched()
    n = len(history)
    runner = ModelRunner(model)
    batch = runner.batch(0, n, n_rows=1)
    batch.tokens[:] = history
    return model.forward(batch).argmax()[0]


def test_a_depth_is_filled_once():
    model = Watched()
    runner = ModelRunner(model)
    for depth in (8, 8, 20, 4):
        runner.prepare(depth)
    assert np.array_equal(np.concatenate([positions for _, positions, _ in model.passes]), np.arange(20))


def test_how_far_a_slot_is_filled_is_told():
    told = []
    runner = ModelRunner(ToyModel(n_ctx=1500), lambda *words: told.append(words))
    for depth in (0, 1100, 900, 1200):
        runner.prepare(depth)
    steps = [(0, 1100), (512, 1100), (1024, 1100), (1100, 1100), (1100, 1200), (1200, 1200)]
    assert told == [("fill the slot", *step) for step in steps]


def test_what_does_not_fit_into_a_slot_is_refused():
    with pytest.raises(CapacityError, match="depth 60"):
        ModelRunner(Watched()).seconds(Measurement("curve", 5, 60))


class Script(Runner):
    """Takes as many seconds as there are tokens, and remembers the order."""

    def __init__(self):
        self.calls = []

    def prepare(self, depth):
        self.calls.append(depth)

    def seconds(self, measurement):
        self.calls.append(measurement)
        return float(measurement.n)


def test_measures_of_one_depth_take_turns():
    runner = Script()
    one, two = Measurement("curve", 1, 0), Measurement("curve", 2, 0)
    sweep(runner, [two, one, two], seconds=0)
    assert runner.calls == [0, *[two, one] * 6]


def test_there_are_as_many_rounds_as_asked_for():
    runner = Script()
    (timing,) = sweep(runner, [Measurement("prefill", 1, 0)], n_repetitions=2)
    assert len(timing.seconds) == 2
    assert len(runner.calls) == 1 + 3


def test_rounds_that_are_through_are_told_until_there_are_enough():
    told = []
    sweep(
        Script(),
        [Measurement("curve", 1, 0), Measurement("curve", 1, 9)],
        seconds=1e-3,
        progress=lambda *words: told.append(words),
    )
    counts = [done for _, done, _ in told]
    assert counts == sorted(counts)
    assert set(counts) == set(range(12))
    assert {(task, total) for task, _, total in told} == {("time passes", 12)}


def test_timings_come_in_the_order_asked_for():
    measures = [Measurement("curve", 4, 9), Measurement("curve", 4, 0), Measurement("decode", 2, 9)]
    timings = sweep(Script(), measures, seconds=0)
    assert [timing.measurement for timing in timings] == measures
    assert [timing.ms for timing in timings] == [4000, 4000, 2000]
    assert [timing.tok_s for timing in timings] == [1, 1, 1]


def test_a_timing_tells_median_and_quartiles():
    timing = Timing(Measurement("prefill", 6, 0), (5.0, 1.0, 3.0, 2.0, 4.0))
    assert timing.ms == 3000
    assert timing.tok_s == 2
    assert timing.spread_ms == (2000, 4000)
    assert Timing(Measurement("prefill", 6, 0), (2.0,)).spread_ms == (2000, 2000)
