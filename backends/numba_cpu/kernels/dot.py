"""The byte dot product on different CPUs: exact integers, so every target gives the same bits."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import llvmlite.binding
from llvmlite import ir

from augury.backends.numba_cpu.kernels.simd import I8, I16, I16X32, I32, I32X16, call, constant
from augury.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

_HALF_U8, _HALF_I16, _HALF_I32 = ir.VectorType(I8, 32), ir.VectorType(I16, 16), ir.VectorType(I32, 8)


def _split(b: ir.IRBuilder, vector: ir.Value) -> list[ir.Value]:
    """Cut a vector into its lower and upper half."""
    half = vector.type.count // 2
    mask = ir.VectorType(I32, half)
    return [b.shuffle_vector(vector, vector, ir.Constant(mask, list(range(start, start + half)))) for start in (0, half)]


def _join(b: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
    """Put two halves together."""
    count = 2 * low.type.count
    return b.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, count), list(range(count))))


def _avx512vnni(b: ir.IRBuilder, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    return call(b, "llvm.x86.avx512.vpdpbusd.512", I32X16, total, unsigned, signed)


def _avxvnni(b: ir.IRBuilder, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    parts = zip(_split(b, total), _split(b, unsigned), _split(b, signed), strict=True)
    return _join(b, *(call(b, "llvm.x86.avx512.vpdpbusd.256", _HALF_I32, *part) for part in parts))


def _even_odd(b: ir.IRBuilder, unsigned: ir.Value, signed: ir.Value) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """Widen bytes to 16 bits: the even ones of both operands, then the odd ones."""
    u, s = b.bitcast(unsigned, I16X32), b.bitcast(signed, I16X32)
    eight = constant(I16X32, 8)
    return (b.and_(u, constant(I16X32, 255)), b.ashr(b.shl(s, eight), eight)), (b.lshr(u, eight), b.ashr(s, eight))


def _avx2(b: ir.IRBuilder, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    # not vpmaddubsw, which saturates for weights of 8 bits
    for u, s in _even_odd(b, unsigned, signed):
        parts = zip(_split(b, u), _split(b, s), strict=True)
        total = b.add(total, _join(b, *(call(b, "llvm.x86.avx2.pmadd.wd", _HALF_I32, *part) for part in parts)))
    return total


def _generic(b: ir.IRBuilder, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    sixteen = constant(I32X16, 16)
    for u, s in _even_odd(b, unsigned, signed):
        products = b.bitcast(b.mul(u, s), I32X16)  # 255 * -128 still fits in 16 bits
        total = b.add(total, b.ashr(b.shl(products, sixteen), sixteen))
        total = b.add(total, b.ashr(products, sixteen))
    return total


_DOTS: dict[str, Callable[..., ir.Value]] = {
    "avx512vnni": _avx512vnni,
    "avxvnni": _avxvnni,
    "avx2": _avx2,
    "generic": _generic,
}
# Target → what the host must have for it.
_NEEDED = {"avx512vnni": {"avx512vnni", "avx512bw"}, "avxvnni": {"avxvnni"}, "avx2": {"avx2", "fma"}, "generic": set()}


def available_targets() -> list[str]:
    """Name the targets that this host can run, the best first."""
    features = llvmlite.binding.get_host_cpu_features()
    return [target for target, needed in _NEEDED.items() if all(features.get(name, False) for name in needed)]


def choose_target() -> str:
    """Name the target to compile for: what `AUGURY_CPU_TARGET` says, or the best that the host has.

    Raises:
        OptionError: `AUGURY_CPU_TARGET` is not a target that this host can run.
    """
    available = available_targets()
    asked = os.environ.get("AUGURY_CPU_TARGET")
    if asked is None:
        return available[0]
    if asked not in available:
        msg = f"AUGURY_CPU_TARGET is {asked!r}, but this CPU can run {', '.join(available)}; choose one, or unset it"
        raise OptionError(msg)
    return asked


def emit_dot(target: str) -> Callable[..., ir.Value]:
    """Return what emits `total + sums of four products`, lane by lane: (builder, i32x16, u8x64, s8 as u8x64) → i32x16."""
    return _DOTS[target]
