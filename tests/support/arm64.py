"""64-bit ARM on any machine: kernels compiled for it as on a host of its own, and run by the emulator Unicorn.

`pretend()` comes before anything imports numba or kernels, in a process of its own: from then on numba believes that the host
is such a CPU, and a call of a kernel runs in the emulator, which shares this process's memory, block by block as it is touched.
The library calls that compiled code makes are made by the host.
"""

from __future__ import annotations

import ctypes
from functools import partial

import llvmlite.binding
import numpy as np
import unicorn
from unicorn import arm64_const as arm

TRIPLE = "aarch64-unknown-linux-gnu"
CPU = "neoverse-n1"
_PAGE = 4096
_BLOCK = 1 << 20  # of memory that is mapped together: each mapping takes the longer the more there are
_RETURN = _PAGE * 16  # where no kernel lies
_ARGUMENTS = [getattr(arm, f"UC_ARM64_REG_X{index}") for index in range(8)]
_LIBRARY = {"memset": 3, "memcpy": 3, "memmove": 3, "sched_yield": 0}  # C functions and how many arguments they take


class _Features(dict):
    def flatten(self) -> str:
        return ",".join(f"+{name}" for name in sorted(self))


def pretend() -> None:
    """Let numba compile for a CPU of which LLVM says no more than of a real one, and kernels run in an emulator."""
    llvmlite.binding.initialize_all_targets()
    llvmlite.binding.initialize_all_asmprinters()
    llvmlite.binding.get_process_triple = llvmlite.binding.get_default_triple = lambda: TRIPLE
    llvmlite.binding.get_host_cpu_name = lambda: CPU
    llvmlite.binding.get_host_cpu_features = lambda: _Features.fromkeys(["neon", "fp-armv8", "lse", "crc"], True)

    from augury.backends.numba_cpu.kernels import jit

    compile_kernel, emulator = jit.kernel, Emulator()

    def kernel(function=None, name=None, **structs):
        if function is None:
            return partial(kernel, name=name, **structs)
        return _EmulatedKernel(compile_kernel(function, name, **structs), emulator)

    jit.kernel = kernel


def assembly(compiled) -> str:
    """What a kernel is made of: its optimised code, which is kept beside the machine's, written out anew."""
    from augury.backends.numba_cpu.kernels.jit import address

    address(compiled)
    (result,) = compiled.overloads.values()
    return result.library.codegen._tm.emit_assembly(result.library._get_module_for_linking())


class Emulator:
    """A CPU that runs code in this process's memory."""

    def __init__(self) -> None:
        self._cpu = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        self._cpu.ctl_set_cpu_model(arm.UC_CPU_ARM64_MAX)
        self._cpu.reg_write(arm.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # SIMD is allowed
        self._cpu.hook_add(unicorn.UC_HOOK_MEM_UNMAPPED, self._map)
        self._cpu.mem_map(_RETURN, _PAGE)
        self._stack = np.zeros(1 << 20, np.uint8)
        library = ctypes.CDLL(None)
        for name, count in _LIBRARY.items():
            self._forward(getattr(library, name), count)

    def call(self, address: int, *args: int) -> None:
        """Call a function of int64 arguments."""
        top = (self._stack.ctypes.data + self._stack.size - _PAGE) // 16 * 16
        after = np.array(args[len(_ARGUMENTS) :], np.int64)
        top -= -(-after.nbytes // 16) * 16
        ctypes.memmove(top, after.ctypes.data, after.nbytes)
        for register, value in zip(_ARGUMENTS, args, strict=False):
            self._cpu.reg_write(register, value % (1 << 64))
        self._cpu.reg_write(arm.UC_ARM64_REG_SP, top)
        self._cpu.reg_write(arm.UC_ARM64_REG_LR, _RETURN)
        self._cpu.emu_start(address, _RETURN)

    def _map(self, cpu, access, address, size, value, data) -> bool:
        for block in range(address // _BLOCK, (address + max(size, 1) - 1) // _BLOCK + 1):
            cpu.mem_map_ptr(block * _BLOCK, _BLOCK, unicorn.UC_PROT_ALL, block * _BLOCK)
        return True

    def _forward(self, function, count: int) -> None:
        """Let the host do what a function of the C library is called for."""
        function.restype = ctypes.c_void_p

        def run(cpu, address, size, data):
            result = function(*(ctypes.c_void_p(cpu.reg_read(register)) for register in _ARGUMENTS[:count]))
            cpu.reg_write(_ARGUMENTS[0], result or 0)
            cpu.reg_write(arm.UC_ARM64_REG_PC, cpu.reg_read(arm.UC_ARM64_REG_LR))

        address = ctypes.cast(function, ctypes.c_void_p).value
        self._cpu.hook_add(unicorn.UC_HOOK_CODE, run, begin=address, end=address)


class _EmulatedKernel:
    """Is to numba and to the cache the kernel itself; calls run in the emulator."""

    def __init__(self, compiled, emulator: Emulator) -> None:
        self._compiled = compiled
        self._emulator = emulator

    def __call__(self, *args: int) -> None:
        from augury.backends.numba_cpu.kernels.jit import address

        unused = np.zeros(16, np.int64)  # numba's convention has places for a result and an error
        self._emulator.call(address(self), unused.ctypes.data, unused.ctypes.data, *map(int, args))

    def __getattr__(self, name: str):
        return getattr(self._compiled, name)
