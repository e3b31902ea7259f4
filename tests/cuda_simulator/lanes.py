"""Lanes of simulated kernels: compiled for the CPU, by the same typing rules as on the device.

Their code is kept as that of numba-cpu's kernels is: most of a test's time they are compiled. A lane is compiled again when
anything that its code depends on is another: functions, values that they were made with, types.
"""

from __future__ import annotations

import os
from functools import cache, partial
from hashlib import sha256
from types import CodeType, FunctionType, ModuleType

import attrs
import numpy as np
from numba import njit
from numba.core import types
from numba.core.typing import signature

from augury.backends.numba_cpu.kernels import jit
from augury.backends.numba_cpu.kernels.compiler import HelperCompiler, KernelCompiler

_LIBRARIES = ("builtins", "llvmlite", "math", "numba", "numpy")  # whose versions the folder's name has


# As numba-cpu's kernels and helpers are compiled, but in less time, which is most of a kernel test's.
class Compiler(KernelCompiler):
    """Numba's pipeline for functions that Python calls."""

    optimisation = 1


class _InnerCompiler(HelperCompiler):
    optimisation = 1


def lane(function):
    """Compile `function` when it is first called, by Python or by another lane, for the types that it is called with."""
    called, inner = njit(pipeline_class=Compiler)(function), cache(lambda: njit(pipeline_class=_InnerCompiler)(function))
    called.get_call_template = lambda *types: inner().get_call_template(*types)  # numba asks for other lanes
    called.get_overload = lambda signature: inner().get_overload(signature)
    called._cache = _LaneCache(function)
    called.compile = partial(jit._compile, called)
    return called


class _LaneCache(jit._KernelCache):
    """A file for each form of a lane, named after what it is made of."""

    def __init__(self, function):
        super().__init__(function)
        self._lane = self._name, function

    def load_overload(self, sig, target_context):
        name, function = self._lane
        self._name = f"{name}.{sha256(repr(_contents((function, sig), {})).encode()).hexdigest()[:32]}"
        found = super().load_overload(sig, target_context)
        # named tuples among its types would be others than those that it is called with
        return found and found._replace(signature=signature(found.signature.return_type, *sig))


def _contents(value, seen):
    """All that compiled code takes from a value, without addresses; `seen` numbers the functions that were told before."""
    for function in ("dispatcher", "py_func", "_defn"):  # of a dispatcher's type, a dispatcher, an intrinsic
        value = getattr(value, function, value)
    match value:
        case _ if str(getattr(value, "__module__", "")).partition(".")[0] in _LIBRARIES and hasattr(value, "__name__"):
            told = value.__module__, value.__name__
        case FunctionType():
            told = _of_function(value, seen)
        case CodeType():
            told = value.co_code, value.co_names, value.co_varnames, value.co_argcount, _contents(value.co_consts, seen)
        case types.BaseTuple():
            told = repr(value), _contents(getattr(value, "instance_class", None), seen), _contents(tuple(value), seen)
        case tuple() | list():
            told = type(value).__qualname__, [_contents(each, seen) for each in value]
        case type():
            told = value.__module__, value.__qualname__, getattr(value, "_fields", ())
        case np.ndarray():
            told = value.dtype.str, value.shape, value.tobytes()
        case _ if attrs.has(type(value)):
            told = [_contents(getattr(value, field.name), seen) for field in attrs.fields(type(value))]
        case _:
            told = repr(value)
            if " at 0x" in told:  # nothing that another process would know it by
                told = os.urandom(16)
    return told


def _of_function(function, seen):
    if function in seen:
        return seen[function]
    seen[function] = len(seen)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [_contents(each, seen) for each in (function.__code__, cells, function.__defaults__, *_globals(function))]


def _globals(function):
    """What a function's names mean, those of modules' attributes as well."""
    names = set(_names(function.__code__))
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        if isinstance(value, ModuleType):
            yield name, [getattr(value, each) for each in sorted(names) if hasattr(value, each)]
        else:
            yield name, value


def _names(code):
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _names(const)
