import subprocess
import sys
from pathlib import Path

from support.sources import ROOT


def test_type_checkers_know_the_arguments_and_results_of_programs():
    program = Path(__file__).with_name("typed_program.py").relative_to(ROOT)
    ended = subprocess.run([sys.executable, "-m", "mypy", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stdout == "Success: no issues found in 1 source file\n", ended.stderr
