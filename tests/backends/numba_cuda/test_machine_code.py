"""Every kernel compiles for every generation of GPUs, to machine code that is as it was meant to be."""

import json
import os
import subprocess
import sys
from pathlib import Path

import machine_code
import pytest

from augury.backends.numba_cuda.probe import SIMULATOR

HERE = Path(__file__).parent
N_KERNELS = 272


def compiled(tmp_path):
    out = tmp_path / "found.json"
    environment = {key: value for key, value in os.environ.items() if key != SIMULATOR}
    subprocess.run([sys.executable, machine_code.__file__, out, HERE / "planted.py"], check=True, env=environment)
    return json.loads(out.read_text())


@pytest.mark.sample(0)  # of 0.8 GB of compilers, which make test-all installs
@pytest.mark.waits  # for a process that compiles
def test_machine_code_is_as_it_was_meant_to_be_for_every_capability(tmp_path):
    found, wrong = compiled(tmp_path)
    assert [*found] == ["8.0", "9.0", "10.0"]
    problems = [
        f"for {capability}: {problem}"
        for capability, kernels in found.items()
        for name, facts in kernels.items()
        for problem in machine_code.problems(name, facts)
    ]
    assert problems == []
    for capability, kernels in found.items():
        assert {facts["waits"] for facts in kernels.values()} == {int(capability != "8.0")}, capability
    assert {len(facts) for facts in found.values()} == {N_KERNELS}, "the number of kernels has changed; so may it here"
    assert [*wrong] == [*found]
    for planted in wrong.values():
        told = {name: " ".join(machine_code.problems(name, facts)) for name, facts in planted.items()}
        assert "of double precision" in told["others_doubles"]
        assert "a stack of 256 bytes" in told["others_stack"]
        assert "bytes of shared memory" in told["others_shared"]
        assert "loads of 16 bytes" in told["multiply_Q4_K_1"]
        assert "loads of 16 bytes" in told["attend_f16_f16"]
        assert "no fence" in told["attend_f16_f16"]
        assert "byte dot products" in told["multiply_Q4_K_1"]
        assert "0 matrix instructions of bytes, expected 2" in told["multiply_Q4_K_matrix_16"]
