"""A plan's weights on a device: matrices in planes, vectors as float32; each is loaded once."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from augury.backends.numba_cuda.kernels.formats import FORMATS, TILE_ROWS, TILE_UNITS, UNIT, Format
from augury.backends.numba_cuda.repack import n_units, repack
from augury.blocks import Linear
from augury.errors import UnsupportedError
from augury.files.gguf import TensorType

if TYPE_CHECKING:
    from augury.backends.numba_cuda.device import Device, Pointer
    from augury.blocks import ModelPlan, Norm
    from augury.files.gguf import ModelFile
    from augury.interfaces import Progress

__all__ = ["Matrix", "Weights", "check_types"]

PURPOSE = "weights"


@frozen(eq=False)
class Matrix:
    """One or more matrices of one type, one below the other, and what is done with their products."""

    format: Format
    words: Pointer
    n_rows: int
    n_cols: int
    scale: float
    bias: Pointer | None

    @property
    def n_units(self) -> int:
        """Units of a row."""
        return -(-self.n_cols // UNIT)

    @property
    def n_steps(self) -> int:
        """Tiles along a row."""
        return -(-self.n_units // TILE_UNITS)

    @property
    def n(self) -> int:
        """Units in whole tiles."""
        return n_units(self.n_rows, self.n_cols)


def check_types(file: ModelFile, plan: ModelPlan) -> None:
    """Refuse types of weights that have no kernels.

    Raises:
        UnsupportedError: There is one.
    """
    for part in plan.parts():
        if isinstance(part, Linear):
            kind = file.tensor(part.weight, part.shapes[part.weight]).type
            if kind.name not in FORMATS:
                known = ", ".join(FORMATS)
                raise UnsupportedError(
                    f"{part.weight} is {kind.name}, which backend numba-cuda has no kernels for; it has some for {known}; take "
                    "another file, or --backend numba-cpu"
                )


class Weights:
    """Reads what blocks ask for from a model file, once: what was asked for is there when the file is closed."""

    def __init__(self, file: ModelFile, device: Device, total: int, threads: int | None, progress: Progress) -> None:
        self._file, self._device = file, device
        self._held: dict[Hashable, Pointer] = {}
        self._types: dict[str, TensorType] = {}
        self._total, self._done, self._progress = total, 0, progress
        self._threads = threads or os.cpu_count() or 1

    def products(self, linears: Sequence[tuple[Linear, int]]) -> list[tuple[Matrix, int]]:
        """The matrices of products of the same rows, each with the column where its products begin.

        Neighbours of one type whose columns follow each other are one matrix.
        """
        made: list[tuple[list[Linear], int]] = []
        for linear, column in linears:
            if made and self._can_follow(made[-1][0], linear, column - made[-1][1]):
                made[-1][0].append(linear)
            else:
                made.append(([linear], column))
        return [(self._matrix(group), column) for group, column in made]

    def matrix(self, linear: Linear) -> Matrix:
        """One matrix."""
        return self._matrix([linear])

    def vector(self, name: str, size: int) -> Pointer:
        """A vector as float32."""
        return self._hold((name, size), lambda: self._floats(name, (size,)))

    def norm(self, norm: Norm) -> Pointer:
        """A norm's weights."""
        if norm.weight is None:
            return self._hold(("ones", norm.size), lambda: np.ones(norm.size, np.float32))
        return self.vector(norm.weight, norm.size)

    def constant(self, key: Hashable, make: Callable[[], np.ndarray]) -> Pointer:
        """An array that all share who ask by one key."""
        return self._hold(key, make)

    def _can_follow(self, group: Sequence[Linear], linear: Linear, column: int) -> bool:
        n_rows = sum(each.n_out for each in group)
        first = group[0]
        is_alike = (first.scale, self._type(first)) == (linear.scale, self._type(linear))
        return is_alike and column == n_rows and n_rows % TILE_ROWS == 0

    def _matrix(self, group: Sequence[Linear]) -> Matrix:
        first, kind = group[0], self._type(group[0])
        n_rows = sum(each.n_out for each in group)
        key = tuple((each.weight, each.rows) for each in group)

        def words() -> np.ndarray:
            data = np.concatenate([self._rows(each) for each in group])
            self._done += data.nbytes
            self._progress("load weights", self._done, self._total)
            return repack(kind, data.reshape(-1), n_rows, first.n_in, self._threads)

        bias = None
        if any(each.bias for each in group):
            bias = self._hold(("bias", *key), lambda: np.concatenate([self._bias(each) for each in group]))
        return Matrix(FORMATS[kind.name], self._hold(key, words), n_rows, first.n_in, first.scale, bias)

    def _type(self, linear: Linear) -> TensorType:
        if linear.weight not in self._types:
            self._types[linear.weight] = self._file.tensor(linear.weight, linear.shapes[linear.weight]).type
        return self._types[linear.weight]

    def _rows(self, linear: Linear) -> np.ndarray:
        """The bytes of a matrix's rows, (n_out, bytes)."""
        shape = linear.shapes[linear.weight]
        stored = self._file.tensor(linear.weight, shape).data.reshape(shape[0], -1)
        if (rows := linear.rows) is None:
            return stored
        return stored.reshape(-1, rows.step, stored.shape[1])[:, rows.first : rows.first + rows.size].reshape(
            -1, stored.shape[1]
        )

    def _bias(self, linear: Linear) -> np.ndarray:
        if linear.bias is None:
            return np.zeros(linear.n_out, np.float32)
        stored = self._floats(linear.bias, linear.shapes[linear.bias])
        if (rows := linear.rows) is not None and not linear.has_own_bias:
            stored = stored.reshape(-1, rows.step)[:, rows.first : rows.first + rows.size].reshape(-1)
        return stored * np.float32(linear.bias_scale)

    def _floats(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        tensor = self._file.tensor(name, shape)
        if tensor.type is TensorType.F32:
            return np.array(tensor.data.view(np.float32))
        import gguf

        values = gguf.quants.dequantize(tensor.data, gguf.GGMLQuantizationType[tensor.type.name])
        return np.asarray(values, np.float32).reshape(-1)

    def _hold(self, key: Hashable, make: Callable[[], np.ndarray]) -> Pointer:
        if key not in self._held:
            array = make()
            self._held[key] = self._device.allocate(array.nbytes, PURPOSE).at(0)
            self._device.write(self._held[key], array)
        return self._held[key]
