"""Memory that kernels work on, and an account of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable

import numpy as np

from augury.types import Allocation

_LINE = 64
_SLACK = 64  # a kernel may read (never use) up to one vector beyond an array


def memory_at(address: int, n_bytes: int) -> np.ndarray:
    """A view of bytes that an arena holds, (n_bytes,) uint8."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * n_bytes).from_address(address))


class Arena:
    """Holds arrays that kernels know by address, and counts their bytes by purpose."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._n_bytes: dict[str, int] = {}
        self._shared: dict[Hashable, int] = {}

    def zeros(self, n_bytes: int, purpose: str) -> int:
        """Allocate bytes that are zero; the system finds memory for the bytes that are used. Returns their address."""
        array = np.zeros(n_bytes + _LINE + _SLACK, np.uint8)
        self._arrays.append(array)
        self.count(purpose, array.nbytes)
        address = array.ctypes.data
        return int(address + -address % _LINE)

    def keep(self, array: np.ndarray, purpose: str) -> int:
        """Hold an array, and return its address."""
        array = np.ascontiguousarray(array)
        self._arrays.append(array)
        self.count(purpose, array.nbytes)
        return int(array.ctypes.data)

    def shared(self, key: Hashable, make: Callable[[], np.ndarray], purpose: str) -> int:
        """The address of the array that callers share by one key, made when it is first wanted."""
        if key not in self._shared:
            self._shared[key] = self.keep(make(), purpose)
        return self._shared[key]

    def count(self, purpose: str, n_bytes: int) -> None:
        """Add to the account bytes that are held elsewhere."""
        self._n_bytes[purpose] = self._n_bytes.get(purpose, 0) + n_bytes

    def table(self) -> tuple[Allocation, ...]:
        """The bytes, by purpose."""
        return tuple(Allocation(purpose, n_bytes) for purpose, n_bytes in self._n_bytes.items())


def up(size: int, multiple: int) -> int:
    """The next multiple that is not less than `size`."""
    return -(-size // multiple) * multiple
