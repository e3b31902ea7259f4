"""What numba is asked to do for a kernel that calls a helper that calls another."""

import gc
import re
from contextlib import nullcontext

import numpy as np
import pytest
from numba.core import config
from numba.core.codegen import JITCPUCodegen
from numba.core.config import _OptLevel
from numba.core.types.functions import BaseFunction

from augury.backends.numba_cpu.kernels import compiler, jit, simd, step

NUMBERED = r"(?<=B)\d+(?=[vB])|(?<=v)\d+(?=B)|\[\d+ x i8\]"  # counts what numba compiled before


def doubles():
    @jit.helper
    def get(x):
        return simd.get_i64(x)

    @jit.helper
    def double(x):
        return 2 * get(x)

    def doubled(x):
        simd.put_i64(x, double(x))

    return jit.kernel(doubled)


def applied(kernel):
    values = np.array([21])
    kernel(values.ctypes.data)
    assert values.tolist() == [42]


@pytest.mark.parametrize("use", [jit.address, applied])
@pytest.mark.parametrize(("numbas", "ours"), [(3, 2), (1, 1)])
def test_a_kernel_is_optimised_with_its_helpers_at_a_level_of_its_own_and_they_not_alone(monkeypatch, use, numbas, ours):
    monkeypatch.setattr(jit._KernelCache, "load_overload", lambda *_: None)
    monkeypatch.setattr(jit._KernelCache, "save_overload", lambda *_: None)
    applied(doubles())  # numba compiles functions of its own, once
    levels, n_runs, n_modules = [], [], []
    build, make, add = JITCPUCodegen._pass_builder, JITCPUCodegen._module_pass_manager, JITCPUCodegen._add_module
    monkeypatch.setattr(JITCPUCodegen, "_pass_builder", lambda *a, **k: levels.append(k["opt"]) or build(*a, **k))
    monkeypatch.setattr(JITCPUCodegen, "_module_pass_manager", lambda *a, **k: n_runs.append(1) or make(*a, **k))
    monkeypatch.setattr(JITCPUCodegen, "_add_module", lambda *a: n_modules.append(1) or add(*a))
    monkeypatch.setattr(config, "OPT", _OptLevel(numbas))

    use(doubles())

    assert {*levels} == {ours}
    assert len(n_runs) == 1
    assert len(n_modules) == 1  # of which there is machine code


@pytest.fixture
def compiled_anew(monkeypatch):
    """Compiles a kernel of some helpers and gives its LLVM IR."""
    monkeypatch.setattr(jit._KernelCache, "load_overload", lambda *_: None)
    made = []

    def keep(_, __, compiled):
        made.append(re.sub(NUMBERED, "", compiled.library.get_llvm_str()))

    monkeypatch.setattr(jit._KernelCache, "save_overload", keep)

    def compile_anew():
        for name in ("share", "normalise", "count_rows", "token_of"):  # or they were compiled already
            monkeypatch.setattr(step, name, jit.helper(getattr(step, name).py_func))
        jit.address(jit.kernel(step.add_norm.py_func, record=step.AddNorm))
        return made.pop()

    return compile_anew


def test_what_the_passes_that_are_left_out_would_do_is_nothing(compiled_anew, monkeypatch):
    without = compiled_anew()
    monkeypatch.setattr(compiler, "USELESS", frozenset())
    assert without == compiled_anew()


def test_what_is_resolved_once_is_what_numba_resolves_each_time(compiled_anew, monkeypatch):
    resolve, asked = BaseFunction.get_call_type, []
    compiled_anew()
    monkeypatch.setattr(BaseFunction, "get_call_type", lambda *given: asked.append(given) or resolve(*given))
    once, n_once = compiled_anew(), len(asked)
    monkeypatch.setattr(jit, "resolved_once", nullcontext)
    assert once == compiled_anew()
    assert 0 < n_once < (len(asked) - n_once) / 3


def test_nothing_looks_for_garbage_while_a_kernel_is_compiled(monkeypatch):
    monkeypatch.setattr(jit._KernelCache, "load_overload", lambda *_: None)
    monkeypatch.setattr(jit._KernelCache, "save_overload", lambda *_: seen.append(gc.isenabled()))
    seen = []
    jit.address(doubles())
    assert seen == [False]
    assert gc.isenabled()
