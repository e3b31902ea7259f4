"""The instruction sets that kernels are generated for, which of them this host has, and the byte dot product of each.

A `Dot` multiplies logical vectors of weights (unsigned bytes) with columns of activations (signed bytes from -127 to 127) and
adds products in fours to 32-bit lanes, in one instruction, or through sums of 16 bits that it empties before they can overflow:
exact integers, so every instruction set gives the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import llvmlite.binding
from attrs import evolve, frozen
from llvmlite import ir

from augury.backends.numba_cpu.kernels.simd import I1, I8, I16, I16X32, I32, I32X16, U8X64, call, constant
from augury.backends.numba_cpu.tiles import LEAST_FOR_TILES, permission
from augury.errors import OptionError

_U8X32, _I16X16, _I32X8 = ir.VectorType(I8, 32), ir.VectorType(I16, 16), ir.VectorType(I32, 8)


def _cut(b: ir.IRBuilder, vector: ir.Value, n_parts: int) -> list[ir.Value]:
    """Cut a vector into parts of equal size, the lowest lanes first."""
    if n_parts == 1:
        return [vector]
    size = vector.type.count // n_parts
    mask = ir.VectorType(I32, size)
    starts = range(0, vector.type.count, size)
    return [b.shuffle_vector(vector, vector, ir.Constant(mask, list(range(start, start + size)))) for start in starts]


def _join(b: ir.IRBuilder, parts: Sequence[ir.Value]) -> ir.Value:
    """Put the parts of a vector together."""
    if len(parts) == 1:
        return parts[0]
    low, high = _join(b, parts[: len(parts) // 2]), _join(b, parts[len(parts) // 2 :])
    count = 2 * low.type.count
    return b.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, count), list(range(count))))


def _signed(b: ir.IRBuilder, weights: ir.Value) -> ir.Value:
    """Take 128 from unsigned bytes."""
    return b.xor(weights, constant(U8X64, 0x80))


class Dot:
    """Sums of products of weights of up to `bits` bits; this one through plain 16-bit products, on any CPU."""

    def __init__(self, bits: int) -> None:
        """Choose the products for such weights."""
        self.bits = bits

    @property
    def takes_128(self) -> bool:
        """Whether 128 is taken from weights of 8 bits before they are multiplied."""
        return False

    def operand(self, _: ir.IRBuilder, weights: ir.Value) -> Any:
        """Prepare a vector of weights for products with several tokens."""
        return weights

    def start(self, first: Callable[[], ir.Value]) -> Any:
        """Begin a sum with the number that `first` emits, i32x16."""
        return first()

    def add(self, b: ir.IRBuilder, total: Any, operand: Any, columns: ir.Value) -> Any:
        """Return the sum with four more products in each lane."""
        u, s, eight, sixteen = b.bitcast(operand, I16X32), b.bitcast(columns, I16X32), constant(I16X32, 8), constant(I32X16, 16)
        even = b.and_(u, constant(I16X32, 255)), b.ashr(b.shl(s, eight), eight)
        for x, y in (even, (b.lshr(u, eight), b.ashr(s, eight))):
            products = b.bitcast(b.mul(x, y), I32X16)  # 255 * -127 still fits in 16 bits
            total = b.add(total, b.ashr(b.shl(products, sixteen), sixteen))
            total = b.add(total, b.ashr(products, sixteen))
        return total

    def keep_order(self, _: ir.IRBuilder, totals: Sequence[Any]) -> Sequence[Any]:
        """Return the sums of a tile so that LLVM computes nothing that follows before them."""
        return totals

    def end(self, _: ir.IRBuilder, total: Any) -> ir.Value:
        """Return the sum, i32x16."""
        return total


class InstructionDot(Dot):
    """Products by an instruction, which takes an `n_parts`-th of a vector."""

    def __init__(self, bits: int, name: str, n_parts: int) -> None:
        super().__init__(bits)
        self.name, self.n_parts = name, n_parts

    def add(self, b: ir.IRBuilder, total: Any, operand: Any, columns: ir.Value) -> Any:
        parts = zip(*(_cut(b, each, self.n_parts) for each in (total, operand, columns)), strict=True)
        return _join(b, [call(b, self.name, part[0].type, *part) for part in parts])


@frozen
class _Pairs:
    """A sum in the making: its first number, sums of 32 bits, and `n_pending` products in sums of 16 bits."""

    first: Callable[[], ir.Value]
    whole: ir.Value | None = None
    pending: ir.Value | None = None
    n_pending: int = 0

    def empty(self, b: ir.IRBuilder) -> _Pairs:
        """Add what is pending to the sums of 32 bits, by pairs (vpmaddwd)."""
        if self.pending is None:
            return self
        ones = constant(_I16X16, 1)
        halves = [call(b, "llvm.x86.avx2.pmadd.wd", _I32X8, half, ones) for half in _cut(b, self.pending, 2)]
        sums = _join(b, halves)
        return _Pairs(self.first, sums if self.whole is None else b.add(self.whole, sums))


class Avx2Dot(Dot):
    """Pairs of products in 16 bits (vpmaddubsw), as many as fit, then pairs of those in 32 bits (vpmaddwd).

    The sum saturates, so weights of 8 bits are made signed, and their sign given to the activations: 2 * 128 * 127 fits. The
    first number is added last, as there are 16 registers, of which the sums of a tile take 8.
    """

    @property
    def takes_128(self) -> bool:
        return self.bits == 8

    def operand(self, b: ir.IRBuilder, weights: ir.Value) -> Any:
        if not self.takes_128:
            return weights, None
        signed = _signed(b, weights)
        return call(b, "llvm.abs.v64i8", U8X64, signed, ir.Constant(I1, 0)), signed

    def start(self, first: Callable[[], ir.Value]) -> _Pairs:
        return _Pairs(first)

    def add(self, b: ir.IRBuilder, total: _Pairs, operand: Any, columns: ir.Value) -> _Pairs:
        unsigned, signs = operand
        parts = _cut(b, columns, 2)
        if signs is not None:
            parts = [call(b, "llvm.x86.avx2.psign.b", _U8X32, *pair) for pair in zip(parts, _cut(b, signs, 2), strict=True)]
        pairs = zip(_cut(b, unsigned, 2), parts, strict=True)
        products = _join(b, [call(b, "llvm.x86.avx2.pmadd.ub.sw", _I16X16, *pair) for pair in pairs])
        pending = products if total.pending is None else b.add(total.pending, products)
        total = evolve(total, pending=pending, n_pending=total.n_pending + 1)
        largest = 128 if self.takes_128 else (1 << self.bits) - 1
        return total.empty(b) if (total.n_pending + 1) * largest * 2 * 127 > 0x7FFF else total

    def keep_order(self, b: ir.IRBuilder, totals: Sequence[_Pairs]) -> Sequence[_Pairs]:
        """Pass the sums through an empty instruction that may change memory, unless they take two registers each.

        LLVM would multiply a half of a block token by token: so it loads 16 registers of weights, and keeps most on the stack.
        """
        one = totals[0]  # all are as far
        if one.whole is not None and one.pending is not None:
            return totals
        name = "pending" if one.whole is None else "whole"
        parts = [part for total in totals for part in _cut(b, getattr(total, name), 2)]
        result = ir.LiteralStructType([part.type for part in parts])
        same = [*["=x"] * len(parts), *map(str, range(len(parts))), "~{memory}"]
        passed = b.asm(ir.FunctionType(result, [part.type for part in parts]), "", ",".join(same), parts, side_effect=True)
        out = [b.extract_value(passed, i) for i in range(len(parts))]
        halves = zip(out[::2], out[1::2], strict=True)
        return [evolve(total, **{name: _join(b, pair)}) for total, pair in zip(totals, halves, strict=True)]

    def end(self, b: ir.IRBuilder, total: _Pairs) -> ir.Value:
        whole = total.empty(b).whole
        return total.first() if whole is None else b.add(whole, total.first())


class NeonDot(InstructionDot):
    """Products of signed bytes (sdot), in which weights of up to 7 bits have the same value as unsigned."""

    @property
    def takes_128(self) -> bool:
        return self.bits == 8

    def operand(self, b: ir.IRBuilder, weights: ir.Value) -> Any:
        return _signed(b, weights) if self.takes_128 else weights


def look_up(b: ir.IRBuilder, table: Sequence[int], indices: ir.Value) -> ir.Value:
    """Choose table[index] by the bits of the index, from any two candidates one; the table has 8 or 16 values."""
    candidates: list[ir.Value] = [constant(U8X64, value) for value in table]
    for bit in range(len(table).bit_length() - 1):
        is_set = b.icmp_unsigned("!=", b.and_(indices, constant(U8X64, 1 << bit)), constant(U8X64, 0))
        candidates = [b.select(is_set, high, low) for low, high in zip(candidates[::2], candidates[1::2], strict=True)]
    return candidates[0]


def look_up_by(name: str, llvm: ir.VectorType) -> Callable[..., ir.Value]:
    """Make the function that looks up with an instruction whose table is repeated in every 16 bytes."""

    def emit(b: ir.IRBuilder, table: Sequence[int], indices: ir.Value) -> ir.Value:
        repeated = ir.Constant(llvm, list(table) * (llvm.count // len(table)))
        parts = _cut(b, indices, 64 // llvm.count)
        return _join(b, [call(b, name, llvm, repeated, part) for part in parts])

    return emit


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
