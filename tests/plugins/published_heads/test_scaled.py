"""Weights of 8 and 4 bits are what their formats say, times their scales; what is not understood is refused by its name."""

import json

import numpy as np
import pytest
from safetensors import TensorSpec, serialize_file

from augury.errors import UnsupportedError
from augury.files.tensor_type import TensorType
from augury.plugins.published_heads.folder import Folder

KINDS = {"F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "I8": "int8", "F32": "float32"}
FP4 = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def folder(path, config=None, **tensors):
    """A folder of tensors, by name the type and the values as they are stored."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config or {}))
    stored = {name.replace("__", "."): (kind, np.ascontiguousarray(values)) for name, (kind, values) in tensors.items()}
    specs = {
        name: TensorSpec(dtype=KINDS[kind], shape=each.shape, data_ptr=each.ctypes.data, data_len=each.nbytes)
        for name, (kind, each) in stored.items()
    }
    serialize_file(specs, path / "model.safetensors")
    return Folder(path)


def drawn(rng, *shape):
    """Codes of E4M3 and what they mean, in words of the format: sign, eight times the fraction, and exponent."""
    sign, eighths, exponent = rng.integers(0, 2, shape), rng.integers(0, 8, shape), rng.integers(0, 15, shape)
    normal = np.ldexp(8.0 + eighths, exponent - 10)  # (1 + m / 8) 2^(e - 7)
    values = np.where(exponent == 0, np.ldexp(1.0 * eighths, -9), normal)  # m / 8 2^-6
    return np.uint8(sign << 7 | exponent << 3 | eighths), np.float32(np.where(sign, -values, values))


@pytest.mark.parametrize("name", ["weight_scale_inv", "weight_scale", "scale"])
@pytest.mark.parametrize("shape", [(), (1,), (160, 1), (2, 3)])
def test_weights_of_8_bits_are_multiplied_by_the_scale_of_their_matrix_row_or_block(tmp_path, name, shape):
    rng = np.random.default_rng(7)
    codes, values = drawn(rng, 160, 288)
    scales = np.float32(rng.uniform(0.5, 2, shape))
    each = np.kron(scales, np.ones((128, 128)))[:160, :288] if shape == (2, 3) else scales
    config = {"quantization_config": {"weight_block_size": [128, 128]} if shape == (2, 3) else {}}
    made = folder(tmp_path / "f", config, q__weight=("F8_E4M3", codes), **{f"q__{name}": ("F32", scales)})
    assert [*made.names] == ["q.weight"]
    assert np.array_equal(made.take("q.weight").floats(), values * np.float32(each))


def test_scales_may_be_exponents_and_weights_of_4_bits_stay_as_they_are(tmp_path):
    rng = np.random.default_rng(8)
    codes, values = drawn(rng, 128, 256)
    exponents, low = np.uint8([[126, 129]]), rng.integers(0, 16, (2, 4, 64), np.uint8)
    of_blocks = rng.integers(120, 134, (4, 4), np.uint8)
    made = folder(
        tmp_path / "f",
        {"quantization_config": {"weight_block_size": [128, 128]}},
        q__weight=("F8_E4M3", codes),
        q__scale=("F8_E8M0", exponents),
        w1__weight=("I8", low[0] | low[1] << 4),
        w1__scale=("F8_E8M0", of_blocks),
    )
    assert np.array_equal(made.take("q.weight").floats(), values * np.repeat(np.float32([0.5, 4]), 128))
    packed = made.take("w1.weight")
    assert (packed.type, packed.shape) == (TensorType.MXFP4, (4, 128))
    by_place = np.moveaxis(low, 0, -1).reshape(4, 128)
    expected = np.where(by_place & 8, -1, 1) * FP4[by_place & 7] * np.repeat(np.exp2(of_blocks - 127.0), 32, axis=1)
    assert np.array_equal(packed.floats(), np.float32(expected))


def test_what_is_not_understood_of_them_is_refused_by_name(tmp_path):
    codes = np.zeros((64, 64), np.uint8)
    alone = folder(tmp_path / "alone", q__weight=("F8_E4M3", codes))
    with pytest.raises(UnsupportedError, match=r"'q.weight' is stored as F8_E4M3 without scales, expected"):
        alone.take("q.weight")
    other = folder(tmp_path / "other", q__weight=("F8_E4M3", codes), q__scale=("F32", np.ones((3, 3), np.float32)))
    with pytest.raises(UnsupportedError, match=r"F8_E4M3 of shape \(64, 64\) has scales in F32 of shape \(3, 3\)"):
        other.take("q.weight")
    ints = folder(tmp_path / "ints", q__weight=("I8", codes), q__weight_scale=("F32", np.ones((64, 1), np.float32)))
    with pytest.raises(UnsupportedError, match=r"I8 of shape \(64, 64\) has scales in F32"):
        ints.take("q.weight")
