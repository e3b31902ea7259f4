"""Operations of one thread that have an instruction of their own, as the PTX ISA describes them; see `dialect`.

This is the only file with inline PTX. `bits` means an uint32, `float` a float32.
"""
# ruff: noqa: PLW0108 - numba compiles functions of Python

import os
from functools import cache
from math import frexp, ldexp

import numpy as np
from llvmlite import ir

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"

_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
LATER = "//9.0 "  # a mark before instructions that GPUs have from 9.0 on, which `aot` takes off for these

if SIMULATED:
    from numba import float32, float64, int32, int64, njit, types, uint32, uint64
    from numba.extending import intrinsic

    from augury.backends.numba_cpu.kernels.compiler import HelperCompiler, KernelCompiler
    from augury.backends.numba_cuda.kernels.simulator import cuda as cuda  # noqa: PLC0414 - offered to packages

    # Lanes are compiled as numba-cpu's kernels and helpers are, but in less time, which is most of a kernel test's.
    class Compiler(KernelCompiler):
        """Numba's pipeline for functions that Python calls."""

        optimisation = 1

    class _InnerCompiler(HelperCompiler):
        optimisation = 1

    def lane(function):
        """Compile `function` when it is first called, by Python or by another lane, for the types that it is called with."""
        called, inner = njit(pipeline_class=Compiler)(function), cache(lambda: njit(pipeline_class=_InnerCompiler)(function))
        called.get_call_template = lambda *types: inner().get_call_template(*types)  # numba asks for other lanes
        called.get_overload = lambda signature: inner().get_overload(signature)
        return called

    def _typed(signature):
        return njit(signature, pipeline_class=Compiler)
else:
    from numba import cuda, float32, int32, int64, types, uint32, uint64
    from numba.cuda.extending import intrinsic

    lane = cuda.jit(device=True, forceinline=True)


def _emitted(result, emit, *parameters):
    """An operation whose instructions `emit` writes."""
    names = ", ".join("abcdefghij"[: len(parameters)])
    scope = {"signature": result(*parameters), "emit": lambda _, builder, __, values: emit(builder, values)}
    exec(f"def operation(context, {names}):\n    return signature, emit", scope)  # noqa: S102 - numba reads the parameters' names
    return intrinsic(scope["operation"])


def _ptx(assembly, constraints, result, *parameters):
    """An operation that is inline PTX; without side effects."""

    def emit(builder, values):
        to = {types.float32: _F32, types.int32: _I32, types.uint32: _I32, types.int64: _I64, types.uint64: _I64}[result]
        kind = ir.FunctionType(to, [value.type for value in values])
        return builder.asm(kind, assembly, constraints, values, side_effect=False)

    return _emitted(result, emit, *parameters)


_bits_float = _emitted(float32, lambda builder, values: builder.bitcast(values[0], _F32), uint32)
_float_bits = _emitted(uint32, lambda builder, values: builder.bitcast(values[0], _I32), float32)

