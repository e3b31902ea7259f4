"""Tables, and what narrow terminals make of them."""

import pytest
from support.commands import here, run

from augury.cli.report import align_rows, fold
from augury.plugins.bench.pair_stats import PairStats, stall_lines

ROWS = [["name", "speed", "notes"], ["suffix", "12.5", "from the longest match in the prompt"], ["none", "8.0", ""]]


@pytest.fixture
def columns(monkeypatch):
    def set_columns(n):
        if n is None:
            monkeypatch.delenv("COLUMNS", raising=False)
        else:
            monkeypatch.setenv("COLUMNS", str(n))

    return set_columns


@pytest.mark.parametrize("n", [None, 51, 0])
def test_columns_are_aligned_where_there_is_room_or_no_terminal(columns, n):
    columns(n)
    assert align_rows(ROWS, is_right=(False, True)) == [
        "name    speed  notes",
        "suffix   12.5  from the longest match in the prompt",
        "none      8.0",
    ]


def test_a_narrow_terminal_folds_cells_and_parts_no_word_of_the_head(columns):
    columns(30)
    assert align_rows(ROWS, is_right=(False, True)) == [
        "name    speed  notes",
        "suffix   12.5  from the",
        "               longest match",
        "               in the prompt",
        "none      8.0",
    ]


def test_cells_are_no_markup_and_a_table_may_have_no_head(columns):
    columns(None)
    assert align_rows([["[bold]weights[/]", "1.5 MiB"], ["a", ""]], has_head=False) == ["[bold]weights[/]  1.5 MiB", "a"]


def test_a_line_is_folded_at_blanks(columns):
    columns(16)
    assert fold("  n: ", "how many tokens", "    ") == "  n: how many\n    tokens"
    columns(None)
    assert fold("  n: ", "how many tokens", "    ") == "  n: how many tokens"


@pytest.mark.parametrize(
    "words",
    [
        ["plugins"],
        ["inspect", here()[1], "--tensors"],
        ["bench", "drafters", *here(), "--prompt-tokens", "1,2", "-n", "2", "--turns", "1", "--spec-type", "suffix"],
        ["bench", "passes", *here(), "--curve", "1,2"],
    ],
    ids=lambda words: " ".join(word for word in words[:2] if word.isalpha()),
)
def test_tables_fit_into_40_columns(capsys, monkeypatch, columns, words):
    columns(40)
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert [line for line in out.splitlines() if len(line) > 40 and " " in line] == []  # a long word is not parted


def test_a_note_of_stalled_runs_fits_into_40_columns(columns):
    columns(40)
    (line,) = stall_lines([PairStats(n_repeated=2, n_stalled=1)])
    assert max(map(len, line.splitlines())) <= 40
