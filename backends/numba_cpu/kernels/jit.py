"""Compile kernels, and keep machine code in the user's cache folder.

Two decorators: `kernel` for functions that the tape, a test or Python calls (every argument an int64: addresses, sizes,
indices; no result), `helper` for the parts of kernels (any types, always inlined, never cached by itself).
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding
import numba
import numpy as np
import platformdirs
from numba.core import types
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.serialize import dumps
from xxhash import xxh3_128_digest

from augury.backends.numba_cpu.kernels.compiler import HelperCompiler, KernelCompiler, no_collection, resolved_once
from augury.backends.numba_cpu.kernels.struct import Pointer
from augury.files.atomic_file import AtomicFile, is_being_written
from augury.lowering import source_key
from augury.memory_limit import require_address_space

_log = logging.getLogger(__name__)

# Versions of the kernels, of Python or of numba that were used lately; a folder takes a few MB.
_KEPT_FOLDERS = 12
_CHECKSUM_BYTES = 16
_COMPILER_BYTES = 64 << 20  # more than a kernel takes: LLVM ends the process where it gets no memory
_PATIENCE_S = 120.0  # with another process that compiles the same kernel: many times its time, unless it was stopped
_POLL_S = 0.02


def kernel(function: Callable[..., None] | None = None, name: str | None = None, **structs: type) -> Callable[..., Any]:
    """Compile `function`, whose arguments are all int64 and which returns nothing, when it is first used.

    Args:
        function: The function to compile; without it, the result is a decorator.
        name: Its name, if not the function's own, which others of its factory have.
        structs: By the name of an argument, which struct it is the address of; a `record` names those that are given beside it.

    The result can be called from Python and from other kernels. It runs without the GIL, never raises (a division by zero gives
    numpy's result), and is kept in the user's cache folder under its module and name, which must be unique.
    """
    if function is None:
        return partial(kernel, name=name, **structs)
    if name is not None:
        function.__name__ = function.__qualname__ = name
    dispatcher = numba.njit(nogil=True, error_model="numpy", pipeline_class=KernelCompiler)(function)
    dispatcher.structs = getattr(structs.get("record"), "beside", {}) | structs
    dispatcher._cache = _KernelCache(function)  # noqa: SLF001 - as Dispatcher.enable_caching does
    # called by numba, too: when Python calls the kernel, and for the signature of a pointer or a number in another one's call
    dispatcher.compile = lambda _: _compile(dispatcher, _signature(dispatcher))
    return dispatcher


def package_kernel(function: Callable[..., None] | None = None, **structs: type) -> Any:
    """Compile a package's function, whose name its file has once, again whenever that file changes; see `kernel`."""
    if function is None:
        return partial(package_kernel, **structs)
    return kernel(function, f"{function.__name__}_{source_key(function)}", **structs)


def helper(function: Callable[..., Any]) -> Any:
    """Compile `function` into the kernels that call it."""
    return numba.njit(nogil=True, error_model="numpy", forceinline=True, pipeline_class=HelperCompiler)(function)


@cache
def address(compiled: Any) -> int:
    """The machine address of a kernel, for `call`: `int32 f(void *result, void *error, int64...)`, numba's own convention."""
    signature = _signature(compiled)
    if signature not in compiled.overloads:
        compiled.compile(signature)
    result = compiled.overloads[signature]
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))


def _compile(compiled: Any, signature: tuple[Any, ...]) -> Any:
    """Load a kernel, or compile it."""
    require_address_space(_COMPILER_BYTES, "compiling a kernel")
    held = compiled._cache.held  # noqa: SLF001 - no thread waits for files of another
    with global_compiler_lock, held, no_collection(), resolved_once():
        return type(compiled).compile(compiled, signature)


def prepare(kernels: Iterable[Any], progress: Callable[[str, int, int], None]) -> None:
    """Load or compile `kernels`, and report how many of the kernels that were not in the cache are there.

    Kernels that other processes are compiling come last, so that processes that start at once share the work.
    """
    kernels = list(kernels)
    missing = [k for k in kernels if _signature(k) not in k.overloads and not k._cache.holds()]  # noqa: SLF001
    total = len(missing)
    for done in range(total):
        progress("compile", done, total)
        free = next((k for k in missing if not k._cache.is_being_written()), missing[0])  # noqa: SLF001
        missing.remove(free)
        address(free)
    if total:
        progress("compile", total, total)
    for compiled in kernels:
        address(compiled)


def _signature(compiled: Any) -> tuple[Any, ...]:
    code, structs = compiled.py_func.__code__, compiled.structs
    names = code.co_varnames[: code.co_argcount]
    return tuple(Pointer(structs[name]) if name in structs else types.int64 for name in names)


@cache
def sources_key() -> bytes:
    """A hash of the sources of all kernels: another one whenever a generator, a layout or a helper was edited."""
    key, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted((root / "kernels").glob("*.py")):
        key.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return key.digest()


