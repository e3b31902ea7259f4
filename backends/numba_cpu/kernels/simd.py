"""SIMD vectors of 512 bits for numba kernels, and other operations that become a few LLVM instructions.

LLVM's vectoriser does not find the byte products that quantised weights live from, so kernels spell their vectors out. A
vector is a value like any other: it stays in a register across plain Python loops. LLVM splits it where the host's registers
are narrower. Addresses are int64; loads and stores accept any alignment unless said otherwise.

Floating-point operations are IEEE single operations, contracted only where `fma` or `fnma` says so: a kernel's result does not
depend on the host's width or on how LLVM schedules it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
F16X32 = ir.VectorType(F16, 32)
U8X64, I16X32, I32X16, F32X16 = ir.VectorType(I8, 64), ir.VectorType(I16, 32), ir.VectorType(I32, 16), ir.VectorType(F32, 16)


class Vector(types.Type):
    """The numba type of an LLVM vector."""

    def __init__(self, name: str, llvm: ir.VectorType) -> None:
        super().__init__(name=name)
        self.llvm = llvm


def _vector(name: str, llvm: ir.VectorType) -> Vector:
    """A vector type: of a class of its own, as numba looks data models up by class."""

    def init(self: Any, manager: Any, front_end: Any) -> None:
        models.PrimitiveModel.__init__(self, manager, front_end, llvm)

    of_its_own = type(name, (Vector,), {})
    register_model(of_its_own)(type(f"{name}_model", (models.PrimitiveModel,), {"__init__": init}))
    return of_its_own(name, llvm)


u8x64 = _vector("u8x64", U8X64)
i16x32 = _vector("i16x32", I16X32)
i32x16 = _vector("i32x16", I32X16)
f32x16 = _vector("f32x16", F32X16)
f32, i8, i16, i32, i64, void = types.float32, types.int8, types.int16, types.int32, types.int64, types.void


def call(builder: ir.IRBuilder, name: str, result: ir.Type, *args: ir.Value) -> ir.Value:
    """Call an LLVM intrinsic or C function by name, declaring it at first use."""
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [arg.type for arg in args]), name)
    return builder.call(function, args)


def pointer(builder: ir.IRBuilder, address: ir.Value, to: ir.Type) -> ir.Value:
    """Turn an int64 address into a pointer."""
    return builder.inttoptr(address, to.as_pointer())


def at(builder: ir.IRBuilder, address: ir.Value, offset: int) -> ir.Value:
    """Add a constant to an address."""
    return builder.add(address, ir.Constant(I64, offset))


def load(builder: ir.IRBuilder, address: ir.Value, llvm: ir.Type) -> ir.Value:
    """Load a value of an LLVM type from an unaligned address."""
    return builder.load(pointer(builder, address, llvm), align=1)


def store(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    """Store a value at an unaligned address."""
    builder.store(value, pointer(builder, address, value.type), align=1)


def splat(builder: ir.IRBuilder, scalar: ir.Value, llvm: ir.VectorType) -> ir.Value:
    """Repeat a scalar in every lane."""
    undefined = ir.Constant(llvm, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, llvm.count), None))


def constant(llvm: ir.VectorType, value: float) -> ir.Constant:
    """Make a vector of one constant."""
    return ir.Constant(llvm, [value] * llvm.count)


def int32(value: int) -> ir.Constant:
    """Make an i32 constant."""
    return ir.Constant(I32, value)


def emit_fma(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """Compute x*y + z with one rounding, in 16 lanes of float32."""
    return call(builder, "llvm.fma.v16f32", F32X16, x, y, z)


def operation(name: str, result: Any, params: tuple[Any, ...], emit: Callable[..., Any], n_literals: int = 0) -> Any:
    """Make a function that numba kernels can call.

    Args:
        name: its name in errors.
        result: numba type of the result, or `void`.
        params: numba types of the arguments after literal ones; arguments are cast to them.
        emit: called with the IR builder, the literals and the arguments as LLVM values; returns the result's LLVM value.
        n_literals: how many of the first arguments are literal strings or numbers.
    """

    def typed(*given: Any) -> Any:
        literals = given[:n_literals]

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            value = emit(builder, *(each.literal_value for each in literals), *args[n_literals:])
            return context.get_dummy_value() if result is void else value

        return result(*literals, *params), generate

    names, scope = ", ".join(f"a{i}" for i in range(n_literals + len(params))), {"typed": typed}
    exec(f"def {name}(_, {names}):\n    return typed({names})", scope)  # noqa: S102 - numba reads the parameters' names
    return intrinsic(prefer_literal=n_literals > 0)(scope[name])


def emitted(*params: Any, n_literals: int) -> Callable[[Callable[..., None]], Any]:
    """Decorate a function that emits an operation without a result, after literals; see `operation`."""
    return lambda emit: operation(emit.__name__, void, params, emit, n_literals)


# Loads. The name gives the type in memory; the result is a vector of float32 or int32 lanes.
load_f32 = operation("load_f32", f32x16, (i64,), lambda b, a: load(b, a, F32X16))
load_i32 = operation("load_i32", i32x16, (i64,), lambda b, a: load(b, a, I32X16))


def emit_load_bf16(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Load 16 bfloat16 as float32: they are the upper halves of float32."""
    wide = b.zext(load(b, address, ir.VectorType(I16, 16)), I32X16)
    return b.bitcast(b.shl(wide, constant(I32X16, 16)), F32X16)


