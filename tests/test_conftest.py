"""What `make test` leaves out of large matrices is a sample that `--full` completes, and no property has a deadline."""

from pathlib import Path

import pytest

pytest_plugins = "pytester"

TESTS = """
import time
import pytest
from hypothesis import given, settings, strategies as st

@pytest.mark.sample(3)
@pytest.mark.parametrize("way", ["greedy", "sampled"])
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_matrix(name, way):
    pass

@pytest.mark.parametrize("n", range(5))
def test_beside(n):
    pass

@settings(max_examples=1)
@given(st.none())
def test_slow(nothing):
    time.sleep(0.3)
"""


@pytest.fixture
def suite(pytester):
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makepyfile(TESTS)
    pytester.makeini("[pytest]\nmarkers = sample(n)\n")
    return lambda *words: pytester.runpytest_subprocess("-v", *words)


def test_a_sample_tries_every_value_that_it_has_room_for(suite):
    ended = suite()
    ended.assert_outcomes(passed=9, deselected=3)
    tried = [line for line in ended.outlines if "test_matrix[" in line]
    assert {line.partition("[")[2][0] for line in tried} == set("abc")
    assert {way for way in ("greedy", "sampled") if any(way in line for line in tried)} == {"greedy", "sampled"}
    assert [line for line in suite().outlines if "test_matrix[" in line] == tried


def test_what_was_left_out_runs_when_all_is_asked_for_or_it_is_named(suite):
    suite("--full").assert_outcomes(passed=12)
    for case in ("a-greedy", "b-sampled"):
        suite("-k", f"test_matrix and {case}").assert_outcomes(passed=1, deselected=11)
