"""What the reference computes of several rows at once has the bits of each row alone, in float64 already."""

import numpy as np
import pytest

from augury.backends.reference import formula
from augury.blocks import Activation, NormKind, Rope

RNG = np.random.default_rng(3)
MATRIX, SINKS = RNG.standard_normal((96, 100)), RNG.standard_normal(3)
ROPE = Rope(frequencies=RNG.random(20))
FORMULAS = {
    "products": lambda x: formula.products(MATRIX, x[:, 0]),
    "products of heads": lambda x: formula.products(MATRIX.reshape(3, 32, 100)[None], x),
    "rms norm": lambda x: formula.norm(x, 1e-6),
    "layer norm": lambda x: formula.norm(x, 1e-6, NormKind.LAYER),
    "softmax": formula.softmax,
    "softmax with sinks": lambda x: formula.softmax(x, SINKS),
    "rotate": lambda x: formula.rotate(x, 7 + 0 * x[:, 0, 0], ROPE),
    "gated": lambda x: formula.gated(x, 2 * x, Activation.SILU),
    **{
        kind.name: lambda x, kind=kind: formula.activate(x, kind)
        for kind in (Activation.SILU, Activation.GELU, Activation.RELU)
    },
}


@pytest.mark.parametrize("name", FORMULAS)
def test_rows_are_computed_as_if_alone(name):
    x = 3 * RNG.standard_normal((19, 3, 100))
    together = FORMULAS[name](x)
    for i in range(len(x)):
        assert np.array_equal(together[i], FORMULAS[name](x[i : i + 1])[0])
