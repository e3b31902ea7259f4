import math

import numpy as np
import pytest

from augury.plugins.architectures import rope


def test_plain_frequencies_fall_from_one_to_almost_one_over_the_base():
    frequencies = rope.plain(64, 10000.0)

    assert frequencies.dtype == np.float64
    assert frequencies[0] == 1.0
    np.testing.assert_allclose(frequencies, [10000.0 ** (-i / 32) for i in range(32)], rtol=1e-15)


def test_factors_divide_the_frequencies():
    factors = np.linspace(1.0, 8.0, 8)

    np.testing.assert_array_equal(rope.plain(16, 500.0, factors), rope.plain(16, 500.0) / factors)


def test_linear_scaling_at_a_position_equals_no_scaling_at_the_position_divided():
    frequencies = rope.plain(16, 10000.0)

    np.testing.assert_allclose(400 * rope.linear(frequencies, 4.0), 100 * frequencies)


def ggml_angles(position, n_rot, base, factor, n_ctx):
    """YaRN's angles pair by pair, written from the formulas: floor and ceil of the two boundaries, clamped, a ramp between."""

    def boundary(turns):
        return n_rot * math.log(n_ctx / (turns * 2 * math.pi)) / (2 * math.log(base))

    start, end = max(0, math.floor(boundary(32))), min(n_rot - 1, math.ceil(boundary(1)))
    angles = []
    for i in range(n_rot // 2):
        extrapolated = position * base ** (-2 * i / n_rot)
        ramp = 1 - min(1, max(0, (i - start) / max(0.001, end - start)))
        angles.append(extrapolated / factor * (1 - ramp) + extrapolated * ramp)
    return angles


@pytest.mark.parametrize(
    ("n_rot", "base", "factor", "n_ctx"), [(128, 10000.0, 4.0, 4096), (64, 1e6, 16.0, 32768), (128, 10000.0, 2.0, 64)]
)
def test_yarn_mixes_interpolation_and_extrapolation_by_pair(n_rot, base, factor, n_ctx):
    yarn = rope.Yarn(factor, n_ctx)

    scaled = yarn.frequencies(rope.plain(n_rot, base), base)

    np.testing.assert_allclose(1000 * scaled, ggml_angles(1000, n_rot, base, factor, n_ctx), rtol=1e-12)


def test_yarn_leaves_fast_pairs_alone_and_interpolates_slow_ones_fully():
    plain = rope.plain(128, 10000.0)

    scaled = rope.Yarn(8.0, 4096).frequencies(plain, 10000.0)

    np.testing.assert_array_equal(scaled[:10], plain[:10])
    np.testing.assert_array_equal(scaled[-10:], plain[-10:] / 8.0)


def test_the_magnitude_grows_with_the_logarithm_of_the_factor():
    assert rope.Yarn(4.0, 4096).magnitude == pytest.approx(1.0 + 0.1 * math.log(4.0))
    assert rope.Yarn(1.0, 4096).magnitude == 1.0
    assert rope.Yarn(0.5, 4096).magnitude == 1.0


def test_a_log_multiplier_of_one_cancels_the_magnitude():
    assert rope.Yarn(40.0, 4096, log_multiplier=1.0).magnitude == pytest.approx(1.0)
