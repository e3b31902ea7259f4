"""Functions that are compiled before a round calls them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from augury.memory_limit import require_address_space

_COMPILER_BYTES = 64 << 20  # more than a function takes: LLVM ends the process where it gets no memory


def compiled(*types: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function for these types of numba's when its module is imported, or load what was compiled before.

    Without types it becomes a part of those that call it.
    """
    import numba

    def made(function: Callable[..., Any]) -> Callable[..., Any]:
        dispatcher = numba.njit(error_model="numpy")(function)  # with the GIL, which takes longer to get back
        with suppress(RuntimeError):  # no folder is writable
            dispatcher.enable_caching()
        if types:
            require_address_space(_COMPILER_BYTES, "compiling a kernel")
            with suppress(OSError):  # the disk is full
                dispatcher.compile(types)
            dispatcher.disable_compile()
        compiled_function: Callable[..., Any] = dispatcher
        return compiled_function

    return made
