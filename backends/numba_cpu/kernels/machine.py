"""Machine operations of kernels beside vectors: calls through addresses, lanes up to a count, threads' waiting."""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from augury.backends.numba_cpu.kernels.simd import (
    F32,
    F32X16,
    I32,
    I32X16,
    I64,
    call,
    f32x16,
    i64,
    load,
    operation,
    pointer,
    splat,
    store,
    void,
)

_POINTER = ir.IntType(8).as_pointer()


@intrinsic
def invoke(_: Any, address: Any, args: Any) -> Any:
    """Call the kernel at `address` (see `jit.address`) with a tuple of int64."""

    def generate(context: Any, b: ir.IRBuilder, signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(I32, [_POINTER, _POINTER] + [I64] * signature.args[1].count)
        function = b.inttoptr(values[0], kind.as_pointer())
        with b.goto_entry_block():  # kernels write neither result nor error, but their convention has room for both
            unused = b.bitcast(b.alloca(I64, 8), _POINTER)
        unpacked = [b.extract_value(values[1], index) for index in range(signature.args[1].count)]
        b.call(function, [unused, unused, *unpacked])
        return context.get_dummy_value()

    return types.void(types.int64, args), generate


# Addresses and floats in records.
get_f64 = operation("get_f64", types.float64, (i64,), lambda b, a: load(b, a, ir.DoubleType()))
put_f64 = operation("put_f64", void, (i64, types.float64), store)


# The first `count` of 16 lanes; those after them are neither read (they come as zero) nor written.
def _mask(b: ir.IRBuilder, count: ir.Value) -> ir.Value:
    lanes = ir.Constant(I32X16, list(range(16)))
    return b.icmp_signed("<", lanes, splat(b, b.trunc(count, I32), I32X16))


def _load_part(b: ir.IRBuilder, address: ir.Value, count: ir.Value) -> ir.Value:
    arguments = (pointer(b, address, F32X16), ir.Constant(I32, 1), _mask(b, count), ir.Constant(F32X16, None))
    return call(b, "llvm.masked.load.v16f32.p0", F32X16, *arguments)


def _store_part(b: ir.IRBuilder, address: ir.Value, vector: ir.Value, count: ir.Value) -> None:
    arguments = (vector, pointer(b, address, F32X16), ir.Constant(I32, 1), _mask(b, count))
    call(b, "llvm.masked.store.v16f32.p0", ir.VoidType(), *arguments)


load_part = operation("load_part", f32x16, (i64, i64), _load_part)
store_part = operation("store_part", void, (i64, f32x16, i64), _store_part)
part_of = operation("part_of", f32x16, (f32x16, i64), lambda b, x, n: b.select(_mask(b, n), x, ir.Constant(F32X16, None)))


# Lanes
def _shuffle(b: ir.IRBuilder, vector: ir.Value, lanes: list[int]) -> ir.Value:
    return b.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


def _load_doubled(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return _shuffle(b, load(b, address, ir.VectorType(F32, 8)), [lane // 2 for lane in range(16)])


swap_pairs = operation("swap_pairs", f32x16, (f32x16,), lambda b, x: _shuffle(b, x, [lane ^ 1 for lane in range(16)]))
load_doubled = operation("load_doubled", f32x16, (i64,), _load_doubled)  # 8 floats, each in two lanes
negate_even = operation("negate_even", f32x16, (f32x16,), lambda b, x: b.fmul(x, ir.Constant(F32X16, [-1.0, 1.0] * 8)))
count_from = operation(  # start, start + 1, ..., as floats
    "count_from",
    f32x16,
    (i64,),
    lambda b, start: b.sitofp(b.add(splat(b, b.trunc(start, I32), I32X16), ir.Constant(I32X16, list(range(16)))), F32X16),
)
choose_below = operation(  # y where x is below the limit, else z
    "choose_below",
    f32x16,
    (f32x16, types.float32, f32x16, f32x16),
    lambda b, x, limit, y, z: b.select(b.fcmp_ordered("<", x, splat(b, limit, F32X16)), y, z),
)

# Threads. `exchange` and `ordered_load` have one order that all threads agree on, which plain atomic loads and stores have not.
exchange = operation("exchange", i64, (i64, i64), lambda b, a, v: b.atomic_rmw("xchg", pointer(b, a, I64), v, "seq_cst"))
ordered_load = operation("ordered_load", i64, (i64,), lambda b, a: b.load_atomic(pointer(b, a, I64), "seq_cst", 8))


def _pause(b: ir.IRBuilder) -> None:
    import llvmlite.binding

    machine = llvmlite.binding.get_default_triple().partition("-")[0]
    if machine in {"x86_64", "i686"}:
        call(b, "llvm.x86.sse2.pause", ir.VoidType())
    elif machine in {"aarch64", "arm64"}:
        call(b, "llvm.aarch64.hint", ir.VoidType(), ir.Constant(I32, 1))


def _nanoseconds(b: ir.IRBuilder) -> ir.Value:
    with b.goto_entry_block():
        time = b.alloca(I64, 2)
    clock = ir.Constant(I32, _MONOTONIC_DARWIN if sys.platform == "darwin" else _MONOTONIC)
    call(b, "clock_gettime", I32, clock, time)
    seconds, rest = (b.load(b.gep(time, [ir.Constant(I32, index)])) for index in range(2))
    return b.add(b.mul(seconds, ir.Constant(I64, 1_000_000_000)), rest)


def _this_core(b: ir.IRBuilder) -> ir.Value:
    if sys.platform != "linux":
        return ir.Constant(I64, -1)
    return b.sext(call(b, "sched_getcpu", I32), I64)


def _pass_token(b: ir.IRBuilder, function: str, file: ir.Value) -> ir.Value:
    """Read or write eight bytes, as an eventfd needs them and a pipe takes them."""
    with b.goto_entry_block():
        token = b.alloca(I64)
    b.store(ir.Constant(I64, 1), token)
    return call(b, function, I64, b.trunc(file, I32), token, ir.Constant(I64, 8))


_MONOTONIC, _MONOTONIC_DARWIN = 1, 6  # clocks that do not jump

pause = operation("pause", void, (), _pause)
give_way = operation("give_way", types.int32, (), lambda b: call(b, "sched_yield", I32))
this_core = operation("this_core", i64, (), _this_core)  # -1 where the system does not tell
nanoseconds = operation("nanoseconds", i64, (), _nanoseconds)  # of a clock that does not jump
take_token = operation("take_token", i64, (i64,), lambda b, file: _pass_token(b, "read", file))  # 8, once there is one
give_token = operation("give_token", i64, (i64,), lambda b, file: _pass_token(b, "write", file))
