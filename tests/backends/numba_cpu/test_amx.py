"""Tiles of bfloat16: the instructions, where this CPU has them, and the stand-in, beside the same in numpy."""

import numpy as np
import pytest
from llvmlite import binding, ir
from oracles import weights
from oracles.models import tiny_file
from oracles.passes import run_of
from oracles.products import activations, every_kind, multiply, random_matrix
from support.stand_in_tiles import STAND_IN

from augury.backends.numba_cpu import NumbaCpu, NumbaCpuOptions, model
from augury.backends.numba_cpu.kernels import amx, isa, simd
from augury.backends.numba_cpu.kernels.format import FORMATS
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.matmul import matmul_kernels
from augury.backends.numba_cpu.packing import aligned, pack
from augury.errors import OptionError
from augury.files.tensor_type import TensorType
from augury.interfaces import Progress
from augury.plugins.architectures.llama import Llama
from augury.types import ModelOptions

TILE_ISAS = [name for name in isa.available_isas() if name in amx.TILES]
every_tile_isa = pytest.mark.parametrize("name", TILE_ISAS)
SPECIAL = np.array([0, 0x8000, 1, 0x8001, 0x7F, 0x80, 0x8080, 0x7F7F, 0x7F80, 0xFF80, 0x7FC0, 0x3F80], np.uint16)


def dot_kernel(name):
    def products(memory, sums, tokens, matrix, n_tokens):
        amx.configure(name, memory, n_tokens)
        amx.load_tile(name, 0, memory, sums, 64)
        amx.load_tile(name, 4, memory, tokens, 64)
        amx.load_tile(name, 6, memory, matrix, 64)
        amx.dot(name, 0, 4, 6, memory)
        amx.save_tile(name, 0, memory, sums, 64)
        amx.release(name)

    products.__name__ = products.__qualname__ = f"products_{name.replace('-', '_')}"
    return kernel(products)


def flushed(x):
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x).astype(np.float32)


def floats(bits):
    return flushed((bits.astype(np.uint32) << 16).view(np.float32))


@np.errstate(over="ignore", invalid="ignore")
def expected_sums(sums, tokens, matrix):
    """Sums as the manual has them: a float64 holds a product and a sum of float32 that is near it."""
    parts = []
    for parity in range(2):
        x, w = floats(tokens[:, parity::2]), floats(matrix[:, parity::2])
        part = np.zeros(sums.shape, np.float32)
        for pair in range(16):
            product = x[:, pair, None].astype(np.float64) * w[pair].astype(np.float64)
            part = flushed((part.astype(np.float64) + product).astype(np.float32))
        parts.append(part)
    return flushed(flushed(sums) + flushed(parts[0] + parts[1]))


def same(x, y):
    return np.array_equal(
        np.where(np.isnan(x), np.float32(1), x).view(np.uint32), np.where(np.isnan(y), 1, y).astype(np.float32).view(np.uint32)
    )


@every_tile_isa
@pytest.mark.parametrize("case", ["ordinary", "small", "special"])
@pytest.mark.parametrize("n_tokens", [1, 7, 16])
def test_products_of_tiles_are_those_of_the_manual(name, case, n_tokens):
    rng, run, memory = np.random.default_rng(n_tokens), dot_kernel(name), aligned(amx.MEMORY_BYTES)
    for _ in range(20):
        first, count = {"ordinary": (118, 20), "small": (50, 20), "special": (118, 20)}[case]
        tokens, matrix = (
            (rng.integers(0, 1 << 16, (16, 32)) & 0x807F | rng.integers(first, first + count, (16, 32)) << 7).astype(np.uint16)
            for _ in range(2)
        )
        sums = rng.standard_normal((16, 16), dtype=np.float32)
        if case == "small":
            sums *= np.float32(1e-38)
        if case == "special":
            for bits in (tokens, matrix):
                bits[rng.random(bits.shape) < 0.01] = rng.choice(SPECIAL)
        found = sums.copy()
        run(*(each.ctypes.data for each in (memory, found, tokens, matrix)), n_tokens)
        assert same(found[:n_tokens], expected_sums(sums, tokens, matrix)[:n_tokens])
        assert np.array_equal(found[n_tokens:], sums[n_tokens:])


