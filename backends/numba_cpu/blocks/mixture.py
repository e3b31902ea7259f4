"""`MixtureOfExperts`: the weighted sum of a few experts' feed-forwards of n = norm(x), and of one that is shared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.numba_cpu.blocks.emitter import Emitter
from augury.backends.numba_cpu.blocks.feed_forward import ACTIVATIONS, FUNCTIONS, FeedForwardEmitter
from augury.backends.numba_cpu.heads import Ways
from augury.backends.numba_cpu.kernels import experts, routing
from augury.backends.numba_cpu.kernels.head import prepare_head, prepare_rows
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS, SCRATCH_BYTES, activation_bytes
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS
from augury.backends.numba_cpu.memory import bits, up
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import PRIVATE_TOKENS, Rows, row_bytes
from augury.blocks import Activation, Gating
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.blocks import Matrices, MixtureOfExperts
    from augury.types import ModelOptions

__all__ = ["GATINGS", "MixtureEmitter"]

_KERNELS = {
    (activation, is_gated): experts.hidden_kernel(
        *ACTIVATIONS[activation], activation.value, is_gated=is_gated, is_capped=activation is Activation.SITU
    )
    for activation in (*FUNCTIONS, Activation.SITU)
    for is_gated in (True, False)
}
GATINGS = {
    Gating.SOFTMAX: routing.SOFTMAX,
    Gating.SIGMOID: routing.SIGMOID,
    Gating.SOFTMAX_OF_CHOSEN: routing.SOFTMAX_OF_CHOSEN,
    Gating.SQRT_SOFTPLUS: routing.SQRT_SOFTPLUS,
}


class MixtureEmitter(Emitter):
    """Sorts the tokens of a pass by expert, so that each expert's weights are read once and the others' never."""

    block: MixtureOfExperts

    def __init__(self, block: MixtureOfExperts, options: ModelOptions) -> None:
        super().__init__(block, options)
        for part in (block.gate, block.up, block.down):
            if part is not None and (part.n_out % PANEL_ROWS or part.first % PANEL_ROWS or _n_stored(part) % PANEL_ROWS):
                raise UnsupportedError(
                    f"experts of {part.n_out} rows in tensor {part.weight!r}, expected a multiple of {PANEL_ROWS}; "
                    "use backend reference"
                )
        if (block.activation, block.gate is not None) not in _KERNELS:
            raise UnsupportedError(f"experts with the activation {block.activation.name}; use backend reference")
        self._kernel = _KERNELS[block.activation, block.gate is not None]
        self._shared = None if block.shared is None else FeedForwardEmitter(block.shared, options)
        self._adjugate = None if block.adjugate is None else MixtureEmitter(block.adjugate, options)

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        own = (self._kernel, experts.multiply_experts, routing.route, experts.combine)
        rest = (experts.quantize_inputs, experts.quantize_hidden, routing.group)
        others = [kernel for emitter in (self._shared, self._adjugate) if emitter for kernel in emitter.kernels()]
        norms = (self.block.sum_norm, None if self.block.shared is None else self.block.shared.post_norm)
        return (*own, *rest, *others, *((prepare_head, prepare_rows) if any(norms) else ()))

    def buffers(self, n_threads: int) -> Mapping[str, int]:
        """See `Emitter.buffers`."""
        block = self.block
        k, n_embd, size = block.router.n_used, block.router.logits.n_in, block.up.n_in
        n_rows = MAX_TOKENS * k
        gathered = max(n_rows, n_threads * (PRIVATE_TOKENS * k)) * size * 4 + n_threads * 64
        routes = max(_routes_bytes(MAX_TOKENS, block), n_threads * _routes_bytes(PRIVATE_TOKENS, block))
        needed = {
            "router": row_bytes(block.router.logits.n_out),
            "routes": routes,
            "gathered": gathered,
            "experts' gate": n_rows * up(block.up.n_out, PANEL_ROWS) * 4,
            "experts' up": n_rows * up(block.up.n_out, PANEL_ROWS) * 4,
            "experts' hidden": n_rows * block.up.n_out * 4,
            "experts' rows": n_rows * block.down.n_out * 4,
        }
        if self._shared is not None:
            needed |= {"shared expert": row_bytes(n_embd)} | dict(self._shared.buffers(n_threads))
        if block.sum_norm is not None or block.latent_up is not None:
            needed |= {"latents": row_bytes(size), "experts' sum apart": row_bytes(size), "experts' output": row_bytes(n_embd)}
        if self._adjugate is not None:
            needed = {"experts' sum": row_bytes(n_embd), **needed}
            for name, n_bytes in self._adjugate.buffers(n_threads).items():
                needed[name] = max(n_bytes, needed[name])
        return needed

    def scratch_bytes(self) -> int:
        """See `Emitter.scratch_bytes`: probabilities and scores, counts, or sums of tokens, which one expert may see twice."""
        router, adjugate = self.block.router, self._adjugate
        n_alike = router.n_used if router.token_experts is not None else min(router.n_alike, router.n_used)
        own = max(8 * router.logits.n_out + 4 * router.n_groups + 64, SCRATCH_BYTES * n_alike)
        return own if adjugate is None else max(own, adjugate.scratch_bytes())

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:
        """Keep the scales and biases of the experts."""
        block, self._arena = self.block, arena
        bias, gate = block.router.bias, block.shared_gate
        self._bias, self._gate = (0 if each is None else weights.vector(each.weight, each.size) for each in (bias, gate))
        table = block.router.token_experts
        self._token_experts = 0 if table is None else weights.integers(table, block.router.logits.n_out)
        self._tables: dict[str, tuple[int, int]] = {}
        for part in (block.gate, block.up, block.down):
            if part is not None:
                scales = 0 if part.scales is None else arena.keep(np.array(part.scales, np.float32), "weights")
                biases = 0 if part.bias is None else arena.keep(weights.values(part.bias, part.shapes[part.bias]), "weights")
                self._tables[part.weight] = (scales, biases)
        norms = (block.sum_norm, None if block.shared is None else block.shared.post_norm)
        self._sum_ways, self._shared_ways = (Ways(norm=norm).place(weights, arena, self.options.n_ctx) for norm in norms)
        if block.sum_norm is not None or block.latent_up is not None:
            self._one_each = self._routes_of_one()
        if self._shared is not None:
            self._shared.place(weights, buffers, arena)
        if self._adjugate is not None:
            self._adjugate.place(weights, buffers, arena)

    def begin(self, tape: Tape) -> None:
        """See `Emitter.begin`."""
        if self.block.router.is_early:
            self._emit_logits(tape, tape.norm(None))

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, y = self.block, tape.y
        has_own_norm = block.shared is not None and block.shared.norm is not None
        if block.shared is not None and has_own_norm:
            self._emit_shared(tape, tape.norm(block.shared.norm))
        if block.router.norm is not None:
            self._emit_logits(tape, tape.norm(block.router.norm))
        x = tape.norm(block.norm)
        if block.router.norm is None and not block.router.is_early:
            self._emit_logits(tape, x)
        shared: tuple[int, ...] = ()
        if block.shared is not None:
            if not has_own_norm:
                self._emit_shared(tape, x)
            shared = (tape.buffers["shared expert"], self._gate, x.address, x.stride)
        first = y if self._adjugate is None else tape.buffers["experts' sum"]
        if block.sum_norm is None and block.latent_up is None:
            self.emit_experts(tape, x, first, shared)
        else:
            rows = self._emit_apart(tape, x)
            summed = (self._one_each, rows.address, up(x.width, PANEL_ROWS), first, x.width, 1)
            tape.add(Work("sum of experts"), experts.combine, *summed, *shared)
        if self._adjugate is not None:
            self._adjugate.emit_experts(tape, Rows(first, 0, x.width), y, (first,))
        tape.leave(block.post_norm)

    def _emit_shared(self, tape: Tape, x: Rows) -> None:
        """Write what the shared expert gives."""
        assert self._shared is not None
        self._shared.emit_products(tape, x, tape.buffers["shared expert"])
        if self._shared_ways:
            ld = up(x.width, PANEL_ROWS)
            tape.prepare(tape.buffers["shared expert"], ld, 1, x.width, self._shared_ways)

    def _emit_apart(self, tape: Tape, x: Rows) -> Rows:
        """Write the experts' sum, normed, of fewer values where it is so, and brought back to as many as before."""
        block = self.block
        if block.latent_down is not None:
            latents = Rows(tape.buffers["latents"], 0, block.latent_down.n_out)
            tape.multiply("latents", x, ((block.latent_down, latents.address),))
            x = latents
        summed = Rows(tape.buffers["experts' sum apart"], 0, x.width)
        self.emit_experts(tape, x, summed.address, ())
        if self._sum_ways:
            tape.prepare(summed.address, x.width, 1, x.width, self._sum_ways)
        if block.latent_up is None:
            return summed
        output = tape.buffers["experts' output"]
        tape.multiply("experts' output", summed, ((block.latent_up, output),))
        return Rows(output, 0, block.latent_up.n_out)

    def _emit_logits(self, tape: Tape, x: Rows) -> None:
        """Write the logits of the router."""
        tape.multiply("router", x, ((self.block.router.logits, tape.buffers["router"]),))

    def emit_experts(self, tape: Tape, x: Rows, y: int, besides: tuple[int, ...]) -> None:
        """Write the sum of what the experts give that the logits choose; `besides` is what `experts.combine` adds to it."""
        block, buffers = self.block, tape.buffers
        private, size = tape.space.is_private, x.width
        table = self._routes(tape)
        tape.add(Work("routing"), routing.route, table, int(private), is_private=private)
        tape.add(Work("routing"), routing.group, table, int(private), is_private=private)
        inputs = [part for part in (block.gate, block.up) if part is not None]
        matrices = self._matrices(tape, inputs, [buffers["experts' gate"], buffers["experts' up"]])
        stride = up(4 * PRIVATE_TOKENS * block.router.n_used * size, 64) if private else 0
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
        summed = (table, buffers["experts' rows"], size, y, size, int(block.weighs_input))
        tape.add(Work("sum of experts"), experts.combine, *summed, *besides)

    def _routes(self, tape: Tape) -> int:
        """The table of the router: see `routing.LOGITS` and what follows it."""
        router, buffers, private = self.block.router, tape.buffers, tape.space.is_private
        n, k = PRIVATE_TOKENS if private else MAX_TOKENS, router.n_used
        start = buffers["routes"]
        places = [start + size for size in np.cumsum([0, 8 * n * k, 8 * n * k, 8 * n * k, 8 * n * k]).tolist()]
        chosen, weights, to, sources, groups = places
        fields = [
            *(buffers["router"], up(router.logits.n_out, PANEL_ROWS), router.logits.n_out, k, GATINGS[router.gating]),
            *(self._bias, int(router.is_normalised), bits(router.scale), router.n_groups, router.n_groups_used),
            *(chosen, weights, to, sources, groups, _routes_bytes(n, self.block) if private else 0, router.n_alike),
            self._token_experts,
        ]
        return self._arena.keep(np.array(fields, np.int64), "scratch")

    def _routes_of_one(self) -> int:
        """The table of a router that gives every token one row, its own, which weighs 1."""
        table = np.zeros(routing.TOKEN_EXPERTS // 8 + 1, np.int64)
        table[routing.N_USED // 8] = 1
        table[routing.PLACES // 8] = self._arena.keep(np.arange(MAX_TOKENS), "scratch")
        return self._arena.keep(table, "scratch")

    def _matrices(self, tape: Tape, parts: Sequence[Matrices], ys: Sequence[int]) -> int:
        """The tables of matrices, one after the other: see `experts.KERNEL` and what follows it."""
        tables = np.zeros((len(parts), experts.MATRIX_BYTES // 8), np.int64)
        for table, part, y in zip(tables, parts, ys, strict=False):
            matrix, activation = tape.weights.matrix(part), tape.weights.activation(part)
            operand = tape.space.operand(activation, part.n_in, self.block.router.n_used)
            kernel, stored = tape.weights.address(matrix.kind, "matmul"), _n_stored(part)
            scales, biases = self._tables[part.weight]
            table[:] = [
                *(kernel, matrix.address, part.n_in, part.n_out // PANEL_ROWS, stored // PANEL_ROWS, part.first // PANEL_ROWS),
                *(operand.address, operand.stride, activation_bytes(activation, 1, part.n_in), y),
                *(up(part.n_out, PANEL_ROWS), scales, biases, stored, part.n_out),
            ]
        return self._arena.keep(tables, "scratch")

    def _work(self, tape: Tape, name: str, parts: Sequence[Matrices]) -> Work:
        """What a token's experts take."""
        n_used, matrices = self.block.router.n_used, [tape.weights.matrix(part) for part in parts]
        kinds = ", ".join(dict.fromkeys(matrix.kind for matrix in matrices))
        sizes = [
            (matrix.n_bytes * part.n_out) // (part.n * _n_stored(part)) for matrix, part in zip(matrices, parts, strict=True)
        ]
        return Work(f"{name} ({kinds})", n_used * sum(sizes), n_used * sum(part.n_out * part.n_in for part in parts))


def _quantize(tape: Tape, part: Matrices) -> int:
    """The kernel that makes operands for a matrix."""
    return tape.weights.address(tape.weights.matrix(part).kind, "quantize")


def _n_stored(part: Matrices) -> int:
    return part.n_out if part.n_stored is None else part.n_stored


def _routes_bytes(n: int, block: MixtureOfExperts) -> int:
    """Bytes of the routes of n tokens."""
    n_rows = n * block.router.n_used
    return up(4 * 8 * n_rows + 8 + routing.GROUP_BYTES * min(n_rows, block.router.logits.n_out), 64) + 64
