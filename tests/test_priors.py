"""What buckets were worth in saved results, and that chances begin with what was measured."""

import json
import re
from pathlib import Path

import pytest
from priors import AGREEMENT, BucketCounts, main, pooled, table_lines

from augury.registry import Registry
from augury.speculation.chances import Agreement, Chances
from augury.speculation.constants import EVIDENCE, TYPICAL

PAGE = (Path(__file__).parents[1] / "docs" / "benchmarks.md").read_text()
DRAFTERS = Registry.discover().drafters


def counts(n, n_right, prior=0.5, **expected):
    return {"prior": prior, "n": n, "n_right": n_right} | expected


def result_of(*agreement, **buckets):
    shares = [counts(n, n_right, 2.0, expected=expected) for n, expected, n_right in agreement]
    named = {f"agreed, chance {name}": each for name, each in zip(("0.15 to 0.3", "0.05 to 0.15"), shares, strict=False)}
    return {"runs": [{"reliability": {"buckets": buckets, "agreement": named}}]}


FIRST = result_of(suffix={"evidence 10": counts(60, 30), "evidence 9": counts(3, 1)}, a={"run from 3": counts(10, 5, 0.7)})
SECOND = result_of(
    (80, 15.5, 20), (4, 0.5, 1),
    suffix={"evidence 10": counts(40, 7)}, b={"run from 3": counts(190, 14, 0.7), "run from 17": counts(1, 1)},
)  # fmt: skip
THIRD = result_of((20, 4.5, 2), suffix={"evidence 9": counts(0, 0)})


def test_counts_are_pooled_by_drafter_and_bucket_and_what_is_not_evidence_over_all_drafters():
    assert pooled([FIRST, SECOND, THIRD]) == [
        BucketCounts("agreed", "chance 0.05 to 0.15", 2.0, 4, 1, 0.5),
        BucketCounts("agreed", "chance 0.15 to 0.3", 2.0, 100, 22, 20.0),
        BucketCounts("any", "run from 3", 0.7, 200, 19),
        BucketCounts("any", "run from 17", 0.5, 1, 1),
        BucketCounts("suffix", "evidence 9", 0.5, 3, 1),
        BucketCounts("suffix", "evidence 10", 0.5, 100, 37),
    ]


def test_the_tables_say_where_too_few_were_seen():
    assert table_lines(pooled([FIRST, SECOND, THIRD]))[2:] == [
        "| any | run from 3 | 200 | 19 | 0.095 | 0.7 |",
        "| any | run from 17 | 1 | 1 | too few | 0.5 |",
        "| suffix | evidence 9 | 3 | 1 | too few | 0.5 |",
        "| suffix | evidence 10 | 100 | 37 | 0.37 | 0.5 |",
        "",
        *AGREEMENT,
        "| agreed | chance 0.05 to 0.15 | 4 | 0.50 | 1 | too few | 2 |",
        "| agreed | chance 0.15 to 0.3 | 100 | 20.00 | 22 | 1.1 | 2 |",
    ]


@pytest.mark.parametrize(
    ("n", "n_right", "expected"),
    [
        (1000, 9, None),
        (1000, 10, 0.01),
        (1000, 35, 0.035),
        (1000, 346, 0.35),
        (1000, 1000, 0.99),
        (50, 25, 0.5),
        (49, 25, None),
    ],
)
def test_shares_are_written_in_two_digits(n, n_right, expected):
    assert BucketCounts("a", "any", 0.5, n, n_right).measured == expected


@pytest.mark.parametrize(
    ("n", "expected", "n_right", "ratio"),
    [(60, 9.9, 9, None), (49, 30.0, 20, None), (60, 12.5, 0, 0.0), (60, 5.0, 10, 2.0), (600, 55.0, 60, 1.1)],
)
def test_agreement_is_worth_the_ratio_of_right_tokens_to_expected_ones(n, expected, n_right, ratio):
    assert BucketCounts("agreed", "chance 0.05 to 0.15", 1.0, n, n_right, expected).measured == ratio


def test_the_program_pools_files(tmp_path, capsys):
    for name, result in (("a", FIRST), ("b", SECOND)):
        (tmp_path / name).write_text(json.dumps(result))
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out.splitlines() == table_lines(pooled([FIRST, SECOND]))


@pytest.mark.parametrize("content", ["nonsense", "[]", "{}", '{"runs": [{}]}', '{"runs": [{"reliability": {"buckets": 3}}]}'])
def test_a_file_without_figures_by_bucket_is_named(tmp_path, capsys, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    assert main([str(path)]) == 1
    assert f"{path}: has no figures by bucket; expected what augury bench drafters --json printed" in capsys.readouterr().err
    assert main([]) == 2


def shipped():
    """The chances that tokens begin with, by drafter and bucket, and the ratios of agreement, by kind and chance."""
    own = {(name, f"evidence {i}"): p for name, each in DRAFTERS.items() for i, p in enumerate(each.traits.evidence_chances)}
    chances = Chances()
    own |= {("any", bucket.name): bucket.prior for bucket in map(chances.bucket, range(TYPICAL + 1, EVIDENCE))}
    kinds = range(3)
    ratios = {Agreement.bucket(kind, i / 1000) for kind in kinds for i in range(1000)}
    return own | {tuple(ratio.name.split(", ")): ratio.prior for ratio in ratios}


def measured():
    """The tables of the documentation."""
    rows = re.findall(
        r"^\| ([a-z-]+) \| ([a-z]+ [\d. a-z]+) \| (\d+) \| (?:([\d.]+) \| )?(\d+) \| [\d.a-z ]+ \| ([\d.]+) \|$",
        PAGE,
        re.MULTILINE,
    )
    return [
        BucketCounts(drafter, bucket, float(prior), int(n), int(n_right), float(expected) if expected else None)
        for drafter, bucket, n, expected, n_right, prior in rows
    ]


def test_chances_begin_with_what_was_measured():
    table, own = measured(), shipped()
    again = "the tables of docs/benchmarks.md, “What buckets are worth”, are of other buckets; measure again as it says there"
    assert {each.drafter for each in table} >= {name for name, each in DRAFTERS.items() if each.traits.evidence_chances}, again
    assert {(each.drafter, each.bucket) for each in table} <= own.keys(), again
    for each in table:
        assert own[each.drafter, each.bucket] == each.prior, f"{each}: {again}"
        assert each.measured in (None, each.prior), each
        assert each.expected is None or each.measured is not None or each.prior == 1, each
    assert sum(each.measured is not None for each in table if each.expected is None) > 30
    assert len([each for each in table if each.expected is not None]) == sum(name.startswith("chance") for _, name in own)
