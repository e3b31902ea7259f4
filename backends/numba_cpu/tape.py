"""Writes the records of a tape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from augury.backends.numba_cpu.kernels import step
from augury.backends.numba_cpu.kernels.attention import attend_kernel
from augury.backends.numba_cpu.kernels.attention_store import prepare_kernel
from augury.backends.numba_cpu.kernels.cache_type import BYTES, LANES
from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS, activation_bytes, n_blocks
from augury.backends.numba_cpu.profile import Work
from augury.blocks import Activation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.backends.numba_cpu.loading import Weights
    from augury.backends.numba_cpu.memory import Arena
    from augury.blocks import Attention, Embedding, FeedForward, Linear, ModelPlan, Norm, Output

PRIVATE_TOKENS = 2  # up to here it takes less time to norm a row than to wait for whoever does it
GATED = {Activation.SILU: step.gated_silu, Activation.GELU: step.gated_gelu}
RECORD = 16  # int64


@frozen
class Buffers:
    """Addresses of float32 rows that the threads share, one row per token of a pass."""

    x: int  # (n, E), the residual stream
    normed: int  # (n, E)
    q: int
    k: int
    v: int
    mixed: int  # (n, H * D_v), what attention read
    y: int  # (n, E padded to 32), what is to be added to x
    gate: int
    up: int
    hidden: int  # (n, F)

    @classmethod
    def make(cls, plan: ModelPlan, arena: Arena) -> Buffers:
        """Allocate them as large as the largest block needs."""
        attentions = [layer.mixer for layer in plan.layers]
        forwards = [layer.feed_forward for layer in plan.layers if layer.feed_forward is not None]
        n_embd = plan.embedding.n_embd
        widths = (
            n_embd,
            n_embd,
            max(block.q.n_out for block in attentions),
            max(block.k.n_out for block in attentions),
            max(block.v.n_out for block in attentions),
            max(block.o.n_in for block in attentions),
            n_embd,
            max((block.gate.n_out for block in forwards), default=0),
            max((block.up.n_out for block in forwards), default=0),
            max((block.down.n_in for block in forwards), default=0),
        )
        return cls(*(arena.zeros(4 * MAX_TOKENS * (-(-width // 32) * 32), "scratch") for width in widths))


@frozen
class _Rows:
    """Rows of a pass: their address, from one thread's to the next (0 where all share them), floats of a row."""

    address: int
    stride: int
    width: int


@frozen
class _Record:
    """What becomes a row of a tape, see `kernels/team.py`."""

    work: Work
    kernel: int
    operands: tuple[int, ...]
    has_barrier: bool

    def row(self) -> list[int]:
        return [self.kernel, int(self.has_barrier), *self.operands, *[0] * (RECORD - 2 - len(self.operands))]


