"""Kernels → machine code (cubin) for a compute capability. It takes neither a GPU nor a driver, and is kept on disk.

numba makes PTX of a kernel, nvJitLink machine code of that. Cubins are kept by sources alone, the kernels' and this one, so a
machine without a compiler can use another one's: `python -m augury.backends.numba_cuda.aot 8.0 9.0`, in the user's cache.
Nothing else imports numba's compiler, so that another one can take its place.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dis import get_instructions
from functools import cache, partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen
from xxhash import xxh3_128_hexdigest

from augury.backends.numba_cuda.device import ELEMENTS
from augury.backends.numba_cuda.probe import INSTALL, cubins_folder, find_compiler
from augury.blocks import HasKernels
from augury.errors import UnsupportedError
from augury.files.atomic_file import write_atomically
from augury.interfaces import Progress
from augury.log import get_logger

if TYPE_CHECKING:
    from augury.backends.numba_cuda.kernels.dialect import Kernel

_OLD, _NEW = (8, 0), (10, 0)  # from the first to below the second, NVVM makes the same PTX
OVERLAPPING = (9, 0)  # the first capability whose kernels may begin while the one before them ends
_OVERLAP, _WAIT = "\n\tgriddepcontrol.launch_dependents;", "\n\tgriddepcontrol.wait;"


@frozen
class Binary:
    """A kernel's machine code, and its name there."""

    entry: str
    cubin: bytes


def compile_kernel(kernel: Kernel, capabilities: Sequence[tuple[int, int]]) -> list[Binary]:
    """Compile a kernel for compute capabilities, as (9, 0); typing, which takes longest, is done once."""
    return [linked(kernel, *each) for each in zip(ptx_of(kernel, capabilities), capabilities, strict=True)]


def ptx_of(kernel: Kernel, capabilities: Sequence[tuple[int, int]]) -> list[str]:
    """A kernel in PTX for compute capabilities, which rounds every sum and product of floats by itself.

    Without that, the compiler makes a multiplication and an addition one operation here, and two in another kernel.
    """
    library = _library_of(kernel, capabilities[0])
    library._nvvm_options["fma"] = False  # noqa: SLF001 - calls of numba's compiler do not take it
    library._llvm_strs = marked = [_as_written(each) for each in library.llvm_strs]  # noqa: SLF001
    assert library.llvm_strs == marked, "numba compiles other LLVM IR than what was marked"
    is_marked = any("!llvm.loop" in each for each in marked)
    assert is_marked or not _has_loops(kernel), f"no loop was found in the LLVM IR of kernel {kernel.name}, which has some"
    return [library.get_asm_str(cc=_OLD if _OLD <= each < _NEW else each) for each in capabilities]  # which the library keeps


def _has_loops(kernel: Kernel) -> bool:
    """Whether a kernel's own code jumps back."""
    return any("BACKWARD" in each.opname for each in get_instructions(kernel.function.__code__))  # type: ignore[attr-defined]


def _as_written(ir: str) -> str:
    """LLVM IR whose loops are unrolled only if their length is known.

    Others would be written out four times, with a copy for the turns that are left. Threads of a few turns each read that code
    for nothing, and have fewer registers for it.

    A loop is a branch to a label that comes before it, so no branch or label may be overlooked, and no other jump goes back.
    """
    known, aimed, lines, loops = set[str](), set[str](), list[str](), list[int]()
    number = 1 + max((int(each) for each in re.findall(r"^!(\d+) =", ir, re.MULTILINE)), default=0)
    for line in ir.splitlines():
        if line.startswith("define"):
            known.clear()
            aimed.clear()
        if label := re.match(r'"?([\w.$-]+)"?:', line):
            known.add(label[1])
        is_branch, targets = line.lstrip().startswith("br "), re.findall(r'label %"?([\w.$-]+)"?', line)
        assert targets or not is_branch, f"a branch to no label in LLVM IR: {line.strip()}"
        assert is_branch or known.isdisjoint(targets), f"a loop by no branch in LLVM IR: {line.strip()}"
        aimed.update(targets)
        if is_loop := is_branch and not known.isdisjoint(targets):
            loops.append(number + 1 + len(loops))
        lines.append(f"{line}, !llvm.loop !{loops[-1]}" if is_loop else line)
        assert line != "}" or aimed <= known, f"labels of LLVM IR that were not found: {sorted(aimed - known)}"
    if loops:
        lines.append(f'!{number} = !{{!"llvm.loop.unroll.runtime.disable"}}')
        lines += [f"!{loop} = distinct !{{!{loop}, !{number}}}" for loop in loops]
    return "\n".join(lines) + "\n"