def vector_kernel(name, what, emit, n_vectors):
    """A kernel that gives 64 bytes for some times 64 bytes."""

    def generate(b, *addresses):
        *vectors, out = addresses
        simd.store(b, out, emit(amx.TILES[name], b, *vectors))

    operation = simd.operation(what, simd.void, (simd.i64,) * (n_vectors + 1), generate)
    if n_vectors == 2:

        def run(x, y, out):
            operation(x, y, out)
    else:

        def run(x, y, z, out):
            operation(x, y, z, out)

    run.__name__ = run.__qualname__ = f"{what}_{name.replace('-', '_')}"
    return kernel(run)


def bits_of(rng, kind, n):
    """Numbers of any bits, special ones among them."""
    found = rng.integers(0, 1 << 8 * kind().itemsize, n, np.uint64).astype(f"u{kind().itemsize}")
    found[:: n // 8] = 0
    return found.view(kind)


@every_tile_isa
def test_float32_is_rounded_to_bfloat16_as_the_instruction_does(name):
    run = vector_kernel(
        name, "rounded", lambda tiles, b, x, y: tiles.round(b, *(simd.load(b, p, simd.F32X16) for p in (x, y))), 2
    )
    rng, out = np.random.default_rng(1), np.zeros(32, np.uint16)
    for _ in range(300):
        x = bits_of(rng, np.float32, 32)
        x[5], x[6] = np.uint32([0x3F808000, 0x3F818000]).view(np.float32)  # ties
        run(x.ctypes.data, x[16:].ctypes.data, out.ctypes.data)
        bits = x.view(np.uint32).astype(np.int64)
        expected = (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)
        expected = np.where(bits >> 23 & 0xFF, expected, bits >> 16 & 0x8000)
        assert np.array_equal(out, np.where(np.isnan(x), bits >> 16 | 0x40, expected))


@every_tile_isa
@np.errstate(all="ignore")
def test_float16_is_multiplied_and_added_with_one_rounding(name):
    run = vector_kernel(
        name, "fused", lambda tiles, b, *places: tiles.fma(b, *(simd.load(b, p, simd.F16X32) for p in places)), 3
    )
    rng, out = np.random.default_rng(2), np.zeros(32, np.float16)
    for _ in range(300):
        x, y, z = (bits_of(rng, np.float16, 32) for _ in range(3))
        x[::2] = rng.integers(-31, 32, 16)
        run(*(each.ctypes.data for each in (x, y, z, out)))
        expected = (x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)).astype(np.float16)
        is_number = np.isfinite(x) & np.isfinite(y) & np.isfinite(z)
        assert np.array_equal(out.view(np.uint16)[is_number], expected.view(np.uint16)[is_number])


@every_tile_isa
@np.errstate(all="ignore")
def test_float16_is_multiplied_with_powers_of_two_and_made_bfloat16(name):
    def emit(tiles, b, x, y):
        return tiles.shrink(b, tiles.scale(b, *(simd.load(b, p, simd.F16X32) for p in (x, y))))

    run, rng, out = vector_kernel(name, "shrunk", emit, 2), np.random.default_rng(3), np.zeros(32, np.uint16)
    for _ in range(300):
        x, y = bits_of(rng, np.float16, 32), rng.integers(-60, 60, 32).astype(np.float16)
        x[~np.isfinite(x)] = 3
        run(x.ctypes.data, y.ctypes.data, out.ctypes.data)
        scaled = np.ldexp(x.astype(np.float64), y.astype(int)).astype(np.float16)
        magnitude = scaled.view(np.uint16) & 0x7FFF
        is_number = np.isfinite(scaled)
        assert np.array_equal(out[is_number], ((magnitude + 4 >> 3) | scaled.view(np.uint16) & 0x8000)[is_number])


