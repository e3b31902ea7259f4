"""How lanes are compiled for the simulator: as the kernels and helpers of numba-cpu, but in less time.

Lanes run for microseconds there, and compiling them would be most of a kernel test's time.
"""

from numba import njit

from augury.backends.numba_cpu.kernels.compiler import HelperCompiler, KernelCompiler


class Compiler(KernelCompiler):
    """Numba's pipeline for functions that Python calls."""

    optimisation = 1


class _InnerCompiler(HelperCompiler):
    optimisation = 1


def lane(function):
    """Compile `function` when it is first called, by Python or by another lane, for the types that it is called with."""
    called, inner = (njit(pipeline_class=compiler)(function) for compiler in (Compiler, _InnerCompiler))
    called.get_call_template, called.get_overload = inner.get_call_template, inner.get_overload  # numba asks for other lanes
    return called
