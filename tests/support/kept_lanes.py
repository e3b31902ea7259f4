"""Lanes of simulated kernels, whose code is kept as that of numba-cpu's kernels is: most of a test's time they are compiled.

Import this module before those that have lanes. A lane is compiled again when anything that its code depends on is another:
functions, values that they were made with, types.
"""

from __future__ import annotations

import os
from functools import partial
from hashlib import sha256
from types import CodeType, FunctionType, ModuleType

import attrs
import numpy as np
from numba.core import types
from numba.core.typing import signature

from augury.backends.numba_cpu.kernels import jit
from augury.backends.numba_cuda.kernels import instructions

_LIBRARIES = ("builtins", "llvmlite", "math", "numba", "numpy")  # whose versions the folder's name has


def _kept(lane):
    """Make lanes that are loaded where another process, or this one's last run, has compiled them."""

    def make(function):
        made = lane(function)
        made._cache = _LaneCache(function)
        made.compile = partial(jit._compile, made)
        return made

    return make


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


instructions.lane = _kept(instructions.lane)
