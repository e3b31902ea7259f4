"""Some damaged files of each kind; python tests/torture tries as many as it is asked to."""

import random
from collections import Counter

import pytest
from support.fuzz import KINDS

N_CASES = {"lookup_file": 300, "packed_file": 150, "compiled_kernel": 500, "draft_model": 60}


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_refused_or_do_no_harm(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("logging.Logger.isEnabledFor", lambda *_: False)  # each file is told of
    once = KINDS[kind](tmp_path)
    outcomes = Counter(once(random.Random(f"{kind}/{seed}")) for seed in range(N_CASES[kind]))
    assert outcomes["refused"] > N_CASES[kind] // 3
