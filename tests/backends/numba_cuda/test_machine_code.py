"""Kernels compile for every generation of GPUs, to machine code that is as it was meant to be."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import machine_code
import pytest
from gpu import probes, ptx, roofline

CAPABILITIES = ["8.0", "9.0", "10.0"]
N_KERNELS, N_PARTS = 276, 2  # two processes compile at once
pytestmark = [pytest.mark.sample(0), pytest.mark.waits]  # of 0.8 GB of compilers, which make test-all installs; for a process


def compiled(tmp_path, *words, program=machine_code):
    """What a program tells of kernels, whose machine code is kept for others of this run."""
    assert find_spec("numba_cuda"), "CUDA's compiler is not installed; try python -m pip install --group cuda, or make test-all"
    out = tmp_path / "found.json"
    environment = os.environ | {"XDG_CACHE_HOME": os.environ["TINY_MODELS"]}
    subprocess.run([sys.executable, program.__file__, out, *map(str, words)], check=True, env=environment)
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


def test_no_stage_of_a_pass_is_bound_to_take_longer_than_was_recorded(tmp_path):
    found, recorded = compiled(tmp_path, program=roofline), json.loads(Path(roofline.__file__).with_suffix(".json").read_text())
    assert found.keys() == recorded.keys()
    risen = [
        f"{case}: {stage} {found[case][stage]}, recorded {recorded[case].get(stage, 0)}"
        for case in found
        for stage in found[case]
        if found[case][stage] > recorded[case].get(stage, 0)
    ]
    assert risen == [], "docs/testing.md says how to record others"


def test_programs_of_probes_are_machine_code_of_what_they_time():
    from cuda.core import Linker, LinkerOptions, ObjectCode

    codes = []
    for program in ptx.PROGRAMS.values():
        cubin = Linker(ObjectCode.from_ptx(program.encode()), options=LinkerOptions(arch="sm_90")).link("cubin").code
        usage, code = machine_code.usage_and_code(bytes(cubin))
        assert usage["stack"] == 0
        codes.append(code)
    texts = dict(zip(ptx.PROGRAMS, machine_code.disassembled(codes, (9, 0)), strict=True))
    written = {name: "\n".join(code.values()) for name, code in texts.items()}
    assert re.search(r"CLOCK.*?PREEXIT.*?ACQBULK.*?CLOCK.*?CLOCK.*?STG\S*\.128", written["chained"], re.DOTALL)
    assert (written["stream"].count("UBLKCP"), written["stream"].count("TRYWAIT")) == (2, 2)
    assert re.search(r"BAR\.SYNC.*?REDG\S*STRONG\.GPU.*?LDG\S*STRONG\.GPU.*?BAR\.SYNC", written["grid"], re.DOTALL)
    for name, text in written.items():
        if name.startswith("products"):
            n_tokens = int(name.split()[2].rstrip(","))
            assert text.count("HMMA.16816.F32") == n_tokens // 2, name
            assert text.count("LOP3.LUT") >= 16 * ("dequantised" in name), name
            per_1024 = 1024 * n_tokens * roofline.code_of(texts[name]).per_product
            assert per_1024 <= (125 if n_tokens == 64 else 95), name


def test_the_probe_of_columns_compiles(tmp_path):
    found = compiled(tmp_path, probes.__file__)
    facts = found["9.0"]["columns_alone"]
    assert (facts["stack"], facts["early"]) == (0, [])
    assert facts["products_of_halves"] >= 3