# The scalar at an address in every lane.
repeat_f32 = operation("repeat_f32", f32x16, (i64,), lambda b, a: splat(b, load(b, a, F32), F32X16))

# Stores: address, vector. store_f16 rounds to nearest even, store_i8 keeps the low byte of each lane.


def _stream(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    """Store a vector at the start of a cache line, past the caches: it is not read again soon."""
    stored = builder.store(value, pointer(builder, address, value.type), align=64)
    stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))


stream_f32 = operation("stream_f32", void, (i64, f32x16), _stream)
store_f32 = operation("store_f32", void, (i64, f32x16), store)
store_i32 = operation("store_i32", void, (i64, i32x16), store)
store_f16 = operation("store_f16", void, (i64, f32x16), lambda b, a, v: store(b, a, b.fptrunc(v, ir.VectorType(F16, 16))))
store_i8 = operation("store_i8", void, (i64, i32x16), lambda b, a, v: store(b, a, b.trunc(v, ir.VectorType(I8, 16))))

# Scalars in memory.
get_f32 = operation("get_f32", f32, (i64,), lambda b, a: load(b, a, F32))
get_f16 = operation("get_f16", f32, (i64,), lambda b, a: b.fpext(load(b, a, F16), F32))
get_bf16 = operation("get_bf16", f32, (i64,), lambda b, a: b.bitcast(b.shl(b.zext(load(b, a, I16), I32), int32(16)), F32))
get_i32 = operation("get_i32", i32, (i64,), lambda b, a: load(b, a, I32))
get_u32 = operation("get_u32", types.uint32, (i64,), lambda b, a: load(b, a, I32))
get_i64 = operation("get_i64", i64, (i64,), lambda b, a: load(b, a, I64))
get_u16 = operation("get_u16", types.uint16, (i64,), lambda b, a: load(b, a, I16))
get_u8 = operation("get_u8", types.uint8, (i64,), lambda b, a: load(b, a, I8))
put_f32 = operation("put_f32", void, (i64, f32), store)
put_f16 = operation("put_f16", void, (i64, f32), lambda b, a, v: store(b, a, b.fptrunc(v, F16)))
put_i32 = operation("put_i32", void, (i64, i32), store)
put_u32 = operation("put_u32", void, (i64, types.uint32), store)
put_i64 = operation("put_i64", void, (i64, i64), store)
put_u16 = operation("put_u16", void, (i64, types.uint16), store)
put_u8 = operation("put_u8", void, (i64, types.uint8), store)

# Float lanes.
zero_f32 = operation("zero_f32", f32x16, (), lambda _: ir.Constant(F32X16, None))
splat_f32 = operation("splat_f32", f32x16, (f32,), lambda b, x: splat(b, x, F32X16))
add = operation("add", f32x16, (f32x16, f32x16), lambda b, x, y: b.fadd(x, y))
sub = operation("sub", f32x16, (f32x16, f32x16), lambda b, x, y: b.fsub(x, y))
mul = operation("mul", f32x16, (f32x16, f32x16), lambda b, x, y: b.fmul(x, y))
round_f16 = operation("round_f16", f32x16, (f32x16,), lambda b, x: b.fpext(b.fptrunc(x, ir.VectorType(F16, 16)), F32X16))
div = operation("div", f32x16, (f32x16, f32x16), lambda b, x, y: b.fdiv(x, y))
fma = operation("fma", f32x16, (f32x16,) * 3, emit_fma)
fnma = operation("fnma", f32x16, (f32x16,) * 3, lambda b, x, y, z: emit_fma(b, b.fneg(x), y, z))  # z - x*y


