"""Products and logits of the CUDA backend on a device, and what products are by float64: for the simulator and for GPUs."""

from __future__ import annotations

import numpy as np
from oracles.weights import FLOATS, dequantised, random_weights

from augury.backends.numba_cuda.choosing import Chooser, Logits
from augury.backends.numba_cuda.device import Launch
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.formats import FORMATS
from augury.backends.numba_cuda.kernels.inputs import FEW_TOKENS, MAX_TOKENS, N_ROWS, SIZE
from augury.backends.numba_cuda.kernels.matmul import MULTIPLY, NOT_COMBINED, NOT_GATED, STORE
from augury.backends.numba_cuda.kernels.norm import NOTHING, RMS, norm_rows
from augury.backends.numba_cuda.kernels.sums import TILES
from augury.backends.numba_cuda.kernels.tensor_cores import MATRIX_ROWS, MATRIX_THREADS, MULTIPLY_MATRIX
from augury.backends.numba_cuda.passes import DevicePass
from augury.backends.numba_cuda.repack import n_units, repack
from augury.files.tensor_type import TensorType
from augury.passes import ArrayPass


def random_matrix(rng, kind, n_rows, n_cols):
    """The bytes of a matrix of a type, and its values."""
    if kind not in FLOATS:
        data = random_weights(rng, kind, n_rows, n_cols)
        return data, dequantised(kind, data, n_rows)
    values = rng.standard_normal((n_rows, n_cols), np.float32)
    if kind is TensorType.F32:
        return values.view(np.uint8), values
    if kind is TensorType.F16:
        return values.astype(np.float16).view(np.uint8), values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32) >> 16
    return bits.astype(np.uint16).view(np.uint8), (bits << 16).view(np.float32)


def in_order(quantised):
    """Bytes (…, 32 m) of units, whose words of four lie as tensor cores want them, in the order of what was quantised."""
    words = np.ascontiguousarray(quantised).reshape(*quantised.shape[:-1], -1, 4, 2, 4)
    return words.swapaxes(-2, -3).reshape(quantised.shape)


class Product:
    """A random matrix and random rows, which `norm_rows` has quantised, on a device.

    Attributes:
        right: What the products are by float64, of what was quantised: (n_tokens, n_rows).
    """

    def __init__(self, device, name, n_tokens, n_rows, n_cols):
        rng, self.device, self.fmt = np.random.default_rng(4), device, FORMATS[name]
        self.n_tokens, self.n_rows, self.n_cols = n_tokens, n_rows, n_cols
        data, weights = random_matrix(rng, TensorType[name], n_rows, n_cols)
        bias = rng.standard_normal(n_rows, np.float32)
        x = rng.standard_normal((n_tokens, n_cols), np.float32) * np.float32(2)
        most = np.zeros((MAX_TOKENS, n_cols), np.float32)
        arrays = {"w": repack(TensorType[name], data.reshape(-1), n_rows, n_cols), "bias": bias, "x": x}
        arrays |= {"weight": np.ones(n_cols, np.float32), "y": np.zeros((MAX_TOKENS, n_rows), np.float32)}
        arrays |= dict.fromkeys(("floats", "bytes", "factors", "sums"), most)
        arrays["inputs"] = np.array([n_tokens, n_tokens, *[0] * (SIZE - 2)], np.int32)
        self.at = {key: device.allocate(array.nbytes, key).at(0) for key, array in arrays.items()}
        for key, array in arrays.items():
            device.write(self.at[key], array)
        names = ("inputs", "x", "x", "weight", "weight", "floats", "bytes", "factors", "sums")
        sizes = (n_cols, 0, n_cols, n_cols, n_cols, 0, 0, 1, 1, NOTHING, RMS, 0.0, 1e-6)
        device.launch(Launch(norm_rows, (n_tokens, 1, 1), THREADS, (*(self.at[name] for name in names), *sizes)))
        normed = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-6)
        fed = self._read("floats", (n_tokens, n_cols)) if self.fmt.is_float else self._rounded()
        assert np.abs(fed - normed).max() <= np.abs(normed).max() / (1e5 if self.fmt.is_float else 127)
        self.right = 0.5 * (fed.astype(np.float64) @ weights.astype(np.float64).T) + bias

    def by(self, tile, *, mode=STORE, n_cuts=1):
        """What a kernel gives whose blocks take `tile` tokens: by byte dot products, or of more than eight by tensor cores."""
        if tile > TILES[-1]:
            kernel, n_blocks, n_threads = MULTIPLY_MATRIX[self.fmt.name, tile], -(-self.n_rows // MATRIX_ROWS), MATRIX_THREADS
        else:
            kernel, n_blocks, n_threads = MULTIPLY[self.fmt.name, tile], -(-self.n_rows // 4), WARP * n_cuts
        rows = [self.at[key] for key in ("w", "floats" if self.fmt.is_float else "bytes", "factors", "sums", "bias", "y")]
        sizes = (self.n_rows, self.n_cols // 32, -(-self.n_cols // 256), n_units(self.n_rows, self.n_cols), n_cuts)
        given = (self.at["inputs"], *rows, *sizes, self.n_rows, 0, 1, mode, 0, 0.5)
        given += () if tile > TILES[-1] else (*[self.at["y"]] * 3, *NOT_GATED, *[self.at["y"]] * 4, *NOT_COMBINED)
        self.device.launch(Launch(kernel, (n_blocks, -(-self.n_tokens // tile), 1), n_threads, given))
        return self._read("y", (self.n_tokens, self.n_rows))

    def _read(self, name, shape, dtype=np.float32):
        array = np.empty(shape, dtype)
        self.device.read(self.at[name], array)
        return array

    def _rounded(self):
        n, n_units_of_row = self.n_tokens, self.n_cols // 32
        shape = (n, n_units_of_row) if n <= FEW_TOKENS else (n_units_of_row, MAX_TOKENS)
        values = in_order(self._read("bytes", (*shape, 32), np.int8)) * self._read("factors", shape)[..., None]
        return (values if n <= FEW_TOKENS else values.swapaxes(0, 1)[:n]).reshape(n, -1)


class PassedLogits:
    """Rows of logits on a device, as passes leave them there."""

    def __init__(self, device, logits):
        told = np.zeros(SIZE, np.int32)
        told[N_ROWS] = self.n_rows = len(logits)
        places = [device.allocate(n, "").at(0) for n in (told.nbytes, logits.nbytes, Logits.n_bytes)]
        device.write(places[0], told)
        device.write(places[1], logits)
        self.best = ArrayPass(logits).argmax()
        self.best_logits = logits[np.arange(len(logits)), self.best].view(np.int32)
        self.chooser = Chooser(device, Logits(*places, logits.shape[1]))

    def __call__(self, n, tokens=None, slots=None):
        """A pass over the first n logits of each row, or of as many as there are tokens, which are of slots."""
        device, logits = self.chooser.device, self.chooser.logits
        tokens = np.arange(self.n_rows, dtype=np.int32) if tokens is None else tokens
        slots = np.zeros(len(tokens), np.int32) if slots is None else slots
        device.launch(logits.best_of_chunks(len(tokens), logits.n_vocab))
        told = device.staging(2 * MAX_TOKENS)  # by another program
        told[: len(self.best)], told[MAX_TOKENS:][: len(self.best)] = self.best, self.best_logits
        return DevicePass(self.chooser, told, slots, {}, n, self.chooser.begin_pass(slots, tokens, slots))
