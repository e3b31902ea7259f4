"""What `make test` leaves out of large matrices is a sample that `--full` completes, and no property has a deadline."""

import os
from pathlib import Path
from types import SimpleNamespace

import conftest
import pytest
from oracles import models

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

@pytest.mark.sample(1, rest=2)
@pytest.mark.parametrize("n", range(9))
def test_large(n):
    pass

@pytest.mark.slow
@pytest.mark.sample(0)
@pytest.mark.parametrize("a", "xy")
@pytest.mark.parametrize("b", "xy")
@pytest.mark.parametrize("c", "xy")
def test_triples(a, b, c):
    pass

@pytest.mark.parametrize("n", range(5))
def test_beside(n):
    pass

@pytest.mark.waits
@pytest.mark.sample(0)
def test_costly():
    pass

@given(st.none())
def test_slow(nothing):
    time.sleep(0.3)

@settings(max_examples=1)
@given(st.booleans())
def test_of_one_example(value):
    pass
"""


@pytest.fixture
def suite(pytester):
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makepyfile(**{"folder.py/test_cases": TESTS})
    pytester.makeini("[pytest]\nmarkers =\n    sample(n, rest)\n    slow\n    waits\n")
    return lambda *words: pytester.runpytest_subprocess("-v", *words)


@pytest.mark.sample(0)
def test_a_sample_tries_every_value_that_it_has_room_for_and_what_it_leaves_out_can_be_asked_for(suite):
    ended = suite()
    ended.assert_outcomes(passed=11, deselected=20)
    tried = [line.partition("[")[2].partition("]")[0] for line in ended.outlines if "test_matrix[" in line]
    assert {value for case in tried for value in case.split("-")} == {"a", "b", "c", "greedy", "sampled"}
    left_out = {f"{name}-{way}" for name in "abc" for way in ("greedy", "sampled")} - set(tried)
    suite("-k", f"test_matrix and {min(left_out)}").assert_outcomes(passed=1, deselected=30)
    suite("-k", "test_costly").assert_outcomes(passed=1, deselected=30)
    suite("--full").assert_outcomes(passed=31)
    suite("--once").assert_outcomes(passed=5, deselected=26)
    rest = suite("--rest")
    rest.assert_outcomes(passed=13, deselected=18)
    ran = [line.partition("::")[2] for line in rest.outlines if "PASSED" in line]
    assert {line.split("[")[1].split("]")[0] for line in ran if "test_matrix[" in line} == left_out
    assert any("test_slow" in line for line in ran)
    triples = [line.split("[")[1].split("]")[0] for line in ran if "test_triples[" in line]
    assert all(len({(case[i], case[j]) for case in triples}) == 4 for i, j in ((0, 2), (0, 4), (2, 4))), "pairs"
    assert ran[0].startswith("test_costly"), "what waits is begun first"
    assert ran[1].startswith("test_triples"), "then what is slow"


@pytest.mark.parametrize(("is_rest", "n"), [(False, 2), (True, 3)])
def test_where_one_process_waits_there_is_one_more(is_rest, n):
    config = SimpleNamespace(getoption={"rest": is_rest}.get)
    deciding = conftest.pytest_xdist_auto_num_workers(config)
    next(deciding)
    with pytest.raises(StopIteration) as decided:
        deciding.send(2)
    assert decided.value.value == n


@pytest.mark.parametrize(
    ("waiting", "slow", "n"),
    [
        ("", "", 2),
        ("bfj", "", 1),
        ("bfj", "", 2),
        ("bfj", "", 4),
        ("abcde", "", 2),
        ("abcdefghijk", "", 3),
        ("", "defg", 2),
        ("bfj", "acdeg", 3),
        ("a", "hijk", 2),
    ],
)
def test_what_waits_is_begun_first_and_then_what_is_slow_by_as_many_processes_as_there_are(waiting, slow, n):
    marked = {"waits": waiting, "slow": slow}
    items = [
        SimpleNamespace(name=name, get_closest_marker=lambda mark, name=name: name in marked[mark] or None)
        for name in "abcdefghijk"
    ]
    names = "".join(item.name for item in conftest.spread(items, n))
    assert sorted(names) == [*"abcdefghijk"]
    shares = [names[len(names) * i // n : len(names) * (i + 1) // n] for i in range(n)]  # as pytest-xdist deals them out
    for share in shares:
        kinds = ["".join(name for name in share if name in kind) for kind in (waiting, slow)]
        assert share.startswith("".join(kinds))
        for kind, begun in zip((waiting, slow), kinds, strict=True):
            assert len(kind) // n <= len(begun) <= -(-len(kind) // n)
        assert kinds[1] in slow, "neighbours stay together"
        others = [name for name in share if name not in waiting + slow]
        assert others == sorted(others)


@pytest.mark.sample(0)
def test_a_file_and_an_id_are_names_and_a_folder_is_none(suite):
    suite("folder.py").assert_outcomes(passed=11, deselected=20)
    suite("folder.py/test_cases.py").assert_outcomes(passed=13, deselected=18)
    suite("folder.py", "folder.py/test_cases.py::test_costly").assert_outcomes(passed=12, deselected=19)


def test_a_tiny_model_is_written_once_for_all_processes():
    path = models.tiny_model("llama-dense")
    assert path.parent == Path(os.environ["TINY_MODELS"])
    assert models.written(path.stem, lambda _: pytest.fail("it is there")) == path