def emit_maximum(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Take the larger in each lane; of equals, or where one is not a number, the second."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


maximum = operation("maximum", f32x16, (f32x16,) * 2, emit_maximum)
minimum = operation("minimum", f32x16, (f32x16,) * 2, lambda b, x, y: b.select(b.fcmp_ordered("<", x, y), x, y))
absolute = operation("absolute", f32x16, (f32x16,), lambda b, x: call(b, "llvm.fabs.v16f32", F32X16, x))
round_even = operation("round_even", f32x16, (f32x16,), lambda b, x: call(b, "llvm.rint.v16f32", F32X16, x))
exp2_of_integer = operation(  # 2**x for integral x in -126..127
    "exp2_of_integer",
    f32x16,
    (f32x16,),
    lambda b, x: b.bitcast(b.shl(b.add(b.fptosi(x, I32X16), constant(I32X16, 127)), constant(I32X16, 23)), F32X16),
)


def emit_tree(b: ir.IRBuilder, vector: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """Reduce 16 lanes by halves: lane i with lane i+8, then i+4, ...; the order never changes."""
    width = 16
    while width > 1:
        width //= 2
        mask = ir.VectorType(I32, width)
        low = b.shuffle_vector(vector, vector, ir.Constant(mask, list(range(width))))
        high = b.shuffle_vector(vector, vector, ir.Constant(mask, list(range(width, 2 * width))))
        vector = combine(low, high)
    return b.extract_element(vector, ir.Constant(I32, 0))


sum_lanes = operation("sum_lanes", f32, (f32x16,), lambda b, x: emit_tree(b, x, b.fadd))
max_lanes = operation("max_lanes", f32, (f32x16,), lambda b, x: emit_tree(b, x, partial(emit_maximum, b)))

# Integer lanes.
zero_i32 = operation("zero_i32", i32x16, (), lambda _: ir.Constant(I32X16, None))
add_i32 = operation("add_i32", i32x16, (i32x16, i32x16), lambda b, x, y: b.add(x, y))
to_f32 = operation("to_f32", f32x16, (i32x16,), lambda b, x: b.sitofp(x, F32X16))
to_i32 = operation(  # nearest, ties to even; the value must fit
    "to_i32", i32x16, (f32x16,), lambda b, x: b.fptosi(call(b, "llvm.rint.v16f32", F32X16, x), I32X16)
)

# Memory order and threads.
atomic_add = operation(  # returns the value before
    "atomic_add", i64, (i64, i64), lambda b, a, v: b.atomic_rmw("add", pointer(b, a, I64), v, "acq_rel")
)
atomic_load = operation("atomic_load", i64, (i64,), lambda b, a: b.load_atomic(pointer(b, a, I64), "acquire", 8))


def emit_prefetch(b: ir.IRBuilder, address: ir.Value, locality: int) -> None:
    """Ask for a cache line; locality 3 is the nearest cache, 0 a streaming hint."""
    hint = [ir.Constant(I32, number) for number in (0, locality, 1)]
    call(b, "llvm.prefetch.p0", ir.VoidType(), pointer(b, address, I8), *hint)


def emit_prefetches(b: ir.IRBuilder, stream: ir.Value, lines: ir.Value, locality: int) -> None:
    """Ask for the next cache lines of the stream whose address lies in a stack slot: the second cache can await more."""
    with cgutils.for_range(b, lines):
        address = b.load(stream)
        emit_prefetch(b, address, locality)
        b.store(at(b, address, 64), stream)


prefetch = operation("prefetch", void, (i64,), lambda b, a: emit_prefetch(b, a, 3))
prefetch_l2 = operation("prefetch_l2", void, (i64,), lambda b, a: emit_prefetch(b, a, 2))


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
