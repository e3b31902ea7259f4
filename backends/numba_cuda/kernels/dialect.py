"""What kernels are written in: CUDA for hardware, or a simulator of it, chosen once, when this module is imported.

Kernels and lanes use numba's names for threads, barriers, shared and local arrays (`cuda`), and the operations below for all
that has an instruction of its own. On hardware these are inline PTX. With NUMBA_ENABLE_CUDASIM=1, numba's own switch, lanes are
compiled for the CPU by the same typing rules as on the device, and the threads of a block are coroutines (`simulator`): a warp
operation or a barrier passes on to the next, so that what comes of a kernel can be told without a device.

This is the only file with inline PTX. `bits` means an uint32, `float` a float32.
"""

from __future__ import annotations

import os

import numpy as np
from attrs import frozen
from llvmlite import ir

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
WARP = 32
SLICES = 8  # of a row of weights: see `matmul`
THREADS = 64 if SIMULATED else 256  # of a block that works on one token: simulated threads take time

_F32, _I32 = ir.FloatType(), ir.IntType(32)


@frozen(eq=False)
class Kernel:
    """A function for a grid of threads, compiled when it is first needed.

    Attributes:
        function: Its source.
        parameters: A letter each: pointers to uint32 `w`, float32 `f`, int32 `j`, int8 `b`, uint16 `h`; int32 `i`, float32 `r`.
        name: Of the function and what it was made for; unlike any other kernel's.
    """

    function: object
    parameters: str
    name: str


def kernel(parameters, name=None):
    """Decorate a kernel; see `Kernel`."""
    return lambda function: Kernel(function, parameters, name or function.__name__)


if SIMULATED:
    from numba import float32, int32, njit, types, uint32
    from numba.extending import intrinsic

    from augury.backends.numba_cuda.kernels.simulator import cuda, meet

    lane = njit

    def _typed(signature):
        return njit(signature)
else:
    from numba import cuda, float32, int32, types, uint32
    from numba.cuda.extending import intrinsic

    lane = cuda.jit(device=True, forceinline=True)


def _emitted(result, emit, *parameters):
    """An operation whose instructions `emit` writes."""
    names = ", ".join("abcd"[: len(parameters)])
    scope = {"signature": result(*parameters), "emit": lambda _, builder, __, values: emit(builder, values)}
    exec(f"def operation(context, {names}):\n    return signature, emit", scope)  # noqa: S102 - numba reads the parameters' names
    return intrinsic(scope["operation"])


def _ptx(assembly, constraints, result, *parameters):
    """An operation that is inline PTX; without side effects."""

    def emit(builder, values):
        to = {types.float32: _F32, types.int32: _I32, types.uint32: _I32}[result]
        kind = ir.FunctionType(to, [value.type for value in values])
        return builder.asm(kind, assembly, constraints, values, side_effect=False)

    return _emitted(result, emit, *parameters)


_bits_float = _emitted(float32, lambda builder, values: builder.bitcast(values[0], _F32), uint32)
_float_bits = _emitted(uint32, lambda builder, values: builder.bitcast(values[0], _I32), float32)

# Operations of one thread, as the PTX ISA describes them

