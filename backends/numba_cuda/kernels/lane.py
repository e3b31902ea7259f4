"""How lanes are compiled for the simulator: only what Python calls becomes machine code, with all that it calls in it.

Numba's own pipeline makes machine code of each lane that another one calls, too, and optimises it as if it ran for hours. Here
lanes run for microseconds, and to compile them was most of what a test of a kernel took.
"""

from __future__ import annotations

from numba import _dynfunc, njit
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

_OPTIMISATION = 1  # LLVM's level


class _Library(JITCodeLibrary):
    """Code that is optimised at `_OPTIMISATION`, once."""

    def _optimize_functions(self, module):
        module.data_layout = self._codegen._data_layout  # noqa: SLF001 - as in numba's own
        for function in module.functions:
            passes, builder = self._codegen._function_pass_manager(opt=_OPTIMISATION)  # noqa: SLF001
            passes.run(function, builder)

    def _optimize_final_module(self):
        passes, builder = self._codegen._module_pass_manager(opt=_OPTIMISATION)  # noqa: SLF001
        passes.run(self._final_module, builder)


class _InnerLibrary(_Library):
    def _optimize_final_module(self):
        """Is done to the lane that Python calls."""

    def _finalize_final_module(self):
        """Make no machine code."""
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    _name = "augury_lane_lowering"
    library = _Library

    def run_pass(self, state):
        state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        state.flags.no_cfunc_wrapper = True
        return super().run_pass(state)


@register_pass(mutates_CFG=True, analysis_only=False)
class _InnerLowering(_Lowering):
    _name = "augury_inner_lane_lowering"
    library = _InnerLibrary

    def run_pass(self, state):
        state.flags.no_compile = state.flags.no_cpython_wrapper = True
        changed = super().run_pass(state)
        lowered = state.cr
        # what numba knows the lane by; it has no address, so that nothing but lanes can call it
        function = _dynfunc.make_function(
            lowered.fndesc.lookup_module(), lowered.fndesc.qualname, "", 0, lowered.env, (state.library,)
        )
        state.targetctx.insert_user_function(function, lowered.fndesc, [state.library])
        state["cr"] = lowered._replace(cfunc=function)
        return changed


class Compiler(CompilerBase):
    """Numba's pipeline for what Python calls."""

    lowering = _Lowering

    def define_pipelines(self):
        """Name the passes: numba's, with another one that makes code."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [(self.lowering if each is NativeLowering else each, what) for each, what in passes.passes]
        passes.finalize()
        return [passes]


class _InnerCompiler(Compiler):
    lowering = _InnerLowering


def lane(function):
    """Compile `function` when it is first called, by Python or by another lane, for the types that it is called with."""
    called, inner = (njit(pipeline_class=compiler)(function) for compiler in (Compiler, _InnerCompiler))
    called.get_call_template, called.get_overload = inner.get_call_template, inner.get_overload  # numba asks for other lanes
    return called
