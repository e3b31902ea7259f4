"""The dialect of kernels.

Kernels and lanes use numba's names for threads, barriers, shared and local arrays (`cuda`), and for all that has an instruction
of its own the operations of `instructions`, and those of a warp, below.
"""

from __future__ import annotations

from collections import namedtuple
from itertools import islice

import numpy as np
from attrs import frozen
from numba import int32

from augury.backends.numba_cuda.kernels.instructions import SIMULATED, add, arrive, cuda, lane, larger, mma_halves, together
from augury.lowering import source_key

WARP = 32
SLICES = 8  # of a row of weights: see `sums`
THREADS = 64 if SIMULATED else 256  # of a block that works on one token: simulated threads take time


@frozen(eq=False)
class Kernel:
    """A function for a grid of threads, compiled when it is first needed.

    Attributes:
        function: Its source.
        kinds: A letter for each parameter: pointers to uint32 `w`, float32 `f`, float64 `d`, int32 `j`, int8 `b`, uint16 `h`;
            int32 `i`, float32 `r`. Or a `record` of such.
        name: The name of the function and its variant; unlike any other kernel's.
        most_registers: The limit of registers per thread; None: as many as the compiler likes.
    """

    function: object
    kinds: tuple
    name: str
    most_registers: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its parameters, of which the first are the inputs of a pass."""
        code = self.function.__code__
        return code.co_varnames[: code.co_argcount]

    @property
    def parameters(self) -> str:
        """The letters of all arguments, those of records one by one."""
        return "".join(kind if isinstance(kind, str) else kind.letters for kind in self.kinds)

    def grouped(self, arguments: list) -> list:
        """All arguments, given one by one, as the function takes them."""
        rest = iter(arguments)
        return [next(rest) if isinstance(kind, str) else kind(*islice(rest, len(kind.letters))) for kind in self.kinds]


def kernel(*kinds, name=None, most_registers=None):
    """Decorate a kernel; see `Kernel`. Letters of neighbouring parameters are one word."""
    apart = tuple(each for kind in kinds for each in (kind if isinstance(kind, str) else (kind,)))
    return lambda function: Kernel(function, apart, name or function.__name__, most_registers)


def package_kernel(*kinds, most_registers=None):
    """Decorate a package's kernel, whose name its file has once. It is compiled again whenever that file changes."""

    def decorate(function):
        return kernel(*kinds, name=f"{function.__name__}_{source_key(function)}", most_registers=most_registers)(function)

    return decorate


def record(name, **names):
    """A class of arguments that go together through kernels and lanes: a named tuple, its names by their letters, see `Kernel`.

    A pointer that is left out is one to the inputs of a pass, a number 0.
    """
    letters = "".join(letter * len(some.split()) for letter, some in names.items())
    defaults = [0 if letter in "ir" else None for letter in letters]
    made = namedtuple(name, " ".join(names.values()), defaults=defaults)  # noqa: PYI024 - known to numba
    made.letters = letters
    return made


# Operations of a warp, which all of its 32 lanes take part in

_ALL = 0xFFFFFFFF


def _over(lanes, combine):
    """The lane function that combines a float with those of lanes so far away, step by step."""

    @lane
    def combined(value):
        for step in lanes:
            value = combine(value, cuda.shfl_xor_sync(_ALL, value, step))
        return value

    return combined


warp_max, warp_sum = _over((1, 2, 4, 8, 16), larger), _over((1, 2, 4, 8, 16), add)
quad_max, quad_sum = _over((1, 2), larger), _over((1, 2), add)


@lane
def add_halves(sums, at, w, x):
    """Add to four floats, from a place on, the products of four such pairs of matrices in turn: 16 words of W, 8 of x."""
    for k in range(4):
        sums[at], sums[at + 1], sums[at + 2], sums[at + 3] = mma_halves(
            w[4 * k],
            w[4 * k + 1],
            w[4 * k + 2],
            w[4 * k + 3],
            x[2 * k],
            x[2 * k + 1],
            *(sums[at], sums[at + 1], sums[at + 2], sums[at + 3]),
        )


@lane
def warp_sums(sums, n):
    """Let n numbers of every lane be the sums over all lanes, by the same tree."""
    for i in range(n):
        sums[i] = warp_sum(sums[i])


@lane
def warp_barrier():
    """Wait for all lanes, and see their writes."""
    cuda.syncwarp()


@lane
def half_warp_sums(value):
    """The sum of the ints of this lane's half of the warp, 16 lanes, and the sum of all."""
    for step in (1, 2, 4, 8):
        value = int32(value + cuda.shfl_xor_sync(_ALL, value, step))
    return value, int32(value + cuda.shfl_xor_sync(_ALL, value, 16))


@lane
def slice_sums(sums, n):
    """Let n numbers of every lane be the sums over eight lanes, every fourth one, by a tree."""
    for i in range(n):
        value = sums[i]
        for step in (4, 8, 16):
            value = add(value, cuda.shfl_xor_sync(_ALL, value, step))
        sums[i] = value


@lane
def warp_best(value, index):
    """The largest float of all lanes and its index; of equals the lowest, of NaN -1."""
    for step in (1, 2, 4, 8, 16):
        value, index = better(value, index, cuda.shfl_xor_sync(_ALL, value, step), cuda.shfl_xor_sync(_ALL, index, step))
    return value, index


@lane
def better(value, index, other, other_index):
    """The larger of two floats with its index; among equals the one of the lower index, and any NaN, with -1."""
    value, other = np.float32(value), np.float32(other)
    index, other_index = np.int32(index), np.int32(other_index)
    if value != value or index == -1:  # noqa: PLR0124 - NaN
        return value, np.int32(-1)
    if other != other or other_index == -1:  # noqa: PLR0124
        return other, np.int32(-1)
    if other > value or (other == value and other_index < index):
        return other, other_index
    return value, index


@together
def is_last_block(counters, i, n):
    """Whether this is the last of n blocks that come here; it then sees all that the others wrote before they came.

    All threads of a block take part. The counter, 0 before, is 0 again when all n have come. So the last block can go on with
    all results, in an order that does not depend on which came last.

    Why it sees it, by the PTX ISA's memory consistency model: a barrier orders the writes of a block's threads before its first
    thread's next step; that thread's addition to the counter releases them to the whole device and acquires the writes that
    earlier additions to the same counter have released; and another barrier orders that before the reads of the block's
    threads. Each of these steps is an edge of causality order, which is transitive. It covers all loads but those of weights.
    """
    cuda.syncthreads()
    is_last = np.int32(0)
    if cuda.threadIdx.x == 0 and arrive(counters, i, n) == n - 1:
        is_last = np.int32(1)
    return cuda.syncthreads_or(is_last) != 0
