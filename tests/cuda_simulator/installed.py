"""Once this is imported, kernels of `numba-cuda` run in the simulator; import it before them.

Kernels are the same source. Another module stands for `kernels/instructions.py`, and other operations of a warp for those of
`kernels/dialect.py`. The threads of a block are coroutines (`grid`): a warp's operation or a barrier passes on to the next one.
"""

import sys
from importlib import import_module

from cuda_simulator import instructions

from augury.backends.numba_cuda import kernels

sys.modules[f"{kernels.__name__}.instructions"] = kernels.instructions = instructions

dialect, warps = map(import_module, (f"{kernels.__name__}.dialect", "cuda_simulator.warps"))
vars(dialect).update({name: value for name, value in vars(warps).items() if hasattr(dialect, name)})