def instructions(emit, n_addresses):
    """What LLVM makes of an operation for a Xeon with AMX, on any machine."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * n_addresses), "operation")
    b = ir.IRBuilder(function.append_basic_block())
    emit(amx.TILES["amx"], b, *function.args)
    b.ret_void()
    machine = binding.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(cpu="sapphirerapids")
    return " ".join(machine.emit_assembly(binding.parse_assembly(str(module))).split())


def of_vectors(name, *types):
    """Emits an operation of vectors that lie at the first addresses, and stores its result at the last."""

    def emit(tiles, b, *addresses):
        *places, out = addresses
        simd.store(b, out, getattr(tiles, name)(b, *(simd.load(b, *each) for each in zip(places, types, strict=True))))

    return emit


@pytest.mark.parametrize(
    ("emit", "n_addresses", "expected"),
    [
        (lambda tiles, b, memory, n: tiles.configure(b, memory, n), 2, "ldtilecfg (%rdi)"),
        (lambda tiles, b: tiles.release(b), 0, "tilerelease"),
        (lambda tiles, b, memory: tiles.clear(b, memory, 3), 1, "tilezero %tmm3"),
        (lambda tiles, b, memory, *rows: tiles.load(b, memory, 5, *rows), 3, "tileloadd (%rsi,%rdx), %tmm5"),
        (lambda tiles, b, memory, *rows: tiles.stream(b, memory, 4, *rows), 3, "tileloaddt1 (%rsi,%rdx), %tmm4"),
        (lambda tiles, b, memory, *rows: tiles.save(b, memory, 2, *rows), 3, "tilestored %tmm2, (%rsi,%rdx)"),
        (lambda tiles, b, memory: tiles.dot(b, memory, 0, 4, 6), 1, "tdpbf16ps %tmm6, %tmm4, %tmm0"),
        (of_vectors("round", simd.F32X16, simd.F32X16), 3, "vmovups (%rsi), %zmm0 vcvtne2ps2bf16 (%rdi), %zmm0, %zmm0"),
        (of_vectors("fma", *[simd.F16X32] * 3), 4, "vfmadd213ph (%rdx), %zmm0, %zmm1"),
        (of_vectors("scale", simd.F16X32, simd.F16X32), 3, "vscalefph {rn-sae}, %zmm1, %zmm0, %zmm0"),
        (of_vectors("shrink", simd.F16X32), 2, "vpmulhrsw"),
    ],
)
def test_operations_are_the_instructions_of_their_names(emit, n_addresses, expected):
    assert expected in instructions(emit, n_addresses)


def test_tiles_are_configured_as_the_manual_has_it(monkeypatch):
    monkeypatch.setattr(amx, "call", lambda *_: None)  # the last step, which this machine may not have
    memory = aligned(amx.MEMORY_BYTES)
    memory[:] = 0xFF

    @kernel
    def configured(place, n_tokens):
        amx.configure("amx", place, n_tokens)

    configured(memory.ctypes.data, 7)
    expected = np.zeros(64, np.uint8)
    expected[0] = 1  # the palette
    expected[16:32:2] = 64  # bytes of a row of each tile, as 16 bits
    expected[48:56] = [7] * 6 + [16] * 2  # rows
    assert np.array_equal(memory[:64], expected)


@pytest.mark.sample(1)  # a kernel of tiles takes two seconds to compile
@every_tile_isa
@every_kind
def test_products_by_tiles_are_nearer_than_those_of_rounded_bytes(name, kind, monkeypatch):
    monkeypatch.setenv("AUGURY_CPU_ISA", name)
    matrix, w = random_matrix(kind, 3)
    x = activations(4, 40)
    expected = x @ w.T
    assert np.linalg.norm(multiply(matrix, x) - expected) / np.linalg.norm(expected) < 0.0033


@pytest.mark.sample(2)
@every_tile_isa
@pytest.mark.parametrize("kind", [TensorType.F16, TensorType.BF16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("n_cols", [768, 81])  # of which the last block has 17
def test_weights_and_activations_of_more_than_eight_bits_are_cut_in_two(name, kind, n_cols, monkeypatch):
    monkeypatch.setenv("AUGURY_CPU_ISA", name)
    matrix, w = random_matrix(kind, 3, n_cols)
    x = activations(4, 40, n_cols) * np.float32(300)
    expected = x @ w.T
    assert matmul_kernels([matrix.kind], name)[matrix.kind].activation == "bf16x2"
    found = np.concatenate([multiply(matrix, part) for part in (x[:1], x[1:4], x[4:])])
    assert np.array_equal(multiply(matrix, x), found)
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < (6e-6 if kind is TensorType.F16 else 3e-6)


@every_tile_isa
def test_an_infinite_activation_leaves_no_remainder(name, monkeypatch):
    monkeypatch.setenv("AUGURY_CPU_ISA", name)
    source = weights.random_weights(np.random.default_rng(3), TensorType.BF16, 32, 64)
    x = activations(4, 1, 64)
    x[0, 5] = np.inf
    expected = x @ weights.dequantised(TensorType.BF16, source, 32).T
    assert np.array_equal(multiply(pack(TensorType.BF16, (32, 64), source), x), expected)


@pytest.mark.sample(1)
@every_tile_isa
@every_kind
def test_tiles_give_a_token_the_same_bits_among_any_others(name, kind, monkeypatch):
    monkeypatch.setenv("AUGURY_CPU_ISA", name)
    matrix, _ = random_matrix(kind, 5)
    x = activations(6, 70)
    expected = np.concatenate([multiply(matrix, row[None]) for row in x])
    for n in (2, 15, 16, 17, 31, 32, 33, 49, 64, 65, 70):
        assert np.array_equal(multiply(matrix, x[70 - n :], panels=(1 + n % 2,)), expected[70 - n :]), n


@every_tile_isa
@pytest.mark.parametrize("n_cols", [32, 64, 96, 288])
def test_matrices_of_few_columns_are_multiplied_by_tiles(name, n_cols, monkeypatch):
    monkeypatch.setenv("AUGURY_CPU_ISA", name)
    matrix, w = random_matrix(TensorType.Q4_0, 5, n_cols)
    x = activations(6, 271, n_cols)  # so many that the last two tiles begin with tokens of those before
    expected = x @ w.T
    for n in (1, 17, 40, 271):
        found = multiply(matrix, x[:n])
        assert np.linalg.norm(found - expected[:n]) / np.linalg.norm(expected[:n]) < 0.004


@every_tile_isa
def test_products_that_no_cache_holds_are_written_likewise(name, monkeypatch):
    monkeypatch.setenv("AUGURY_CPU_ISA", name)
    matrix, _ = random_matrix(TensorType.Q4_0, 5)  # whose kernel others compile, too
    x = activations(6, 64)
    assert np.array_equal(multiply(matrix, x, ldy=1 << 16), multiply(matrix, x))


if len(TILE_ISAS) > 1:

    @pytest.mark.sample(2)
    @every_kind
    def test_the_stand_in_has_the_bits_of_the_instructions(kind, monkeypatch):
        found = []
        for name in TILE_ISAS:
            monkeypatch.setenv("AUGURY_CPU_ISA", name)
            matrix, _ = random_matrix(kind, 7)
            found.append(multiply(matrix, activations(8, 35)))
        assert all(np.array_equal(each, found[0]) for each in found)


@every_tile_isa
@np.errstate(invalid="ignore")
def test_large_and_small_rows_keep_their_accuracy_and_a_row_that_is_not_finite_is_not_a_number(name, monkeypatch):
    monkeypatch.setenv("AUGURY_CPU_ISA", name)
    rng, n_cols = np.random.default_rng(9), 256
    blocks = weights.random_blocks(rng, TensorType.Q4_0, 32, n_cols).reshape(32, n_cols // 32, -1)
    d = np.ldexp(rng.uniform(0.5, 1, (32, n_cols // 32)), rng.integers(-23, 15, (32, 1))).astype(np.float16)
    d[3], d[4, 2], d[5, 0] = 0, np.inf, np.nan
    blocks[:, :, :2] = d[:, :, None].view(np.uint8)
    matrix = pack(TensorType.Q4_0, (32, n_cols), blocks.reshape(-1))
    x = activations(10, 3, n_cols)
    y = multiply(matrix, x)
    assert np.all(np.isnan(y[:, 4:6]))
    finite = np.delete(np.arange(32), (4, 5))
    w = weights.dequantised(TensorType.Q4_0, blocks.reshape(-1), 32).astype(np.float64)[finite]
    error = np.abs(y[:, finite] - x @ w.T) / (np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(w, axis=1) + 1e-30)
    assert np.all(error < 0.001)


def test_every_format_says_what_its_largest_weight_is():
    for kind in weights.QUANTISED:
        fmt, blocks = FORMATS[kind.name.lower()], weights.random_blocks(np.random.default_rng(11), kind, 32, 512)
        largest = np.abs(weights.dequantised(kind, blocks.reshape(-1), 32)).max(axis=1)
        matrix = pack(kind, (32, 512), blocks.reshape(-1))
        exponents = matrix.data[:64].view(np.float16).astype(np.float64)
        assert np.all(largest * 2.0**exponents < 2**14 * 1.01), kind
        assert fmt.largest[0] > 0


def test_refused_tiles_are_named_with_their_reason(monkeypatch):
    monkeypatch.setattr(isa, "host_features", lambda: isa.ISAS["amx"].needed)
    monkeypatch.setattr(isa, "permission", lambda: "not today")
    assert "amx" not in isa.available_isas()
    monkeypatch.setenv("AUGURY_CPU_ISA", "amx")
    with pytest.raises(OptionError, match="not today"):
        isa.choose_isa()


def test_tiles_are_used_of_large_models_where_they_are_permitted(monkeypatch):
    monkeypatch.delenv("AUGURY_CPU_ISA", raising=False)
    monkeypatch.setattr(isa, "host_features", lambda: isa.ISAS["amx"].needed)
    for refusal, n_bytes, expected in (("", 1 << 30, "amx"), ("", 256 << 20, "amx"), ("", 1 << 20, "avx512vnni")):
        monkeypatch.setattr(isa, "permission", lambda refusal=refusal: refusal)
        assert isa.choose_isa(n_bytes) == expected
    monkeypatch.setattr(isa, "permission", lambda: "not today")
    assert isa.choose_isa(1 << 30) == "avx512vnni"


def test_a_large_model_s_products_are_by_tiles_and_a_small_one_s_by_bytes(monkeypatch):
    monkeypatch.delenv("AUGURY_CPU_ISA", raising=False)
    monkeypatch.setattr(model, "choose_isa", lambda n_bytes: STAND_IN if n_bytes > 100 else isa.choose_isa())
    file = tiny_file("llama-dense-q4_0")
    logits = {}
    for n_bytes in (100, 101):
        file.n_bytes = n_bytes
        made = NumbaCpu(NumbaCpuOptions(keep_weights=False)).load(
            file, Llama.plans(file)["main"], ModelOptions(n_ctx=8, threads=1), Progress()
        )
        logits[made.isa] = made.forward(run_of([1, 2, 3])).rows().copy()
        made.close()
    bytes_, tiled = logits.values()
    assert list(logits) == [isa.choose_isa(), STAND_IN]
    assert 0 < np.abs(bytes_ - tiled).max() < 0.05 * np.abs(bytes_).max()
