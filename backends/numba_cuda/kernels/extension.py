"""The primitives of packages' kernels; see docs/write-an-architecture.md."""
# ruff: noqa: F401 - packages take these names from here

from augury.backends.numba_cuda.kernels import dialect
from augury.backends.numba_cuda.kernels.activation import sigmoid
from augury.backends.numba_cuda.kernels.dialect import SIMULATED, THREADS, WARP, cuda, lane, record, warp_barrier
from augury.backends.numba_cuda.kernels.inputs import CELLS, MAX_TOKENS, N_TOKENS, POSITIONS, SLOTS, cell_of
from augury.backends.numba_cuda.kernels.instructions import (
    add,
    div,
    exp,
    fma,
    larger,
    mul,
    quotient,
    remainder,
    remainder64,
    root,
)
from augury.backends.numba_cuda.kernels.norm import BIASED, NormArgs, moments, normed, sum_of_block
from augury.lowering import source_key


def kernel(*kinds, most_registers=None):
    """Decorate a package's kernel, whose name its file has once. It is compiled again whenever that file changes."""

    def decorate(function):
        name = f"{function.__name__}_{source_key(function)}"
        return dialect.kernel(*kinds, name=name, most_registers=most_registers)(function)

    return decorate