class Writer:
    """Writes one tape: for `n_threads` threads that treat rows each for itself, or, where that is 0, together."""

    def __init__(
        self,
        plan: ModelPlan,
        weights: Weights,
        cache_types: tuple[str, str],
        layers: Sequence[int],
        buffers: Buffers,
        arena: Arena,
        n_threads: int,
    ) -> None:
        self._plan = plan
        self._weights = weights
        self._cache_types = cache_types
        self._layers = layers
        self._buffers = buffers
        self._arena = arena
        self._n_threads = n_threads
        self._records: list[_Record] = []
        self._operands: dict[tuple[str, int], _Rows] = {}  # memory for activations, by kind and columns
        n_embd = plan.embedding.n_embd
        self._x = self._own(buffers.x, n_embd)
        self._normed = self._own(buffers.normed, n_embd)
        self._pending: tuple[int, Norm | None] = (0, None)  # what the next norm adds to x first, normed or as it is
        self._layer_starts: list[tuple[int, tuple[int, Norm | None]]] = []  # records before each layer, and what is pending
        self._n_output = 0  # records of the output

    def write(self) -> np.ndarray:
        """Write the whole plan; returns the entry of the output matrix."""
        layers = iter(self._layers)
        self._embedding(self._plan.embedding)
        for layer in self._plan.layers:
            self._layer_starts.append((len(self._records), self._pending))
            self._attention(layer.mixer, next(layers))
            if layer.feed_forward is not None:
                self._feed_forward(layer.feed_forward)
        n_before = len(self._records)
        entry = self._output(self._plan.output)
        self._n_output = len(self._records) - n_before
        return entry

    def tape(self, n_layers: int | None = None) -> np.ndarray:
        """What was written, (n_records, 16) int64: all of it, or the first `n_layers` layers and the output."""
        return np.array([record.row() for record in self._chosen(n_layers)], np.int64)

    def works(self, n_layers: int | None = None) -> list[Work]:
        """What each record of the tape does."""
        return [record.work for record in self._chosen(n_layers)]

    def _chosen(self, n_layers: int | None) -> list[_Record]:
        records = self._records
        if n_layers is None or n_layers >= len(self._layer_starts):
            return records
        end, pending = self._layer_starts[n_layers]
        # the output begins with a norm that adds what the layer before it left: here that is another layer
        norm = self._norm_record(self._plan.output.norm, pending, is_output=True)
        return [*records[:end], norm, *records[len(records) - self._n_output + 1 :]]

    def _own(self, shared: int, width: int) -> _Rows:
        """Rows that every thread has for itself, or, where they work together, the shared ones."""
        if not self._n_threads:
            return _Rows(shared, 0, width)
        stride = -(-4 * PRIVATE_TOKENS * width // 64) * 64 + 64
        return _Rows(self._arena.zeros(self._n_threads * stride, "scratch"), stride, width)

    def _add(self, work: Work, kernel: Any, *operands: int, is_private: bool = False) -> None:
        """Write a record; a barrier follows unless every thread goes on with what is its own."""
        self._records.append(_Record(work, address(kernel), operands, has_barrier=not is_private))

    def _embedding(self, block: Embedding) -> None:
        matrix, private = self._weights.matrix(block.weight), bool(self._n_threads)
        kernel = self._weights.address(matrix.kind, "embed")
        operands = (kernel, matrix.address, block.n_embd, self._x.address, self._x.stride, int(private))
        self._add(Work("embedding"), step.embed, *operands, bits(block.scale), is_private=private)

    def _attention(self, block: Attention, layer: int) -> None:
        buffers = self._buffers
        self._norm(block.norm)
        products = ((block.q, buffers.q), (block.k, buffers.k), (block.v, buffers.v))
        self._multiply("queries, keys, values", self._normed, products)
        self._add(Work("storing keys and values"), prepare_kernel(*self._cache_types), layer)
        self._add(self._attending(block), attend_kernel(*self._cache_types), layer)
        self._multiply("attention's output", _Rows(buffers.mixed, 0, block.o.n_in), ((block.o, buffers.y),))
        self._pending = (buffers.y, block.post_norm)

    def _attending(self, block: Attention) -> Work:
        widths = (block.head_dim, block.value_dim)
        n_bytes = sum(
            block.n_kv_heads * width * BYTES[kind] // LANES for width, kind in zip(widths, self._cache_types, strict=True)
        )
        return Work("attention", bytes_per_position=n_bytes, multiply_adds_per_position=block.n_heads * sum(widths))

    def _feed_forward(self, block: FeedForward) -> None:
        buffers = self._buffers
        self._norm(block.norm)
        products = ((block.gate, buffers.gate), (block.up, buffers.up))
        entries = self._table(self._normed, products, is_output=False)
        n_panels = self._weights.matrix(block.gate.weight).n_panels
        work = Work.of_matrices("gate, up", [self._weights.matrix(linear.weight) for linear, _ in products])
        self._add(work, GATED[block.activation], _address(entries), 2, n_panels, buffers.hidden, block.gate.n_out)
        self._multiply("down", _Rows(buffers.hidden, 0, block.down.n_in), ((block.down, buffers.y),))
        self._pending = (buffers.y, block.post_norm)

    def _output(self, block: Output) -> np.ndarray:
        self._norm(block.norm, is_output=True)
        return self._multiply("output", self._normed, ((block.weight, 0),), is_output=True)

    def _norm(self, norm: Norm, *, is_output: bool = False) -> None:
        """X += pending; normed = norm(x)."""
        self._records.append(self._norm_record(norm, self._pending, is_output=is_output))

    def _norm_record(self, norm: Norm, pending: tuple[int, Norm | None], *, is_output: bool) -> _Record:
        (y, post), private = pending, bool(self._n_threads)
        (post_weight, post_eps), (weight, eps) = self._weights.norm(post), self._weights.norm(norm)
        added = (y, -(-norm.size // 32) * 32, post_weight, bits(post_eps))
        normed = (self._normed.address, self._normed.stride)
        operands: tuple[int, ...] = (self._x.address, self._x.stride, *added, weight, bits(eps), norm.size, *normed)
        operands = (*operands, int(private), int(is_output))
        return _Record(Work("norm"), address(step.add_norm), operands, has_barrier=not private)

    def _multiply(self, name: str, x: _Rows, products: Sequence[tuple[Linear, int]], *, is_output: bool = False) -> np.ndarray:
        """Products of x with matrices, each to an address."""
        entries = self._table(x, products, is_output=is_output)
        matrices = [self._weights.matrix(linear.weight) for linear, _ in products]
        n_panels, work = sum(matrix.n_panels for matrix in matrices), Work.of_matrices(name, matrices, is_output=is_output)
        self._add(work, step.multiply, _address(entries), len(entries), n_panels, int(is_output))
        return entries

    def _table(self, x: _Rows, products: Sequence[tuple[Linear, int]], *, is_output: bool) -> np.ndarray:
        """Quantise x as the matrices need it, and write their entries (m, 12) int64."""
        kinds = {self._weights.matrix(linear.weight).kind: linear for linear, _ in products}
        operands = {}
        for kind, linear in kinds.items():
            activation = self._weights.matrix(linear.weight).activation
            if activation not in operands:
                operands[activation] = self._quantize(x, activation, kind, is_output=is_output)
        entries = np.zeros((len(products), step.ENTRY_BYTES // 8), np.int64)
        for entry, (linear, y) in zip(entries, products, strict=True):
            matrix = self._weights.matrix(linear.weight)
            operand = operands[matrix.activation]
            bias = 0
            if linear.bias is not None:
                bias = self._weights.vector(linear.bias, linear.n_out, linear.bias_scale)
            kernel = self._weights.address(matrix.kind, "matmul")
            entry[:11] = [
                *(kernel, matrix.address, operand.address, operand.stride, y, matrix.n_cols, matrix.n_panels),
                *(32 * matrix.n_panels, bias, linear.n_out, bits(linear.scale)),
            ]
        self._arena.keep(entries, "scratch")
        return entries

    def _quantize(self, x: _Rows, activation: str, kind: str, *, is_output: bool) -> _Rows:
        """Make operands of the matrix kernels of rows x."""
        private, key = bool(self._n_threads), (activation, x.width)
        if key not in self._operands:
            n_bytes = activation_bytes(activation, PRIVATE_TOKENS if private else MAX_TOKENS, x.width)
            stride = -(-n_bytes // 64) * 64 + 64 if private else 0
            to = self._arena.zeros(self._n_threads * stride if private else n_bytes, "scratch")
            self._operands[key] = _Rows(to, stride, x.width)
        out = self._operands[key]
        kernel = self._weights.address(kind, "quantize")
        places = (x.address, x.stride, out.address, out.stride, x.width, n_blocks(x.width))
        self._add(
            Work("quantising activations"), step.quantize, kernel, *places, int(private), int(is_output), is_private=private
        )
        return out


def bits(value: float) -> int:
    """A float64 as the integer that a record holds."""
    return int(np.float64(value).view(np.int64))


def _address(array: np.ndarray) -> int:
    return int(array.ctypes.data)
