"""Routers, and the experts that they choose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.numba_cpu.kernels import experts, routing
from augury.backends.numba_cpu.kernels.activated import FUNCTIONS
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS, SCRATCH_BYTES, activation_bytes
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS
from augury.backends.numba_cpu.memory import bits, up
from augury.backends.numba_cpu.operations.emitter import OperationEmitter, Placed
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import PRIVATE_TOKENS, Rows
from augury.blocks import Activation, Gating
from augury.errors import UnsupportedError
from augury.lowering import AddWeighed, FeedExperts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.tape import Tape
    from augury.blocks import Matrices, Router
    from augury.lowering import Route
    from augury.lowering.rewrites import FeedMoreExperts

__all__ = ["AddWeighedEmitter", "FeedExpertsEmitter", "FeedMoreExpertsEmitter", "RouteEmitter"]

_KERNELS: dict[tuple[Activation, bool], Any] = {
    (activation, is_gated): experts.hidden_kernel(
        *FUNCTIONS[activation.value], activation.value, is_gated=is_gated, is_capped=activation is Activation.SITU
    )
    for activation in Activation
    if activation is not Activation.XIELU
    for is_gated in (True, False)
}
_GATINGS = {
    Gating.SOFTMAX: routing.SOFTMAX,
    Gating.SIGMOID: routing.SIGMOID,
    Gating.SOFTMAX_OF_CHOSEN: routing.SOFTMAX_OF_CHOSEN,
    Gating.SQRT_SOFTPLUS: routing.SQRT_SOFTPLUS,
}


class RouteEmitter(OperationEmitter):
    """Sorts the tokens of a pass by expert, so that each expert's weights are read once and the others' never."""

    operation: Route

    def kernels(self) -> Sequence[Any]:
        """See `OperationEmitter.kernels`."""
        return (routing.route, routing.group)

    def buffers(self, n_threads: int) -> Mapping[str, int]:
        """See `OperationEmitter.buffers`."""
        router = self.operation.router
        return {"routes": max(_routes_bytes(MAX_TOKENS, router), n_threads * _routes_bytes(PRIVATE_TOKENS, router))}

    def scratch_bytes(self) -> int:
        """See `OperationEmitter.scratch_bytes`: probabilities and scores, and counts."""
        return 8 * self.operation.router.logits.n_out + 4 * self.operation.router.n_groups + 64

    def place(self, placed: Placed) -> None:
        """See `OperationEmitter.place`."""
        super().place(placed)
        router, weights = self.operation.router, placed.weights
        self._bias = 0 if router.bias is None else weights.vector(router.bias.weight, router.bias.size)
        table = router.token_experts
        self._token_experts = 0 if table is None else weights.integers(table, router.logits.n_out)

    def emit(self, tape: Tape) -> None:
        """See `OperationEmitter.emit`: keeps the address of the routes' table, see `routing.LOGITS` and what follows it."""
        router, private = self.operation.router, tape.space.is_private
        n, k = PRIVATE_TOKENS if private else MAX_TOKENS, router.n_used
        start, logits = self.placed.buffers["routes"], self.placed.at(self.operation.logits)
        places = [start + size for size in np.cumsum([0, 8 * n * k, 8 * n * k, 8 * n * k, 8 * n * k]).tolist()]
        chosen, weights, to, sources, groups = places
        fields = [
            *(logits.address, logits.stride, router.logits.n_out, k, _GATINGS[router.gating]),
            *(self._bias, int(router.is_normalised), bits(router.scale), router.n_groups, router.n_groups_used),
            *(chosen, weights, to, sources, groups, _routes_bytes(n, router) if private else 0, router.n_alike),
            self._token_experts,
        ]
        table = self.placed.arena.keep(np.array(fields, np.int64), "scratch")
        tape.add(Work("routing"), routing.route, table, int(private), is_private=private)
        tape.add(Work("routing"), routing.group, table, int(private), is_private=private)
        tape.kept[self.operation.out] = Rows(table, 0, router.n_used)


