"""What kernels store of keys and values is, to the bit, what the reference keeps."""

import numpy as np
import pytest

from augury.backends.numba_cpu.kernels import cache_type, jit
from augury.backends.numba_cpu.kernels.cache_type import BYTES
from augury.backends.reference.cache import TYPES

D = 96


def kernel_of(function, kind):
    """A kernel that does nothing but call `function`."""
    n = function.py_func.__code__.co_argcount

    def call_4(a, b, c, d):
        function(a, b, c, d)

    def call_5(a, b, c, d, e):
        function(a, b, c, d, e)

    call = {4: call_4, 5: call_5}[n]
    call.__qualname__ = call.__name__ = f"{function.py_func.__name__}_{n}_{kind}"
    return jit.kernel(call)


def some_heads(n):
    rng = np.random.default_rng(3)
    heads = (rng.standard_normal((n, D)) * np.exp(rng.normal(0, 1.5, (n, D)))).astype(np.float32)
    heads[0, :32] = 0
    return heads


def decoded(kind, scales, codes):
    """(…, D) of codes (…, D), or of floats of the type."""
    if kind not in ("q8_0", "q4_0"):
        return TYPES[kind][1](codes)
    numbers = codes.astype(np.int8).astype(np.float64) if kind == "q8_0" else codes - 8.0
    return numbers * np.repeat(scales.astype(np.float64), 32, axis=-1)


def floats_of(kind, memory):
    return memory.view({"f16": np.float16, "bf16": np.uint16, "f32": np.float32}[kind])


@pytest.mark.parametrize("kind", TYPES)
def test_keys_lie_by_sixteen_cells(kind):
    heads, memory, scratch = some_heads(16), np.zeros(BYTES[kind] * D, np.uint8), np.zeros(64, np.uint8)
    store = kernel_of(cache_type.store_key(kind), kind)
    for lane in range(16):
        store(heads[lane].ctypes.data, memory.ctypes.data, lane, D, scratch.ctypes.data)

    if kind in ("q8_0", "q4_0"):
        blocks = memory.reshape(D // 32, -1)
        scales = blocks[:, :32].copy().view(np.float16).T
        codes = blocks[:, 32:].reshape(D // 32, -1, 16)
        if kind == "q4_0":
            codes = np.stack([codes & 15, codes >> 4], axis=2)
        found = decoded(kind, scales, codes.reshape(D, 16).T)
    else:
        found = decoded(kind, None, floats_of(kind, memory).reshape(D, 16).T)

    encode, decode = TYPES[kind]
    assert np.array_equal(found, decode(*encode(heads.astype(np.float64))))


@pytest.mark.parametrize("kind", TYPES)
def test_values_lie_cell_by_cell(kind):
    heads, scratch = some_heads(3), np.zeros(64, np.uint8)
    memory = np.zeros((3, BYTES[kind] * D // 16), np.uint8)
    store = kernel_of(cache_type.store_value(kind), kind)
    for head, row in zip(heads, memory, strict=True):
        store(head.ctypes.data, row.ctypes.data, D, scratch.ctypes.data)

    encode, decode = TYPES[kind]
    if kind in ("q8_0", "q4_0"):
        codes = memory[:, D // 16 :].copy()
        found = decode(memory[:, : D // 16].copy().view(np.float16), codes.view(np.int8) if kind == "q8_0" else codes)
    else:
        found = decode(floats_of(kind, memory))
    assert np.array_equal(found, decode(*encode(heads.astype(np.float64))))


@pytest.mark.parametrize("kind", TYPES)
def test_a_moved_key_is_the_key(kind):
    heads, memory, scratch = some_heads(16), np.zeros((2, BYTES[kind] * D), np.uint8), np.zeros(64, np.uint8)
    store, copy = kernel_of(cache_type.store_key(kind), kind), kernel_of(cache_type.copy_key(kind), kind)
    for lane in range(16):
        store(heads[lane].ctypes.data, memory[0].ctypes.data, lane, D, scratch.ctypes.data)

    for lane in range(16):
        copy(memory[0].ctypes.data, lane, memory[1].ctypes.data, (lane + 5) % 16, D)
    for lane in range(16):
        store(heads[(lane - 5) % 16].ctypes.data, memory[0].ctypes.data, lane, D, scratch.ctypes.data)

    assert np.array_equal(memory[0], memory[1])