@cache
def cache_folder() -> Path:
    """Where compiled kernels lie: a folder named after all that their code depends on.

    The hash covers every file with kernels, so that an edit of a generator or a helper counts, too.
    """
    features = llvmlite.binding.get_host_cpu_features().flatten()
    versions = (sys.version, numba.__version__, llvmlite.__version__, np.__version__)
    key = hashlib.sha256(sources_key() + repr((*versions, llvmlite.binding.get_host_cpu_name(), features)).encode())
    root = Path(platformdirs.user_cache_dir("augury")) / "kernels"
    folder = root / key.hexdigest()[:24]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
    except OSError as error:
        _warn(f"compiled kernels cannot be kept in {folder}: {error.strerror}")
    with suppress(OSError):  # another process may prune, too
        _prune(root)
    return folder


def _prune(root: Path) -> None:
    """Remove the folders that were not used for the longest time."""
    folders = sorted(root.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in folders[_KEPT_FOLDERS:]:
        shutil.rmtree(folder, ignore_errors=True)


class _KernelCache(_Cache):  # type: ignore[misc]
    """numba's cache of one kernel's compiled code: a file each, by module and name.

    A file is a checksum and numba's own pickled result. Machine code with a wrong bit ends the process when it is loaded or
    run, so only data that was written under this very name, for this very CPU, is unpickled.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self.held = ExitStack()  # closed once the kernel is there; until then other processes wait
        self._out: AtomicFile | None = None
        self._name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__.replace('<locals>.', '')}"

    @property
    def cache_path(self) -> str:
        """For numba's statistics."""
        return str(cache_folder())

    def enable(self) -> None:
        """Is always enabled."""

    def disable(self) -> None:
        """Is always enabled."""

    def flush(self) -> None:
        """Forget the compiled code."""
        self._path.unlink(missing_ok=True)

    def holds(self) -> bool:
        """Whether there seems to be code."""
        return self._path.exists()

    def is_being_written(self) -> bool:
        """Whether another process is compiling the kernel."""
        return is_being_written(self._path)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Take compiled code from the cache, or from another process that is making it; None where it must be compiled."""
        target_context.refresh()
        if (found := self.loaded(sig, target_context)) is None:
            self._claim()
            found = self.loaded(sig, target_context)
        return found

    def loaded(self, sig: Any, target_context: Any) -> Any:
        """Compiled code from the cache; None where there is none that can be used."""
        try:
            content = self._path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:  # too many open files, a failing disk: the file may be good and stays
            _warn(f"compiled kernels in {cache_folder()} cannot be read, so they are compiled again: {error.strerror}")
            return None
        checksum, code = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
        if checksum != self._checksum(sig, target_context, code):
            _warn(f"compiled kernels in {cache_folder()} are damaged, so they are compiled again")
            return None
        try:
            return CompileResult._rebuild(target_context, *pickle.loads(code))  # noqa: S301, SLF001 - written by this class
        except MemoryError:  # which says nothing about the file
            raise
        except Exception as error:  # noqa: BLE001 - compiling needs no file
            _warn(f"compiled kernels in {cache_folder()} cannot be used, so they are compiled again: {error!r}")
            return None

    def _claim(self) -> None:
        """Open the file to be written, unless there can be none, once no other process is writing it."""
        until = time.monotonic() + _PATIENCE_S
        self._out = None
        while self._out is None:
            try:
                self._out = self.held.enter_context(AtomicFile(self._path, waits=False))
            except BlockingIOError:
                if time.monotonic() > until:
                    return
                time.sleep(_POLL_S)
            except (FileNotFoundError, NotADirectoryError):  # it could not make the folder, which was said
                return
            except OSError as error:
                self._warn_unkept(error)
                return

    def save_overload(self, sig: Any, data: Any) -> None:
        """Put compiled code into the cache."""
        if self._out is None:
            return
        code = dumps(data._reduce())  # noqa: SLF001 - as numba's own cache does
        try:
            self._out.file.write(self._checksum(sig, data.target_context, code) + code)
            self._out.publish()
        except OSError as error:
            self._warn_unkept(error)

    def _warn_unkept(self, error: OSError) -> None:
        _warn(f"compiled kernels cannot be kept in {cache_folder()}: {error.strerror}")

    @property
    def _path(self) -> Path:
        return cache_folder() / f"{self._name}.kernel"

    def _checksum(self, sig: Any, target_context: Any, code: bytes) -> bytes:
        """The checksum of the code and of its key."""
        label = repr((self._name, cache_folder().name, sig, target_context.codegen().magic_tuple())).encode()
        return xxh3_128_digest(label + b"\0" + code)


@cache
def _warn(message: str) -> None:
    """Log once a message that would be the same for every kernel."""
    _log.warning(message)
