"""A plan → programs: steps with the addresses of weights and buffers filled in, one program per size of passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from augury.backends.numba_cuda.blocks import EMITTERS, KNOWN
from augury.backends.numba_cuda.device import Launch
from augury.backends.numba_cuda.kernels.attention import SPLIT
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS, SIZE
from augury.backends.numba_cuda.tape import Operand, Size, Tape
from augury.types import StateSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from augury.backends.numba_cuda.blocks.emitter import Part
    from augury.backends.numba_cuda.device import Device, Pointer, Program
    from augury.backends.numba_cuda.kernels.dialect import Kernel
    from augury.backends.numba_cuda.weights import Weights
    from augury.blocks import ModelPlan
    from augury.types import ModelOptions

__all__ = ["Lowering", "Parts", "size_of"]

_N_TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, MAX_TOKENS)
_SPLITS_PER_SIZE = 4  # contexts of 512, 2048, 8192 … positions have programs of their own
_FIRST_SPLITS = 2


@frozen
class Parts:
    """What of a model a pass goes through, and what it tells beside logits; see `Batch`."""

    layers: tuple[int, int]
    features: tuple[str, ...] = ()
    takes_hidden: bool = False


def size_of(n_tokens: int, last_position: int) -> Size:
    """The smallest size of programs that a pass fits."""
    splits, wanted = _FIRST_SPLITS, last_position // SPLIT + 1
    while splits < wanted:
        splits *= _SPLITS_PER_SIZE
    return Size(next(n for n in _N_TOKENS if n >= n_tokens), splits)


class Lowering:
    """What a plan needs, known at once, and its programs, once it has a place on a device.

    Attributes:
        plan: What is lowered.
        state_spec: What its slots take.
        buffers: Memory by name, once it has a place.
        inputs: Where a pass's inputs are copied to.
    """

    def __init__(self, plan: ModelPlan, options: ModelOptions) -> None:
        self.plan = plan = plan.for_context(options.n_ctx)
        plan.check_blocks(KNOWN)
        self._embedding, self._output = (EMITTERS[type(each)](each, options) for each in (plan.embedding, plan.output))
        self._layers = [[EMITTERS[type(each)](each, options) for each in layer.blocks] for layer in plan.layers]
        self._emitters = [self._embedding, *(emitter for layer in self._layers for emitter in layer), self._output]
        n_bytes = sum(emitter.bytes_per_position() for emitter in self._emitters)
        self.state_spec = StateSpec(options.n_slots, options.n_ctx, n_bytes)

    def place(self, device: Device, weights: Weights) -> None:
        """Allocate what passes work in and what slots keep, and load the weights."""
        n_embd, largest = self.plan.embedding.n_embd, size_of(1, self.state_spec.n_ctx - 1)
        needed = {"x": 4 * MAX_TOKENS * n_embd}
        needed |= dict.fromkeys(self.plan.features, 4 * MAX_TOKENS * n_embd)
        for emitter in self._emitters:
            for name, n_bytes in emitter.buffers(largest.n_splits).items():
                needed[name] = max(n_bytes, needed.get(name, 0))
        self.buffers = {name: device.allocate(n_bytes, "scratch").at(0) for name, n_bytes in needed.items()}
        self.inputs = device.allocate(4 * SIZE, "scratch").at(0)
        for emitter in self._emitters:
            emitter.place(device)
        self._device, self._weights = device, weights
        self.steps(largest, Parts((0, len(self._layers))))  # which loads all weights

    def kernels(self) -> list[Kernel]:
        """The kernels of passes of every number of tokens, and of what comes between them."""
        whole, last = Parts((0, len(self._layers))), self.state_spec.n_ctx - 1
        tapes = [self.steps(size_of(n, last), whole) for n in _N_TOKENS]
        steps = [*(step for tape in tapes for step in tape.steps), *self.moving(self.inputs, 0)]
        return list(dict.fromkeys(step.kernel for step in steps if isinstance(step, Launch)))

    def program(self, size: Size, parts: Parts, staged: np.ndarray, told: np.ndarray) -> Program:
        """A program for passes of a size.

        Args:
            size: Of the passes.
            parts: What they go through.
            staged: The staging array that their inputs are written to.
            told: That to which best tokens and their logits are copied.
        """
        steps = self.steps(size, parts).steps
        return self._device.program(steps, (staged, self.inputs), (self.buffers["best"], told))

    def steps(self, size: Size, parts: Parts) -> Tape:
        """What such a program does."""
        tape = Tape(size, self._weights, self.buffers, self.inputs, self.plan.embedding.n_embd)
        if not parts.takes_hidden:
            self._embedding.emit(tape)
        for i in range(*parts.layers):
            for emitter in self._layers[i]:
                emitter.emit(tape)
            if (name := f"layer.{i}") in parts.features:
                tape.copy(tape.x.at, self.buffers[name], 4 * size.n_tokens * tape.x.width)
        if "output" in parts.features:
            at = self.buffers["output"]
            tape.norm_to(self.plan.output.norm, Operand(at, at, at, at, tape.x.width, as_floats=True))
        self._output.emit(tape)
        return tape

    def moving(self, moves: Pointer, n: int) -> Sequence[Launch]:
        """What copies cells; see `Emitter.moving`."""
        return [launch for emitter in self._emitters for launch in emitter.moving(moves, n)]

    def slot_memory(self, slot: int, n: int) -> list[Part]:
        """What a slot keeps of its first n positions."""
        return [part for emitter in self._emitters for part in emitter.slot_memory(slot, n)]