if SIMULATED:
    _fma = _emitted(float32, lambda builder, values: builder.fma(*values), float32, float32, float32)

    @_typed(float32(uint32))
    def float_of(bits):
        """The float32 that has these bits."""
        return _bits_float(bits)

    @_typed(uint32(float32))
    def bits_of(value):
        """The bits of a float32."""
        return _float_bits(value)

    @_typed(float32(float32, float32, float32))
    def fma(a, b, c):
        """A * b + c, rounded once."""
        return _fma(a, b, c)

    @_typed(float32(float32, float32))
    def mul(a, b):
        """A * b, never contracted with what follows."""
        return a * b

    @_typed(float32(float32, float32))
    def add(a, b):
        """A + b, never contracted with what was before."""
        return a + b

    @_typed(float32(float32, float32))
    def div(a, b):
        """A / b, rounded to nearest."""
        return np.float32(np.divide(a, b))

    @_typed(float32(float32))
    def root(a):
        """The square root, rounded to nearest."""
        return np.sqrt(a)

    @_typed(float32(float32))
    def exp(a):
        """E^a."""
        return np.exp(a)

    @_typed(float32(float32))
    def log1p(a):
        """Ln(1 + a)."""
        return np.log1p(a)

    @_typed(float32(float32))
    def tanh(a):
        """The hyperbolic tangent."""
        return np.tanh(a)

    @_typed(float32(float32))
    def expm1(a):
        """E^a - 1, exact near 0."""
        return np.expm1(a)

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

    @_typed(int32(int32, int32))
    def quotient(a, b):
        """A / b of 32 bits, without the rest; neither is negative."""
        return a // b

    @_typed(int32(int32, int32))
    def remainder(a, b):
        """The rest of a / b; neither is negative."""
        return a % b

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
    def load16(pointer, i):
        """Four neighbouring words from word i on, a multiple of four; what is read often."""
        return pointer[i], pointer[i + 1], pointer[i + 2], pointer[i + 3]

    @njit
    def load8(pointer, i):
        """Two neighbouring words from word i on, which is even."""
        return pointer[i], pointer[i + 1]

    stream16 = load16  # the same of what is read once
else:
    float_of, bits_of = _bits_float, _float_bits
    fma = _ptx("fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", float32, float32, float32, float32)
    mul = _ptx("mul.rn.f32 $0, $1, $2;", "=f,f,f", float32, float32, float32)
    add = _ptx("add.rn.f32 $0, $1, $2;", "=f,f,f", float32, float32, float32)
    div = _ptx("div.rn.f32 $0, $1, $2;", "=f,f,f", float32, float32, float32)
    root = _ptx("sqrt.rn.f32 $0, $1;", "=f,f", float32, float32)
    nearest = _ptx("cvt.rni.s32.f32 $0, $1;", "=r,f", int32, float32)
    larger = _ptx("max.NaN.f32 $0, $1, $2;", "=f,f,f", float32, float32, float32)
    quotient = _ptx("div.s32 $0, $1, $2;", "=r,r,r", int32, int32, int32)
    remainder = _ptx("rem.s32 $0, $1, $2;", "=r,r,r", int32, int32, int32)
    dp4a = _ptx("dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", int32, uint32, uint32, int32)
    prmt = _ptx("prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", uint32, uint32, uint32, uint32)
    float_of_half = _ptx("{ .reg .b16 l, h; mov.b32 {l, h}, $1; cvt.f32.f16 $0, l; }", "=f,r", float32, uint32)
    half_of_float = _ptx("{ .reg .b16 l; cvt.rn.f16.f32 l, $1; cvt.u32.u16 $0, l; }", "=r,f", uint32, float32)

    def _load(instruction, n):
        """An operation that loads n words from a pointer to words and an index."""

        def emit(builder, values):
            pointer, index = values
            where = builder.ptrtoint(builder.gep(pointer, [index]), ir.IntType(64))
            to = ir.LiteralStructType([_I32] * n)
            places = ", ".join(f"${i}" for i in range(n))
            assembly = f"{instruction}.v{n}.u32 {{{places}}}, [${n}];"
            loaded = builder.asm(
                ir.FunctionType(to, [where.type]), assembly, ",".join(["=r"] * n + ["l"]), [where], side_effect=False
            )
            words = ir.Constant(ir.ArrayType(_I32, n), ir.Undefined)
            for i in range(n):
                words = builder.insert_value(words, builder.extract_value(loaded, i), i)
            return words

        return _emitted(types.UniTuple(uint32, n), emit, types.CPointer(uint32), types.int64)

    load16, load8 = _load("ld.global.nc", 4), _load("ld.global.nc", 2)
    stream16 = _load("ld.global.nc.L1::no_allocate", 4)

    from numba.cuda import libdevice

    @lane
    def exp(a):
        """E^a."""
        return libdevice.expf(a)

    @lane
    def log1p(a):
        """Ln(1 + a)."""
        return libdevice.log1pf(a)

    @lane
    def tanh(a):
        """The hyperbolic tangent."""
        return libdevice.tanhf(a)

    @lane
    def expm1(a):
        """E^a - 1, exact near 0."""
        return libdevice.expm1f(a)

