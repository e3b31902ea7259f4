"""Functions that are compiled before a round calls them, by another process while this one compiles a backend's kernels."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

from augury.files.atomic_file import locked
from augury.interfaces import Progress
from augury.memory_limit import require_address_space

_COMPILER_BYTES = 64 << 20  # more than a function takes: LLVM ends the process where it gets no memory


def compiled(*types: Any, nogil: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function for these types of numba's when its module is imported, or load what was compiled before.

    Without types it becomes a part of those that call it. It keeps the GIL, which takes longer to get back, unless it is
    `nogil`.
    """
    import numba

    def made(function: Callable[..., Any]) -> Callable[..., Any]:
        dispatcher = numba.njit(error_model="numpy", nogil=nogil)(function)
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


def address_of(function: Any) -> int:
    """The address of a function that was `compiled` for one signature, for compiled functions that call it.

    Such a function takes int64 alone, which are numbers and addresses, and returns one or nothing. C can call it as well, as
    `int32_t f(int64_t *result, void *error, int64_t, ...)`.
    """
    (result,) = function.overloads.values()
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))


def array_at(dtype: Any) -> Callable[..., Any]:
    """Make a function, for compiled functions, of an address and a shape: the array of this type that lies there."""
    import numba
    from numba import types
    from numba.extending import intrinsic
    from numba.np.numpy_support import from_dtype

    kind = types.CPointer(from_dtype(dtype))

    @intrinsic  # type: ignore[untyped-decorator]
    def pointer(_: Any, address: Any) -> Any:  # noqa: ARG001 - numba's
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

        return kind(types.int64), generate

    def found(address, shape):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - compiled into its callers
        return numba.carray(pointer(address), shape)

    return numba.njit(found)


def invoker() -> Callable[..., Any]:
    """Make a function, for compiled functions, of an address as `address_of` tells it, and a tuple of int64.

    It calls the function there, and returns its int64.
    """
    import numba
    from llvmlite import ir
    from numba.extending import intrinsic

    number, code, pointer = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()

    @intrinsic  # type: ignore[untyped-decorator]
    def invoke(_: Any, address: Any, arguments: Any) -> Any:  # noqa: ARG001 - numba's
        def generate(_: Any, builder: Any, signature: Any, values: Any) -> Any:
            n = signature.args[1].count
            kind = ir.FunctionType(code, [pointer, pointer] + [number] * n)
            with builder.goto_entry_block():
                result = builder.alloca(number, 2)
            room = builder.bitcast(result, pointer)
            unpacked = [builder.extract_value(values[1], index) for index in range(n)]
            builder.call(builder.inttoptr(values[0], kind.as_pointer()), [room, room, *unpacked])
            return builder.load(result)

        return numba.int64(numba.int64, arguments), generate

    function: Callable[..., Any] = invoke
    return function


class ImportedLater:
    """A module of compiled functions, which is imported when the first of them is called: numba takes a third of a second."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, function: str) -> Any:
        """Find a function for the first time, and keep it."""
        found = getattr(import_module(self._name), function)
        setattr(self, function, found)
        return found


def import_all(modules: Iterable[str]) -> None:
    """Import modules of compiled functions, after other processes that do: then these functions are there."""
    with Path(__file__).open("rb") as file:
        locked(file, waits=True)
        for name in modules:
            import_module(name)


class CompiledAhead(Progress):
    """Another process that imports modules of compiled functions, from the moment on when a backend begins to compile.

    It is spared where the backend has all of its kernels: then such functions were compiled before, too.
    """

    def __init__(self, progress: Progress) -> None:
        """Take what the backend tells, and pass it on."""
        self._modules, self._progress = list[str](), progress
        self._process: Popen[bytes] | None = None
        self._is_asked = False

    def add(self, modules: Iterable[str]) -> None:
        """Name modules, before the backend compiles."""
        self._modules += modules

    def __call__(self, task: str, done: int, total: int) -> None:
        """Begin as soon as the backend compiles."""
        if task == "compile" and not self._is_asked:
            self._is_asked = True
            self._begin()
        self._progress(task, done, total)

    def _begin(self) -> None:
        import numba

        has_room = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1
        if not (has_room and self._modules and Path(sys.executable or "").name.startswith("python")):
            return
        with suppress(RuntimeError, OSError):  # nothing can be kept, or no process can be started
            numba.njit(compiled).enable_caching()
            code = (
                f"import sys; sys.path[:] = {sys.path!r}; from augury.compiled import import_all; import_all({self._modules!r})"
            )
            words = [sys.executable, "-P", "-c", code]
            self._process = Popen(words, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)  # noqa: S603 - our own words

    def wait(self) -> None:
        """Wait until everything is there that the process could compile; from then on none begins."""
        self._is_asked = True
        if self._process is not None:
            self._process.wait()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
