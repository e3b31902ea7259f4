"""Two threads that pass one number to and fro."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit
from numba.core import types
from numba.extending import intrinsic

_WORD = ir.IntType(64)


@intrinsic
def _load(_: Any, address: Any) -> Any:
    """The value that another thread stored last: an ordinary load might be done once, before the loop that waits for it."""

    def generate(_context: Any, b: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        return b.load_atomic(b.inttoptr(values[0], _WORD.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def _store(_: Any, address: Any, value: Any) -> Any:
    """Let other threads see a number."""

    def generate(context: Any, b: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        b.store_atomic(values[1], b.inttoptr(values[0], _WORD.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@njit("int64(int64, int64, int64, int64, int64)", nogil=True)
def ping_pong(address, side, first, last, patience):
    """Return the number `last - first` times: wait for 2 i + side, and store one more.

    Args:
        address: The address of an int64, 0 at first.
        side: 0 serves, 1 returns.
        first: i of the first time.
        last: One after that of the last.
        patience: How often to look before the other side is given up.

    Returns:
        i of the first time that did not happen; `last` if all did.
    """
    for i in range(first, last):
        n = 0
        while _load(address) != 2 * i + side:
            n += 1
            if n > patience:
                return i
        _store(address, 2 * i + side + 1)
    return last
