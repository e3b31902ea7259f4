"""Tiles: 32 rows x a few tokens x some blocks of 32 columns, all sums in registers; emitted as LLVM IR.

One order of float operations holds for every tile: per token and row, blocks in ascending order; in a block its halves in
order, `part = to_f32(dot) * activation scale` and, where both halves of the weights have one scale, `part += to_f32(dot) *
activation scale` for the second, fused; then `sum += part * scale`, fused; after each stretch of columns that share a minimum
`sum += minimum * sum of their activations`, fused. Products with float weights are added column by column, fused, to a sum of
their block, and this to the sum, which rounds less than one long sum would. So a sum never depends on how many tokens share
a tile, or on which tile a token falls into.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from llvmlite import ir
from numba.core import cgutils

from augury.backends.numba_cpu.kernels import format as formats, simd
from augury.backends.numba_cpu.kernels.cache_type import emit_floats
from augury.backends.numba_cpu.kernels.isa import ISAS, Dot, InstructionSet, is_zen
from augury.backends.numba_cpu.kernels.simd import at
from augury.backends.numba_cpu.kernels.unpack import LOGICAL, SCRATCH_BLOCK, PackedBlock, ScratchBlock

_LARGEST_UNIT = 8  # blocks
_TOKEN = formats.ACTIVATION_BYTES["q8_16"]
# Tiles of so few tokens wait for memory. The second cache can await more lines than the nearest, whose lines come sooner.
_PREFETCH_L2_TOKENS = 4


class _Sums:
    """The float sums of a tile, in stack slots that LLVM turns into registers."""

    def __init__(self, b: ir.IRBuilder, n_tokens: int, groups: Sequence[int], address: ir.Value | None = None) -> None:
        """Load the sums so far of some groups from (token, 32 rows) float32, or begin at 0."""
        self.n_tokens = n_tokens
        self.groups = groups
        self._address = address
        self._slots: dict[tuple[int, int], ir.Value] = {}
        for t in range(n_tokens):
            for g in groups:
                slot = cgutils.alloca_once(b, simd.F32X16)
                start = (
                    ir.Constant(simd.F32X16, None)
                    if address is None
                    else simd.load(b, at(b, address, (2 * t + g) * formats.VECTOR), simd.F32X16)
                )
                b.store(start, slot)
                self._slots[t, g] = slot

    def fma(self, b: ir.IRBuilder, t: int, g: int, x: ir.Value, y: ir.Value) -> None:
        """Add x * y to the sum of token t and group g."""
        slot = self._slots[t, g]
        b.store(simd.emit_fma(b, x, y, b.load(slot)), slot)

    def add(self, b: ir.IRBuilder, parts: _Sums) -> None:
        """Add sums of the same tokens and groups."""
        for key, slot in self._slots.items():
            b.store(b.fadd(b.load(slot), b.load(parts._slots[key])), slot)

    def save(self, b: ir.IRBuilder) -> None:
        """Store the sums where they came from."""
        assert self._address is not None
        for (t, g), slot in self._slots.items():
            simd.store(b, at(b, self._address, (2 * t + g) * formats.VECTOR), b.load(slot))


def _repeat(b: ir.IRBuilder, address: ir.Value, offset: int, llvm: ir.VectorType) -> ir.Value:
    """Load one scalar into every lane."""
    return simd.splat(b, simd.load(b, at(b, address, offset), llvm.element), llvm)


def _emit_block(
    b: ir.IRBuilder, fmt: formats.Format, dot: Dot, block: PackedBlock | ScratchBlock, x: ir.Value, sums: _Sums
) -> None:
    """Multiply one block of weights with the same block of the tokens at x."""
    tokens = range(sums.n_tokens)
    parts: dict[tuple[int, int], ir.Value] = {}  # of the columns that share a scale
    for half in range(formats.HALVES):
        is_first, is_last = (fmt.halves == formats.HALVES or half == edge for edge in (0, formats.HALVES - 1))
        dots = {(t, g): dot.start(partial(_first_dot, b, fmt, dot, x, t, half)) for t in tokens for g in sums.groups}
        for v in range(half * LOGICAL // formats.HALVES, (half + 1) * LOGICAL // formats.HALVES):
            weights = {g: dot.operand(b, block.weights(b, v, g)) for g in sums.groups}
            for t in tokens:
                columns = b.bitcast(_repeat(b, x, t * _TOKEN + 4 * v, simd.I32X16), simd.U8X64)
                for g in sums.groups:
                    dots[t, g] = dot.add(b, dots[t, g], weights[g], columns)
            dots = dict(zip(dots, dot.keep_order(b, list(dots.values())), strict=True))
        for t in tokens:
            scale = _repeat(b, x, t * _TOKEN + formats.SCALES + 4 * half, simd.F32X16)
            for g in sums.groups:
                product = b.sitofp(dot.end(b, dots[t, g]), simd.F32X16)
                parts[t, g] = b.fmul(product, scale) if is_first else simd.emit_fma(b, product, scale, parts[t, g])
        if is_last:
            scales = {g: block.scales(b, half if fmt.halves == formats.HALVES else 0, g) for g in sums.groups}
            for t in tokens:
                for g in sums.groups:
                    sums.fma(b, t, g, parts[t, g], scales[g][0])
                if fmt.has_minimum:
                    total = _sum(b, fmt, x, t, half)
                    for g in sums.groups:
                        sums.fma(b, t, g, scales[g][1], total)


def _first_dot(b: ir.IRBuilder, fmt: formats.Format, dot: Dot, x: ir.Value, t: int, half: int) -> ir.Value:
    """Return the initial value of a dot product: it subtracts the offset of the weights, exactly and at no cost."""
    if not fmt.offset or dot.takes_128:
        return ir.Constant(simd.I32X16, None)
    negative = simd.load(b, at(b, x, t * _TOKEN + formats.NEGATIVE_SUMS + 4 * half), simd.I32)
    return simd.splat(b, b.shl(negative, ir.Constant(simd.I32, fmt.offset.bit_length() - 1)), simd.I32X16)


def _sum(b: ir.IRBuilder, fmt: formats.Format, x: ir.Value, t: int, half: int) -> ir.Value:
    """Return the sum of a token's activations over the columns that share a minimum."""
    if fmt.halves == 1:
        return _repeat(b, x, t * _TOKEN + formats.SUM, simd.F32X16)
    negative = b.sitofp(simd.load(b, at(b, x, t * _TOKEN + formats.NEGATIVE_SUMS + 4 * half), simd.I32), simd.F32)
    return simd.splat(
        b, b.fmul(b.fneg(negative), simd.load(b, at(b, x, t * _TOKEN + formats.SCALES + 4 * half), simd.F32)), simd.F32X16
    )


