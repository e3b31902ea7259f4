"""Weight matrices in the layout of the kernels."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
from attrs import field, frozen

from augury.backends.numba_cpu.kernels.format import BLOCK, EXPONENT_BYTES, FORMATS, PANEL_ROWS, Format
from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.kernels.matmul import n_blocks
from augury.backends.numba_cpu.kernels.repack import CODEBOOK_TYPES, repack_kernel
from augury.errors import ModelFileError
from augury.files.gguf import Tensor
from augury.files.tensor_type import TensorType

_LINE = 64
_HUGE_PAGE = 1 << 21
# Exponents of rows: where they bring the largest weights; weights below 2**-77 count as zeros, those from 2**69 on as infinite.
_NEAR, _SMALLEST, _LARGEST_BOUND = 14, -63, 2.0**69
_PANELS_AT_ONCE = 16  # packed by one task of a thread


@frozen(eq=False)
class PackedMatrix:
    """A matrix of (n_rows, n_cols) weights, packed; the source is not needed afterwards.

    `data` (n_bytes,) uint8 is aligned to 64 bytes, or to a huge page where it is large. Rows are padded with zeros to whole
    panels, n_cols (of float weights) to whole blocks.
    """

    kind: str
    n_rows: int
    n_cols: int
    data: np.ndarray = field(repr=False)

    @property
    def n_panels(self) -> int:
        """Panels of 32 rows."""
        return -(-self.n_rows // PANEL_ROWS)

    @property
    def address(self) -> int:
        """Where the first panel lies."""
        return int(self.data.ctypes.data) + _exponent_bytes(FORMATS[self.kind], self.n_panels)

    @property
    def n_bytes(self) -> int:
        """Bytes of the panels, which a product reads."""
        return self.data.nbytes - _exponent_bytes(FORMATS[self.kind], self.n_panels)


def aligned(n_bytes: int) -> np.ndarray:
    """Allocate (n_bytes,) uint8, aligned to a cache line, or to a huge page where several are filled."""
    alignment = _HUGE_PAGE if n_bytes > 2 * _HUGE_PAGE else _LINE
    buffer = np.empty(n_bytes + alignment, np.uint8)
    start = -buffer.ctypes.data % alignment
    return buffer[start : start + n_bytes]


@frozen
class PackedLayout:
    """Where packed matrices lie in one stretch of memory."""

    spans: Mapping[str, slice]
    n_bytes: int

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> PackedLayout:
        """Place matrices one after another, each at a cache line's start."""
        spans, end = {}, 0
        for name, tensor in tensors.items():
            n_bytes = packed_bytes(tensor.type, rows_and_columns(tensor))
            spans[name] = slice(end, end + n_bytes)
            end += n_bytes + -n_bytes % _LINE
        return cls(spans, end)


def packed_format(weight_type: TensorType) -> Format:
    """The packed format of a weight type."""
    return FORMATS[weight_type.name.lower()]


@cache
def _codebook(name: str) -> np.ndarray:
    """The codebook of a weight type, see `kernels/repack.py`; (n_entries, entry) uint8, nothing for types without one."""
    if name not in CODEBOOK_TYPES:
        return np.zeros((0, 0), np.uint8)
    import gguf

    kind = getattr(gguf.quants, name.upper())
    kind.init_grid()
    return np.searchsorted(kind.grid_map, kind.grid.reshape(kind.grid_shape)).astype(np.uint8)


def rows_and_columns(tensor: Tensor) -> tuple[int, int]:
    """The shape of a tensor as a matrix: axes before the last count as rows."""
    *rows, n_cols = tensor.shape
    return int(np.prod(rows, dtype=np.int64)), n_cols


