"""Products of packed weights and activations by tiles of bfloat16, see `amx.py`.

A block of 32 columns of a panel is unpacked to two tiles of weights, which multiply one tile of up to 16 tokens or two. Every
sum takes the blocks in ascending order, for any number of tokens, so that a token's bits depend only on the token.
"""

from __future__ import annotations

from typing import Any

from augury.backends.numba_cpu.kernels import amx, amx_unpack, simd
from augury.backends.numba_cpu.kernels.format import BLOCK, EXPONENT_BYTES, PANEL_ROWS, VECTOR, Format
from augury.backends.numba_cpu.kernels.jit import helper, kernel

_CHUNK = 16  # blocks whose tiles are kept where there are more tokens than two tiles have: they fill most of the nearest cache
_PANELS = 8  # that take these blocks one after the other
_AHEAD = 8  # blocks that are fetched before they are unpacked
_LARGE = 16 << 20  # bytes of products that have left the caches before they are read
_SUMS_AHEAD = 4 * VECTOR  # that are fetched with each block: all are within a chunk
_PAIR = 2 * amx.TILE_BYTES  # the tiles of a block's weights
_SUM_BYTES = 4 * PANEL_ROWS
# Offsets into scratch memory.
_FACTORS = amx.MEMORY_BYTES
_TILES = _FACTORS + 2 * amx_unpack.FACTOR_BYTES
_SUMS = _TILES + _CHUNK * _PAIR


def tile_scratch_bytes(max_tokens: int) -> int:
    """Scratch memory that a kernel needs, per thread: tiles, weights of a chunk, sums."""
    return _SUMS + _PANELS * max_tokens * _SUM_BYTES


# Four tiles of sums: of the first m tokens by the first 16 rows, by the others, then of the second m tokens.
@helper
def _clear(isa, scratch):
    amx.clear(isa, 0, scratch)
    amx.clear(isa, 1, scratch)
    amx.clear(isa, 2, scratch)
    amx.clear(isa, 3, scratch)


@helper
def _load(isa, scratch, sums, m):
    amx.load_tile(isa, 0, scratch, sums, amx.ROW_BYTES)
    amx.load_tile(isa, 1, scratch, sums + m * amx.ROW_BYTES, amx.ROW_BYTES)
    amx.load_tile(isa, 2, scratch, sums + 2 * m * amx.ROW_BYTES, amx.ROW_BYTES)
    amx.load_tile(isa, 3, scratch, sums + 3 * m * amx.ROW_BYTES, amx.ROW_BYTES)


@helper
def _save(isa, scratch, sums, m, has_second):
    amx.save_tile(isa, 0, scratch, sums, amx.ROW_BYTES)
    amx.save_tile(isa, 1, scratch, sums + m * amx.ROW_BYTES, amx.ROW_BYTES)
    if has_second:
        amx.save_tile(isa, 2, scratch, sums + 2 * m * amx.ROW_BYTES, amx.ROW_BYTES)
        amx.save_tile(isa, 3, scratch, sums + 3 * m * amx.ROW_BYTES, amx.ROW_BYTES)


def _adder(isa: str, n_of_tokens: int, n_of_weights: int, load_tokens: Any) -> Any:
    """Make the function that adds the products of a block's weights and the activations of one tile of tokens, or two.

    Either may be cut in two. Then the upper parts come first, the rest of activations next, the rest of weights last.
    """
    stride = n_of_tokens * amx.ROW_BYTES

    def adder_of_part(*, loads_weights: bool) -> Any:
        @helper
        def add_part(scratch, weights, first, second, has_second):
            if loads_weights:
                amx.load_tile(isa, 6, scratch, weights, amx.ROW_BYTES)
            load_tokens(isa, 4, scratch, first, stride)
            amx.dot(isa, 0, 4, 6, scratch)
            if loads_weights:
                amx.load_tile(isa, 7, scratch, weights + amx.TILE_BYTES, amx.ROW_BYTES)
            amx.dot(isa, 1, 4, 7, scratch)
            if has_second:
                load_tokens(isa, 5, scratch, second, stride)
                amx.dot(isa, 2, 5, 6, scratch)
                amx.dot(isa, 3, 5, 7, scratch)

        return add_part

    add_new, add_same = adder_of_part(loads_weights=True), adder_of_part(loads_weights=False)

    @helper
    def add_products(scratch, weights, first, second, has_second):
        add_new(scratch, weights, first, second, has_second)
        if n_of_tokens > 1:
            add_same(scratch, weights, first + amx.ROW_BYTES, second + amx.ROW_BYTES, has_second)
        if n_of_weights > 1:
            add_new(scratch, weights + _PAIR, first, second, has_second)

    return add_products


