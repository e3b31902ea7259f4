"""What is looked for in rows of logits: ties, numbers that are none, chunks, and what is found before it is asked for."""

import numpy as np
import pytest
from cuda_simulator.device import SimulatedDevice
from oracles.cuda_products import PassedLogits

from augury.backends.numba_cuda.passes import RowRequest
from augury.passes import ArrayPass

RNG = np.random.default_rng(6)


@pytest.mark.parametrize("n", [150, 140])
def test_best_tokens_are_in_order_and_of_equals_the_lowest_comes_first(n):
    logits = RNG.integers(0, 40, (5, 150)).astype(np.float32)
    logits[1, 77], logits[2, :], logits[3, 5:], logits[4, 120:] = np.nan, -np.inf, -np.inf, 99
    passed, k = PassedLogits(SimulatedDevice(), logits)(n), 100
    assert len(passed.gather(0, np.empty(0, np.int32))) == 0
    right = ArrayPass(logits[:, :n])
    order = np.array([3, 0, 1, 2, 4], np.int32)
    for found, wanted in zip(passed.top_k(order, k), right.top_k(order, k), strict=True):
        assert np.array_equal(found, wanted, equal_nan=True)
    assert np.array_equal(passed.top_k(order[:1], 3)[0], right.top_k(order[:1], 3)[0])
    assert passed.top_k(order, 0)[0].shape == (5, 0)
    if n < 150:
        assert np.array_equal(passed.argmax(), right.argmax())
    for row in (0, 3, 4):
        assert passed.log_normalizer(row) == pytest.approx(right.log_normalizer(row), abs=1e-12)
    assert np.isnan(passed.log_normalizer(1))
    ids = np.array([n - 1, 3, 3], np.int32)
    assert np.array_equal(passed.gather(4, ids), logits[4, ids])
    assert np.array_equal(passed.gather(0, order[:1]), logits[0, order[:1]])


def test_what_the_last_pass_was_asked_for_comes_with_the_next_one(monkeypatch):
    logits = RNG.standard_normal((2, 150)).astype(np.float32)
    passes = PassedLogits(SimulatedDevice(), logits)
    device, row, n_waits = passes.reader.device, np.zeros(1, np.int32), []
    monkeypatch.setattr(device, "wait", lambda: n_waits.append(1))

    def asked():
        n_waits.clear()
        passed = passes(150)
        passed.wait()
        best, _ = passed.top_k(row, 5)
        assert np.array_equal(best, ArrayPass(logits).top_k(row, 5)[0])
        passed.gather(0, best[0, :1])
        assert passed.log_normalizer(1) == pytest.approx(ArrayPass(logits).log_normalizer(1), abs=1e-12)
        return len(n_waits)

    assert [asked(), asked(), asked()] == [3, 1, 1]
    passes(150).wait()
    assert passes(150)._begun.wanted == RowRequest(), "the pass before was asked for nothing"
