"""The instruction sets that kernels are generated for, and which of them this host has."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial

import llvmlite.binding
from attrs import frozen
from llvmlite import ir

from augury.backends.numba_cpu.kernels.dot import Avx2Dot, Dot, InstructionDot, NeonDot, look_up, look_up_by
from augury.backends.numba_cpu.kernels.simd import I8, U8X64
from augury.backends.numba_cpu.tiles import LEAST_FOR_TILES, permission
from augury.errors import OptionError


@frozen
class InstructionSet:
    """The instructions of a kind of CPU, as the kernels see them.

    Attributes:
        needed: features that the host must have.
        dot: makes the dot product for weights of some bits.
        look_up: emits table[index] for 16 bytes and vectors of indices: (builder, table, u8x64) → u8x64.
        tiles: tokens per tile, the largest first, by where weights come from. Larger tiles spill registers, which costs more
            than it saves.
        n_fused: passes of up to so many tokens unpack weights in registers, again for each tile, larger ones once, to scratch:
            for types that are unpacked easily, and for others.
        n_together: tiles of up to so many tokens, likewise, run through memory once, for both groups of rows; larger ones work
            on one group after the other, as the sums of both do not fit into registers.
    """

    needed: frozenset[str]
    dot: Callable[[int], Dot]
    look_up: Callable[..., ir.Value]
    tiles: dict[str, tuple[int, ...]]
    n_fused: tuple[int, int]
    n_together: dict[str, int]

    def runs(self, place: str, n_tokens: int) -> tuple[tuple[int, ...], ...]:
        """Name the groups of rows of each run through memory of a tile of `n_tokens`."""
        return ((0, 1),) if n_tokens <= self.n_together[place] else ((0,), (1,))


_WIDE = (
    {"packed": (8, 7, 6, 5, 4, 3, 2, 1), "scratch": (6, 2, 1), "float": (4, 1)},
    (24, 24),
    {"packed": 4, "scratch": 6, "float": 4},
)
_NARROW = {"packed": (4, 2, 1), "scratch": (4, 2, 1), "float": (4, 2, 1)}, (8, 4), {"packed": 1, "scratch": 1, "float": 2}


def _vpdpbusd(n_bits: int) -> Callable[[int], Dot]:
    return partial(InstructionDot, name=f"llvm.x86.avx512.vpdpbusd.{n_bits}", n_parts=512 // n_bits)


_AVX512 = _vpdpbusd(512), look_up_by("llvm.x86.avx512.pshuf.b.512", U8X64), *_WIDE
_pshufb = look_up_by("llvm.x86.avx2.pshuf.b", ir.VectorType(I8, 32))
# The best first. Products of quantised weights are by tiles of bfloat16 where `amx.TILES` has the name, see there.
ISAS = {
    "amx": InstructionSet(
        frozenset({"amx-tile", "amx-bf16", "avx512bf16", "avx512fp16", "avx512vnni", "avx512bw"}),
        *_AVX512,
    ),
    "avx512vnni": InstructionSet(frozenset({"avx512vnni", "avx512bw"}), *_AVX512),
    "avxvnni": InstructionSet(frozenset({"avxvnni", "avx2"}), _vpdpbusd(256), _pshufb, *_NARROW),
    "avx2": InstructionSet(frozenset({"avx2", "fma"}), Avx2Dot, _pshufb, *_NARROW),
    "neondot": InstructionSet(
        frozenset({"dotprod"}),
        partial(NeonDot, name="llvm.aarch64.neon.sdot.v4i32.v16i8", n_parts=4),
        look_up_by("llvm.aarch64.neon.tbl1.v16i8", ir.VectorType(I8, 16)),
        *_NARROW,
    ),
    "generic": InstructionSet(frozenset(), Dot, look_up, *_NARROW),
}


# LLVM makes one `sdot` of this where it knows that the CPU has it.
_SUM_OF_PRODUCTS = """
declare i32 @llvm.vector.reduce.add.v16i32(<16 x i32>)
define i32 @dot(<16 x i8> %a, <16 x i8> %b) {
  %x = sext <16 x i8> %a to <16 x i32>
  %y = sext <16 x i8> %b to <16 x i32>
  %products = mul <16 x i32> %x, %y
  %sum = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %products)
  ret i32 %sum
}"""


def available_isas() -> list[str]:
    """Name the instruction sets that this host can run, the best first."""
    return [name for name in _known_isas() if name != "amx" or not permission()]


def _known_isas() -> list[str]:
    """Name the instruction sets that the CPU has, whether the system lets this process use them or not."""
    features = host_features()
    return [name for name, isa in ISAS.items() if isa.needed <= features]


@cache
def host_features() -> frozenset[str]:
    """The features that numba compiles for: LLVM's list of the host's features, unless numba is told otherwise."""
    triple, cpu, features = _target()
    found = {feature[1:] for feature in features.split(",") if feature.startswith("+")}
    if triple.startswith(("aarch64", "arm64")):
        # LLVM lists few features or none of ARM CPUs, but knows the instructions of most by their names
        machine = llvmlite.binding.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features)
        if "sdot" in machine.emit_assembly(llvmlite.binding.parse_assembly(_SUM_OF_PRODUCTS)):
            found.add("dotprod")
    return frozenset(found)


def is_zen() -> bool:
    """Whether kernels are compiled for an AMD Zen."""
    return _target()[1].startswith("znver")


def _target() -> tuple[str, str, str]:
    """Triple, CPU and features that numba compiles for."""
    from numba.core.registry import cpu_target

    target: tuple[str, str, str] = cpu_target.target_context.codegen().magic_tuple()
    return target


def choose_isa(n_bytes: int = 0) -> str:
    """Name the instruction set to compile for: `AUGURY_CPU_ISA`, or the best that the host has.

    Args:
        n_bytes: The bytes of the model file; see `LEAST_FOR_TILES`.

    Raises:
        OptionError: `AUGURY_CPU_ISA` is not an instruction set that this host can run.
    """
    asked = os.environ.get("AUGURY_CPU_ISA")
    if asked is None:
        return next(name for name in available_isas() if name != "amx" or n_bytes >= LEAST_FOR_TILES)
    if asked not in (available := available_isas()):
        why = f" ({permission()})" if asked in _known_isas() else ""
        msg = f"AUGURY_CPU_ISA is {asked!r}{why}, but this CPU can run {', '.join(available)}; choose one, or unset it"
        raise OptionError(msg)
    return asked
