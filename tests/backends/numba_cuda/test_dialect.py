"""What stands for instructions in the simulator computes what the PTX ISA says that they do."""

import numpy as np
import pytest
from cuda_simulator import grid
from cuda_simulator.products import add_products
from support.sources import ROOT

from augury.backends.numba_cuda.kernels import dialect, instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import cuda

RNG = np.random.default_rng(5)
WORDS = [*(int(word) for word in RNG.integers(0, 2**32, 40, np.uint32)), 0, 0x80808080, 0x7F7F7F7F, 0xFFFFFFFF]


def bytes_of(word):
    return [int(each) for each in np.array([word], np.uint32).view(np.int8)]


def test_dp4a_adds_products_of_signed_bytes():
    for a, b in zip(WORDS, reversed(WORDS), strict=True):
        right = 1000 + sum(x * y for x, y in zip(bytes_of(a), bytes_of(b), strict=True))
        assert gpu.dp4a(a, b, 1000) == right


def test_prmt_chooses_bytes_or_their_signs():
    for a, b in zip(WORDS, reversed(WORDS), strict=True):
        both = [*np.array([a, b], np.uint32).view(np.uint8).tolist()]
        for selector in (0x3210, 0x7654, 0x4420, 0x0123, 0xFEDC, 0x8A5D):
            chosen = [selector >> 4 * i & 15 for i in range(4)]
            right = [(255 if both[each & 7] & 128 else 0) if each & 8 else both[each] for each in chosen]
            assert gpu.prmt(a, b, selector) == int.from_bytes(bytes(right), "little")


def test_every_half_is_the_float_that_it_is():
    halves = np.arange(65536, dtype=np.uint16)
    right = halves.view(np.float16).astype(np.float32)
    found = np.array([gpu.float_of_half(int(half)) for half in halves], np.float32)
    assert np.array_equal(found, right, equal_nan=True)
    assert np.array_equal(np.signbit(found[::0x8000]), [False, True])


@pytest.mark.filterwarnings("ignore:overflow")
def test_floats_become_the_nearest_half_of_two_the_even_one():
    floats = np.concatenate(
        [RNG.integers(0, 2**32, 3000, np.uint32).view(np.float32), RNG.standard_normal(500, np.float32) * np.float32(1e-6)]
    )
    halves = RNG.integers(0, 0x7BFF, 500).astype(np.uint16)
    between = (halves.view(np.float16).astype(np.float32) + (halves + np.uint16(1)).view(np.float16).astype(np.float32)) / 2
    floats = np.concatenate([floats, between, -between, np.float32([0, -0.0, 65504, 65519.99, 65520, 1e9, np.inf, -np.inf])])
    floats = floats[~np.isnan(floats)]
    found = np.array([gpu.half_of_float(each) for each in floats], np.uint32)
    assert np.array_equal(found, floats.astype(np.float16).view(np.uint16))
    assert gpu.half_of_float(np.nan) & 0x7C00 == 0x7C00


def test_rounding_to_an_integer():
    for value, right in ((0.5, 0), (1.5, 2), (-2.5, -2), (126.7, 127), (np.nan, 0), (1e20, 2**31 - 1), (-np.inf, -(2**31))):
        assert gpu.nearest(value) == right


def test_a_product_is_added_and_rounded_once():
    a, less = np.float32(1 + 2**-12), np.float32(-1 - 2**-11)
    assert gpu.fma(a, a, less) == 2**-24
    assert gpu.add(gpu.mul(a, a), less) == 0


def test_nan_is_larger_than_anything():
    assert np.isnan([gpu.larger(np.nan, 1), gpu.larger(1, np.nan)]).all()
    assert gpu.larger(-np.inf, 2) == 2


def of_warp(operation, values):
    """What the 32 lanes get."""
    found = [None] * 32

    def kernel():
        i = cuda.threadIdx.x
        found[i] = operation(values[i])

    grid.run(kernel, (1, 1, 1), 32, ())
    return found


