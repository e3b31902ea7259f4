"""The time between two cores."""

import os
import threading

import numpy as np
import pytest

from augury.plugins.bench import machine as timed
from augury.plugins.bench.kernels.ping_pong import ping_pong
from augury.plugins.bench.machine import round_trip_ns


def test_a_round_trip_takes_nanoseconds_to_microseconds_where_there_are_two_cores():
    trip = next((trip for _ in range(5) if (trip := round_trip_ns()) is not None), None)
    assert trip is None if len(os.sched_getaffinity(0)) < 2 else 1 < trip < 1e5


def test_one_core_has_no_round_trip(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert round_trip_ns() is None


def test_a_side_that_does_not_answer_is_given_up(monkeypatch):
    monkeypatch.setattr(timed, "_PATIENCE", 1000)
    monkeypatch.setattr(
        "augury.plugins.bench.kernels.ping_pong.ping_pong", lambda _address, side, first, *_: first if side else 0
    )
    assert round_trip_ns() is None


def test_the_callers_thread_keeps_its_cores():
    before = os.sched_getaffinity(0), os.sched_getscheduler(0)
    round_trip_ns()
    assert (os.sched_getaffinity(0), os.sched_getscheduler(0)) == before


@pytest.mark.parametrize("patience", [0, 10])
def test_one_side_alone_ends(patience):
    ball = np.zeros(1, np.int64)
    assert ping_pong(ball.ctypes.data, 0, 0, 5, patience) == 1  # served once, and nothing came back
    assert ball[0] == 1


def test_both_sides_count_every_time():
    ball = np.zeros(1, np.int64)
    found = []
    other = threading.Thread(target=lambda: found.append(ping_pong(ball.ctypes.data, 1, 0, 50, 10**10)))
    other.start()
    assert ping_pong(ball.ctypes.data, 0, 0, 50, 10**10) == 50
    other.join()
    assert found == [50]
    assert ball[0] == 100
