"""The reference's cache types against the `gguf` package's."""

import gguf
import numpy as np
import pytest

from augury.backends.reference.cache import TYPES


def some_heads():
    rng = np.random.default_rng(3)
    heads = rng.standard_normal((50, 64)) * np.exp(rng.normal(0, 1.5, (50, 64)))
    heads[7] = 0
    return heads.astype(np.float32)


@pytest.mark.parametrize("kind", ["bf16", "q8_0", "q4_0"])
def test_a_type_keeps_what_ggml_keeps(kind):
    heads, name = some_heads(), gguf.GGMLQuantizationType[kind.upper()]
    encode, decode = TYPES[kind]

    right = gguf.quants.dequantize(gguf.quants.quantize(heads, name), name)

    assert np.array_equal(decode(*encode(heads.astype(np.float64))).astype(np.float32), right)


@pytest.mark.parametrize("kind", TYPES)
def test_rows_do_not_depend_on_each_other(kind):
    heads = some_heads().astype(np.float64)
    encode, decode = TYPES[kind]

    assert np.array_equal(decode(*encode(heads)), np.stack([decode(*encode(head)) for head in heads]))


@pytest.mark.parametrize(("kind", "share"), [("f16", 2**-11), ("bf16", 2**-8), ("q8_0", 1 / 225), ("q4_0", 1 / 7.9)])
def test_the_largest_error_is_what_the_type_promises(kind, share):
    heads = some_heads().astype(np.float64)
    encode, decode = TYPES[kind]
    limits = np.abs(heads) if kind.endswith("f16") else np.abs(heads).reshape(50, 2, 32).max(-1).repeat(32, -1)

    error = np.abs(decode(*encode(heads)) - heads)

    assert (error <= limits * share + 1e-7).all()
    assert (error > limits * share / 20).any()
