"""`Elementwise`: activation(norm(x))."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from augury.backends.numba_cpu.blocks.emitter import Emitter
from augury.backends.numba_cpu.blocks.feed_forward import FUNCTIONS
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.machine import load_part, store_part
from augury.backends.numba_cpu.kernels.simd import get_i64
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS, share
from augury.backends.numba_cpu.kernels.team import N_TOKENS
from augury.backends.numba_cpu.memory import up
from augury.backends.numba_cpu.profile import Work
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.backends.numba_cpu.tape import Tape
    from augury.blocks import Activation, Elementwise
    from augury.types import ModelOptions

__all__ = ["ElementwiseEmitter"]


@cache
def _kernel(activation: Activation) -> Any:
    function = FUNCTIONS[activation][0]

    def activate(record: int, state: int, thread: int, n_threads: int) -> None:
        x, y = get_i64(record + 16) + thread * get_i64(record + 24), get_i64(record + 32)
        ldy, size = get_i64(record + 40), get_i64(record + 48)
        first, end = share(get_i64(state + N_TOKENS), thread, n_threads, 0)
        for t in range(first, end):
            for index in range(0, size, 16):
                left = size - index
                store_part(y + 4 * (t * ldy + index), function(load_part(x + 4 * (t * size + index), left)), left)

    activate.__name__ = activate.__qualname__ = f"{activation.value}_rows"
    activate.__doc__ = """Y = activation(x). Operands: x, from one thread's to the next, y, floats of a row of y, of x."""
    return kernel(activate)


class ElementwiseEmitter(Emitter):
    """One record."""

    block: Elementwise

    def __init__(self, block: Elementwise, options: ModelOptions) -> None:
        super().__init__(block, options)
        if block.activation not in FUNCTIONS:
            raise UnsupportedError(f"{block.activation.name} without constants; use backend reference")

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        return (_kernel(self.block.activation),)

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        x = tape.norm(self.block.norm, waits=True)
        operands = (x.address, x.stride, tape.y, up(x.width, PANEL_ROWS), x.width)
        tape.add(Work("activation"), _kernel(self.block.activation), *operands)
        tape.leave(None)
