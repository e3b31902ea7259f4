"""Compiled functions that other compiled functions call by their addresses, and arrays by theirs.

Such a function takes int64 alone, which are numbers and addresses, and returns one or nothing. numba calls it, and so can C:
`int32_t f(int64_t *result, void *error, int64_t, ...)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.numpy_support import from_dtype

_I64, _I32, _POINTER = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()


def address_of(function: Any) -> int:
    """The address of a function that `augury.compiled.compiled` compiled for one signature."""
    (result,) = function.overloads.values()
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))


@intrinsic  # type: ignore[untyped-decorator]
def invoke(_: Any, address: Any, arguments: Any) -> Any:  # noqa: ARG001 - numba's
    """Call the function at an address with a tuple of int64; returns its int64, which means nothing of one that has none."""

    def generate(_: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        n = signature.args[1].count
        kind = ir.FunctionType(_I32, [_POINTER, _POINTER] + [_I64] * n)
        function = builder.inttoptr(values[0], kind.as_pointer())
        with builder.goto_entry_block():
            result = builder.alloca(_I64, 2)
        unpacked = [builder.extract_value(values[1], index) for index in range(n)]
        builder.call(function, [builder.bitcast(result, _POINTER), builder.bitcast(result, _POINTER), *unpacked])
        return builder.load(result)

    return types.int64(types.int64, arguments), generate


def array_at(dtype: Any) -> Callable[..., Any]:
    """Make a function, for compiled code, of an address and a shape: the array of this type that lies there."""
    kind = types.CPointer(from_dtype(dtype))

    @intrinsic  # type: ignore[untyped-decorator]
    def pointer(_: Any, address: Any) -> Any:  # noqa: ARG001 - numba's
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
            return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

        return kind(types.int64), generate

    def found(address, shape):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - compiled into its callers
        return numba.carray(pointer(address), shape)

    return numba.njit(found)