class FeedExpertsEmitter(OperationEmitter):
    """Multiplies the rows of each expert's tokens, and adds up each token's."""

    operation: Any

    def __init__(self, operation: FeedExperts | FeedMoreExperts) -> None:
        super().__init__(operation)
        self._block = block = self._feed.experts
        for part in (block.gate, block.up, block.down):
            if part is not None and (part.n_out % PANEL_ROWS or part.first % PANEL_ROWS or _n_stored(part) % PANEL_ROWS):
                raise UnsupportedError(
                    f"experts of {part.n_out} rows in tensor {part.weight!r}, expected a multiple of {PANEL_ROWS}; "
                    "use backend reference"
                )
        if (block.activation, block.gate is not None) not in _KERNELS:
            raise UnsupportedError(f"experts with the activation {block.activation.name}; use backend reference")
        self._kernel = _KERNELS[block.activation, block.gate is not None]

    @property
    def _feed(self) -> FeedExperts:
        assert isinstance(self.operation, FeedExperts)
        return self.operation

    def kernels(self) -> Sequence[Any]:
        """See `OperationEmitter.kernels`."""
        return (
            *(self._kernel, experts.multiply_experts, experts.combine),
            *(experts.quantize_inputs, experts.quantize_hidden),
        )

    def buffers(self, n_threads: int) -> Mapping[str, int]:
        """See `OperationEmitter.buffers`."""
        block, k = self._block, self._block.router.n_used
        n_rows = MAX_TOKENS * k
        return {
            "gathered": max(n_rows, n_threads * (PRIVATE_TOKENS * k)) * block.up.n_in * 4 + n_threads * 64,
            "experts' gate": n_rows * up(block.up.n_out, PANEL_ROWS) * 4,
            "experts' up": n_rows * up(block.up.n_out, PANEL_ROWS) * 4,
            "experts' hidden": n_rows * block.up.n_out * 4,
            "experts' rows": n_rows * block.down.n_out * 4,
        }

    def scratch_bytes(self) -> int:
        """See `OperationEmitter.scratch_bytes`: sums of tokens, which one expert may see twice."""
        router = self._block.router
        return SCRATCH_BYTES * (router.n_used if router.token_experts is not None else min(router.n_alike, router.n_used))

    def place(self, placed: Placed) -> None:
        """Keep the scales and biases of the experts."""
        super().place(placed)
        weights, arena = placed.weights, placed.arena
        self._tables: dict[str, tuple[int, int]] = {}
        for part in (self._block.gate, self._block.up, self._block.down):
            if part is not None:
                scales = 0 if part.scales is None else arena.keep(np.array(part.scales, np.float32), "weights")
                biases = 0 if part.bias is None else arena.keep(weights.values(part.bias, part.shapes[part.bias]), "weights")
                self._tables[part.weight] = (scales, biases)

    def emit(self, tape: Tape) -> None:
        """See `OperationEmitter.emit`."""
        block, buffers, private = self._block, self.placed.buffers, tape.space.is_private
        x, table = self.placed.rows(self._feed.x, tape), tape.kept[self._feed.routes].address
        inputs = [part for part in (block.gate, block.up) if part is not None]
        matrices = self._matrices(tape, inputs, [buffers["experts' gate"], buffers["experts' up"]])
        stride = up(4 * PRIVATE_TOKENS * block.router.n_used * x.width, 64) if private else 0
        rows = (x.address, x.stride, buffers["gathered"], stride)
        for place in {tape.weights.activation(part): i for i, part in enumerate(inputs)}.values():
            matrix = matrices + experts.MATRIX_BYTES * place
            operands = (table, matrix, _quantize(tape, inputs[place]), *rows, int(private), int(block.weighs_input))
            tape.add(Work("quantising activations"), experts.quantize_inputs, *operands, is_private=private)
        hidden = buffers["experts' hidden"]
        bounds = (bits(block.limit or 0.0), int(block.limits_activated), *map(bits, block.constants))
        tape.add(self._work(tape, "experts' gate, up", inputs), self._kernel, table, matrices, hidden, *bounds)
        down = self._matrices(tape, [block.down], [buffers["experts' rows"]])
        given = (table, down, _quantize(tape, block.down), hidden, int(private))
        tape.add(Work("quantising activations"), experts.quantize_hidden, *given, is_private=private)
        tape.add(self._work(tape, "experts' down", [block.down]), experts.multiply_experts, table, down)
        y, size = self.placed.rows(self.operation.out, tape).address, block.down.n_out
        summed = (table, buffers["experts' rows"], size, y, size, int(block.weighs_input))
        tape.add(Work("sum of experts"), experts.combine, *summed, *self._besides(tape))

    def _besides(self, tape: Tape) -> tuple[int, ...]:  # noqa: ARG002 - for experts that have some
        """What `experts.combine` adds to the sum."""
        return ()

    def _matrices(self, tape: Tape, parts: Sequence[Matrices], ys: Sequence[int]) -> int:
        """The tables of matrices, one after the other: see `experts.KERNEL` and what follows it."""
        tables = np.zeros((len(parts), experts.MATRIX_BYTES // 8), np.int64)
        for table, part, y in zip(tables, parts, ys, strict=False):
            matrix, activation = tape.weights.matrix(part), tape.weights.activation(part)
            operand = tape.space.operand(activation, part.n_in, self._block.router.n_used)
            kernel, stored = tape.weights.address(matrix.kind, "matmul"), _n_stored(part)
            scales, biases = self._tables[part.weight]
            table[:] = [
                *(kernel, matrix.address, part.n_in, part.n_out // PANEL_ROWS, stored // PANEL_ROWS, part.first // PANEL_ROWS),
                *(operand.address, operand.stride, activation_bytes(activation, 1, part.n_in), y),
                *(up(part.n_out, PANEL_ROWS), scales, biases, stored, part.n_out),
            ]
        return self.placed.arena.keep(tables, "scratch")

    def _work(self, tape: Tape, name: str, parts: Sequence[Matrices]) -> Work:
        """What a token's experts take."""
        n_used, matrices = self._block.router.n_used, [tape.weights.matrix(part) for part in parts]
        kinds = ", ".join(dict.fromkeys(matrix.kind for matrix in matrices))
        sizes = [
            (matrix.n_bytes * part.n_out) // (part.n * _n_stored(part)) for matrix, part in zip(matrices, parts, strict=True)
        ]
        return Work(f"{name} ({kinds})", n_used * sum(sizes), n_used * sum(part.n_out * part.n_in for part in parts))


class FeedMoreExpertsEmitter(FeedExpertsEmitter):
    """Likewise, with what is added."""

    operation: FeedMoreExperts

    @property
    def _feed(self) -> FeedExperts:
        return self.operation.feed

    def _besides(self, tape: Tape) -> tuple[int, ...]:
        return _added(self.operation.sum, self.placed, tape)


class AddWeighedEmitter(OperationEmitter):
    """Adds rows up as if each token had one expert."""

    operation: AddWeighed

    def __init__(self, operation: AddWeighed) -> None:
        super().__init__(operation)
        if operation.y.width % PANEL_ROWS:
            raise UnsupportedError(
                f"sums of {operation.y.width} values, expected a multiple of {PANEL_ROWS}; use backend reference"
            )

    def kernels(self) -> Sequence[Any]:
        """See `OperationEmitter.kernels`."""
        return (experts.combine,)

    def place(self, placed: Placed) -> None:
        """See `OperationEmitter.place`."""
        super().place(placed)
        self._routes = placed.arena.shared("routes of one", lambda: _routes_of_one(placed.arena), "scratch")

    def emit(self, tape: Tape) -> None:
        """See `OperationEmitter.emit`."""
        operation = self.operation
        y, to = self.placed.rows(operation.y, tape), self.placed.rows(operation.out, tape)
        summed = (self._routes, y.address, self.placed.at(operation.y).stride, to.address, operation.y.width, 1)
        tape.add(Work("sum of experts"), experts.combine, *summed, *_added(operation, self.placed, tape))


def _added(operation: AddWeighed, placed: Placed, tape: Tape) -> tuple[int, ...]:
    """The operands of `experts.combine` that say what is added."""
    other = placed.rows(operation.other, tape).address
    if operation.gate is None or operation.x is None:
        return (other,)
    gate, x = placed.weights.vector(operation.gate.weight, operation.gate.size), placed.rows(operation.x, tape)
    return (other, gate, x.address, x.stride)


def _routes_of_one(arena: Arena) -> np.ndarray:
    """The table of a router that gives every token one row, its own, which weighs 1."""
    table = np.zeros(routing.TOKEN_EXPERTS // 8 + 1, np.int64)
    table[routing.N_USED // 8] = 1
    table[routing.PLACES // 8] = arena.keep(np.arange(MAX_TOKENS), "scratch")
    return table


def _quantize(tape: Tape, part: Matrices) -> int:
    """The kernel that makes operands for a matrix."""
    return tape.weights.address(tape.weights.matrix(part).kind, "quantize")


def _n_stored(part: Matrices) -> int:
    return part.n_out if part.n_stored is None else part.n_stored


def _routes_bytes(n: int, router: Router) -> int:
    """Bytes of the routes of n tokens."""
    n_rows = n * router.n_used
    return up(4 * 8 * n_rows + 8 + routing.GROUP_BYTES * min(n_rows, router.logits.n_out), 64) + 64