def linked(kernel: Kernel, ptx: str, capability: tuple[int, int]) -> Binary:
    """The machine code of a kernel in PTX."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    if capability >= OVERLAPPING:
        ptx = _overlapping(ptx)
    (entry,) = re.findall(r"\.entry (\w+)\(", ptx)
    options = LinkerOptions(arch=f"sm_{capability[0]}{capability[1]}", max_register_count=kernel.most_registers)
    cubin = Linker(ObjectCode.from_ptx(ptx.encode()), options=options).link("cubin").code
    return Binary(entry, bytes(cubin))


def _overlapping(ptx: str) -> str:
    """A kernel that lets the next one come to its multiprocessors at once, and waits there for the end of the one before it.

    It does so first of all, unless it places the wait itself. So only the time to begin and to end overlaps, and to bring
    weights nearer: nothing that another launch writes is read or written earlier.
    """
    from augury.backends.numba_cuda.kernels.instructions import LATER

    ptx = re.sub(r"(?<=\.target )sm_8\d", f"sm_{OVERLAPPING[0]}{OVERLAPPING[1]}", ptx).replace(LATER, "")
    first = _OVERLAP if _WAIT.strip() in ptx else _OVERLAP + _WAIT
    return re.sub(r"(?<=\n)(\.visible )?(\.entry [^{]*\{)", rf"\g<0>{first}", ptx, count=1)


def _library_of(kernel: Kernel, capability: tuple[int, int]) -> Any:
    """A kernel typed and lowered, as `numba.cuda.compile_ptx` does before it makes PTX for one compute capability."""
    from numba import types
    from numba.cuda import compiler

    kinds = {letter: types.CPointer(getattr(types, np.dtype(element).name)) for letter, element in ELEMENTS.items()}
    kinds |= {"i": types.int32, "r": types.float32}
    of_kernel = (
        kinds[each] if isinstance(each, str) else types.BaseTuple.from_types([kinds[letter] for letter in each.letters], each)
        for each in kernel.kinds
    )
    signature = types.void(*of_kernel)
    lower = compiler._compile_pyfunc_with_fixup  # noqa: SLF001 - the public function types anew for each capability
    with _compiling_for(capability):
        library, _ = lower(kernel.function, signature, device=False, cc=capability, abi="numba")
    return library


@contextmanager
def _compiling_for(capability: tuple[int, int]) -> Iterator[None]:
    """Let numba take the device for one of this capability: to type a kernel's calls, it asks the device, not its caller.

    It also leaves out useless passes here, what it has resolved before, and garbage collection: it makes little garbage.
    """
    from numba.cuda import compiler, dispatcher

    from augury.backends.numba_cpu.kernels.compiler import USELESS, no_collection, resolved_once

    class Compiler(compiler.CUDACompiler):  # type: ignore[misc]
        def define_pipelines(self) -> list[Any]:
            (passes,) = super().define_pipelines()
            passes.passes = [(each, what) for each, what in passes.passes if each.__name__ not in USELESS]
            passes.finalize()
            return [passes]

    ask, pipeline = dispatcher.get_current_device, compiler.CUDACompiler
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    compiler.CUDACompiler = Compiler
    try:
        with no_collection(), resolved_once():
            yield
    finally:
        dispatcher.get_current_device, compiler.CUDACompiler = ask, pipeline


def all_kernels() -> list[Kernel]:
    """Every kernel that any model may need, of a package those of its emitters' modules and of modules that these import."""
    from augury.backends.numba_cuda import kernels
    from augury.backends.numba_cuda.kernels.dialect import Kernel

    for entry in entry_points(group="augury"):
        with suppress(Exception):  # of a package that is broken no model is loaded
            entry.load()
    emitters = [kind.kernel_for("numba-cuda") for kind in _kinds_of(HasKernels)]
    names = [module.name for module in iter_modules(kernels.__path__, f"{kernels.__name__}.")]
    modules = [import_module(name) for name in names]
    for own in (import_module(emitter.__module__) for emitter in emitters if emitter is not None):
        modules += [own, *(value for value in vars(own).values() if isinstance(value, ModuleType))]
    found: dict[str, Kernel] = {}
    for module in modules:
        for value in vars(module).values():
            for each in value.values() if isinstance(value, dict) else (value,):
                if isinstance(each, Kernel):
                    found[each.name] = each
    return list(found.values())


