"""Operations of one thread that have an instruction of their own, as the PTX ISA describes them; see `dialect`.

This is the only file with inline PTX. `bits` means an uint32, `float` a float32.
"""
# ruff: noqa: PLW0108 - numba compiles functions of Python

from llvmlite import ir
from numba import cuda as cuda, float32, int32, int64, types, uint32, uint64  # noqa: PLC0414 - offered to packages
from numba.cuda import libdevice
from numba.cuda.extending import intrinsic

SIMULATED = False  # tests put a module in the place of this one whose operations a CPU computes

_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
LATER = "//9.0 "  # a mark before instructions that GPUs have from 9.0 on, which `aot` takes off for these

lane = together = cuda.jit(device=True, forceinline=True)
"""Decorates a function of a thread, and one of a warp or block, which only a simulator can pass on at its meetings."""


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


float_of = _emitted(float32, lambda builder, values: builder.bitcast(values[0], _F32), uint32)
bits_of = _emitted(uint32, lambda builder, values: builder.bitcast(values[0], _I32), float32)

# rounded once; products and sums by themselves are never contracted
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
# an index of 32 bits, which stays one until it is added to an address: that takes fewer instructions
index_of = _ptx("cvt.u64.u32 $0, $1;", "=l,r", int64, uint32)
# c plus the products of four pairs of signed bytes; four bytes of eight, chosen by a nibble each
dp4a = _ptx("dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", int32, uint32, uint32, int32)
prmt = _ptx("prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", uint32, uint32, uint32, uint32)
float_of_half = _ptx("{ .reg .b16 l, h; mov.b32 {l, h}, $1; cvt.f32.f16 $0, l; }", "=f,r", float32, uint32)
half_of_float = _ptx("{ .reg .b16 l; cvt.rn.f16.f32 l, $1; cvt.u32.u16 $0, l; }", "=r,f", uint32, float32)

# of two halves in a word: 1024 + masked bits, a * b + c rounded once, and so on
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


# words from an index on, at a multiple of their bytes: of memory that launches write, and of weights, which none does;
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


# read where this is written, not where it is first needed: several are waited for at once
read_early = _at("ld.global.s32 $0, [$1];", "=r,l", int32)
# the 128 bytes that a word is among, or so many bytes in sixteens, come to the nearer memory (L2)
prefetch = _at("prefetch.global.L2 [$0];", "l", uint32)
bring_near = _at(f"{LATER}cp.async.bulk.prefetch.L2.global [$0], $1;", "l,r", uint32, uint32)
# counts one more of n at a place, and gives how many were there before; the last of them sets its counter to 0 again, and
# a block that comes later sees all that was written before this one came
_ADD_ONE = "{ .reg .u32 most; sub.u32 most, $2, 1; atom.acq_rel.gpu.global.inc.u32 $0, [$1], most; }"
arrive = _at(_ADD_ONE, "=r,l,r,~{memory}", uint32, int32)


def _wait_for_launch(builder, _):
    """Wait for the end of the launch before, where this one may begin earlier; a kernel without this waits first of all.

    Before it a kernel only reads weights, which no launch writes.
    """
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

exp, log1p = lane(lambda a: libdevice.expf(a)), lane(lambda a: libdevice.log1pf(a))
tanh, expm1 = lane(lambda a: libdevice.tanhf(a)), lane(lambda a: libdevice.expm1f(a))
exp64 = lane(lambda a: libdevice.exp(a))
