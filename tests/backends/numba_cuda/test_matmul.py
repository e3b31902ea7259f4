"""Weights in planes are the file's to the bit, and products with them do not depend on how many tokens share them."""

from types import SimpleNamespace

import numpy as np
import pytest
from cuda_simulator.device import CountingDevice, SimulatedDevice
from oracles.cuda_products import Product, random_matrix

from augury.backends.numba_cuda import repack as repack_module
from augury.backends.numba_cuda.kernels import sums
from augury.backends.numba_cuda.kernels.embed import LOOK_UP
from augury.backends.numba_cuda.kernels.formats import FORMATS, unit_at
from augury.backends.numba_cuda.kernels.matmul import ADD, OF_TOKENS
from augury.backends.numba_cuda.kernels.sums import TILES
from augury.backends.numba_cuda.kernels.tensor_cores import MATRIX_TILES
from augury.backends.numba_cuda.narrow_output import _parts
from augury.backends.numba_cuda.products import DeviceRows, Operand, Tiles, launch_of, launch_of_two, tile_of
from augury.backends.numba_cuda.repack import n_units, repack
from augury.backends.numba_cuda.weights import Matrix
from augury.errors import UnsupportedError
from augury.files.tensor_type import TensorType

N_ROWS = 6
COLUMNS = 320  # ten units: some slices have two, and the last tile is not full


def test_a_matrix_of_more_words_than_kernels_count_is_refused(monkeypatch):
    monkeypatch.setattr(repack_module, "MOST_WORDS", 1 << 8)
    with pytest.raises(UnsupportedError, match=r"a matrix of 8 x 256 Q8_0 weights takes 0.0 GiB; expected .* at most"):
        repack(TensorType.Q8_0, np.zeros(8 * 8 * 34, np.uint8), 8, 256)