# Operations of a warp, which all of its 32 lanes take part in

if SIMULATED:

    def warp_max(value):
        """The largest of all lanes' floats; NaN if one is."""
        return meet(value, lambda values: [np.max(np.array(values, np.float32))] * WARP)

    def warp_sum(value):
        """The sum of all lanes' floats, by a tree of neighbours, pairs of neighbours and so on."""
        return meet(value, lambda values: _tree(values, WARP))

    def warp_sums(sums, n):
        """Let n numbers of every lane be the sums over all lanes, by the same tree."""
        sums[:n] = meet(sums[:n], lambda values: _tree(values, WARP))

    def warp_barrier():
        """Wait for all lanes, and see what they have written."""
        meet(None, lambda values: values)

    def half_warp_sum(value):
        """The sum of the ints of the lower or upper 16 lanes, whichever this lane is of."""
        return meet(value, lambda values: [int(each) for half in (values[:16], values[16:]) for each in [sum(half)] * 16])

    def slice_sums(sums, n):
        """Let n numbers of every lane be the sums over its eight neighbours, by a tree."""
        sums[:n] = meet(sums[:n], lambda values: _tree(values, SLICES))

    def warp_best(value, index):
        """The largest float of all lanes and its index; of equals the lowest, of NaN -1."""

        def best(values):
            found = values[0]
            for other in values[1:]:
                found = better(*found, *other)
            return [found] * WARP

        return meet((value, index), best)

    def _tree(values, n):
        """Of what the lanes have the sums over n neighbours, in float32."""
        sums, step, lanes = np.array(values, np.float32), 1, np.arange(WARP)
        while step < n:
            sums = sums + sums[lanes ^ step]
            step *= 2
        return sums

else:
    _ALL = 0xFFFFFFFF

    @lane
    def warp_max(value):
        """The largest of all lanes' floats; NaN if one is."""
        for step in (1, 2, 4, 8, 16):
            value = larger(value, cuda.shfl_xor_sync(_ALL, value, step))
        return value

    @lane
    def warp_sum(value):
        """The sum of all lanes' floats, by a tree of neighbours, pairs of neighbours and so on."""
        for step in (1, 2, 4, 8, 16):
            value = add(value, cuda.shfl_xor_sync(_ALL, value, step))
        return value

    @lane
    def warp_sums(sums, n):
        """Let n numbers of every lane be the sums over all lanes, by the same tree."""
        for i in range(n):
            sums[i] = warp_sum(sums[i])

    @lane
    def warp_barrier():
        """Wait for all lanes, and see what they have written."""
        cuda.syncwarp()

    @lane
    def half_warp_sum(value):
        """The sum of the ints of the lower or upper 16 lanes, whichever this lane is of."""
        for step in (1, 2, 4, 8):
            value = int32(value + cuda.shfl_xor_sync(_ALL, value, step))
        return value

    @lane
    def slice_sums(sums, n):
        """Let n numbers of every lane be the sums over its eight neighbours, by a tree."""
        for i in range(n):
            value = sums[i]
            for step in (1, 2, 4):
                value = add(value, cuda.shfl_xor_sync(_ALL, value, step))
            sums[i] = value

    @lane
    def warp_best(value, index):
        """The largest float of all lanes and its index; of equals the lowest, of NaN -1."""
        for step in (1, 2, 4, 8, 16):
            value, index = better(value, index, cuda.shfl_xor_sync(_ALL, value, step), cuda.shfl_xor_sync(_ALL, index, step))
        return value, index


@lane
def better(value, index, other, other_index):
    """Of two floats and their indices the larger one; of equals that of the lower index, and any that is NaN, with -1."""
    value, other = np.float32(value), np.float32(other)
    index, other_index = np.int32(index), np.int32(other_index)
    if value != value or index == -1:  # noqa: PLR0124 - NaN
        return value, np.int32(-1)
    if other != other or other_index == -1:  # noqa: PLR0124
        return other, np.int32(-1)
    if other > value or (other == value and other_index < index):
        return other, other_index
    return value, index


together = (lambda function: function) if SIMULATED else lane
"""Decorates a function of a warp or block, which kernels call: of what is done together, only a simulator can pass on."""
