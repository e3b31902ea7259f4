"""Operations of one thread, computed by the CPU as the PTX ISA describes them; they stand for `kernels/instructions.py`."""
# ruff: noqa: F401, PLW0108 - what that module offers; numba compiles functions of Python

from math import frexp, ldexp

import numpy as np
from cuda_simulator.grid import cuda
from cuda_simulator.lanes import Compiler, lane
from cuda_simulator.products import mma16, mma32, mma_halves
from llvmlite import ir
from numba import float32, float64, int32, int64, njit, uint32, uint64

from augury.backends.numba_cpu.kernels.simd import operation

SIMULATED = True


def together(function):
    """Leave a function of a warp or block to Python: its threads can pass on at its meetings."""
    return function


def _typed(signature):
    return njit(signature, pipeline_class=Compiler)


_bits_float = operation("bits_float", float32, (uint32,), lambda b, bits: b.bitcast(bits, ir.FloatType()))
_float_bits = operation("float_bits", uint32, (float32,), lambda b, value: b.bitcast(value, ir.IntType(32)))
_fma = operation("fma", float32, (float32,) * 3, lambda b, x, y, z: b.fma(x, y, z))

float_of = _typed(float32(uint32))(lambda bits: _bits_float(bits))  # the float32 that has these bits
bits_of = _typed(uint32(float32))(lambda value: _float_bits(value))
fma = _typed(float32(float32, float32, float32))(lambda a, b, c: _fma(a, b, c))  # a * b + c, rounded once
mul = _typed(float32(float32, float32))(lambda a, b: a * b)  # never contracted with the next operation
add = _typed(float32(float32, float32))(lambda a, b: a + b)  # never contracted with the previous operation
div = _typed(float32(float32, float32))(lambda a, b: np.float32(np.divide(a, b)))  # rounded to nearest, as the root
root = _typed(float32(float32))(lambda a: np.sqrt(a))
exp = _typed(float32(float32))(lambda a: np.exp(a))
exp64 = _typed(float64(float64))(lambda a: np.exp(a))
log1p = _typed(float32(float32))(lambda a: np.log1p(a))
tanh = _typed(float32(float32))(lambda a: np.tanh(a))
expm1 = _typed(float32(float32))(lambda a: np.expm1(a))
quotient = _typed(int32(int32, int32))(lambda a, b: a // b)  # neither is negative, nor of the remainder
remainder = _typed(int32(int32, int32))(lambda a, b: a % b)
remainder64 = _typed(uint64(uint64, uint64))(lambda a, b: a % b)
# an index of 32 bits, which stays one until it is added to an address: that takes fewer instructions
index_of = _typed(int64(uint32))(lambda i: i)


@_typed(int32(float32))
def nearest(a):
    """The nearest int32, of two the even one; of NaN 0."""
    if not abs(a) < np.float32(2147483648.0):
        return np.int32(0) if np.isnan(a) else np.int32(2147483647 if a > 0 else -2147483648)
    return np.int32(np.rint(a))


@_typed(float32(float32, float32))
def larger(a, b):
    """The larger of two, NaN if either is."""
    if np.isnan(a) or np.isnan(b):
        return np.float32(np.nan)
    return max(a, b)


@_typed(int32(uint32, uint32, int32))
def dp4a(a, b, c):
    """C plus the products of four pairs of signed bytes."""
    total = np.int64(c)
    for i in range(4):
        total += np.int64(np.int8(a >> (8 * i))) * np.int64(np.int8(b >> (8 * i)))
    return np.int32(total)


@_typed(uint32(uint32, uint32, uint32))
def prmt(a, b, selector):
    """Four bytes of the eight of a and b, chosen by a nibble each, whose highest bit asks for the byte's sign instead."""
    both, chosen = np.uint64(a) | np.uint64(b) << np.uint64(32), np.uint64(0)
    for i in range(4):
        nibble = np.uint64(selector >> (4 * i)) & np.uint64(15)
        byte = both >> ((nibble & np.uint64(7)) * np.uint64(8)) & np.uint64(255)
        if nibble & np.uint64(8):
            byte = np.uint64(255) if byte & np.uint64(128) else np.uint64(0)
        chosen |= byte << np.uint64(8 * i)
    return np.uint32(chosen)


@_typed(float32(uint32))
def float_of_half(bits):
    """The float32 of a half, which is in the lower 16 bits."""
    sign, exponent, fraction = (bits & 0x8000) << 16, bits >> 10 & 31, bits & 1023
    if exponent == 31:
        return float_of(np.uint32(sign | 0x7F800000 | fraction << 13))
    if exponent == 0:
        value = np.float32(fraction) * np.float32(2.0**-24)
        return -value if sign else value
    return float_of(np.uint32(sign | (exponent + 112) << 23 | fraction << 13))


@_typed(uint32(float32))
def half_of_float(value):
    """The nearest half, of two the even one, in the lower 16 bits."""
    bits = bits_of(value)
    sign, rest = bits >> 16 & 0x8000, bits & 0x7FFFFFFF
    if rest >= 0x47800000:  # 65536 and more, infinite, NaN
        return np.uint32(sign | (0x7FFF if rest > 0x7F800000 else 0x7C00))
    if rest < 0x38800000:  # a denormal half: steps of 2^-24, which adding 0.5 rounds to
        return np.uint32(sign | (bits_of(float_of(np.uint32(rest)) + np.float32(0.5)) - 0x3F000000))
    return np.uint32(sign | (rest + 0xFFF + (rest >> 13 & 1) - 0x38000000) >> 13)


@njit
def _nearest_half(value):
    """The bits of the half nearest to a float64."""
    if np.isfinite(value):
        step = ldexp(1.0, max(frexp(value)[1] - 11, -24))
        value = np.rint(value / step) * step
    return half_of_float(np.float32(value))


@njit
def _half(bits):
    return np.float64(float_of_half(np.uint32(bits & 0xFFFF)))


@_typed(uint32(uint32, uint32, uint32))
def half2_fma(a, b, c):
    """A * b + c of two halves in a word, rounded once; exact before that where a or b are integers below 2^11."""
    low, high = _half(a) * _half(b) + _half(c), _half(a >> 16) * _half(b >> 16) + _half(c >> 16)
    return np.uint32(_nearest_half(low) | _nearest_half(high) << 16)


lop3 = _typed(uint32(uint32, uint32))(lambda word, mask: word & mask | np.uint32(0x64006400))  # two halves 1024 + bits
half2_mul = _typed(uint32(uint32, uint32))(lambda a, b: half2_fma(a, b, np.uint32(0)))
half2_sub = _typed(uint32(uint32, uint32))(lambda a, b: half2_fma(np.uint32(0x3C003C00), a, b ^ np.uint32(0x80008000)))


@njit
def _refused(pointer, i, n_bytes):
    """All bits, -1 or NaN, where word i is not at a multiple of so many bytes: a device refuses to load so many there."""
    return np.uint32(0xFFFFFFFF) if (pointer.ctypes.data + 4 * i) % n_bytes else np.uint32(0)


@njit
def load16(pointer, i):
    """Four neighbouring words from word i on, at a multiple of 16 bytes, of memory that launches write."""
    refused = _refused(pointer, i, 16)
    return pointer[i] | refused, pointer[i + 1] | refused, pointer[i + 2] | refused, pointer[i + 3] | refused


@njit
def load8(pointer, i):
    """Two neighbouring words from word i on, at a multiple of 8 bytes."""
    refused = _refused(pointer, i, 8)
    return pointer[i] | refused, pointer[i + 1] | refused


weights16, weights8 = load16, load8  # the same of weights, which no launch writes


def bring_near(pointer, i, n_bytes):
    """Have bytes, in sixteens, brought to the nearer memory that all multiprocessors share, where GPUs can."""


def wait_for_launch():
    """Wait for the end of the launch before, where this one may begin earlier; a kernel without this waits first of all.

    Before it a kernel only reads weights, which no launch writes.
    """


@njit
def prefetch(pointer, i):
    """Let the 128 bytes that word i is among come to the nearer memory (L2), where they are soon read from."""


@njit
def read_early(numbers, i):
    """A number, which is read where this is written, not where it is first needed: several are waited for at once."""
    return numbers[i]


@njit
def arrive(counters, i, n):
    """Count one more of n at a place, and return how many were there before; the last of them sets its counter to 0 again.

    A block that comes later sees all that was written before this one came.
    """
    before = counters[i]
    counters[i] = 0 if before == n - 1 else before + 1
    return before