def test_operations_of_a_warp():
    floats = [float(each) for each in RNG.standard_normal(32, np.float32)]
    assert of_warp(dialect.warp_max, floats) == [max(floats)] * 32
    assert np.isnan(of_warp(dialect.warp_max, [*floats[:31], np.nan])).all()
    right = np.array(floats, np.float32)
    while len(right) > 1:  # neighbours, pairs of neighbours …
        right = right[::2] + right[1::2]
    assert of_warp(dialect.warp_sum, floats) == [right[0]] * 32
    whole = list(range(32))
    assert of_warp(dialect.half_warp_sums, whole) == [(120, 496)] * 16 + [(376, 496)] * 16
    sums = np.arange(64, dtype=np.float32).reshape(32, 2)
    of_warp(lambda each: dialect.slice_sums(each, 2), sums)
    right = np.arange(64, dtype=np.float32).reshape(8, 4, 2).sum(axis=0)
    assert np.array_equal(sums, np.tile(right, (8, 1)))
    pairs = [(each, i) for i, each in enumerate([1.0, 3.0, 2.0, 3.0] * 8)]
    assert of_warp(lambda each: dialect.warp_best(*each), pairs) == [(3.0, 1)] * 32
    assert of_warp(lambda each: dialect.warp_best(*each)[1], [(np.nan, 3), *pairs[1:]]) == [-1] * 32


