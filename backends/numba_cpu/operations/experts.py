"""Routers, and the experts that they choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import experts, routing
from augury.backends.numba_cpu.kernels.activation import activating
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS, SCRATCH_BYTES
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS
from augury.backends.numba_cpu.kernels.struct import dtype
from augury.backends.numba_cpu.memory import Arena, up
from augury.backends.numba_cpu.operations.emitter import EMITTERS, OperationEmitter, Placed, records, require_multiple
from augury.backends.numba_cpu.operations.rows import kind_of
from augury.backends.numba_cpu.tape import PRIVATE_TOKENS, Tape, ThreadRows, Work
from augury.blocks import Gating, Matrices, Router
from augury.lowering import AddWeighed, FeedExperts, Route, Scope
from augury.lowering.rewrites import FeedExpertsAndAdd

_GATINGS = {each: getattr(routing, each.name) for each in Gating}


@EMITTERS.of(Route)
class RouteEmitter(OperationEmitter[Route]):
    """Sorts the tokens of a pass by expert, so that each expert's weights are read once and the others' never."""

    kernels = (routing.route, routing.group)

    def buffers(self, n_threads: int) -> Mapping[str, int]:
        router = self.operation.router
        return {"routes": max(_routes_bytes(MAX_TOKENS, router), n_threads * _routes_bytes(PRIVATE_TOKENS, router))}

    def scratch_bytes(self) -> int:
        """See `OperationEmitter.scratch_bytes`: probabilities and scores, and counts."""
        return 8 * self.operation.router.logits.n_out + 4 * self.operation.router.n_groups + 64

    def emit(self, tape: Tape) -> None:
        """See `OperationEmitter.emit`: keeps the address of `routing.Routes`."""
        router, private, placed = self.operation.router, tape.space.is_private, self.placed
        n, k = PRIVATE_TOKENS if private else MAX_TOKENS, router.n_used
        chosen, weights, places, sources, groups = (placed.buffers["routes"] + i * 8 * n * k for i in range(5))
        known = router.token_experts
        made = routing.Routes(
            logits=placed.at(self.operation.logits),
            n_experts=router.logits.n_out,
            n_used=k,
            gating=_GATINGS[router.gating],
            bias=placed.weights.vector(router.bias),
            is_normalised=router.is_normalised,
            scale=router.scale,
            n_groups=router.n_groups,
            n_groups_used=router.n_groups_used,
            n_alike=router.n_alike,
            token_experts=0 if known is None else placed.weights.integers(known, router.logits.n_out),
            chosen=chosen,
            weights=weights,
            places=places,
            sources=sources,
            groups=groups,
            stride=_routes_bytes(n, router) if private else 0,
        )
        routes = placed.table(made)
        for kernel in (routing.route, routing.group):
            tape.add(Work("routing"), kernel, routes=routes, is_private=private)
        tape.kept[self.operation.out] = ThreadRows(routes, router.n_used)


@EMITTERS.of(FeedExperts, FeedExpertsAndAdd)
class FeedExpertsEmitter(OperationEmitter[FeedExperts | FeedExpertsAndAdd]):
    """Multiplies the rows of each expert's tokens, and adds up each token's, and other rows."""

    def __init__(self, operation: Any, scope: Scope) -> None:
        super().__init__(operation, scope)
        is_joined = isinstance(operation, FeedExpertsAndAdd)
        self._feed: FeedExperts = operation.feed if is_joined else operation
        self._sum: AddWeighed | None = operation.sum if is_joined else None
        self._block = block = self._feed.experts
        for part in (block.gate, block.up, block.down):
            for n_rows in () if part is None else (part.n_out, part.first, part.n_rows):
                require_multiple(n_rows, PANEL_ROWS, f"experts of {part.n_out} rows in tensor {part.weight!r}")
        self._kernel = experts.experts_kernel(**kind_of(block, is_gated=block.gate is not None))
        products = (self._kernel, experts.experts_kernel(), experts.combine)
        self.kernels = (*products, experts.quantize_inputs, experts.quantize_hidden)

    def buffers(self, n_threads: int) -> Mapping[str, int]:
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

    def emit(self, tape: Tape) -> None:
        block, buffers, private = self._block, self.placed.buffers, tape.space.is_private
        x, routes = self.placed.rows(self._feed.x, tape), tape.kept[self._feed.routes].address
        inputs = [part for part in (block.gate, block.up) if part is not None]
        matrices = self._matrices(tape, inputs, [buffers["experts' gate"], buffers["experts' up"]])
        stride = up(4 * PRIVATE_TOKENS * block.router.n_used * x.width, 64) if private else 0
        rows = {"x": x, "rows": ThreadRows(buffers["gathered"], x.width, stride), "weighs": block.weighs_input}
        for place in {tape.weights.activation(part): i for i, part in enumerate(inputs)}.values():
            matrix = matrices + place * dtype(experts.ExpertMatrix).itemsize
            given = {"routes": routes, "matrix": matrix, "quantize": _quantize(tape, inputs[place])}
            tape.add(Work("quantising activations"), experts.quantize_inputs, **given, **rows, is_private=private)
        hidden = buffers["experts' hidden"]
        work, given = self._work(tape, "experts' gate, up", inputs), {"routes": routes, "matrices": matrices, "out": hidden}
        tape.add(work, self._kernel, **given, activation=activating(block.limit, block.constants))
        down = self._matrices(tape, [block.down], [buffers["experts' rows"]])
        given = {"routes": routes, "matrix": down, "quantize": _quantize(tape, block.down), "x": hidden}
        tape.add(Work("quantising activations"), experts.quantize_hidden, **given, is_private=private)
        work = self._work(tape, "experts' down", [block.down])
        tape.add(work, experts.experts_kernel(), routes=routes, matrices=down, out=0, activation=activating(None, ()))
        y, size = self.placed.rows(self.operation.out, tape).address, block.down.n_out
        rows = {"routes": routes, "rows": buffers["experts' rows"], "ld": size, "is_weighed": block.weighs_input}
        tape.add(Work("sum of experts"), experts.combine, **rows, y=y, size=size, **_added(self._sum, self.placed, tape))

    def _matrices(self, tape: Tape, parts: Sequence[Matrices], ys: Sequence[int]) -> int:
        """The address of the matrices, one after the other."""
        return self.placed.table(*(self._matrix(tape, part, y) for part, y in zip(parts, ys, strict=False)))

    def _matrix(self, tape: Tape, part: Matrices, y: int) -> experts.ExpertMatrix:
        placed, scales, biases = self.placed, 0, 0
        if part.scales is not None:
            scales = placed.constant(part.scales, lambda: np.array(part.scales, np.float32))
        if (bias := part.bias) is not None:
            biases = placed.constant(("biases", bias), partial(placed.weights.values, bias, part.shapes[bias]))
        several = tape.several(part, self._block.router.n_used, y, up(part.n_out, PANEL_ROWS))
        return experts.ExpertMatrix(**several, scales=scales, biases=biases, ldb=part.n_rows, n_rows=part.n_out)

    def _work(self, tape: Tape, name: str, parts: Sequence[Matrices]) -> Work:
        """The work of a token's experts."""
        n_used, matrices = self._block.router.n_used, [tape.weights.matrix(part) for part in parts]
        kinds = ", ".join(dict.fromkeys(matrix.kind for matrix in matrices))
        pairs = zip(matrices, parts, strict=True)
        n_bytes = n_used * sum(each.n_bytes * part.n_out // (part.n * part.n_rows) for each, part in pairs)
        return Work(f"{name} ({kinds})", n_bytes, n_used * sum(part.n_out * part.n_in for part in parts))


def _check_width(emitter: OperationEmitter[AddWeighed]) -> None:
    width = emitter.operation.y.width
    require_multiple(width, PANEL_ROWS, f"sums of {width} values")


@records(AddWeighed, kernels=(experts.combine,), check=_check_width)
def _add_weighed(operation: AddWeighed, placed: Placed, tape: Tape) -> None:
    """Adds rows up as if each token had one expert."""
    y, to = (placed.rows(value, tape).address for value in (operation.y, operation.out))
    routes = placed.arena.shared("routes of one", lambda: _routes_of_one(placed.arena), "scratch")
    rows = {"routes": routes, "rows": y, "ld": placed.at(operation.y).width, "is_weighed": True}
    sizes = {"y": to, "size": operation.y.width}
    tape.add(Work("sum of experts"), experts.combine, **rows, **sizes, **_added(operation, placed, tape))


def _added(operation: AddWeighed | None, placed: Placed, tape: Tape) -> dict[str, Any]:
    """The added rows, the vector of their gate, and the rows that the gate reads; as fields of `Combine`."""
    if operation is None:
        return {"shared": 0, "gate": 0, "x": ThreadRows(0, 0)}
    x = ThreadRows(0, 0) if operation.x is None else placed.rows(operation.x, tape)
    return {"shared": placed.rows(operation.other, tape).address, "gate": placed.weights.vector(operation.gate), "x": x}


def _routes_of_one(arena: Arena) -> np.ndarray:
    """The routes of a router that gives every token one row, its own, which weighs 1; the rest is not read."""
    routes = np.zeros(1, dtype(routing.Routes))
    routes["n_used"], routes["places"] = 1, arena.keep(np.arange(MAX_TOKENS), "scratch")
    return routes


def _quantize(tape: Tape, part: Matrices) -> int:
    """The kernel that makes operands for a matrix."""
    return tape.weights.address(tape.weights.matrix(part).kind, "quantize")


def _routes_bytes(n: int, router: Router) -> int:
    """Bytes of the routes of n tokens."""
    n_rows = n * router.n_used
    return up(4 * 8 * n_rows + 8 + dtype(routing.Group).itemsize * min(n_rows, router.logits.n_out), 64) + 64