def _kinds_of(kind: type[HasKernels]) -> Iterator[type[HasKernels]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds_of(each)


class Compiler:
    """Compiles for one compute capability the kernels that no earlier start has compiled.

    Attributes:
        capability: As (8, 0): machine code for 8.0 runs on 8.6 and 8.9, too, and so on, so there is none for these.
        folder: Where machine code is kept.
    """

    def __init__(self, capability: tuple[int, int], folder: Path | None = None) -> None:
        self.capability = (capability[0], 0)
        self.folder = (folder or cubins_folder()) / f"sm_{capability[0]}0-{_key()}"

    def binaries(self, kernels: Sequence[Kernel], progress: Progress) -> dict[str, Binary]:
        """The machine code of kernels by name. Raises UnsupportedError: some is not kept, and there is no compiler."""
        made = {}
        for i, kernel in enumerate(kernels):
            progress("compile kernels", i, len(kernels))
            made[kernel.name] = self._kept(kernel) or self._made(kernel)
        progress("compile kernels", len(kernels), len(kernels))
        return made

    def keep(self, kernel: Kernel, binary: Binary) -> None:
        """Keep the machine code of a kernel for later starts."""
        entry = binary.entry.encode()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            content = b"\n".join([_checksum(entry, binary.cubin), entry, binary.cubin])
            write_atomically(self.folder / f"{kernel.name}.cubin", content)
        except OSError as error:
            _warn(f"compiled kernels cannot be kept in {self.folder}: {error.strerror}")

    def _kept(self, kernel: Kernel) -> Binary | None:
        try:
            checksum, entry, cubin = (self.folder / f"{kernel.name}.cubin").read_bytes().split(b"\n", 2)
        except (OSError, ValueError):  # there is none, or not the whole of one
            return None
        return Binary(entry.decode(), cubin) if checksum == _checksum(entry, cubin) else None

    def _made(self, kernel: Kernel) -> Binary:
        if find_compiler() is None:
            there_is_none = (
                f"kernel {kernel.name} is not compiled for compute capability {self.capability[0]}.0, and there is no"
            )
            raise UnsupportedError(f"{there_is_none} libnvvm, which compiles it; {INSTALL}")
        if not hasattr(np, "row_stack"):  # which numba-cuda 0.30 types, and numpy 2.5 has dropped
            found = f"numba-cuda compiles no kernel with numpy {np.__version__}"
            raise UnsupportedError(f"{found}, expected numpy below 2.5; pip install 'numpy<2.5'")
        (binary,) = compile_kernel(kernel, [self.capability])
        self.keep(kernel, binary)
        return binary


def _checksum(entry: bytes, cubin: bytes) -> bytes:
    return xxh3_128_hexdigest(entry + b"\n" + cubin).encode()


@cache
def _key() -> str:
    """The key of machine code: the sources of all kernels, and how they are compiled."""
    folder = Path(__file__).parent
    paths = [Path(__file__), folder.parent / "numba_cpu/kernels/compiler.py", *sorted((folder / "kernels").glob("*.py"))]
    return xxh3_128_hexdigest(b"\0".join(path.read_bytes() for path in paths))


@cache
def _warn(message: str) -> None:
    """Log once a message that would be the same for every kernel."""
    get_logger("augury.backends.numba_cuda").warning(message)


def _keep_kernel(number: int, capabilities: Sequence[tuple[int, int]]) -> None:
    """Compile one of all kernels and keep it."""
    kernel = all_kernels()[number]
    for capability, binary in zip(capabilities, compile_kernel(kernel, capabilities), strict=True):
        Compiler(capability).keep(kernel, binary)


if __name__ == "__main__":
    capabilities = [(int(major), int(minor)) for major, minor in (each.split(".") for each in sys.argv[1:])]
    with ProcessPoolExecutor() as pool:
        for _ in pool.map(partial(_keep_kernel, capabilities=capabilities), range(len(all_kernels()))):
            pass
