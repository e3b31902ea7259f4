import numpy as np
import pytest
from oracles import weights
from oracles.products import COLS, ROWS, activations, every_kind, multiply, quantised, random_matrix

from augury.backends.numba_cpu.kernels.amx import TILES
from augury.backends.numba_cpu.kernels.isa import available_isas, choose_isa
from augury.backends.numba_cpu.packing import pack
from augury.errors import OptionError
from augury.files.tensor_type import TensorType


def assert_close(y: np.ndarray, x: np.ndarray, w: np.ndarray, tolerance: float) -> None:
    """Errors stay below `tolerance` times the largest product that vectors of these lengths can have."""
    scale = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(w, axis=1)
    assert np.all(np.abs(y - x @ w.T) <= tolerance * scale + 1e-30)


@pytest.mark.sample(2)
@every_kind
@pytest.mark.parametrize("n", [1, 3, 40])
def test_a_product_is_that_of_the_rounded_activations_in_float64(kind, n):
    matrix, w = random_matrix(kind, 1)
    x = activations(2, n)
    operand = x.astype(np.float64) if kind in weights.FLOATS else weights.rounded(x)
    assert_close(multiply(matrix, x), operand, w, 1e-6)


@pytest.mark.sample(2)
@every_kind
def test_a_product_is_near_that_of_the_activations_themselves(kind):
    matrix, w = random_matrix(kind, 3)
    x = activations(4, 16)
    expected = x @ w.T
    distance = np.linalg.norm(multiply(matrix, x) - expected) / np.linalg.norm(expected)
    assert distance < (2e-6 if kind in weights.FLOATS else 0.008)


def test_long_sums_of_float_products_round_little():
    matrix, w = random_matrix(TensorType.F32, 3, n_cols=4096)
    x = activations(4, 40, 4096)
    expected = x @ w.T

    error = np.mean((multiply(matrix, x) - expected) ** 2) / np.mean(expected**2)

    assert error < 2e-13


@pytest.mark.sample(3)
@every_kind
def test_bits_of_a_token_depend_on_nothing_but_the_token(kind):
    matrix, _ = random_matrix(kind, 5)
    x = activations(6, 130)
    expected = np.concatenate([multiply(matrix, row[None]) for row in x])
    for n in (*range(2, 21), 24, 25, 33, 64, 67, 130):
        assert np.array_equal(multiply(matrix, x[130 - n :]), expected[130 - n :]), n
        order = np.random.default_rng(n).permutation(130)[:n]
        assert np.array_equal(multiply(matrix, x[order], panels=(1 + n % 2,)), expected[order]), n


@pytest.mark.sample(3)
@every_kind
def test_bits_do_not_depend_on_the_rows_beside(kind):
    source = weights.random_weights(np.random.default_rng(7), kind, 64, COLS)
    x = activations(8, 5)
    whole = multiply(pack(kind, (64, COLS), source), x)
    half = multiply(pack(kind, (32, COLS), source[source.size // 2 :]), x)
    assert np.array_equal(whole[:, 32:], half)


@pytest.mark.sample(1)
@pytest.mark.parametrize("isa", [isa for isa in available_isas() if isa != choose_isa() and isa not in TILES])
@every_kind
def test_every_instruction_set_gives_the_same_bits_to_any_number_of_tokens(kind, isa, monkeypatch):
    matrix, _ = random_matrix(kind, 9, 256)
    x = activations(10, 31, 256)
    expected = multiply(matrix, x)
    monkeypatch.setenv("AUGURY_CPU_ISA", isa)
    for n in (1, 2, 3, 5, 8, 24, 25, 31):
        assert np.array_equal(multiply(matrix, x[31 - n :]), expected[31 - n :]), n


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", weights.QUANTISED, ids=lambda kind: kind.name)
def test_extreme_blocks_and_activations_are_multiplied_right(kind):
    blocks = weights.random_blocks(np.random.default_rng(11), kind, ROWS, 768).reshape(-1, kind.block_bytes)
    scales = weights.SCALES[kind]
    rest = np.setdiff1d(np.arange(kind.block_bytes), scales)
    blocks[::3, rest[:, None]] = 0xFF
    blocks[1::5, rest[:, None]] = 0
    blocks[2::11, scales] = weights.LARGEST[kind]
    matrix = pack(kind, (ROWS, 768), blocks.reshape(-1))
    w = weights.dequantised(kind, blocks.reshape(-1), ROWS).astype(np.float64)
    x = activations(12, 10, 768)
    x[0] = 0
    x[1] = -0.0
    x[2] = 1
    x[3] = -1
    x[4] *= 1e25
    x[5] *= 1e-28
    x[6] *= 1e-41
    x[7, 1:] = 0
    x[8, ::2] = -1e4
    x[9, 32:64] *= 1e6
    y = multiply(matrix, x)
    assert np.all(np.isfinite(y))
    assert_close(y, weights.rounded(x), w, 2e-6)


@pytest.mark.parametrize("kind", weights.FLOATS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("n_cols", [1, 37, 129])
def test_float_weights_multiply_with_any_number_of_columns(kind, n_cols):
    matrix, w = random_matrix(kind, 13, n_cols)
    x = activations(14, 7, n_cols)
    assert_close(multiply(matrix, x), x.astype(np.float64), w, 1e-6)


def test_activations_round_to_the_nearest_of_255_steps_per_16_columns():
    matrix, _ = random_matrix(TensorType.Q8_0, 15)
    x = activations(16, 9)
    x[3, :16] = 1e-38
    x[4] = 0
    records = quantised(matrix, x).reshape(COLS // 32, 9, 52)
    steps = records[..., :32].view(np.int8).astype(np.int32).reshape(COLS // 32, 9, 2, 16)
    scales = np.ascontiguousarray(records[..., 40:48]).view(np.float32)
    values = steps.astype(np.float64) * scales[..., np.newaxis]
    assert np.array_equal(values.transpose(1, 0, 2, 3).reshape(9, COLS), weights.rounded(x))
    sums = steps.sum(axis=3)
    assert np.array_equal(np.ascontiguousarray(records[..., 32:40]).view(np.int32), -sums)
    total = np.ascontiguousarray(records[..., 48:52]).view(np.float32)[..., 0]
    scaled = scales * sums.astype(np.float32)
    assert np.array_equal(total, scaled[..., 0] + scaled[..., 1])


@pytest.mark.parametrize("kind", [TensorType.Q8_0, TensorType.F32], ids=lambda kind: kind.name)
def test_threads_may_share_the_rounding_of_activations(kind):
    matrix, _ = random_matrix(kind, 17)
    x = activations(18, 5)
    assert np.array_equal(quantised(matrix, x), quantised(matrix, x, ranges=7))


def test_a_target_that_the_cpu_lacks_is_refused_with_those_that_it_has(monkeypatch):
    monkeypatch.setenv("AUGURY_CPU_ISA", "abacus")
    with pytest.raises(OptionError, match="generic"):
        choose_isa()
