"""The conformance suite as pytest runs it, in a process of its own."""

import os
import re
import subprocess
import sys

import pytest
from support.commands import PYTEST

BROKEN = """
from augury import Draft, Drafter, hookimpl


class Long(Drafter):
    name = "too-long"

    def draft(self, history, limit):
        return Draft([1] * (limit + 1))


class Lost(Drafter):
    name = "lost"

    def draft(self, history, limit):
        if self.session.n_slots > 2:
            raise LookupError("where am I?")
        return Draft()


@hookimpl
def augury_drafters():
    return [Long, Lost]
"""


@pytest.fixture
def run(tmp_path):
    """Run pytest in an empty folder, with a stranger's broken drafter installed."""
    (tmp_path / "too_long.py").write_text(BROKEN)
    facts = tmp_path / "too_long-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: too-long\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[augury]\ntoo-long = too_long\n")
    (tmp_path / "test_own.py").write_text("def test_own(): pass\n")

    def run_pytest(*words):
        path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            [*PYTEST, *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    return run_pytest


def test_the_checks_of_a_drafter_are_tests_beside_its_own(run):
    ended = run("-v", "--augury-drafter", "ngram-simple:n=3,m=8", "-k", "options or test_own")
    assert ended.returncode == 0, ended.stdout
    assert "test_own.py::test_own PASSED" in ended.stdout
    assert "augury-drafter[ngram-simple:n=3,m=8]::refuses options outside their bounds PASSED" in ended.stdout
    assert re.search(r"ngram-simple:n=3,m=8: \d+ tokens drafted, \d+ accepted", ended.stdout)


def test_a_broken_contract_is_a_failure_of_one_sentence(run):
    ended = run("--augury-drafter", "too-long", "-k", "reference")
    assert ended.returncode == 1
    assert "too-long: A draft has at most `limit` tokens. Seen: 65 tokens where the limit was 64" in ended.stdout
    assert "Traceback" not in ended.stdout
    assert "drafters in the checks" not in ended.stdout


def test_what_a_drafter_raises_is_shown_with_its_own_traceback(run):
    ended = run("--augury-drafter", "lost", "-k", "greedy")
    assert ended.returncode == 1
    assert (
        "lost: A drafter that knows nothing declines; its methods raise nothing. Seen: LookupError: where am I?" in ended.stdout
    )
    assert 'raise LookupError("where am I?")' in ended.stdout


def test_a_drafter_that_declines_every_time_is_told_so(run):
    ended = run("--augury-drafter", "none", "-k", "greedy")
    assert ended.returncode == 0
    assert "none: nothing was drafted, which proves little" in ended.stdout


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--augury-drafter", "ngram-simpel"], "did you mean 'ngram-simple'"),
        (["--augury-drafter", "ngram-simple:k=3"], "there is no option 'k'"),
        (["--augury-drafter", "none", "--augury-backend", "gpu"], "there is no backend 'gpu'"),
    ],
)
def test_what_does_not_exist_is_a_usage_error(run, words, told):
    ended = run(*words)
    assert ended.returncode == 4
    assert told in ended.stderr


def test_without_the_option_nothing_is_imported_and_nothing_added(run):
    assert "augury" not in run("-v").stdout.partition("collected 1 item")[2]
    script = (
        "import sys; import augury.testing.pytest_plugin; "
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('augury', 'numpy', 'attr', 'hypothesis')))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "['augury', 'augury.testing', 'augury.testing.pytest_plugin']\n"