@pytest.mark.parametrize("n_columns", [16, 32])
def test_fragments_of_tensor_cores(n_columns):
    """By the figures of the PTX ISA, section "Matrix Fragments for mma.m16n8k16" and "mma.m16n8k32", of .s8."""
    a, b = RNG.integers(-128, 128, (16, n_columns)), RNG.integers(-128, 128, (n_columns, 8))
    held = []
    for lane in range(32):
        group, within = lane >> 2, lane & 3
        first = [a[group + 8 * (4 <= i < 8 or i >= 12), within * 4 + (i & 3) + 16 * (i >= 8)] for i in range(n_columns // 2)]
        second = [b[within * 4 + (i & 3) + 16 * (i >= 4), group] for i in range(n_columns // 4)]
        held.append(np.array(first + second, np.int8).view(np.uint32).tolist())
    found = of_warp(lambda words: (gpu.mma32 if n_columns == 32 else gpu.mma16)(*words), held)
    for lane, values in enumerate(found):
        for i, value in enumerate(values):
            assert value == (a @ b)[(lane >> 2) + 8 * (i >= 2), (lane & 3) * 2 + (i & 1)]


def cut_off_sums(a, b, c):
    """(16, 8) float32, to which the products of (16, 16) and (16, 8) halves are added as `simulated_sums` says, by numpy."""

    def parts(numbers, least, n_bits):
        exponents = np.maximum(np.frexp(numbers.astype(np.float64))[1] - 1, least)
        return np.ldexp(numbers.astype(np.float64), n_bits - exponents).astype(np.int64), exponents

    (a, a_exponents), (b, b_exponents), (c, exponents) = parts(a, -14, 10), parts(b, -14, 10), parts(c, -126, 23)
    terms = np.concatenate([a[:, :, None] * b << 5, c[:, None] << 2], axis=1)
    exponents = np.concatenate([a_exponents[:, :, None] + b_exponents, exponents[:, None]], axis=1)
    top = np.maximum(np.where(terms == 0, -1000, exponents).max(axis=1), -133)
    sums = (np.sign(terms) * (abs(terms) >> np.clip(top[:, None] - exponents, 0, 62))).sum(axis=1)
    n_cut = np.maximum(np.frexp(sums)[1] - 24, np.maximum(-124 - top, 0))
    with np.errstate(over="ignore"):
        return np.ldexp((np.sign(sums) * (abs(sums) >> n_cut << n_cut)).astype(np.float64), top - 25).astype(np.float32)


def halves_of(shape, share_of_zeros=0.0, most=0x7BFF):
    """Halves of random bits, of which some are 0."""
    halves = (RNG.integers(0, most + 1, shape) | RNG.integers(0, 2, shape) << 15).astype(np.uint16).view(np.float16)
    return np.where(RNG.random(shape) < share_of_zeros, np.float16(0), halves)


@pytest.mark.parametrize("device", ["H100", "H200"])
def test_sums_of_products_of_halves_are_those_that_were_measured(device):
    with np.load(ROOT / "tests/data/tensor_cores.npz") as measured:
        first, second, before, after = (measured[f"{device}.{name}"] for name in ("first", "second", "before", "after"))
    found = []
    for i in range(0, len(first), 4):  # on the diagonal of a product
        rows, columns, sums = np.zeros((16, 16), np.uint16), np.zeros((16, 8), np.uint16), np.zeros((16, 8), np.uint32)
        rows[:4], columns[:, :4], sums[range(4), range(4)] = first[i : i + 4], second[i : i + 4].T, before[i : i + 4]
        found += np.diag(add_products(rows, columns, sums.view(np.float32)))[:4].tolist()
    assert np.array_equal(np.array(found, np.float32).view(np.uint32), after)
    rounded = before.view(np.float32) + (first.view(np.float16).astype(np.float64) * second.view(np.float16)).sum(axis=1)
    assert np.mean(np.array(found, np.float32) == rounded.astype(np.float32)) < 0.7, "others are cut off otherwise"


@pytest.mark.parametrize(("share_of_zeros", "most"), [(0.0, 0x7BFF), (0.7, 0x7BFF), (0.1, 0x3FF), (0.0, 0x4000)])
def test_sums_of_any_halves_are_cut_off_and_depend_on_no_order(share_of_zeros, most):
    for _ in range(20):
        a, b = halves_of((16, 16), share_of_zeros, most), halves_of((16, 8), share_of_zeros, most)
        c = np.ldexp(halves_of((16, 8), share_of_zeros, most).astype(np.float32), RNG.integers(-140, 110))
        found, order = add_products(a.view(np.uint16), b.view(np.uint16), c), RNG.permutation(16)
        assert np.array_equal(found, cut_off_sums(a, b, c))
        a, b = (np.ascontiguousarray(each).view(np.uint16) for each in (a[:, order], b[order]))
        assert np.array_equal(add_products(a, b, c), found)


def test_sums_with_what_is_no_number():
    a, b, c = np.zeros((16, 16), np.float16), np.zeros((16, 8), np.float16), np.zeros((16, 8), np.float32)
    a[0, 3], b[3, :3], a[1, 0], c[2, 2], a[3, 1], b[1, :4], c[3] = (
        np.inf,
        (1, -2, 0),
        np.nan,
        -np.inf,
        6e4,
        6e4,
        np.finfo("f4").max,
    )
    found = add_products(a.view(np.uint16), b.view(np.uint16), c)
    assert np.array_equal(found[0, :3], [np.inf, -np.inf, np.nan], equal_nan=True)
    assert np.isnan(found[1]).all()
    assert found[2, 2] == -np.inf
    assert (found[3] == np.finfo("f4").max).all(), "less than its last place"


def test_fragments_of_halves():
    """By the figures of the PTX ISA, section "Matrix Fragments for mma.m16n8k16 with floating point type", of .f16."""
    a, b = (RNG.standard_normal(shape).astype(np.float16) for shape in ((16, 16), (16, 8)))
    c, held = RNG.standard_normal((16, 8)).astype(np.float32), []
    for lane in range(32):
        group, within = lane >> 2, lane & 3
        first = [a[group + 8 * (2 <= i < 4 or i >= 6), within * 2 + (i & 1) + 8 * (i >= 4)] for i in range(8)]
        second = [b[within * 2 + (i & 1) + 8 * (i >= 2), group] for i in range(4)]
        sums = [c[group + 8 * (i >= 2), within * 2 + (i & 1)] for i in range(4)]
        held.append((*np.array(first + second).view(np.uint32).tolist(), *sums))
    found, right = of_warp(lambda given: gpu.mma_halves(*given), held), cut_off_sums(a, b, c)
    for lane, values in enumerate(found):
        for i, value in enumerate(values):
            assert value == right[(lane >> 2) + 8 * (i >= 2), (lane & 3) * 2 + (i & 1)]
    assert of_warp(dialect.quad_max, [float(i % 7) for i in range(32)])[5:9] == [6.0] * 3 + [4.0]
    assert of_warp(dialect.quad_sum, [float(i) for i in range(32)])[3:6] == [6.0, 22.0, 22.0]


def test_wide_loads_take_what_is_aligned():
    words = np.empty(16, np.uint32)
    words = words[-words.ctypes.data // 4 % 4 :][:12]
    words[:] = range(12)
    assert [gpu.load16(words, 4), gpu.load8(words, 6)] == [(4, 5, 6, 7), (6, 7)]
    assert gpu.load16(words, 2) == gpu.load16(words[1:], 4) == (0xFFFFFFFF,) * 4
    assert gpu.load8(words, 3) == gpu.load8(words[1:], 2) == (0xFFFFFFFF,) * 2
