import gguf
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from oracles import weights

from augury.backends.numba_cpu.kernels.format import FORMATS
from augury.backends.numba_cpu.kernels.matmul import SCRATCH_BYTES, matmul_kernels
from augury.backends.numba_cpu.kernels.repack import _PLACES
from augury.backends.numba_cpu.packing import PackedMatrix, aligned, pack, pack_tensor
from augury.blocks import RowSelection
from augury.errors import ModelFileError
from augury.files.gguf import Tensor
from augury.files.tensor_type import TensorType


def embed(matrix: PackedMatrix, row: int) -> np.ndarray:
    out, scratch = np.empty(matrix.n_cols, np.float32), aligned(SCRATCH_BYTES)
    kernel = matmul_kernels([matrix.kind])[matrix.kind].embed
    kernel(matrix.address, row, matrix.n_cols, out.ctypes.data, scratch.ctypes.data)
    return out


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint32)


@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", weights.KINDS, ids=lambda kind: kind.name)
def test_a_packed_row_dequantises_to_the_bits_of_ggml(kind):
    source = weights.random_weights(np.random.default_rng(1), kind, 70, 768)
    matrix = pack(kind, (70, 768), source)
    expected = weights.dequantised(kind, source, 70)
    assert np.array_equal(bits(np.stack([embed(matrix, row) for row in range(70)])), bits(expected))


@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", weights.QUANTISED, ids=lambda kind: kind.name)
@given(seed=st.integers(0, 2**32), n_rows=st.integers(1, 66), n_units=st.integers(1, 3))
@settings(max_examples=15)
def test_any_blocks_survive_packing(kind, seed, n_rows, n_units):
    n_cols = n_units * kind.block_size
    source = weights.random_blocks(np.random.default_rng(seed), kind, n_rows, n_cols)
    matrix = pack(kind, (n_rows, n_cols), source)
    expected = weights.dequantised(kind, source, n_rows)
    assert np.array_equal(bits(np.stack([embed(matrix, row) for row in range(n_rows)])), bits(expected))


def test_a_damaged_scale_makes_its_row_undefined_without_a_warning():
    source = weights.random_weights(np.random.default_rng(1), TensorType.Q4_1, 33, 64).view(np.uint8).reshape(33, -1).copy()
    source[5, :2] = 0x01, 0x7D  # a signalling NaN
    matrix = pack(TensorType.Q4_1, (33, 64), source)
    assert [row for row in range(33) if not np.isfinite(embed(matrix, row)).all()] == [5]


@pytest.mark.parametrize("kind", weights.FLOATS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("n_cols", [1, 31, 33, 100])
def test_float_weights_have_any_number_of_columns(kind, n_cols):
    source = weights.random_weights(np.random.default_rng(2), kind, 33, n_cols)
    matrix = pack(kind, (33, n_cols), source)
    expected = weights.dequantised(kind, source, 33)
    assert np.array_equal(bits(np.stack([embed(matrix, row) for row in range(33)])), bits(expected))


# Bits of a weight where they are more than in the file: codebooks, and five weights to a byte, are written out.
WRITTEN_OUT = {"TQ1_0": 2.0625, "IQ1": 2.4375, "IQ2": 3.3125, "IQ3": 4.1875}


@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", weights.KINDS, ids=lambda kind: kind.name)
def test_whole_panels_take_as_many_bytes_as_the_file_or_what_is_written_out(kind):
    source = weights.random_weights(np.random.default_rng(3), kind, 64, 512)
    n_bits = WRITTEN_OUT.get(kind.name) or WRITTEN_OUT.get(kind.name[:3]) or 8 * source.size / (64 * 512)
    assert 8 * pack(kind, (64, 512), source).n_bytes == n_bits * 64 * 512


def test_ternary_types_are_packed_to_the_same_bytes():
    numbers = np.random.default_rng(6).standard_normal((64, 512), dtype=np.float32)
    ternary = [(kind, gguf.quants.quantize(numbers, kind).reshape(-1)) for kind in (TensorType.TQ1_0, TensorType.TQ2_0)]
    one, other = (pack(kind, (64, 512), source) for kind, source in ternary)
    assert one.kind == other.kind
    assert np.array_equal(one.data, other.data)


@pytest.mark.parametrize("kind", [TensorType.Q4_K, TensorType.Q8_0, TensorType.BF16], ids=lambda kind: kind.name)
def test_threads_pack_the_same_bytes(kind):
    n_rows = 32 * 40 + 5
    source = weights.random_weights(np.random.default_rng(4), kind, n_rows, 256)
    alone, together = pack(kind, (n_rows, 256), source), pack(kind, (n_rows, 256), source, threads=2)
    assert np.array_equal(alone.data, together.data)


def test_leading_axes_of_a_tensor_count_as_rows():
    source = weights.random_weights(np.random.default_rng(5), TensorType.Q4_0, 6, 64)
    matrix = pack_tensor(Tensor("experts", (2, 3, 64), TensorType.Q4_0, source))
    assert (matrix.n_rows, matrix.n_cols, matrix.n_panels) == (6, 64, 1)


@pytest.mark.parametrize("kind", [TensorType.Q4_K, TensorType.Q8_0, TensorType.F16], ids=lambda kind: kind.name)
def test_rows_of_a_stored_matrix_are_packed_like_a_matrix_of_their_own(kind):
    source = weights.random_weights(np.random.default_rng(5), kind, 96, 256).reshape(96, -1)
    chosen = source[[row for row in range(96) if 8 <= row % 24 < 20]]

    part = pack_tensor(Tensor("part", (48, 256), kind, RowSelection(8, 12, 24, 96).of(source)))

    assert np.array_equal(part.data, pack(kind, (48, 256), chosen.reshape(-1)).data)


@pytest.mark.parametrize("n_bytes", [1, 4096, (4 << 20) + 1])
def test_memory_is_aligned_to_lines_or_huge_pages(n_bytes):
    memory = aligned(n_bytes)
    assert memory.size == n_bytes
    assert memory.ctypes.data % (1 << 21 if n_bytes > 4 << 20 else 64) == 0


def test_every_type_of_a_model_file_has_a_format_of_its_size():
    assert FORMATS.keys() == _PLACES.keys() | {"f32", "f16", "bf16"} == {kind.name.lower() for kind in weights.KINDS}
    for kind in weights.QUANTISED:
        n_bytes, name = _PLACES[kind.name.lower()][0], kind.name.lower()
        assert n_bytes * kind.block_size == kind.block_bytes * FORMATS[name].unit_blocks * 32


@pytest.mark.parametrize(("n_cols", "n_bytes"), [(100, 144), (256, 143), (256, 288)])
def test_a_matrix_of_the_wrong_size_is_refused(n_cols, n_bytes):
    with pytest.raises(ModelFileError, match="Q4_K matrix"):
        pack(TensorType.Q4_K, (1, n_cols), np.zeros(n_bytes, np.uint8))
