"""How numba compiles kernels: a helper is optimised, and becomes machine code, as a part of the kernels that call it only.

Numba's own pipeline does both for every function, together with all that it calls and with two wrappers. The helpers at the
bottom of attention would go through it four times before their kernel does. Here a helper stops at LLVM's IR. A kernel is
optimised in one run, where numba has two: the first makes reference counts easier to remove, of which kernels have none.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite.binding import Linkage
from numba import _dynfunc
from numba.core import config
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering
from numba.core.types.functions import BaseFunction

USELESS = {
    "DumpParforDiagnostics",
    "FindLiterallyCalls",
    "InlineClosureLikes",
    "InlineInlinables",
    "InlineOverloads",
    "LiteralPropagationSubPipelinePass",
    "LiteralUnroll",
    "MakeFunctionToJitFunction",
    "NopythonRewrites",
    "RewriteDynamicRaises",
    "WithLifting",
}
"""Passes that treat closures, arrays' expressions, overloads and the like; each looks at the whole function several times."""


@contextmanager
def no_collection() -> Iterator[None]:
    """Let nothing look for garbage, of which numba makes little, among all that it makes: a tenth of the time it takes."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_resolved: dict[tuple[Any, ...], Any] = {}  # signatures by operation, numba's context, and types


@contextmanager
def resolved_once() -> Iterator[None]:
    """Let numba resolve an operation once for the types of its arguments: it tries up to dozens of templates each time.

    Four in five operators and built-in functions of kernels were resolved before. Those that are compiled functions, which may
    depend on the caller's flags, are left to numba.
    """
    resolve = BaseFunction.get_call_type

    def get_call_type(operation: Any, context: Any, args: Any, kws: Any) -> Any:
        if kws:
            return resolve(operation, context, args, kws)
        key = operation, context, args
        signature = _resolved.get(key)
        if signature is not None:
            operation._impl_keys[signature.args] = operation.typing_key  # noqa: SLF001 - as numba's own does, for lowering
            return signature
        signature = resolve(operation, context, args, kws)
        if signature is not None and operation._impl_keys[signature.args] is operation.typing_key:  # noqa: SLF001
            _resolved[key] = signature
        return signature

    BaseFunction.get_call_type = get_call_type
    try:
        yield
    finally:
        BaseFunction.get_call_type = resolve


class _KernelLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Code that is optimised as its pipeline says, unless numba was told to do less."""

    optimisation: int

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout  # noqa: SLF001 - as in numba's own
        for function in module.functions:
            passes, builder = self._codegen._function_pass_manager(opt=min(config.OPT, self.optimisation))  # noqa: SLF001
            passes.run(function, builder)

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            # What is called has a name that counts from 1 in each process. Code that another process kept may hold one that is
            # named alike, and the first that is loaded would be called by both.
            if function.linkage == Linkage.linkonce_odr:
                function.linkage = Linkage.internal
        passes, builder = self._codegen._module_pass_manager(opt=min(config.OPT, self.optimisation))  # noqa: SLF001
        passes.run(self._final_module, builder)


class _HelperLibrary(_KernelLibrary):
    def _optimize_final_module(self) -> None:
        """Is done to the kernel."""

    def _finalize_final_module(self) -> None:
        """Make no machine code."""
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _KernelLowering(NativeLowering):  # type: ignore[misc]
    _name = "augury_kernel_lowering"
    library = _KernelLibrary

    def run_pass(self, state: Any) -> bool:
        state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.optimisation = state.pipeline.optimisation
        state.library.enable_object_caching()
        state.flags.no_cfunc_wrapper = True
        return bool(super().run_pass(state))


@register_pass(mutates_CFG=True, analysis_only=False)
class _HelperLowering(_KernelLowering):
    _name = "augury_helper_lowering"
    library = _HelperLibrary

    def run_pass(self, state: Any) -> bool:
        state.flags.no_compile = state.flags.no_cpython_wrapper = True
        changed = super().run_pass(state)
        lowered = state.cr
        # numba's name of the helper; it has no address, so that only kernels can call it
        function = _dynfunc.make_function(
            lowered.fndesc.lookup_module(), lowered.fndesc.qualname, "", 0, lowered.env, (state.library,)
        )
        state.targetctx.insert_user_function(function, lowered.fndesc, [state.library])
        state["cr"] = lowered._replace(cfunc=function)
        return changed


class KernelCompiler(CompilerBase):  # type: ignore[misc]
    """Numba's pipeline for a kernel.

    Attributes:
        optimisation: LLVM's level. Level 3 makes kernels that spell out their vectors and tiles no faster, and takes
            1.5 times as long.
    """

    optimisation = 2
    lowering = _KernelLowering

    def define_pipelines(self) -> list[Any]:
        """Name the passes: numba's, without the passes that find nothing in kernels, and with another one that makes code."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        kept = [(each, what) for each, what in passes.passes if each.__name__ not in USELESS]
        passes.passes = [(self.lowering if each is NativeLowering else each, what) for each, what in kept]
        passes.finalize()
        return [passes]


class HelperCompiler(KernelCompiler):
    """Numba's pipeline for a helper."""

    lowering = _HelperLowering