def _emit_float_block(b: ir.IRBuilder, fmt: formats.Format, weights: ir.Value, x: ir.Value, sums: _Sums) -> None:
    """Multiply one block of float weights, column by column."""
    step = 4  # columns that are written out
    with cgutils.for_range(b, ir.Constant(simd.I64, formats.BLOCK // step)) as loop:
        w = b.add(weights, b.mul(loop.index, ir.Constant(simd.I64, step * formats.PANEL_ROWS * fmt.float_bytes)))
        column = b.add(x, b.mul(loop.index, ir.Constant(simd.I64, step * 4)))
        for k in range(step):
            starts = {g: at(b, w, k * formats.PANEL_ROWS * fmt.float_bytes) for g in sums.groups}
            values = {g: emit_floats(b, fmt.kind, at(b, place, 16 * fmt.float_bytes * g)) for g, place in starts.items()}
            for t in range(sums.n_tokens):
                repeated = _repeat(b, column, t * formats.ACTIVATION_BYTES["f32"] + 4 * k, simd.F32X16)
                for g in sums.groups:
                    sums.fma(b, t, g, values[g], repeated)


def _prefetch_locality(n_tokens: int) -> int:
    """Return which cache waits for the weights of a tile, see `emit_prefetch`.

    Weights are read once in a pass. Zens load streamed lines past the larger caches, so that the memory that Python needs
    between two passes stays there.
    """
    if is_zen():
        return 0
    return 2 if n_tokens <= _PREFETCH_L2_TOKENS else 3


def _emit_tile(
    b: ir.IRBuilder,
    fmt: formats.Format,
    place: str,
    isa: InstructionSet,
    n_tokens: int,
    groups: Sequence[int],
    args: tuple[ir.Value, ...],
) -> None:
    """Multiply `n_tokens` tokens with some blocks; args are those of `multiply`, with a stack slot for `ahead`."""
    w, x, y, n_blocks, step, stream, lines = args
    dot, sums = isa.dot(fmt.bits), _Sums(b, n_tokens, groups, y)
    with cgutils.for_range(b, n_blocks) as loop:
        simd.emit_prefetches(b, stream, lines, _prefetch_locality(n_tokens))
        here = b.add(x, b.mul(loop.index, step))
        if fmt.float_bytes:
            unit = b.add(w, b.mul(loop.index, ir.Constant(simd.I64, fmt.unit_bytes)))
            block_sums = _Sums(b, n_tokens, groups)
            _emit_float_block(b, fmt, unit, here, block_sums)
            sums.add(b, block_sums)
        elif place == "scratch":
            scratch = b.add(w, b.mul(loop.index, ir.Constant(simd.I64, SCRATCH_BLOCK)))
            _emit_block(b, fmt, dot, ScratchBlock(fmt, scratch), here, sums)
        else:
            _emit_block(b, fmt, dot, _packed_block(b, fmt, isa, w, loop.index), here, sums)
    sums.save(b)


def _packed_block(b: ir.IRBuilder, fmt: formats.Format, isa: InstructionSet, w: ir.Value, block: ir.Value) -> PackedBlock:
    """Return a block of those from w on, which are no more than the largest units have."""
    if fmt.unit_blocks < _LARGEST_UNIT:
        n_blocks = ir.Constant(simd.I64, fmt.unit_blocks)
        w = b.add(w, b.mul(b.udiv(block, n_blocks), ir.Constant(simd.I64, fmt.unit_bytes)))
        block = b.urem(block, n_blocks)
    return PackedBlock(b, fmt, isa.look_up, w, block)


def _count_tiles(
    b: ir.IRBuilder, n_tokens: ir.Value, sizes: Sequence[int], runs: Sequence[tuple[Sequence[int], ...]]
) -> tuple[list[ir.Value], ir.Value]:
    """Return how many tiles of each size, the largest first, there are for the tokens, and how many runs of all."""
    counts, left, total = [], n_tokens, ir.Constant(simd.I64, 0)
    for size, groups_of_runs in zip(sizes, runs, strict=True):
        counts.append(b.udiv(left, ir.Constant(simd.I64, size)))
        left = b.urem(left, ir.Constant(simd.I64, size))
        total = b.add(total, b.mul(counts[-1], ir.Constant(simd.I64, len(groups_of_runs))))
    return counts, total


def _share(b: ir.IRBuilder, lines: ir.Value, n_runs: ir.Value) -> ir.Value:
    """Return how many of the lines each run of a tile prefetches, rounded up."""
    return b.udiv(b.sub(b.add(lines, n_runs), ir.Constant(simd.I64, 1)), n_runs)


@simd.emitted(*[simd.i64] * 7, n_literals=3)
def multiply(b, kind, isa, place, w, x, y, n_tokens, n_blocks, ahead, lines):
    """Add n_blocks blocks of all tokens to sums y, (n_tokens, 32) float32; the weights are `packed` or in `scratch`.

    With each block the tiles prefetch together `lines` cache lines, from `ahead` on, so that fetching overlaps with the
    arithmetic. `lines` should be as many as a block has: prefetching further ahead than that costs time with each line that is
    asked for twice.
    """
    fmt, where, cpu = formats.FORMATS[kind], place, ISAS[isa]
    token, row = (ir.Constant(simd.I64, size) for size in (formats.ACTIVATION_BYTES[fmt.activation], 2 * formats.VECTOR))
    step = b.mul(n_tokens, token)
    stream = cgutils.alloca_once_value(b, ahead)
    done: ir.Value = ir.Constant(simd.I64, 0)
    case = "float" if fmt.float_bytes else where
    sizes = cpu.tiles[case]
    runs = [cpu.runs(case, size) for size in sizes]
    counts, n_all = _count_tiles(b, n_tokens, sizes, runs)
    lines = _share(b, lines, n_all)
    for size, n_tiles, groups_of_runs in zip(sizes, counts, runs, strict=True):
        tokens = ir.Constant(simd.I64, size)
        with cgutils.for_range(b, n_tiles) as loop:
            first = b.add(done, b.mul(loop.index, tokens))
            here = (b.add(x, b.mul(first, token)), b.add(y, b.mul(first, row)))
            for groups in groups_of_runs:
                _emit_tile(b, fmt, where, cpu, size, groups, (w, *here, n_blocks, step, stream, lines))
        done = b.add(done, b.mul(n_tiles, tokens))


@simd.emitted(simd.i64, simd.i64, simd.i64, n_literals=2)
def unpack(b, kind, isa, w, n_blocks, scratch):
    """Unpack one unit, or n_blocks units of one block, to scratch memory."""
    fmt, cpu = formats.FORMATS[kind], ISAS[isa]
    with cgutils.for_range(b, n_blocks) as loop:
        address = b.add(scratch, b.mul(loop.index, ir.Constant(simd.I64, SCRATCH_BLOCK)))
        ScratchBlock(fmt, address).fill(b, _packed_block(b, fmt, cpu, w, loop.index))