@helper
def _store(place, first, second, is_large):
    if is_large:
        simd.stream_f32(place, first)
        simd.stream_f32(place + VECTOR, second)
    else:
        simd.store_f32(place, first)
        simd.store_f32(place + VECTOR, second)


def _reader(fmt: Format, isa: str) -> Any:
    """Make the functions that prepare a block, unpack it, and write a panel's sums."""
    kind, block_bytes, is_float = fmt.kind, fmt.unit_bytes // fmt.unit_blocks, bool(fmt.float_bytes)

    # Blocks are counted on from panel to panel.
    @helper
    def prepare(w, block, n_blocks, to):
        """Make the factors of a block."""
        if not is_float:
            amx_unpack.unpack_factors(kind, isa, w, block, w - (block // n_blocks + 1) * EXPONENT_BYTES, to)

    @helper
    def unpack(w, block, factors, to):
        """Unpack a block, and fetch a later one."""
        if is_float:
            amx_unpack.unpack_floats(kind, w + block * block_bytes, to, w + (block + _AHEAD) * block_bytes)
        else:
            amx_unpack.unpack_tiles(kind, isa, w, block, factors, to, w + (block + _AHEAD) * block_bytes)

    @helper
    def write(sums, w, p, y, ldy, m, is_large):
        """Write a panel's sums without their rows' powers of two; past the caches where there are too many."""
        exponents = w - (p + 1) * EXPONENT_BYTES
        low = high = simd.zero_f32()
        if not is_float:
            low, high = amx_unpack.inverse(exponents), amx_unpack.inverse(exponents + PANEL_ROWS)
        for t in range(m):
            first, second = simd.load_f32(sums + t * amx.ROW_BYTES), simd.load_f32(sums + (m + t) * amx.ROW_BYTES)
            if not is_float:
                first, second = simd.mul(first, low), simd.mul(second, high)
            _store(y + t * 4 * ldy, first, second, is_large)

    return prepare, unpack, write


def tile_matmul(fmt: Format, isa: str) -> Any:
    """Make the kernel for a weight type; its arguments are those of `MatmulKernel.matmul`."""
    prepare, unpack, write = _reader(fmt, isa)
    n_of_weights = amx_unpack.WEIGHT_PARTS.get(fmt.kind, 1)
    n_of_tokens = amx_unpack.TOKEN_PARTS if fmt.float_bytes else 1
    token_bytes, pair_bytes, chunk = n_of_tokens * amx.ROW_BYTES, n_of_weights * _PAIR, _CHUNK // n_of_weights
    ahead_bytes = n_of_weights * _SUMS_AHEAD
    add_products = _adder(isa, n_of_tokens, n_of_weights, amx.load_tile)
    add_streamed = _adder(isa, n_of_tokens, n_of_weights, amx.stream_tile)

    @helper
    def add_chunk(scratch, weights, count, columns, step, first, second, ahead):
        """Add the products of a chunk's weights, which the nearest cache holds and activations are not to drive out.

        Blocks of activations lie `step` bytes apart. The next tiles' sums, from `ahead` on, are fetched meanwhile.
        """
        for _ in range(count):
            add_streamed(scratch, weights, columns + first, columns + second, True)
            weights += pair_bytes
            columns += step
            for line in range(0, ahead_bytes, VECTOR):
                simd.prefetch(ahead + line)
            ahead += ahead_bytes

    @helper
    def few(w, x, y, n, n_blocks, p0, p1, ldy, scratch):
        """Multiply one tile of tokens, or two; the next block is unpacked while one is multiplied.

        The factors of the block after that are made before: all of a block waits for its scales, which come from memory.
        """
        tiles, sums = scratch + _TILES, scratch + _SUMS
        has_second, second = n > amx.TILE_ROWS, n // 2
        m = n - second if has_second else n
        this, other = tiles, tiles + pair_bytes
        now, then = scratch + _FACTORS, scratch + _FACTORS + amx_unpack.FACTOR_BYTES
        block, end = p0 * n_blocks, p1 * n_blocks
        prepare(w, block, n_blocks, now)
        if block + 1 < end:
            prepare(w, block + 1, n_blocks, then)
        unpack(w, block, now, this)
        for p in range(p0, p1):
            _clear(isa, scratch)
            simd.prefetch(w - (p + 3) * EXPONENT_BYTES)
            for k in range(n_blocks):
                if block + 2 < end:
                    prepare(w, block + 2, n_blocks, now)
                if block + 1 < end:
                    unpack(w, block + 1, then, other)
                block += 1
                now, then = then, now
                columns = x + k * n * token_bytes
                add_products(scratch, this, columns, columns + second * token_bytes, has_second)
                this, other = other, this
            to = y + p * _SUM_BYTES
            _save(isa, scratch, sums, m, has_second)
            write(sums, w, p, to, ldy, m, False)
            if has_second:
                write(sums + 2 * m * amx.ROW_BYTES, w, p, to + second * 4 * ldy, ldy, m, False)

    @helper
    def many(w, x, y, n, n_blocks, p0, p1, ldy, scratch, m):
        """Multiply any number of tokens, two tiles of m at a time; the last ones may be some of those before again.

        Some panels at a time take the columns in turns, so that the nearer caches hold the activations of these columns.
        """
        tiles, n_pairs = scratch + _TILES, (n + 2 * m - 1) // (2 * m)
        is_large = 4 * n * ldy >= _LARGE and (y | 4 * ldy) % VECTOR == 0
        for p in range(p0, p1, _PANELS):
            for k in range(0, n_blocks, chunk):
                count = min(chunk, n_blocks - k)
                for q in range(p, min(p + _PANELS, p1)):
                    for i in range(count):
                        prepare(w, q * n_blocks + k + i, n_blocks, scratch + _FACTORS)
                        unpack(w, q * n_blocks + k + i, scratch + _FACTORS, tiles + i * pair_bytes)
                    to = y + q * _SUM_BYTES
                    for pair in range(n_pairs):
                        first, second = min(pair * 2 * m, n - m), min(pair * 2 * m + m, n - m)
                        sums = scratch + _SUMS + ((q - p) * n_pairs + pair) * 2 * m * _SUM_BYTES
                        if k == 0:
                            _clear(isa, scratch)
                        else:
                            _load(isa, scratch, sums, m)
                        columns, step, ahead = x + k * n * token_bytes, n * token_bytes, sums + 2 * m * _SUM_BYTES
                        add_chunk(scratch, tiles, count, columns, step, first * token_bytes, second * token_bytes, ahead)
                        _save(isa, scratch, sums, m, True)
                        if k + count == n_blocks:
                            write(sums, w, q, to + first * 4 * ldy, ldy, m, is_large)
                            write(sums + 2 * m * amx.ROW_BYTES, w, q, to + second * 4 * ldy, ldy, m, is_large)

    def matmul(w: int, x: int, y: int, n: int, n_cols: int, p0: int, p1: int, ldy: int, scratch: int) -> None:
        n_blocks = (n_cols + BLOCK - 1) // BLOCK
        n_tiles = 1
        if n > amx.TILE_ROWS:
            n_tiles = 2 * ((n + 2 * amx.TILE_ROWS - 1) // (2 * amx.TILE_ROWS))
        m = (n + n_tiles - 1) // n_tiles
        amx.configure(isa, scratch, m)
        if n_tiles <= 2:
            few(w, x, y, n, n_blocks, p0, p1, ldy, scratch)
        else:
            many(w, x, y, n, n_blocks, p0, p1, ldy, scratch, m)
        amx.release(isa)

    return kernel(matmul, f"matmul_{fmt.kind}_{isa.replace('-', '_')}")
