import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.kernels.logits import BLOCK, MAX_BEST
from augury.backends.numba_cpu.passes import KERNELS, KernelPass
from augury.passes import ArrayPass

# few values, so that equals are frequent; zeros of both signs are equal, too
VALUES = st.sampled_from([-math.inf, -2.0, -0.0, 0.0, 1.0, 3.0, math.inf, math.nan])
NUMBERS = st.sampled_from([-math.inf, -2.0, -0.0, 0.0, 1.0, 3.0])
FIRST, ONE, BOTH = (np.array(rows, np.int32) for rows in ([0], [1], [0, 1]))


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    for kernel in KERNELS:
        address(kernel)


def pass_of(rows):
    """Rows (r, n) as a model has them: padded with what is better than all, then the largest logit of each whole block."""
    n_rows, n = rows.shape
    width = n + 7
    whole = np.full((n_rows, width + width // BLOCK), 100, np.float32)
    whole[:, :n] = rows
    whole[:, width:] = whole[:, : width // BLOCK * BLOCK].reshape(n_rows, width // BLOCK, BLOCK).max(axis=2)
    return KernelPass(whole[:, :n], width)


def both_ways(values):
    """A row and its reverse, (2, n) float32."""
    return np.array([values, values[::-1]], np.float32)


def some_of(values, n, seed):
    return np.random.default_rng(seed).choice(np.float32(values), n)


def assert_right(found, expected):
    """Best tokens and their logits."""
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1], equal_nan=True)
    assert [each.dtype for each in found] == [np.int32, np.float32]


@given(values=st.lists(VALUES, min_size=1, max_size=200))
def test_argmax_is_that_of_numpy(values):
    rows = both_ways(values)

    best = pass_of(rows).argmax()

    assert best.dtype == np.int32
    assert np.array_equal(best, ArrayPass(rows).argmax())


@given(values=st.lists(VALUES, min_size=1, max_size=200), k=st.integers(-1, 210))
def test_top_k_is_that_of_sorting(values, k):
    rows = both_ways(values)

    for wanted in (np.array([1, 0, 1], np.int32), FIRST, FIRST[:0]):
        assert_right(pass_of(rows).top_k(wanted, k), ArrayPass(rows).top_k(wanted, k))


@given(
    values=st.lists(st.floats(-3, 3, width=16) | NUMBERS, min_size=1, max_size=5),
    rare=st.lists(VALUES, max_size=4),
    n=st.integers(1, 12 * BLOCK),
    k=st.sampled_from([1, 2, 8, 40, MAX_BEST, MAX_BEST + 1]),
    n_less=st.integers(0, 2 * BLOCK),
)
def test_the_best_of_many_blocks_are_those_of_sorting(values, rare, n, k, n_less):
    """Few values, which are equal in many blocks, and some that one block has alone, perhaps one beyond the vocabulary."""
    row = some_of(values, n, seed=n)
    for i, value in enumerate(rare):
        row[(n * (i + 1) // 5 + 37 * i) % n] = value
    found, rows = pass_of(both_ways(row)), both_ways(row)
    for n_vocab in (n, max(1, n - n_less)):
        passed, right = found.first(n_vocab), ArrayPass(rows[:, :n_vocab])
        assert np.array_equal(passed.argmax(), right.argmax())
        assert_right(passed.top_k(BOTH[::-1], k), right.top_k(BOTH[::-1], k))


@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, 5 * BLOCK, 9 * BLOCK + 3])
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_an_odd_logit_is_noticed_in_any_block(place, odd):
    rows = both_ways(np.random.default_rng(place).standard_normal(9 * BLOCK + 4))
    rows[0, place] = odd
    for k in (1, 4, 40):
        assert_right(pass_of(rows).top_k(BOTH, k), ArrayPass(rows).top_k(BOTH, k))
    assert np.array_equal(pass_of(rows).argmax(), ArrayPass(rows).argmax())


def test_blocks_that_cannot_have_one_of_the_best_tokens_are_not_read():
    rows = np.random.default_rng(1).standard_normal((1, 50 * BLOCK)).astype(np.float32)
    passed = pass_of(rows)
    blocks = passed._array[0].reshape(50, BLOCK)
    blocks[np.argsort(blocks.max(axis=1))[:-8]] = math.nan
    assert_right(passed.top_k(FIRST, 8), ArrayPass(rows).top_k(FIRST, 8))


@pytest.mark.parametrize("rows", [[0, 3], [-4, 0]])
def test_rows_that_a_pass_does_not_have_are_refused(rows):
    with pytest.raises(IndexError, match="of a pass that has 3"):
        pass_of(np.zeros((3, 5), np.float32)).top_k(np.array(rows, np.int32), 2)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, 49152])
@pytest.mark.parametrize("order", ["random", "rising", "falling", "equal"])
def test_long_rows_in_any_order_are_right(n, order):
    row = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    row = {"random": row, "rising": np.sort(row), "falling": np.sort(row)[::-1], "equal": np.zeros(n, np.float32)}[order]
    rows = both_ways(row)
    kernel, right = pass_of(rows), ArrayPass(rows)

    assert np.array_equal(kernel.argmax(), right.argmax())
    for k in (1, 2, 40, MAX_BEST, MAX_BEST + 1):
        assert_right(kernel.top_k(ONE, k), right.top_k(ONE, k))
    assert kernel.log_normalizer(1) == pytest.approx(right.log_normalizer(1), abs=1e-12)


@given(values=st.lists(NUMBERS | st.floats(-1e4, 1e4, width=32), min_size=1, max_size=70))
def test_the_log_normalizer_is_that_of_float64(values):
    rows = both_ways([*values, 2.0])

    assert pass_of(rows).log_normalizer(0) == pytest.approx(ArrayPass(rows).log_normalizer(0), rel=1e-13, abs=1e-13)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's about infinities
@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_the_log_normalizer_of_what_is_no_number_is_none(odd):
    assert math.isnan(pass_of(both_ways([1.0, odd, 2.0])).log_normalizer(0))


def test_the_log_normalizer_does_not_depend_on_where_a_row_lies():
    row = np.random.default_rng(1).standard_normal(1001).astype(np.float32)
    whole, placed = np.zeros(1200, np.float32), pass_of(row[None])._array.base[0]
    found = set()
    for start in range(40):
        whole[start : start + len(placed)] = placed
        found.add(KernelPass(whole[None, start : start + 1001], 1008).log_normalizer(0))

    assert len(found) == 1


def test_no_rows_have_no_best_tokens():
    assert pass_of(np.zeros((0, 5), np.float32)).argmax().shape == (0,)


def test_the_first_tokens_alone_are_what_a_narrower_array_gives():
    rows = np.random.default_rng(2).standard_normal((3, 300)).astype(np.float32)
    rows[:, 200:] = 9
    kernel, right = pass_of(rows).first(200), ArrayPass(rows[:, :200].copy())
    assert np.array_equal(kernel.argmax(), right.argmax())
    assert all(map(np.array_equal, kernel.top_k(ONE, 5), right.top_k(ONE, 5)))
    assert kernel.log_normalizer(2) == pytest.approx(right.log_normalizer(2), abs=1e-12)
