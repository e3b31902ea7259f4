"""Kernels on 64-bit ARM: compiled as they would be there, run in an emulator, held to the bits of this machine."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from oracles import weights
from support import kernel_cases
from support.stand_in_tiles import STAND_IN


@pytest.fixture(scope="module")
def emulated(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("arm64") / "cases.npz"
    cases = [item.callspec.id for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    names = ",".join(cases)  # compiling takes seconds for each
    subprocess.run([sys.executable, Path(kernel_cases.__file__), out, names, *sys.path], check=True)
    with np.load(out) as cases:
        return dict(cases)


@pytest.mark.sample(0)
def test_a_cpu_is_known_by_its_name_to_have_dot_products(emulated):
    assert emulated["isas"].tolist() == ["neondot", "generic", STAND_IN]


@pytest.mark.sample(0)
@pytest.mark.parametrize("kind", kernel_cases.MADE_OF)
def test_products_are_made_of_byte_dot_products_and_look_values_up(emulated, kind):
    assert kernel_cases.MADE_OF[kind] <= set(emulated[f"{kind}.instructions"])


@pytest.mark.sample(0)
@pytest.mark.parametrize("kind", weights.KINDS, ids=lambda kind: kind.name)
def test_packing_products_and_rows_have_the_bits_of_this_machine(emulated, kind):
    for name, array in kernel_cases.of_type(kind).items():
        assert np.array_equal(emulated[name], array), name


@pytest.mark.sample(0)
@pytest.mark.parametrize("name", kernel_cases.MODELS)
def test_whole_passes_have_the_bits_of_this_machine(emulated, name):
    for case, logits in kernel_cases.of_model(name).items():
        assert np.array_equal(emulated[case], logits)
