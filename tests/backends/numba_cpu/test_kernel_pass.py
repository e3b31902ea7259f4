import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from augury.backends.numba_cpu.kernel_pass import KERNELS, KernelPass
from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.kernels.logits import MAX_BEST
from augury.passes import ArrayPass

# few values, so that equals are frequent; zeros of both signs are equal, too
VALUES = st.sampled_from([-math.inf, -2.0, -0.0, 0.0, 1.0, 3.0, math.inf, math.nan])
NUMBERS = st.sampled_from([-math.inf, -2.0, -0.0, 0.0, 1.0, 3.0])
ONE = np.array([1], np.int32)


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    for kernel in KERNELS:
        address(kernel)


def rows_of(values):
    """Rows as a model has them: padded, and what comes after them is better than all."""
    row = np.array(values, np.float32)
    padded = np.full((2, len(row) + 7), 100, np.float32)
    padded[:, : len(row)] = row, row[::-1]
    return padded[:, : len(row)]


@given(values=st.lists(VALUES, min_size=1, max_size=200))
def test_argmax_is_that_of_numpy(values):
    rows = rows_of(values)

    best = KernelPass(rows).argmax()

    assert best.dtype == np.int32
    assert np.array_equal(best, ArrayPass(rows).argmax())


@given(values=st.lists(VALUES, min_size=1, max_size=200), k=st.integers(-1, 210))
def test_top_k_is_that_of_sorting(values, k):
    rows = rows_of(values)

    for wanted in ([1, 0, 1], [0], []):
        ids, logits = KernelPass(rows).top_k(np.array(wanted, np.int32), k)
        right_ids, right_logits = ArrayPass(rows).top_k(np.array(wanted, np.int32), k)
        assert np.array_equal(ids, right_ids)
        assert np.array_equal(logits, right_logits, equal_nan=True)
        assert (ids.dtype, logits.dtype) == (np.int32, np.float32)


@pytest.mark.parametrize("rows", [[0, 3], [-4, 0]])
def test_rows_that_a_pass_does_not_have_are_refused(rows):
    with pytest.raises(IndexError, match="of a pass that has 3"):
        KernelPass(np.zeros((3, 5), np.float32)).top_k(np.array(rows, np.int32), 2)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, 49152])
@pytest.mark.parametrize("order", ["random", "rising", "falling", "equal"])
def test_long_rows_in_any_order_are_right(n, order):
    row = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    row = {"random": row, "rising": np.sort(row), "falling": np.sort(row)[::-1], "equal": np.zeros(n, np.float32)}[order]
    rows = rows_of(row)
    kernel, right = KernelPass(rows), ArrayPass(rows)

    assert np.array_equal(kernel.argmax(), right.argmax())
    for k in (1, 2, 40, MAX_BEST, MAX_BEST + 1):
        for found, expected in zip(kernel.top_k(ONE, k), right.top_k(ONE, k), strict=True):
            assert np.array_equal(found, expected)
    assert kernel.log_normalizer(1) == pytest.approx(right.log_normalizer(1), abs=1e-12)


@given(values=st.lists(NUMBERS | st.floats(-1e4, 1e4, width=32), min_size=1, max_size=70))
def test_the_log_normalizer_is_that_of_float64(values):
    rows = rows_of([*values, 2.0])

    assert KernelPass(rows).log_normalizer(0) == pytest.approx(ArrayPass(rows).log_normalizer(0), rel=1e-13, abs=1e-13)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's about infinities
@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_the_log_normalizer_of_what_is_no_number_is_none(odd):
    assert math.isnan(KernelPass(rows_of([1.0, odd, 2.0])).log_normalizer(0))


def test_the_log_normalizer_does_not_depend_on_where_a_row_lies():
    row = np.random.default_rng(1).standard_normal(1001).astype(np.float32)
    whole = np.zeros(1200, np.float32)
    found = set()
    for start in range(40):
        whole[start : start + 1001] = row
        found.add(KernelPass(whole[None, start : start + 1001]).log_normalizer(0))

    assert len(found) == 1


def test_no_rows_have_no_best_tokens():
    assert KernelPass(np.zeros((0, 5), np.float32)).argmax().shape == (0,)


def test_the_first_tokens_alone_are_what_a_narrower_array_gives():
    rows = np.random.default_rng(2).standard_normal((3, 300)).astype(np.float32)
    rows[:, 200:] = 9
    kernel, right = KernelPass(rows).first(200), ArrayPass(rows[:, :200].copy())
    assert np.array_equal(kernel.argmax(), right.argmax())
    assert all(map(np.array_equal, kernel.top_k(ONE, 5), right.top_k(ONE, 5)))
    assert kernel.log_normalizer(2) == pytest.approx(right.log_normalizer(2), abs=1e-12)
