"""`MixtureOfExperts`: the weighted sum of a few experts' feed-forwards of n = norm(x), and of one that is shared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from augury.backends.numba_cuda.blocks.emitter import Emitter
from augury.backends.numba_cuda.blocks.feed_forward import FeedForwardEmitter, activate
from augury.backends.numba_cuda.kernels import experts
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.matmul import TILES
from augury.backends.numba_cuda.tape import WARPS, Rows, Tape, Tiles, units_of, warps_of
from augury.blocks import Gating, Linear

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.backends.numba_cuda.tape import Operand
    from augury.blocks import MixtureOfExperts
    from augury.types import ModelOptions

__all__ = ["GATINGS", "MixtureEmitter"]

GATINGS = {
    Gating.SOFTMAX: experts.SOFTMAX,
    Gating.SIGMOID: experts.SIGMOID,
    Gating.SOFTMAX_OF_CHOSEN: experts.SOFTMAX_OF_CHOSEN,
}


class MixtureEmitter(Emitter):
    """Sorts the tokens of a pass by expert, on the device, so that a few at a time share one reading of its weights."""

    known = ("norm", "gate", "limit", "limits_activated", "weighs_input", "shared", "shared_gate", "constants")
    block: MixtureOfExperts

    def __init__(self, block: MixtureOfExperts, options: ModelOptions) -> None:
        super().__init__(block, options)
        self._shared = None if block.shared is None else FeedForwardEmitter(block.shared, options)
        self._n_most = MAX_TOKENS * block.router.n_used  # rows of a pass

    def buffers(self, n_splits: int) -> Mapping[str, int]:
        """See `Emitter.buffers`."""
        block, n_most = self.block, self._n_most
        router, n_rows = block.router, n_most + TILES[-1]  # a tile reads as many rows as it has room for
        return {
            "router": 4 * MAX_TOKENS * (router.logits.n_out + 1),
            "scores of experts": 4 * MAX_TOKENS * (2 * router.logits.n_out + router.n_groups),
            "weights of experts": 4 * (n_most + MAX_TOKENS),
            "routes": 4 * experts.SECTIONS * n_most,
            "experts' gate and up": 4 * n_rows * self._width,
            "experts' rows": 4 * n_most * block.down.n_out,
            "shared expert": 4 * MAX_TOKENS * block.down.n_out if self._is_shared_apart else 0,
            **Tape.operand_buffers("normed", block.up.n_in),
            **Tape.operand_buffers("gathered", block.up.n_in, n_rows),
            **Tape.operand_buffers("experts' hidden", block.down.n_in, n_rows),
            **({} if self._shared is None else self._shared.buffers(n_splits)),
        }

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, shared = self.block, self._shared
        apart = Rows(tape.buffers["shared expert"], block.down.n_out)
        logits = self._logits()
        parts = (*(linear for linear, _ in logits), *(() if shared is None else shared.inputs))
        normed = evolve(tape.operand("normed", block.up.n_in, parts), as_floats=True)  # what is gathered is made of floats
        tape.norm_seen(block.norm, normed)
        tape.multiply(normed, logits, Rows(tape.buffers["router"], block.router.logits.n_out + 1))
        if shared is not None:
            to, is_apart = apart if self._is_shared_apart else tape.x, self._is_shared_apart
            tape.multiply(shared.hidden(tape, normed), ((shared.block.down, 0),), to, adds=not is_apart)
        self._emit_experts(tape, normed, self._route(tape))

    def _logits(self) -> list[tuple[Linear, int]]:
        """The router's matrix, and what the shared expert's weight is made of, each with its column."""
        logits, gate = self.block.router.logits, self.block.shared_gate
        return [(logits, 0)] if gate is None else [(logits, 0), (Linear(gate.weight, gate.size, 1), logits.n_out)]

    def _route(self, tape: Tape) -> Tiles:
        """Choose experts, and put rows together that go to one."""
        block, buffers, router = self.block, tape.buffers, self.block.router
        n_experts, n_rows = router.logits.n_out, tape.size.n_tokens * router.n_used
        # of as many rows as experts are likely to have; of more, an expert's weights are read again, from a nearer memory
        wanted = 1 if tape.size.n_tokens == 1 else max(2, 2 * n_rows // n_experts)
        tile = next((each for each in TILES if each >= wanted), TILES[-1])
        bias = buffers["router"] if router.bias is None else tape.weights.vector(router.bias)
        places = (buffers["router"], buffers["scores of experts"], bias, buffers["weights of experts"], buffers["routes"])
        sizes = (self._n_most, n_experts, n_experts + 1, router.n_used, GATINGS[router.gating])
        flags = (int(router.bias is not None), int(router.is_normalised), router.n_groups, router.n_groups_used, router.n_alike)
        tape.add(experts.route, (1,), THREADS, *places, *sizes, *flags, int(block.shared_gate is not None), tile, router.scale)
        n_tiles = min(n_rows, n_experts + n_rows // tile)
        return Tiles(buffers["routes"].at(4 * experts.TILES * self._n_most), n_tiles, tile)

    def _emit_experts(self, tape: Tape, x: Operand, tiles: Tiles) -> None:
        """Write the sum of what the chosen experts give."""
        block, buffers, k = self.block, tape.buffers, self.block.router.n_used
        inputs = [part for part in (block.gate, block.up) if part is not None]
        n_rows, size, weights, routes = (
            tape.size.n_tokens * k,
            block.down.n_in,
            buffers["weights of experts"],
            buffers["routes"],
        )
        gathered, hidden = tape.operand("gathered", block.up.n_in, inputs), tape.operand("experts' hidden", size, [block.down])
        places = (x.floats, weights, gathered.floats, gathered.quantised, gathered.factors, gathered.sums, routes)
        flags = (int(block.weighs_input), int(gathered.as_floats), int(gathered.as_bytes))
        grid = (warps_of(units_of(x.width)), n_rows)
        tape.add(experts.gather_rows, grid, WARP * WARPS, *places, self._n_most, k, x.width, *flags)
        rows = Rows(buffers["experts' gate and up"], self._width)
        tape.multiply_tiles(gathered, inputs, rows, tiles)
        ups = None if block.gate is None else Rows(rows.at.at(4 * size), rows.width)
        activate(
            tape,
            block.activation,
            rows,
            ups,
            hidden,
            size,
            limit=block.limit,
            limits_activated=block.limits_activated,
            constants=block.constants,
            per_token=k,
        )
        rows = Rows(buffers["experts' rows"], block.down.n_out)
        tape.multiply_tiles(hidden, [block.down], rows, tiles)
        grid = (-(-rows.width // THREADS), tape.size.n_tokens)
        operands = (rows.at, weights, routes, buffers["shared expert"], tape.x.at, self._n_most, k, rows.width, rows.width)
        flags = (int(block.weighs_input), int(self._is_shared_apart), 1)
        tape.add(experts.combine, grid, THREADS, *operands, *flags)

    @property
    def _is_shared_apart(self) -> bool:
        """Whether what the shared expert gives is weighed before it is added."""
        return self.block.shared_gate is not None

    @property
    def _width(self) -> int:
        return self.block.down.n_in * (1 if self.block.gate is None else 2)
