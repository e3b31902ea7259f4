"""Kernels compile for every generation of GPUs, to machine code that is as it was meant to be."""

import json
import os
import subprocess
import sys
from pathlib import Path

import machine_code
import pytest

from augury.backends.numba_cuda.probe import SIMULATOR

CAPABILITIES = ["8.0", "9.0", "10.0"]
N_KERNELS, N_PARTS = 227, 2  # two processes compile at once
pytestmark = [pytest.mark.sample(0), pytest.mark.waits]  # of 0.8 GB of compilers, which make test-all installs; for a process


def compiled(tmp_path, *words):
    out = tmp_path / "found.json"
    environment = {key: value for key, value in os.environ.items() if key != SIMULATOR}
    subprocess.run([sys.executable, machine_code.__file__, out, *map(str, words)], check=True, env=environment)
    return json.loads(out.read_text())


@pytest.mark.parametrize("part", range(N_PARTS))
def test_machine_code_is_as_it_was_meant_to_be_for_every_capability(part, tmp_path):
    found = compiled(tmp_path, part, N_PARTS)
    assert [*found] == CAPABILITIES
    problems = [
        f"for {capability}: {problem}"
        for capability, kernels in found.items()
        for name, facts in kernels.items()
        for problem in machine_code.problems(name, facts)
    ]
    assert problems == []
    for capability, kernels in found.items():
        assert {facts["waits"] for facts in kernels.values()} == {int(capability != "8.0")}, capability
    n = N_KERNELS * (part + 1) // N_PARTS - N_KERNELS * part // N_PARTS
    assert [*map(len, found.values())] == [n, n, -(-n // machine_code.SOME)], "the number has changed; so may it here"


def test_planted_faults_of_machine_code_are_told(tmp_path):
    found = compiled(tmp_path, Path(__file__).with_name("planted.py"))
    assert [*found] == CAPABILITIES
    for capability, planted in found.items():
        told = {name: " ".join(machine_code.problems(name, facts)) for name, facts in planted.items()}
        may_overlap = capability != "8.0"
        assert ("accesses memory of the launch before" in told["others_early"]) == may_overlap
        assert ("1 ends without a wait" in told["others_hasty"]) == may_overlap
        assert "loads of x that may not see" in told["others_constant"]
        assert told["others_weights"] == ""
        assert planted["others_loop"]["loads"] == 1, "a loop of any number of turns is unrolled"
        assert "of double precision" in told["others_doubles"]
        assert "a stack of 256 bytes" in told["others_stack"]
        assert "bytes of shared memory" in told["others_shared"]
        assert "loads of 16 bytes" in told["multiply_Q4_K_1"]
        assert "loads of 16 bytes" in told["attend_f16_f16"]
        assert "no fence" in told["attend_f16_f16"]
        assert "byte dot products" in told["multiply_Q4_K_1"]
        assert "0 matrix instructions of bytes, expected 2" in told["multiply_Q4_K_matrix_16"]