def packed_bytes(weight_type: TensorType, shape: tuple[int, int]) -> int:
    """How many bytes a matrix of (rows, columns) takes once it is packed."""
    fmt, (n_rows, n_cols) = packed_format(weight_type), shape
    n_panels = -(-n_rows // PANEL_ROWS)
    return _exponent_bytes(fmt, n_panels) + n_panels * (n_blocks(n_cols) // fmt.unit_blocks * fmt.unit_bytes)


def _exponent_bytes(fmt: Format, n_panels: int) -> int:
    """How many bytes lie in front of the panels."""
    return 0 if fmt.float_bytes else EXPONENT_BYTES * n_panels


@np.errstate(invalid="ignore")  # by signalling NaNs of a damaged file; logits show it
def _row_exponents(fmt: Format, panels: np.ndarray) -> np.ndarray:
    """Exponents of the rows of panels (n, units, bytes of a unit) uint8, as `format.py` describes them; (n, 32) float16."""
    per_d, per_minimum = fmt.largest

    def largest(first: int) -> np.ndarray:
        numbers = np.ascontiguousarray(panels[:, :, first : first + 2 * PANEL_ROWS]).view(np.uint16)
        return (numbers & 0x7FFF).max(axis=1).view(np.float16).astype(np.float64)

    if fmt.coding == "float8":
        bound = np.full((len(panels), PANEL_ROWS), per_d)
    elif fmt.coding == "exponent":
        bound = np.ldexp(per_d, panels[:, :, :PANEL_ROWS].max(axis=1).astype(np.int32) - 128)
    else:
        bound = per_d * largest(0)
    if fmt.has_minimum:
        bound = bound + per_minimum * largest(2 * PANEL_ROWS)
    _, exponents = np.frexp(bound)
    return np.where(bound < _LARGEST_BOUND, np.minimum(_NEAR - exponents, _NEAR - _SMALLEST), np.nan).astype(np.float16)


def pack_tensor(tensor: Tensor, threads: int = 1, to: np.ndarray | None = None) -> PackedMatrix:
    """Pack a tensor of a model file; see `pack`."""
    return pack(tensor.type, rows_and_columns(tensor), np.ascontiguousarray(tensor.data), threads, to)


def pack(
    weight_type: TensorType, shape: tuple[int, int], source: np.ndarray, threads: int = 1, to: np.ndarray | None = None
) -> PackedMatrix:
    """Pack a matrix.

    Args:
        weight_type: the type of the weights.
        shape: rows and columns.
        source: (n_bytes,) uint8, contiguous, the rows as in a model file.
        threads: how many threads share the work.
        to: where to, (packed_bytes,) uint8 that starts at a cache line; memory of its own if None.

    Raises:
        ModelFileError: the columns are not whole blocks of the type, or source has not the bytes for the shape.
    """
    name, (n_rows, n_cols) = weight_type.name.lower(), shape
    expected = n_rows * (n_cols // weight_type.block_size) * weight_type.block_bytes
    if n_cols % weight_type.block_size or source.size != expected or not source.flags.c_contiguous:
        msg = (
            f"a {weight_type.name} matrix of {n_rows} x {n_cols} has {source.size} bytes; expected {expected} in whole "
            f"blocks of {weight_type.block_size} columns; the model file is damaged, fetch it again"
        )
        raise ModelFileError(msg)
    n_panels = -(-n_rows // PANEL_ROWS)
    n_bytes = packed_bytes(weight_type, shape)
    fmt = FORMATS[name]
    matrix = PackedMatrix(fmt.kind, n_rows, n_cols, aligned(n_bytes) if to is None else to)
    panels = matrix.data[_exponent_bytes(fmt, n_panels) :].reshape(n_panels, -1)
    if n_rows % PANEL_ROWS:
        panels[-1] = 0
    if n_cols % BLOCK:
        matrix.data[:] = 0
    if not fmt.float_bytes:
        exponents = matrix.data[: _exponent_bytes(fmt, n_panels)].view(np.float16).reshape(n_panels, PANEL_ROWS)
        units = panels.reshape(n_panels, -1, fmt.unit_bytes)
    repack, table = repack_kernel(name), _codebook(name).ctypes.data
    address(repack)  # compiled here, so that no two threads compile it

    def work(first: int) -> None:
        end = min(first + _PANELS_AT_ONCE, n_panels)
        repack(source.ctypes.data, matrix.address, n_rows, n_cols, first, end, table)
        if not fmt.float_bytes:
            exponents[n_panels - end : n_panels - first] = _row_exponents(fmt, units[first:end])[::-1]

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(0, n_panels, _PANELS_AT_ONCE)))
    return matrix
