"""Weights in planes are the file's to the bit, and products with them do not depend on how many tokens share them."""

import numpy as np
import pytest
from oracles.weights import FLOATS, dequantised, random_weights

from augury.backends.numba_cuda import repack as repack_module
from augury.backends.numba_cuda.device import Launch, SimulatedDevice
from augury.backends.numba_cuda.kernels import inputs
from augury.backends.numba_cuda.kernels.formats import FORMATS, TILE_ROWS
from augury.backends.numba_cuda.kernels.matmul import ADD, LOOK_UP, MULTIPLY, STORE, TILES
from augury.backends.numba_cuda.kernels.norm import NOTHING, RMS, norm_rows
from augury.backends.numba_cuda.repack import n_units, repack
from augury.files.tensor_type import TensorType

N_ROWS, N_TOKENS = 6, 8
COLUMNS = 320  # ten units: some slices have two, and the last tile is not full


def columns_of(name):
    return 2 * COLUMNS - 128 if TensorType[name].block_size == 256 else COLUMNS


def matrix(name, rng):
    """The bytes of a matrix, and its values."""
    kind, columns = TensorType[name], columns_of(name)
    if kind not in FLOATS:
        data = random_weights(rng, kind, N_ROWS, columns)
        return data, dequantised(kind, data, N_ROWS)
    values = rng.standard_normal((N_ROWS, columns), np.float32)
    if kind is TensorType.F32:
        return values.view(np.uint8), values
    if kind is TensorType.F16:
        return values.astype(np.float16).view(np.uint8), values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32) >> 16
    return bits.astype(np.uint16).view(np.uint8), (bits << 16).view(np.float32)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_planes_hold_the_weights_of_the_file(name, monkeypatch):
    data, right = matrix(name, np.random.default_rng(3))
    monkeypatch.setattr(repack_module, "_PART_BYTES", 1)  # four rows at a time, by two threads
    words, n, out = (
        repack(TensorType[name], data.reshape(-1), *right.shape, threads=2),
        n_units(*right.shape),
        np.zeros(32, np.float32),
    )
    n_steps = -(-right.shape[1] // 256)
    for row, values in enumerate(right):
        for unit in range(right.shape[1] // 32):
            u = ((row // TILE_ROWS * n_steps + unit // 8) * TILE_ROWS + row % TILE_ROWS) * 8 + unit % 8
            LOOK_UP[name](words, n, u, out, 0, 32, np.float32(1))
            assert np.array_equal(out, values[32 * unit : 32 * unit + 32])


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_products_are_right_and_depend_on_no_other_token(name):
    rng, columns = np.random.default_rng(4), columns_of(name)
    data, weights = matrix(name, rng)
    x = rng.standard_normal((N_TOKENS, columns), np.float32) * np.float32(2)
    device, fmt = SimulatedDevice(), FORMATS[name]
    words = repack(TensorType[name], data.reshape(-1), N_ROWS, columns)
    n_bytes = {"w": words.nbytes, "x": x.nbytes, "weight": 4 * columns, "floats": x.nbytes, "bytes": x.nbytes}
    n_bytes |= {
        "factors": x.nbytes,
        "sums": x.nbytes,
        "y": 4 * N_ROWS * N_TOKENS,
        "bias": 4 * N_ROWS,
        "inputs": 4 * inputs.SIZE,
    }
    at = {key: device.allocate(n, key).at(0) for key, n in n_bytes.items()}
    bias = rng.standard_normal(N_ROWS, np.float32)
    told = np.array([N_TOKENS, N_TOKENS], np.int32)
    for key, array in (("w", words), ("x", x), ("weight", np.ones(columns, np.float32)), ("bias", bias), ("inputs", told)):
        device.write(at[key], array)
    names = ("inputs", "x", "x", "weight", "weight", "floats", "bytes", "factors", "sums")
    places = [at[key] for key in names]
    sizes, flags = (columns, 0, columns, columns, columns), (0, 1, 1, NOTHING, RMS)
    device.launch(Launch(norm_rows, (N_TOKENS, 1, 1), 64, (*places, *sizes, *flags, 0.0, 1e-6)))
    normed, rounded = np.empty_like(x), np.empty(x.shape, np.int8)
    factors = np.empty((N_TOKENS, columns // 32), np.float32)
    for key, array in (("floats", normed), ("bytes", rounded), ("factors", factors)):
        device.read(at[key], array)
    assert np.allclose(normed, x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-6), rtol=1e-5)
    fed = normed if fmt.is_float else rounded * factors.repeat(32, axis=1)
    assert np.abs(fed - normed).max() <= np.abs(normed).max() / 127
    right = 0.5 * (fed.astype(np.float64) @ weights.astype(np.float64).T) + bias

    def product(n_tokens, mode=STORE):
        units = (N_ROWS, columns // 32, -(-columns // 256), n_units(N_ROWS, columns))
        rows = (at["w"], at["floats" if fmt.is_float else "bytes"], at["factors"], at["sums"], at["bias"], at["y"])
        launch = (at["inputs"], *rows, *units, N_ROWS, 0, 1, mode, 0, 0.5)
        device.launch(Launch(MULTIPLY[name, n_tokens], (2, N_TOKENS // n_tokens, 1), 32, launch))
        y = np.empty((N_TOKENS, N_ROWS), np.float32)
        device.read(at["y"], y)
        return y

    found = product(TILES[-1])
    assert np.abs(found - right).max() <= 1e-5 * np.abs(right).max()
    for n_tokens in TILES[:-1] if name in ("Q4_K", "F16") else ():
        assert np.array_equal(product(n_tokens), found)
    assert np.array_equal(product(TILES[-1], ADD), found + found)
