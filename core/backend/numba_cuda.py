"""Kernels of your own for NVIDIA GPUs: emitters of operations, and the primitives that kernels are written in."""

from augury.backends.numba_cuda.kernels.activation import sigmoid as sigmoid
from augury.backends.numba_cuda.kernels.dialect import (
    THREADS as THREADS,
    WARP as WARP,
    package_kernel,
    record as record,
    warp_barrier as warp_barrier,
)
from augury.backends.numba_cuda.kernels.inputs import (
    CELLS as CELLS,
    MAX_TOKENS as MAX_TOKENS,
    N_TOKENS as N_TOKENS,
    POSITIONS as POSITIONS,
    SLOTS as SLOTS,
    cell_of as cell_of,
)
from augury.backends.numba_cuda.kernels.instructions import (
    SIMULATED as SIMULATED,
    add as add,
    cuda as cuda,
    div as div,
    exp as exp,
    fma as fma,
    lane as lane,
    larger as larger,
    mul as mul,
    quotient as quotient,
    remainder as remainder,
    remainder64 as remainder64,
    root as root,
)
from augury.backends.numba_cuda.kernels.norm import (
    BIASED as BIASED,
    NormArgs as NormArgs,
    moments as moments,
    normed as normed,
    sum_of_block as sum_of_block,
)
from augury.backends.numba_cuda.operations import (
    EMITTERS as EMITTERS,
    Arguments as Arguments,
    DeviceRows as DeviceRows,
    Gate as Gate,
    OperationEmitter as OperationEmitter,
    Tape as Tape,
    activate as activate,
    look_up as look_up,
)

kernel = package_kernel
del package_kernel  # which has this name alone here
