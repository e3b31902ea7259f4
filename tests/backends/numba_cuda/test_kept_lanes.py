"""Lanes are loaded where they were compiled before, unless anything is another that their code depends on."""

import os
from collections import namedtuple

import numpy as np
import pytest

from augury.backends.numba_cpu.kernels import jit
from augury.backends.numba_cuda.kernels.instructions import lane

Place = namedtuple("Place", "first step")  # noqa: PYI024 - known to numba
OFFSET = 5


@lane
def doubled(x):
    return 2 * x


def plain(x):
    return x


def made(factor=3, inner=doubled):
    @lane
    def example(x, place):
        return inner(x) * factor + place.first + place.step + OFFSET

    return example


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """Calls a lane, and tells whether it was compiled."""
    monkeypatch.setattr(jit, "cache_folder", lambda: tmp_path)

    def call(example, *args, place=None):
        before = {*tmp_path.iterdir()}
        value = example(*args, place or Place(1, 1))
        return value, bool({*tmp_path.iterdir()} - before)

    return call


def test_a_lane_that_was_compiled_is_loaded_and_called(kept):
    assert kept(made(), 1) == (13, True)
    again = made()
    assert [kept(again, n) for n in (1, 2)] == [(13, False), (19, False)]
    assert len(again.overloads) == 1  # which the second call finds


def test_a_lane_is_compiled_again_for_what_differs(kept, monkeypatch):
    kept(made(), 1)
    assert kept(made(factor=4), 1) == (15, True)
    assert kept(made(inner=lane(plain)), 1) == (10, True)
    assert kept(made(), np.float32(1)) == (13, True)
    Other = namedtuple("Place", "step first more")  # noqa: PYI024
    assert kept(made(), 1, place=Other(2, 1, 1)) == (14, True)
    monkeypatch.setitem(made.__globals__, "OFFSET", 6)
    assert kept(made(), 1) == (14, True)
    monkeypatch.setattr(plain, "__code__", (lambda x: x + 7).__code__)
    assert kept(made(inner=lane(plain)), 1) == (32, True)


def polynomial(factor):
    @lane
    def long(x):  # so long that it stays a function of its own
        for i in range(1, x):
            x = x * factor + x // i % (x + 2) + x // (i + 1) % (x + 3) + x // (i + 2) % (x + 4) + x // (i + 3) % (x + 5)
        return x

    @lane
    def example(x, place):
        return long(x) + long(x + 1)

    return example


def test_what_a_lane_calls_is_not_mistaken_for_what_another_process_has_numbered_alike(kept):
    if not (child := os.fork()):
        polynomial(1)(3, Place(1, 1))
        os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    assert kept(polynomial(2), 3) == (186, True)
    assert kept(polynomial(1), 3) == (68, False)