if SIMULATED:
    _fma = _emitted(float32, lambda builder, values: builder.fma(*values), float32, float32, float32)

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
else:
    float_of, bits_of = _bits_float, _float_bits
    fma = _ptx("fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", float32, float32, float32, float32)
    mul = _ptx("mul.rn.f32 $0, $1, $2;", "=f,f,f", float32, float32, float32)
    add = _ptx("add.rn.f32 $0, $1, $2;", "=f,f,f", float32, float32, float32)
    div = _ptx("div.rn.f32 $0, $1, $2;", "=f,f,f", float32, float32, float32)
    root = _ptx("sqrt.rn.f32 $0, $1;", "=f,f", float32, float32)
    nearest = _ptx("cvt.rni.s32.f32 $0, $1;", "=r,f", int32, float32)
    larger = _ptx("max.NaN.f32 $0, $1, $2;", "=f,f,f", float32, float32, float32)
    # not inline PTX, which would divide by a constant, too
    quotient = _emitted(int32, lambda builder, values: builder.sdiv(*values), int32, int32)
    remainder = _emitted(int32, lambda builder, values: builder.srem(*values), int32, int32)
    remainder64 = _emitted(uint64, lambda builder, values: builder.urem(*values), uint64, uint64)
    index_of = _ptx("cvt.u64.u32 $0, $1;", "=l,r", int64, uint32)
    dp4a = _ptx("dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", int32, uint32, uint32, int32)
    prmt = _ptx("prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", uint32, uint32, uint32, uint32)
    float_of_half = _ptx("{ .reg .b16 l, h; mov.b32 {l, h}, $1; cvt.f32.f16 $0, l; }", "=f,r", float32, uint32)
    half_of_float = _ptx("{ .reg .b16 l; cvt.rn.f16.f32 l, $1; cvt.u32.u16 $0, l; }", "=r,f", uint32, float32)

    lop3 = _ptx("lop3.b32 $0, $1, $2, 0x64006400, 0xEA;", "=r,r,r", uint32, uint32, uint32)
    half2_fma = _ptx("fma.rn.f16x2 $0, $1, $2, $3;", "=r,r,r,r", uint32, uint32, uint32, uint32)
    half2_mul = _ptx("mul.rn.f16x2 $0, $1, $2;", "=r,r,r", uint32, uint32, uint32)
    half2_sub = _ptx("sub.rn.f16x2 $0, $1, $2;", "=r,r,r", uint32, uint32, uint32)

    def _load(instruction, n, *, is_written):
        """An operation that loads n words from a pointer to words and an index.

        Words that launches write are loaded where this is written: not before the launch before has ended, nor a barrier.
        """

        def emit(builder, values):
            pointer, index = values
            where = builder.ptrtoint(builder.gep(pointer, [index]), ir.IntType(64))
            to = ir.LiteralStructType([_I32] * n)
            places = ", ".join(f"${i}" for i in range(n))
            assembly = f"{instruction}.v{n}.u32 {{{places}}}, [${n}];"
            constraints = ",".join(["=r"] * n + ["l"] + ["~{memory}"] * is_written)
            kind = ir.FunctionType(to, [where.type])
            return _tuple(builder, builder.asm(kind, assembly, constraints, [where], is_written), n)

        return _emitted(types.UniTuple(uint32, n), emit, types.CPointer(uint32), types.int64)

    def _tuple(builder, found, n, kind=_I32):
        """The form in numba of a tuple of n words, or of another kind, that inline PTX gives."""
        words = ir.Constant(ir.ArrayType(kind, n), ir.Undefined)
        for i in range(n):
            words = builder.insert_value(words, builder.extract_value(found, i), i)
        return words

    # `nc` reads by a cache that does not see what other multiprocessors write meanwhile, as the launch before may still do
    load16, load8 = (_load("ld.global", n, is_written=True) for n in (4, 2))
    weights16, weights8 = _load("ld.global.nc.L1::no_allocate", 4, is_written=False), _load("ld.global.nc", 2, is_written=False)

    def _at(assembly, constraints, pointee, *parameters):
        """An operation at a place (pointer, index) that is not to be moved; its result is an int32, or 0 where it has none."""
        to = _I32 if constraints.startswith("=r") else ir.VoidType()

        def emit(builder, values):
            pointer, index, *others = values
            where = builder.ptrtoint(builder.gep(pointer, [index]), _I64)
            kind = ir.FunctionType(to, [_I64, *[_I32] * len(others)])
            made = builder.asm(kind, assembly, constraints, [where, *others], True)
            return made if to is _I32 else ir.Constant(_I32, 0)

        return _emitted(int32, emit, types.CPointer(pointee), types.int64, *parameters)

    read_early = _at("ld.global.s32 $0, [$1];", "=r,l", int32)
    prefetch = _at("prefetch.global.L2 [$0];", "l", uint32)
    bring_near = _at(f"{LATER}cp.async.bulk.prefetch.L2.global [$0], $1;", "l,r", uint32, uint32)
    _ADD_ONE = "{ .reg .u32 most; sub.u32 most, $2, 1; atom.acq_rel.gpu.global.inc.u32 $0, [$1], most; }"
    arrive = _at(_ADD_ONE, "=r,l,r,~{memory}", uint32, int32)

    def _wait_for_launch(builder, _):
        builder.asm(ir.FunctionType(ir.VoidType(), []), f"{LATER}griddepcontrol.wait;", "~{memory}", [], True)
        return ir.Constant(_I32, 0)

    wait_for_launch = _emitted(int32, _wait_for_launch)

    def _mma(shape, kind, n_words, n_sums=0):
        """Products of two matrices, added to sums; of the words of their fragments a third are the second one's."""
        result, letter = (float32, "f") if kind is _F32 else (int32, "r")

        def emit(builder, values):
            places = [f"${i}" for i in range(4 + n_words + n_sums)]
            second, sums = 4 + 2 * n_words // 3, 4 + n_words
            parts = (places[:4], places[4:second], places[second:sums], places[sums:] or ["0"] * 4)
            assembly = f"mma.sync.aligned.{shape} {', '.join('{' + ', '.join(part) + '}' for part in parts)};"
            function = ir.FunctionType(ir.LiteralStructType([kind] * 4), [_I32] * n_words + [kind] * n_sums)
            constraints = ",".join([f"={letter}"] * 4 + ["r"] * n_words + [letter] * n_sums)
            made = builder.asm(function, assembly, constraints, values, True)  # of a warp: not to be moved
            return _tuple(builder, made, 4, kind)

        return _emitted(types.UniTuple(result, 4), emit, *[uint32] * n_words, *[result] * n_sums)

    mma32 = _mma("m16n8k32.row.col.s32.s8.s8.s32", _I32, 6)
    mma16 = _mma("m16n8k16.row.col.s32.s8.s8.s32", _I32, 3)
    mma_halves = _mma("m16n8k16.row.col.f32.f16.f16.f32", _F32, 6, 4)

    from numba.cuda import libdevice

    exp, log1p = lane(lambda a: libdevice.expf(a)), lane(lambda a: libdevice.log1pf(a))
    tanh, expm1 = lane(lambda a: libdevice.tanhf(a)), lane(lambda a: libdevice.expm1f(a))
    exp64 = lane(lambda a: libdevice.exp(a))
