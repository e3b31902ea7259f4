"""Products that mixers begin with: by themselves, or in one launch for mixers side by side that see the same rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate

from attrs import frozen

from augury.backends.numba_cuda.kernels.formats import TILE_ROWS
from augury.backends.numba_cuda.rows import Operand, Rows
from augury.backends.numba_cuda.tape import Tape
from augury.blocks import Linear


@frozen(eq=False)
class FirstProducts:
    """Products of the same rows by matrices, each with its column, and how wide a row of them is, in a buffer of a name.

    The key finds them in `Tape.made` if they lie elsewhere.
    """

    key: Hashable
    name: str
    products: Sequence[tuple[Linear, int]]
    width: int


def columns_of(blocks: Sequence[FirstProducts]) -> list[int]:
    """Where in one row the products of several blocks begin, each in whole tiles of matrices, and where they end."""
    return list(accumulate((-(-each.width // TILE_ROWS) * TILE_ROWS for each in blocks), initial=0))


def multiply_first(tape: Tape, x: Operand, blocks: Sequence[FirstProducts]) -> None:
    """Write the first products of several blocks, all in one row, until `Tape.go_on`."""
    columns = columns_of(blocks)
    rows, found = Rows(tape.buffers["first products"], columns[-1]), []
    for each, first in zip(blocks, columns, strict=False):
        tape.made[each.key] = Rows(rows.at.at(4 * first), rows.width)
        found += [(linear, first + column) for linear, column in each.products]
    tape.multiply(x, found, rows)
