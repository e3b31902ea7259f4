"""A plan's weights on a device: matrices in planes, vectors as float32; each is loaded once."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from augury.backends.numba_cuda.device import Pointer
from augury.backends.numba_cuda.gpu import Gpu
from augury.backends.numba_cuda.kernels.formats import FORMATS, TILE_ROWS, TILE_UNITS, UNIT, Format
from augury.backends.numba_cuda.kernels.halves import MATRIX_ROWS, slices_of
from augury.backends.numba_cuda.kernels.matmul import HAS_BIAS, HAS_SCALES, MOST_CUTS
from augury.backends.numba_cuda.kernels.norm import AS_IS, BIASED, LAYER, RMS, NormArgs
from augury.backends.numba_cuda.kernels.stream import HALVED, HalvesArgs
from augury.backends.numba_cuda.kernels.sums import MatrixArgs
from augury.backends.numba_cuda.repack import n_units, n_words_of, repack, repack_halves
from augury.blocks import Convolution, Integers, Linear, Matrices, ModelPlan, Norm, NormKind, RowSelection, Vector
from augury.errors import UnsupportedError
from augury.files.gguf import ModelFile
from augury.files.tensor_type import TensorType
from augury.interfaces import Progress

PURPOSE = "weights"
_WARPS_ENOUGH = 2048  # that ask for weights: 16 for each of 132 multiprocessors, see docs/cuda.md
_STEPS_OF_CUT = 4  # at least


@frozen(eq=False)
class Matrix:
    """One or more matrices of one type, one below the other in whole tiles of rows, and the use of their products.

    There may be several such, each in whole tiles, of which products choose one.
    """

    format: Format
    words: Pointer
    n_rows: int
    n_cols: int
    scale: float
    bias: Pointer | None
    n_alike: int = 1  # how many there are
    has_scales: bool = False  # the memory of `bias` has scales of rows, too
    # of some rows of another matrix: its units, among whose planes they are, and its cuts, which fix the order of additions
    n_given: int | None = None
    cuts: int | None = None
    is_halved: bool = False  # `words` are what `kernels.stream` multiplies

    @property
    def n_units(self) -> int:
        """Units of a row."""
        return -(-self.n_cols // UNIT)

    @property
    def n_steps(self) -> int:
        """Tiles along a row."""
        return -(-self.n_units // TILE_UNITS)

    @property
    def tile_rows(self) -> int:
        """Rows of a tile."""
        return MATRIX_ROWS if self.is_halved else TILE_ROWS

    @property
    def n_tiles(self) -> int:
        """Tiles below each other."""
        return -(-self.n_rows // self.tile_rows)

    @property
    def n(self) -> int:
        """Units in whole tiles."""
        return self.n_given if self.n_given is not None else n_units(self.n_alike * self.n_tiles * TILE_ROWS, self.n_cols)

    @property
    def n_cuts(self) -> int:
        """The cuts of a row, so that there are enough warps. They fix the order of additions, so only the shape decides."""
        if self.cuts is not None:
            return self.cuts
        n_cuts, n_warps = 1, self.n_tiles
        if self.n_alike > 1 or self.is_halved:  # of which several are read at once; whose slices are as good
            return 1
        while n_cuts < MOST_CUTS and n_cuts * n_warps < _WARPS_ENOUGH and self.n_steps >= 2 * n_cuts * _STEPS_OF_CUT:
            n_cuts *= 2
        return n_cuts

    @property
    def arguments(self) -> Any:
        """The arguments of kernels."""
        has_bias = 0 if self.bias is None else HAS_SCALES if self.has_scales else HAS_BIAS
        if self.is_halved:
            return HalvesArgs(self.words, self.bias, self.n_rows, *slices_of(self.n_cols)[:2], has_bias, self.scale)
        sizes = (self.n_rows, self.n_units, self.n_steps, self.n, self.n_cuts)
        return MatrixArgs(self.words, self.bias, *sizes, has_bias, self.scale)


def rows_of(linear: Linear) -> int:
    """A matrix's rows in whole tiles."""
    return -(-linear.n_out // TILE_ROWS) * TILE_ROWS


def check_types(file: ModelFile, plan: ModelPlan) -> None:
    """Refuse types of weights that have no kernels, with UnsupportedError."""
    for part in plan.tensors():
        if isinstance(part, Linear | Matrices):
            kind = file.tensor(part.weight, part.shapes[part.weight]).type
            if kind.name not in FORMATS and not getattr(part, "is_transposed", False):
                known = ", ".join(FORMATS)
                raise UnsupportedError(
                    f"{part.weight} is {kind.name}, which backend numba-cuda has no kernels for; it has some for {known}; take "
                    "another file, or --backend numba-cpu"
                )


def lent(file: ModelFile, name: str, device: str, *, as_halves: bool) -> Pointer | None:
    """A matrix that a draft model's file borrows, as the target has it on the same device, if it is multiplied alike."""
    owner, own = file.owner(name)
    return None if owner is file else owner.in_memory.get(_place(own, device, as_halves=as_halves))


def _place(name: str, device: str, *, as_halves: bool) -> tuple[str, str]:
    """The name of a matrix on a device for `ModelFile.in_memory`."""
    return f"numba-cuda {device}{' as halves' if as_halves else ''}", name


def n_bytes_of(file: ModelFile, plan: ModelPlan, device: str, *, as_halves: bool) -> int:
    """About the bytes of a plan's weights on a device, without lent ones; see `Weights` for both."""
    n_words = 0
    for part in dict.fromkeys(plan.tensors()):
        if isinstance(part, Linear | Matrices):
            if lent(file, part.weight, device, as_halves=as_halves) is not None:
                continue
            kind = file.tensor(part.weight, part.shapes[part.weight]).type.name
            stored = FORMATS["F32" if getattr(part, "is_transposed", False) else kind]
            is_halved = as_halves and stored.name in HALVED
            n_of_one = (
                n_words_of(stored, part.n_out, part.n_in) if is_halved else stored.n_words(n_units(part.n_out, part.n_in))
            )
            n_words += getattr(part, "n", 1) * n_of_one
        else:
            n_words += sum(math.prod(shape) for shape in part.shapes.values())
    return 4 * n_words


class Weights:
    """Reads the weights of blocks from a model file, once: they stay when the file is closed."""

    def __init__(
        self,
        file: ModelFile,
        device: Gpu,
        total: int,
        threads: int | None,
        progress: Progress,
        *,
        as_halves: bool = False,
    ) -> None:
        """Read from a file for a device, of `total` bytes; products are of halves, see `kernels.stream`, or of bytes."""
        self._file, self._device, self._as_halves = file, device, as_halves
        self._held: dict[Hashable, Pointer] = {}
        self._types: dict[str, TensorType] = {}
        self._joined: dict[Matrices, Linear] = {}
        self._total, self._done, self._progress = total, 0, progress
        self._threads = threads or os.cpu_count() or 1

    def products(self, linears: Sequence[tuple[Linear, int]]) -> list[tuple[Matrix, int]]:
        """The matrices of products of the same rows, each with the column where its products begin.

        Neighbours of one type whose columns follow each other, in whole tiles, are one matrix.
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

    def several(self, parts: Sequence[Matrices]) -> list[tuple[Matrix, int]]:
        """The matrices that products choose from, of the same rows; likewise, where products of one choice are neighbours."""
        made: list[list[Matrices]] = []
        for part in parts:
            if made and self._type(made[-1][0]) == self._type(part):
                made[-1].append(part)
            else:
                made.append([part])
        ends = np.cumsum([sum(part.n_out for part in group) for group in made]).tolist()
        return [(self._several(group), start) for group, start in zip(made, [0, *ends], strict=False)]

    def join(self, pairs: Sequence[tuple[Matrices, Linear]]) -> bool:
        """Let further matrices be the last of others, as many as there are pairs, if all have the types of those."""
        if any(self._type(part) is not self._type(linear) for part, linear in pairs):
            return False
        self._joined.update(pairs)
        return True

    def is_float(self, part: Linear | Matrices) -> bool:
        """Whether a matrix is multiplied with floats, or with halves, which are made of floats."""
        return FORMATS[self._type(part).name].is_float or self.is_halved(part)

    def is_halved(self, part: Linear | Matrices) -> bool:
        """Whether a matrix is multiplied with halves."""
        return self._is_halved(self._type(part))

    def vector(self, vector: Vector) -> Pointer:
        """A vector as float32."""
        return self.constant(vector, lambda: self._floats(vector.weight, vector.shapes[vector.weight]))

    def integers(self, part: Integers) -> Pointer:
        """Whole numbers as int32."""
        return self.constant(part, lambda: self._file.tensor(part.weight, part.shape).data.view(np.int32))

    def flat(self, name: str, shape: tuple[int, ...], n_times: int = 1, columns: int = 1) -> Pointer:
        """A small tensor of some shape as float32, one number after the other.

        Args:
            name: The name of the tensor.
            shape: In the file.
            n_times: Each number is there so often.
            columns: Of a matrix so many rows become columns, side by side.
        """

        def make() -> np.ndarray:
            values = np.repeat(self._floats(name, shape), n_times)
            return values if columns == 1 else values.reshape(-1, columns, shape[-1]).swapaxes(1, 2)

        return self.constant((name, n_times, columns), make)

    def taps(self, *convs: Convolution) -> Pointer:
        """The weights of all channels' inputs, the oldest first, (C, size), zeros where one is passed over."""

        def make() -> np.ndarray:
            taps = [conv.taps(self._floats(conv.weight, conv.shapes[conv.weight])).T for conv in convs]
            return np.concatenate(taps)

        return self.constant(convs, make)

    def norm(self, norm: Norm, n_heads: int = 1) -> Pointer:
        """A norm's weights for each of some heads, and its bias if it has one: (heads, 1 or 2, size)."""

        def make() -> np.ndarray:
            ones = [np.ones((1, norm.size), np.float32)] if norm.weight is None else []
            parts = ones + [self._floats(name, shape) for name, shape in norm.shapes.items()]
            wholes = [np.broadcast_to(part.reshape(-1, part.shape[-1]), (n_heads, norm.size)) for part in parts]
            return np.stack(wholes, axis=1)

        return self.constant((norm, n_heads), make)

    def norm_arguments(self, norm: Norm | None, n_heads: int = 1) -> Any:
        """The arguments of kernels for a norm of some heads, or for None: to pass on values as they are."""
        if norm is None:
            return NormArgs(kind=AS_IS)
        kind = (LAYER if norm.kind is NormKind.LAYER else RMS) | (BIASED if norm.bias is not None else 0)
        return NormArgs(self.norm(norm, n_heads), kind, norm.eps)

    def _can_follow(self, group: Sequence[Linear], linear: Linear, column: int) -> bool:
        first = group[0]
        is_alike = (first.scale, self._type(first)) == (linear.scale, self._type(linear))
        return is_alike and column == sum(map(rows_of, group))

    def _matrix(self, group: Sequence[Linear]) -> Matrix:
        first, kind = group[0], self._type(group[0])
        n_rows = sum(map(rows_of, group[:-1])) + group[-1].n_out
        key = tuple((each.weight, each.rows) for each in group)

        def below(parts: Sequence[np.ndarray]) -> np.ndarray:
            if all(len(part) % TILE_ROWS == 0 for part in parts):
                return np.concatenate(parts)
            wholes = [np.resize(part, (rows_of(each), *part.shape[1:])) for part, each in zip(parts, group, strict=True)]
            return np.concatenate(wholes)[:n_rows]  # the products of padding in tiles are not read

        def words() -> np.ndarray:
            return self._repacked(kind, below([self._rows(each) for each in group]), n_rows, first.n_in)

        bias = None
        if any(each.bias for each in group):
            bias = self.constant(("bias", *key), lambda: below([self._bias(each) for each in group]))
        at, is_halved = self._held_or_lent(key, words), self._is_halved(kind)
        return Matrix(FORMATS[kind.name], at, n_rows, first.n_in, first.scale, bias, is_halved=is_halved)

    def _several(self, group: Sequence[Matrices]) -> Matrix:
        first, kind = group[0], self._type(group[0])
        others = [self._joined[part] for part in group if part in self._joined]
        n_rows, is_halved = sum(part.n_out for part in group), self._is_halved(kind)

        def words() -> np.ndarray:
            data = np.concatenate([self._rows_of_each(part) for part in group], axis=1)
            if others:
                data = np.concatenate([data, np.concatenate([self._rows(each) for each in others])[None]])
            data = np.pad(data, ((0, 0), (0, -n_rows % (MATRIX_ROWS if is_halved else TILE_ROWS)), (0, 0)))
            return self._repacked(kind, data, data.shape[0] * data.shape[1], first.n_in)

        key, bias = tuple(group), None
        has_scales = any(part.scales for part in group)
        if has_scales or any(part.bias for part in group):
            bias = self.constant(("bias", key), lambda: self._biases(group, has_scales=has_scales))
        stored = FORMATS[kind.name], self.constant(key, words), n_rows, first.n_in, 1.0, bias
        return Matrix(*stored, first.n + bool(others), has_scales, is_halved=is_halved)

    def _repacked(self, kind: TensorType, data: np.ndarray, n_rows: int, n_cols: int) -> np.ndarray:
        """The words of rows of bytes."""
        self._done += data.nbytes
        self._progress("load weights", self._done, self._total)
        made = repack_halves if self._is_halved(kind) else repack
        return made(kind, data.reshape(-1), n_rows, n_cols, self._threads)

    def _is_halved(self, kind: TensorType) -> bool:
        return self._as_halves and kind.name in HALVED

    def _rows_of_each(self, part: Matrices) -> np.ndarray:
        """The bytes of the rows of each of several matrices, (n, n_out, bytes)."""
        tensor = self._file.tensor(part.weight)
        stored = part.of(tensor.floats() if part.is_transposed else tensor.data)
        return np.ascontiguousarray(stored.swapaxes(1, 2)).view(np.uint8) if part.is_transposed else stored

    def _biases(self, group: Sequence[Matrices], *, has_scales: bool) -> np.ndarray:
        """The bias of the products of several matrices, (n, n_out); with scales (n, n_out, 2)."""
        made = []
        for part in group:
            bias = np.zeros((part.n, part.n_out), np.float32)
            if part.bias is not None:
                stored = self._floats(part.bias, part.shapes[part.bias]).reshape(part.n, -1)
                bias = stored[:, part.first : part.first + part.n_out]
            scales = np.ones(part.n) if part.scales is None else np.array(part.scales)
            made.append(np.stack([bias, np.broadcast_to(scales[:, None], bias.shape)], axis=2) if has_scales else bias)
        return np.concatenate(made, axis=1).astype(np.float32)

    def _type(self, part: Linear | Matrices) -> TensorType:
        if isinstance(part, Matrices) and part.is_transposed:
            return TensorType.F32
        if part.weight not in self._types:
            self._types[part.weight] = self._file.tensor(part.weight, part.shapes[part.weight]).type
        return self._types[part.weight]

    def _rows(self, linear: Linear) -> np.ndarray:
        """The bytes of a matrix's rows, (n_out, bytes)."""
        shape = linear.shapes[linear.weight]
        return linear.of(self._file.tensor(linear.weight, shape).data.reshape(shape[0], -1))

    def _bias(self, linear: Linear) -> np.ndarray:
        if linear.bias is None:
            return np.zeros(linear.n_out, np.float32)
        return linear.bias_of(self._floats(linear.bias, linear.shapes[linear.bias]))

    def _floats(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        return self._file.tensor(name, shape).floats()

    def _held_or_lent(self, key: tuple[tuple[str, RowSelection | None], ...], make: Callable[[], np.ndarray]) -> Pointer:
        """The words of matrices; one whole matrix may be the target's, or is a draft model's to borrow."""
        if len(key) > 1 or key[0][1] is not None:
            return self.constant(key, make)
        file, name, device = self._file, key[0][0], self._device.label
        owner, own = file.owner(name)
        there = lent(file, name, device, as_halves=self._as_halves)
        held = owner.in_memory[_place(own, device, as_halves=self._as_halves)] = there or self.constant(key, make)
        return held

    def constant(self, key: Hashable, make: Callable[[], np.ndarray]) -> Pointer:
        """An array that callers share by one key."""
        if key not in self._held:
            array = make()
            self._held[key] = self._device.allocate(array.nbytes, PURPOSE)
            self._device.write(self._held[key], array)
        return self._held[key]