def columns_of(name):
    return 2 * COLUMNS - 128 if TensorType[name].block_size == 256 else COLUMNS


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_planes_hold_the_weights_of_the_file(name, monkeypatch):
    data, right = random_matrix(np.random.default_rng(3), TensorType[name], N_ROWS, columns_of(name))
    monkeypatch.setattr(repack_module, "_PART_BYTES", 1)  # four rows at a time, by two threads
    words, n, out = (
        repack(TensorType[name], data.reshape(-1), *right.shape, threads=2),
        n_units(*right.shape),
        np.zeros(32, np.float32),
    )
    n_steps = -(-right.shape[1] // 256)
    for row, values in enumerate(right):
        for unit in range(right.shape[1] // 32):
            LOOK_UP[name](words, n, unit_at(row, unit, n_steps), out, 0, 32, np.float32(1))
            assert np.array_equal(out, values[32 * unit : 32 * unit + 32])


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_products_are_right_and_depend_on_no_other_token(name):
    product = Product(SimulatedDevice(), name, 8, N_ROWS, columns_of(name))
    found = product.by(TILES[-1])
    assert np.abs(found - product.right).max() <= 1e-5 * np.abs(product.right).max()
    for n_tokens in TILES[:-1] if name in ("Q4_K", "F16") else ():
        assert np.array_equal(product.by(n_tokens), found)
    assert np.array_equal(product.by(TILES[-1], mode=ADD), found + found)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", sorted(name for name, fmt in FORMATS.items() if not fmt.is_float))
def test_tensor_cores_give_the_bits_of_byte_dot_products(name):
    few = Product(SimulatedDevice(), name, 8, N_ROWS, columns_of(name))
    right = few.by(8)
    many = Product(SimulatedDevice(), name, 17, N_ROWS, columns_of(name))
    for tile in reversed(MATRIX_TILES if name in ("Q4_0", "Q6_K") else (16,)):
        found = many.by(tile)
        assert np.array_equal(found[:8], right)
    assert np.abs(found - many.right).max() <= 1e-5 * np.abs(many.right).max()
    assert np.array_equal(many.by(16, mode=ADD), found + found)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_what_is_brought_near_is_the_planes_of_some_tiles_in_sixteens_of_bytes(name, monkeypatch):
    fmt, found = FORMATS[name], []
    matrix = Matrix(fmt, CountingDevice().allocate(0, ""), 26, 3 * 256, 1.0, None)  # seven tiles of rows
    monkeypatch.setattr(sums.gpu, "bring_near", lambda _, at, n_bytes: found.append((4 * at, 4 * at + int(n_bytes))))
    monkeypatch.setattr(sums, "cuda", SimpleNamespace(threadIdx=SimpleNamespace(x=0)))
    args = matrix.arguments._replace(words=None)
    for first, n, there in ((0, 2, 2), (5, 4, 2), (7, 4, 0)):
        found.clear()
        sums.bring_near_of(fmt)(args, first, n)
        tiles = [_parts(matrix, first + i) for i in range(there)]
        right = [(each[0][0].offset, each[-1][0].offset + each[-1][1]) for each in zip(*tiles, strict=True)]
        assert found == [(begin // 16 * 16, -(-end // 16) * 16) for begin, end in right]


def test_a_cut_matrix_gives_the_same_bits_whichever_kernel_multiplies():
    few, many = (Product(SimulatedDevice(), "Q4_0", n, N_ROWS, 32 * 8 * 5 - 32) for n in (2, 17))
    found = [few.by(n, n_cuts=4) for n in (1, 2)]
    found += [many.by(16, n_cuts=4, is_split=is_split) for is_split in (False, True, True)]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[1], found[2][:2])
    assert all(np.array_equal(found[2], each) for each in found[3:]), "cuts in blocks of their own, twice by the same counters"
    assert np.abs(found[0] - few.right).max() <= 1e-5 * np.abs(few.right).max()
    assert not np.array_equal(found[0], few.by(2)), "cuts are another order of additions"


def test_cuts_have_blocks_of_their_own_where_blocks_are_few():
    at, more = CountingDevice().allocate(0, ""), {"parts": None, "counters": None}
    matrix, x, to = Matrix(FORMATS["Q6_K"], at, 1536, 8960, 1.0, None), DeviceRows(at, 8960).operand, DeviceRows(at, 1536)
    grids = [launch_of(matrix, x, to, 0, Tiles(at, n, 16, which=OF_TOKENS), more=more).grid for n in (1, 2)]
    assert grids == [(96, 1, 8), (96, 2, 1)]


@pytest.mark.sample(0)
@pytest.mark.parametrize(("n_tokens", "n_cols"), [(1, 2048), (3, 256)])  # a row in two cuts, and two tiles
def test_two_matrices_of_different_types_in_one_launch_give_the_bits_of_two(n_tokens, n_cols):
    device, width = SimulatedDevice(), 2 * N_ROWS + 2
    one, other = (Product(device, name, n_tokens, N_ROWS, n_cols) for name in ("Q4_K", "Q6_K"))
    matrices = [Matrix(each.fmt, each.at["w"], N_ROWS, n_cols, 0.5, each.at["bias"]) for each in (one, other)]
    products = list(zip(matrices, (N_ROWS + 2, 0), strict=True))
    x, to = (
        Operand(*(one.at[name] for name in ("floats", "bytes", "factors", "sums", "halves")), n_cols),
        DeviceRows(one.at["y"], width),
    )

    def found(launches):
        y = np.zeros((n_tokens, width), np.float32)
        device.write(to.at, y)
        for launch in launches:
            device.launch(launch)
        device.read(to.at, y)
        return y

    tile = tile_of(matrices[0], n_tokens)
    tiles = Tiles(one.at["inputs"], -(-n_tokens // tile), tile, which=OF_TOKENS)
    right = found(launch_of(matrix, x, to, column, tiles) for matrix, column in products)
    assert np.array_equal(found([launch_of_two(one.at["inputs"], n_tokens, x, products, to)]), right)
    assert np.count_nonzero(right) == 2 * N_ROWS * n_tokens
    assert launch_of_two(one.at["inputs"], n_tokens, x, products[::-1], to) is None, "types have an order"


def test_narrow_matrices_are_cut_by_their_shape_alone():
    shapes = {
        (2048, 1536): 1,
        (1536, 8960): 8,
        (17920, 1536): 1,
        (6144, 4096): 2,
        (4096, 14336): 2,
        (151936, 1536): 1,
        (64, 64): 1,
    }
    for (n_rows, n_cols), n_cuts in shapes.items():
        assert Matrix(FORMATS["Q4_K"], None, n_rows, n_cols, 1.0, None).n_cuts == n_cuts
