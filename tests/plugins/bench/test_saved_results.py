"""What changed since figures were saved."""

import json

import pytest
from support.pairs import pair

from augury.errors import AuguryError
from augury.plugins.bench.pair_stats import DrafterResult
from augury.plugins.bench.saved_results import SavedResults, changes, differences

FACTS = {"cpu": "one", "threads": 2}


def saved(*results, facts=FACTS):
    return {"machine": facts, "runs": [result.as_json() for result in results]}


def result(drafted_s, category="all", state="cold"):
    return DrafterResult("x", state, (pair(1.5, drafted_s, category=category),))


def test_each_figure_of_each_category_is_set_against_the_saved_one():
    then, now = SavedResults.of(saved(result(1.0))), SavedResults.of(saved(result(0.5)))
    assert {(key, name): values for key, name, *values in changes(then, now)} == {
        (("x", "all"), "plain tok/s"): [2, 2],
        (("x", "all"), "tok/s"): [3, 6],
        (("x", "all"), "speed-up"): [1.5, 3],
        (("x", "all"), "acceptance"): [2 / 3, 2 / 3],
    }
    assert differences(then, now) == []


def test_what_only_one_run_has_is_told_too():
    then = SavedResults.of(saved(result(1.0, "old"), result(1.0, "both")))
    now = SavedResults.of(saved(result(1.0, "new"), result(1.0, "both", state="warm")))
    speeds = {key: tuple(values) for key, name, *values in changes(then, now) if name == "tok/s"}
    assert speeds == {
        ("x", "new"): (None, 3),
        ("x (warm)", "both"): (None, 3),
        ("x", "old"): (3, None),
        ("x", "both"): (3, None),
    }


def test_it_says_when_the_machines_differ():
    then = SavedResults.of(saved(result(1.0), facts={"cpu": "other", "threads": 2, "numba": "1"}))
    now = SavedResults.of(saved(result(1.0)))
    assert differences(then, now) == ["cpu was other, is one", "numba was 1, is not known"]


def test_prompts_of_a_category_are_pooled_from_pytest_benchmarks_file():
    items = [result(1.0).pairs[0], result(0.5).pairs[0], result(0.4).pairs[0]]
    infos = [
        {"spec_type": "x", "state": "cold", "category": "all", "machine": FACTS}
        | DrafterResult("x", "cold", (each,)).stats.as_json()
        for each in items
    ]
    found = SavedResults.of({"benchmarks": [{"extra_info": info} for info in (*infos, {})]})
    assert found.facts == FACTS
    assert found.rows == SavedResults.of(saved(DrafterResult("x", "cold", tuple(items)))).rows


def test_passes_are_compared_by_kind_tokens_and_depth():
    rows = [{"n": 1, "depth": 0, "tok_s": 40.0}, {"n": 8, "depth": 4096, "tok_s": 160.0}]
    found = SavedResults.of({"model": "m", "curve": rows, "prefill": [], "decode": rows[:1]})
    assert found.rows == {
        ("curve", "1", "0"): {"tok/s": 40.0},
        ("curve", "8", "4096"): {"tok/s": 160.0},
        ("decode", "1", "0"): {"tok/s": 40.0},
    }


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"benchmarks": []}', '{"benchmarks": [{"extra_info": {}}]}', '{"runs": [{}]}', '{"curve": [1]}'),
        '{"curve": [{"n": 1, "depth": 0, "tok_s": "x"}]}',
    ],
)
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "old.json"
    path.write_text(text)
    with pytest.raises(AuguryError, match=r"old\.json"):
        SavedResults.read(path)


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(AuguryError, match="absent"):
        SavedResults.read(tmp_path / "absent")


def test_a_file_is_read(tmp_path):
    path = tmp_path / "old.json"
    path.write_text(json.dumps(saved(result(1.0))))
    assert SavedResults.read(path) == SavedResults.of(saved(result(1.0)))
