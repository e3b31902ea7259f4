"""Kernels of your own for the CPU: emitters of operations, and the primitives that kernels are written in."""

from augury.backends.numba_cpu.kernels.activation import (
    activate_kernel as activate_kernel,
    activating as activating,
    exponential as exponential,
    sigmoid as sigmoid,
    silu as silu,
)
from augury.backends.numba_cpu.kernels.cache_type import CachedRows as CachedRows, cached_row as cached_row, cell_of as cell_of
from augury.backends.numba_cpu.kernels.compiler import (
    USELESS as USELESS,
    HelperCompiler as HelperCompiler,
    KernelCompiler as KernelCompiler,
    no_collection as no_collection,
    resolved_once as resolved_once,
)
from augury.backends.numba_cpu.kernels.jit import helper as helper, package_kernel
from augury.backends.numba_cpu.kernels.rows import place_rows as place_rows
from augury.backends.numba_cpu.kernels.simd import (
    add as add,
    div as div,
    fma as fma,
    get_f32 as get_f32,
    get_i64 as get_i64,
    invoke as invoke,
    load_f32 as load_f32,
    load_part as load_part,
    maximum as maximum,
    mul as mul,
    part_of as part_of,
    put_f32 as put_f32,
    put_i64 as put_i64,
    repeat_f32 as repeat_f32,
    splat_f32 as splat_f32,
    store_f32 as store_f32,
    store_part as store_part,
    sub as sub,
    sum_lanes as sum_lanes,
    zero_f32 as zero_f32,
)
from augury.backends.numba_cpu.kernels.step import (
    mean_of as mean_of,
    normalise as normalise,
    scratch_of as scratch_of,
    share as share,
)
from augury.backends.numba_cpu.kernels.struct import nested as nested, pointer_to as pointer_to, struct as struct
from augury.backends.numba_cpu.kernels.team import Record as Record, StridedRows as StridedRows, own as own, row_of as row_of
from augury.backends.numba_cpu.operations import (
    EMITTERS as EMITTERS,
    OperationEmitter as OperationEmitter,
    Tape as Tape,
    ThreadRows as ThreadRows,
    Work as Work,
    row_bytes as row_bytes,
)

kernel = package_kernel
del package_kernel  # which has this name alone here
