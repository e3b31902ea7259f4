"""Products and logits of the CUDA backend on a device, and what products are by float64: for the simulator and for GPUs."""

from __future__ import annotations

import numpy as np
from oracles.weights import FLOATS, dequantised, random_weights

from augury.backends.numba_cuda.device import Launch
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.experts import SOFTMAX, RouteArgs, route
from augury.backends.numba_cuda.kernels.formats import FORMATS, TILE_ROWS
from augury.backends.numba_cuda.kernels.inputs import FEW_TOKENS, MAX_ROWS, MAX_TOKENS, N_ROWS, SIZE, TOKENS
from augury.backends.numba_cuda.kernels.matmul import HAS_BIAS, MULTIPLY, OF_TOKENS, STORE
from augury.backends.numba_cuda.kernels.norm import RMS, NormArgs, NormedArgs, norm_rows
from augury.backends.numba_cuda.kernels.quantise import TargetArgs
from augury.backends.numba_cuda.kernels.routes import PLACES, SECTIONS, gather_rows
from augury.backends.numba_cuda.kernels.stream import HALVED
from augury.backends.numba_cuda.kernels.sums import TILES, MatrixArgs, SourceArgs
from augury.backends.numba_cuda.kernels.tensor_cores import MATRIX_ROWS, MATRIX_THREADS, MATRIX_TILE, MULTIPLY_MATRIX
from augury.backends.numba_cuda.passes import DevicePass, Logits, RowReader
from augury.backends.numba_cuda.products import SPLIT_BUFFERS, DeviceRows, Operand, Tiles, launch_of, launch_of_halving, tile_of
from augury.backends.numba_cuda.repack import n_units, repack, repack_halves
from augury.backends.numba_cuda.weights import Matrix
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
        exact: What they are of rows before that.
    """

    def __init__(self, device, name, n_tokens, n_rows, n_cols):
        rng, self.device, self.fmt = np.random.default_rng(4), device, FORMATS[name]
        self.n_tokens, self.n_rows, self.n_cols = n_tokens, n_rows, n_cols
        data, weights = random_matrix(rng, TensorType[name], n_rows, n_cols)
        bias = rng.standard_normal(n_rows, np.float32)
        x = rng.standard_normal((n_tokens, n_cols), np.float32) * np.float32(2)
        most = np.zeros((MAX_TOKENS, n_cols), np.float32)
        arrays = {"w": repack(TensorType[name], data.reshape(-1), n_rows, n_cols), "bias": bias, "x": x}
        if name in HALVED:
            arrays["halved"] = repack_halves(TensorType[name], data.reshape(-1), n_rows, n_cols, threads=2)
        arrays |= {"weight": np.ones(n_cols, np.float32), "y": np.zeros((MAX_TOKENS, n_rows), np.float32)}
        arrays |= dict.fromkeys(("floats", "bytes", "factors", "sums", "halves"), most)
        arrays["inputs"] = np.array([n_tokens, n_tokens, *[0] * (SIZE - 2)], np.int32)
        self.at = {key: device.allocate(array.nbytes, key) for key, array in arrays.items()}
        for key, array in arrays.items():
            device.write(self.at[key], array)
        self.at |= {name: device.allocate(n_bytes, name) for name, n_bytes in SPLIT_BUFFERS.items()}
        places = (self.at[name] for name in ("floats", "factors", "sums", "bytes", "halves"))
        given = {"norm": NormArgs(self.at["weight"], RMS, 1e-6), "to": TargetArgs(*places, n_cols, 1, 1)}
        given["params"] = NormedArgs(self.at["x"], stride=n_cols, size=n_cols, n_out=n_cols)
        device.launch(Launch.of(norm_rows, (n_tokens,), THREADS, self.at["inputs"], **given))
        normed = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-6)
        fed = self._read("floats", (n_tokens, n_cols)) if self.fmt.is_float else self._rounded()
        assert np.abs(fed - normed).max() <= np.abs(normed).max() / (1e5 if self.fmt.is_float else 127)
        floats, weights = self._read("floats", (n_tokens, n_cols)).astype(np.float64), weights.astype(np.float64)
        self.right, self.exact = (0.5 * (each.astype(np.float64) @ weights.T) + bias for each in (fed, floats))

    def by(self, tile, *, mode=STORE, n_cuts=1, is_split=False):
        """What a kernel gives whose blocks take `tile` tokens: by byte dot products, or of more than eight by tensor cores."""
        if tile > TILES[-1]:
            kernel, n_blocks, n_threads = MULTIPLY_MATRIX[self.fmt.name, tile], -(-self.n_rows // MATRIX_ROWS), MATRIX_THREADS
        else:
            kernel, n_blocks, n_threads = MULTIPLY[self.fmt.name, tile], -(-self.n_rows // 4), WARP * n_cuts
        at, sizes = self.at, (self.n_rows, self.n_cols // 32, -(-self.n_cols // 256), n_units(self.n_rows, self.n_cols), n_cuts)
        given = {"w": MatrixArgs(at["w"], at["bias"], *sizes, HAS_BIAS, 0.5), "y": at["y"], "stride": self.n_rows, "mode": mode}
        given |= {"x": SourceArgs(at["floats" if self.fmt.is_float else "bytes"], at["factors"], at["sums"], at["halves"])}
        given |= {"n_apart": MAX_TOKENS} if tile > TILES[-1] else {}
        given |= {"is_split": True, "parts": at["parts of products"], "counters": at["counters"]} if is_split else {}
        grid = (n_blocks, -(-self.n_tokens // tile), n_cuts if is_split else 1)
        self.device.launch(Launch.of(kernel, grid, n_threads, self.at["inputs"], **given))
        return self._read("y", (self.n_tokens, self.n_rows))

    def by_halves(self, n, *, mode=STORE):
        """What the kernels of halves give for the first n tokens; bytes are overwritten."""
        at, device = self.at, self.device
        device.write(at["inputs"], np.array([n, n], np.int32))
        matrix = Matrix(self.fmt, at["halved"], self.n_rows, self.n_cols, 0.5, at["bias"], is_halved=True)
        places = (at[name] for name in ("floats", "bytes", "factors", "sums", "halves"))
        x, to, tile = Operand(*places, self.n_cols), DeviceRows(at["y"], self.n_rows), tile_of(matrix, n)
        tiles = Tiles(at["inputs"], -(-n // tile), tile, which=OF_TOKENS)
        device.launch(launch_of_halving(matrix, x, tiles))
        device.launch(launch_of(matrix, x, to, 0, tiles, mode))
        return self._read("y", (n, self.n_rows))

    def _read(self, name, shape, dtype=np.float32):
        array = np.empty(shape, dtype)
        self.device.read(self.at[name], array)
        return array

    def _rounded(self):
        n, n_units_of_row = self.n_tokens, self.n_cols // 32
        shape = (n, n_units_of_row) if n <= FEW_TOKENS else (n_units_of_row, MAX_TOKENS)
        values = in_order(self._read("bytes", (*shape, 32), np.int8)) * self._read("factors", shape)[..., None]
        return (values if n <= FEW_TOKENS else values.swapaxes(0, 1)[:n]).reshape(n, -1)


class ExpertProducts:
    """Random rows of tokens, and the products of each with the random matrices that it goes to, on a device.

    Args:
        chosen: (n_tokens, k) which of the matrices, by token.
    """

    def __init__(self, device, name, chosen, n_experts, n_rows, n_cols):
        rng, (n, self.k), self.device = np.random.default_rng(4), chosen.shape, device
        self.chosen, self.n_experts, self.n_most = chosen.astype(np.int32), n_experts, MAX_TOKENS * self.k
        n_stored = -(-n_rows // TILE_ROWS) * TILE_ROWS
        data, _ = random_matrix(rng, TensorType[name], n_experts * n_stored, n_cols)
        told = np.zeros(SIZE, np.int32)
        told[0], told[TOKENS : TOKENS + n] = n, np.arange(n)
        arrays = {"inputs": told, "w": repack(TensorType[name], data.reshape(-1), n_experts * n_stored, n_cols)}
        arrays |= {
            "bias": rng.standard_normal(n_experts * n_rows, np.float32),
            "x": rng.standard_normal((n, n_cols), np.float32),
        }
        arrays |= {"table": self.chosen, "routes": np.zeros((SECTIONS, self.n_most), np.int32)}
        arrays |= dict.fromkeys(("logits", "values"), np.zeros((n, 3 * n_experts), np.float32))
        arrays |= {"weights": np.zeros((n, self.k + 1), np.float32)}
        arrays |= dict.fromkeys(
            ("floats", "bytes", "factors", "sums", "halves"), np.zeros((self.n_most + MATRIX_TILE, n_cols), np.float32)
        )
        self.y = np.zeros((self.n_most, n_rows), np.float32)
        self.at = {key: device.allocate(each.nbytes, key) for key, each in (arrays | {"y": self.y}).items()}
        for key, array in arrays.items():
            device.write(self.at[key], array)
        words, bias = self.at["w"], self.at["bias"]
        self.matrix = Matrix(FORMATS[name], words, n_rows, n_cols, 0.5, bias, n_experts)

    def by(self, tile):
        """The products (n_tokens, k, n_rows) by blocks that take `tile` rows of an expert; and the tiles (m, 3)."""
        at, (n, k), width = self.at, self.chosen.shape, self.matrix.n_cols
        device, tiles = self.device, Tiles(at["routes"], n * k, tile, self.n_most, k)
        names = ("logits", "values", "x", "weights", "table", "routes")
        params = RouteArgs(*(at[name] for name in names), self.n_most, self.n_experts, self.n_experts, k, SOFTMAX)
        params = params._replace(has_table=1, n_groups=1, n_groups_used=1, n_alike=1, tile=tile, scale=1.0)
        device.launch(Launch.of(route, (1,), THREADS, at["inputs"], params=params))
        x = Operand(*(at[name] for name in ("floats", "bytes", "factors", "sums", "halves")), width, as_bytes=True)
        given = {"n_most": self.n_most, "k": k, "n_apart": tiles.n_apart, "routes": at["routes"], "to": x.target, "x": at["x"]}
        device.launch(Launch.of(gather_rows, (width // 32, n * k), WARP, at["inputs"], **given))
        device.write(at["y"], self.y)
        device.launch(launch_of(self.matrix, x, DeviceRows(at["y"], self.y.shape[1]), 0, tiles))
        y, told = self.y.copy(), np.empty((SECTIONS, self.n_most), np.int32)
        device.read(at["y"], y)
        device.read(at["routes"], told)
        return y[told[PLACES, : n * k].reshape(n, k)], told.reshape(-1)[1 : 1 + 3 * told[0, 0]].reshape(-1, 3)


class PassedLogits:
    """Rows of logits on a device, as passes leave them there."""

    def __init__(self, device, logits):
        told = np.zeros(SIZE, np.int32)
        told[N_ROWS] = self.n_rows = len(logits)
        places = [device.allocate(n, "") for n in (told.nbytes, logits.nbytes, Logits.n_bytes)]
        device.write(places[0], told)
        device.write(places[1], logits)
        self.best = ArrayPass(logits).argmax()
        self.best_logits = logits[np.arange(len(logits)), self.best].view(np.int32)
        self.reader = RowReader(device, Logits(*places, logits.shape[1]))

    def __call__(self, n, tokens=None, slots=None):
        """A pass over the first n logits of each row, or of as many as there are tokens, which are of slots."""
        device, logits = self.reader.device, self.reader.logits
        tokens = np.arange(self.n_rows, dtype=np.int32) if tokens is None else tokens
        slots = np.zeros(len(tokens), np.int32) if slots is None else slots
        device.launch(logits.best_of_chunks(len(tokens), logits.n_vocab))
        told = device.staging(2 * MAX_ROWS)  # by another program
        told[: len(self.best)], told[MAX_ROWS:][: len(self.best)] = self.best, self.best_logits
        return DevicePass(self.reader, told, slots, {}, n, self.reader.begin_pass(slots, tokens, slots))
