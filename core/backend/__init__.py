"""For backends: the classes to implement, the input and the results of a pass, and rewrites of operations.

`numba_cpu` and `numba_cuda` are for kernels of your own: emitters, and the primitives of kernels.
"""

from augury.backends.reference import Reference as Reference
from augury.batch import (
    Batch as Batch,
    StateUpdate as StateUpdate,
    StateUpdates as StateUpdates,
    Tree as Tree,
    check_batch as check_batch,
    check_vocabulary as check_vocabulary,
)
from augury.devices import CPU as CPU, DeviceInfo as DeviceInfo, Placement as Placement
from augury.files.cache import cache_folder as cache_folder, packed_name as packed_name
from augury.files.models import open_model as open_model
from augury.files.quantized import quantized as quantized
from augury.hookspecs import hookimpl as hookimpl
from augury.interfaces import Backend as Backend, CompiledPass as CompiledPass, Model as Model, Progress as Progress
from augury.interruption import interrupted as interrupted
from augury.loader import make_backend as make_backend, plan_of as plan_of
from augury.lowering.rewrites import (
    ACTIVATE_PRODUCTS as ACTIVATE_PRODUCTS,
    ADD_SUMS as ADD_SUMS,
    AddLowRank as AddLowRank,
    FeedExpertsAndAdd as FeedExpertsAndAdd,
    Fused as Fused,
    MultiplyActivated as MultiplyActivated,
    Rewrite as Rewrite,
    Uses as Uses,
    check_norms as check_norms,
    n_early as n_early,
    parts_of as parts_of,
    rewritten as rewritten,
    roots_of as roots_of,
)
from augury.memory_limit import n_bytes_of_machine as n_bytes_of_machine, require_address_space as require_address_space
from augury.options import option as option
from augury.passes import ArrayPass as ArrayPass, NamedPass as NamedPass, Pass as Pass
from augury.profile import KernelTime as KernelTime, Limits as Limits, Profiled as Profiled
from augury.types import (
    CACHE_BLOCK as CACHE_BLOCK,
    CACHE_TYPES as CACHE_TYPES,
    Allocation as Allocation,
    ModelInfo as ModelInfo,
    ModelOptions as ModelOptions,
    StateSpec as StateSpec,
    read_only as read_only,
)
