"""Compile kernels, and keep what was compiled in the user's cache folder.

Two decorators: `kernel` for what the tape, a test or Python calls (every argument an int64: addresses, sizes, indices; no
result), `helper` for what kernels are made of (any types, always inlined, never cached by itself).
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llvmlite
import llvmlite.binding
import numba
import numpy as np
import platformdirs
from numba.core import config, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["address", "cache_folder", "helper", "kernel", "prepare", "sources_key"]

_log = logging.getLogger(__name__)

# LLVM's level: of kernels that spell out their vectors and tiles, level 3 makes no faster code, but takes 1.5 times as long.
_OPTIMISATION = 2
# Versions of the kernels, of Python or of numba that were used lately; a folder takes a few MB.
_KEPT_FOLDERS = 12


def kernel(function: Callable[..., None]) -> Any:
    """Compile `function`, whose arguments are all int64 and which returns nothing, when it is first used.

    The result can be called from Python and from other kernels. It runs without the GIL, never raises (a division by zero
    gives what numpy gives), and is kept in the user's cache folder under its module and name, which must be unique.
    """
    dispatcher = numba.njit(nogil=True, error_model="numpy")(function)
    dispatcher._cache = _KernelCache(function)  # noqa: SLF001 - as Dispatcher.enable_caching does
    return dispatcher


def helper(function: Callable[..., Any]) -> Any:
    """Compile `function` into the kernels that call it."""
    return numba.njit(nogil=True, error_model="numpy", forceinline=True)(function)


def address(compiled: Any) -> int:
    """The machine address of a kernel, for `call`: `int32 f(void *result, void *error, int64...)`, numba's own convention."""
    signature = _signature(compiled)
    if signature not in compiled.overloads:
        _compile(compiled, signature)
    result = compiled.overloads[signature]
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))


def _compile(compiled: Any, signature: tuple[Any, ...]) -> None:
    """Compile at `_OPTIMISATION`, unless numba was told to do less."""
    from numba.core.registry import cpu_target

    assert cpu_target.target_context is not None  # made by now, so that it is made with numba's own level
    level = config.OPT
    config.OPT = type(level)(min(level, _OPTIMISATION))
    try:
        compiled.compile(signature)
    finally:
        config.OPT = level


def prepare(kernels: Iterable[Any], progress: Callable[[str, int, int], None]) -> None:
    """Load or compile `kernels`, and report how many of those that were not in the cache are compiled."""
    kernels = list(kernels)
    missing = [k for k in kernels if _signature(k) not in k.overloads and not k._cache.holds(_signature(k))]  # noqa: SLF001
    for done, compiled in enumerate(missing):
        progress("compile", done, len(missing))
        address(compiled)
    if missing:
        progress("compile", len(missing), len(missing))
    for compiled in kernels:
        address(compiled)


def _signature(compiled: Any) -> tuple[Any, ...]:
    return (types.int64,) * compiled.py_func.__code__.co_argcount


@cache
def sources_key() -> bytes:
    """A hash of this folder's sources: another one whenever a generator, a layout or a helper was edited."""
    key = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        key.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return key.digest()


@cache
def cache_folder() -> Path:
    """Where compiled kernels lie: a folder named after all that their code depends on.

    numba's own index notices edits of a function's file alone; here what is hashed is every file beside this one, so an edit
    of a generator or a helper counts, too.
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
        _log.warning("compiled kernels cannot be kept: %s", error)
    with suppress(OSError):  # another process may prune, too
        _prune(root)
    return folder


def _prune(root: Path) -> None:
    """Remove the folders that were not used for the longest time."""
    folders = sorted(root.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in folders[_KEPT_FOLDERS:]:
        shutil.rmtree(folder, ignore_errors=True)


class _Locator(_CacheLocator):  # type: ignore[misc]
    """Tells numba's cache which files to use."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._module = function.__module__

    @classmethod
    def from_function(cls, py_func: Callable[..., None], py_file: str) -> _Locator:  # noqa: ARG003 - numba's interface
        return cls(py_func)

    def get_cache_path(self) -> str:
        return str(cache_folder())

    def get_source_stamp(self) -> str:
        return cache_folder().name

    def get_disambiguator(self) -> str:
        return self._module.rpartition(".")[2]


class _Implementation(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Locator,)


class _KernelCache(FunctionCache):  # type: ignore[misc]
    """numba's cache of one function, which tells functions apart by name and survives a folder that cannot be used."""

    _impl_class = _Implementation

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        # numba would add a hash of the closure, which holds other kernels and differs from process to process
        return (sig, codegen.magic_tuple())

    def holds(self, signature: tuple[Any, ...]) -> bool:
        """Whether code for this signature seems to be there."""
        from numba.core.registry import cpu_target

        try:
            index = self._cache_file._load_index()  # noqa: SLF001
        except Exception:  # noqa: BLE001 - a damaged file is as good as none
            return False
        return self._index_key(signature, cpu_target.target_context.codegen()) in index

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Take compiled code from the cache; None where there is none that can be used."""
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001 - whatever a damaged file makes of unpickling
            _log.warning("a compiled kernel cannot be read, so it is compiled again: %r", error)
            with suppress(OSError):
                self.flush()  # type: ignore[no-untyped-call]
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Put compiled code into the cache."""
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except OSError as error:
            _log.warning("a compiled kernel cannot be kept: %s", error)
