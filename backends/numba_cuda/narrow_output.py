"""Logits of some tokens alone: products with the first rows of the output's matrix, and with copies of a few others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import evolve

from augury.backends.numba.passes import groups_of, tokens_of
from augury.backends.numba_cuda.device import Copy, Region
from augury.backends.numba_cuda.gpu import Gpu
from augury.backends.numba_cuda.kernels.formats import TILE
from augury.backends.numba_cuda.kernels.halves import HEADER, slices_of, step_words
from augury.backends.numba_cuda.repack import n_words_of
from augury.backends.numba_cuda.weights import PURPOSE, Matrix

_SHARE = 4  # of the first tiles are a quarter as many that hold other tokens: drafts know a sixteenth as many of these
_LEAST = 16
_MOST = 3 / 4  # of all logits, above which to compute all of them costs little more


class NarrowOutput:
    """The matrices of the logits of the first tokens, and of some others, which change with the vocabulary.

    Rows lie in tiles on the device. Those of the first tokens are multiplied where they are, and the tiles of others are copied
    side by side when a vocabulary first has them. So programs stay the same for any vocabulary.

    Attributes:
        matrices: The two, each with the column of its products.
        tokens: (m,) int32, of each column.
        names: The same on the device.
    """

    def __init__(self, device: Gpu, matrix: Matrix, n_first: int) -> None:
        """Begin with the tokens in the first tiles, and those after them.

        Raises:
            MemoryError: There is no room on the device.
        """
        self._device, self._matrix, self._n_first = device, matrix, n_first
        n_others = max(n_first // _SHARE, _LEAST)
        n_rows, bias = matrix.tile_rows * n_others, None
        if matrix.bias is not None:
            bias = device.allocate(4 * n_rows, PURPOSE)
        others = evolve(matrix, n_rows=n_rows, bias=bias, n_given=None, cuts=matrix.n_cuts)
        n_words = n_words_of(matrix.format, n_rows, matrix.n_cols) if matrix.is_halved else matrix.format.n_words(others.n)
        others = evolve(others, words=device.allocate(4 * n_words, PURPOSE))
        if matrix.is_halved:
            device.copy(Copy(matrix.words, others.words, 4 * HEADER))
        first = evolve(matrix, n_rows=matrix.tile_rows * n_first, n_given=matrix.n, cuts=matrix.n_cuts)
        self.matrices = [(first, 0), (others, first.n_rows)]
        self.names = device.allocate(4 * (first.n_rows + n_rows), PURPOSE)
        self._tiles = np.arange(n_first, n_first + n_others)  # of each place among the others
        for place, tile in enumerate(self._tiles.tolist()):
            self._copy(tile, place)
        self._name()

    @classmethod
    def of(cls, device: Gpu, matrix: Matrix, vocabulary: np.ndarray) -> NarrowOutput | None:
        """The first tokens of a vocabulary (m,) int32, rising; None if that would save little."""
        tiles = groups_of(vocabulary, matrix.tile_rows)
        n_first = int((tiles == np.arange(len(tiles))).sum())
        if matrix.tile_rows * (n_first + max(n_first // _SHARE, _LEAST)) > _MOST * matrix.n_rows:
            return None
        try:
            return cls(device, matrix, n_first)
        except MemoryError:
            return None

    def follow(self, vocabulary: np.ndarray) -> bool:
        """Take another vocabulary (m,) int32, rising; False where it has too many others, or one in a tile that is not full."""
        tiles = groups_of(vocabulary, self._matrix.tile_rows)
        others = tiles[tiles >= self._n_first]
        if len(others) > len(self._tiles) or self._matrix.tile_rows * (tiles[-1] + 1) > self._matrix.n_rows:
            return False
        new = np.setdiff1d(others, self._tiles)
        free = np.flatnonzero(~np.isin(self._tiles, others))[: len(new)]
        for place, tile in zip(free.tolist(), new.tolist(), strict=True):
            self._copy(tile, place)
        if len(new):
            self._tiles[free] = new
            self._name()
        return True

    def _name(self) -> None:
        tiles = np.concatenate([np.arange(self._n_first), self._tiles])
        self.tokens = tokens_of(tiles, self._matrix.tile_rows)
        self._device.write(self.names, self.tokens)

    def _copy(self, tile: int, place: int) -> None:
        """Copy a tile of rows to a place among the others."""
        others, _ = self.matrices[1]
        for (source, n_bytes), (to, _) in zip(_parts(self._matrix, tile), _parts(others, place), strict=True):
            self._device.copy(Copy(source, to, n_bytes))


def _parts(matrix: Matrix, tile: int) -> Iterator[Region]:
    """The parts of a tile of rows of a matrix, in every plane; and of their bias."""
    first, size, at = tile * TILE * matrix.n_steps, TILE * matrix.n_steps, 0
    if matrix.is_halved:
        n_words = slices_of(matrix.n_cols)[0] * step_words(matrix.format)
        yield matrix.words.at(4 * (HEADER + tile * n_words)), 4 * n_words
    for n_halves, per in () if matrix.is_halved else matrix.format.planes:
        yield matrix.words.at(2 * (at + n_halves * first // per)), 2 * n_halves * size // per
        at += n_halves * matrix.n // per
    if matrix.bias is not None:
        yield matrix.bias.at(4 * matrix.tile_rows * tile), 4 * matrix.tile_rows
