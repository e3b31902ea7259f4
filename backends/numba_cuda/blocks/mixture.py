"""`MixtureOfExperts`: the weighted sum of a few experts' feed-forwards of n = norm(x), and of one that is shared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from augury.backends.numba_cuda.blocks.emitter import Emitter
from augury.backends.numba_cuda.blocks.feed_forward import FeedForwardEmitter, activate
from augury.backends.numba_cuda.kernels import experts, routes
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.formats import TILE_ROWS
from augury.backends.numba_cuda.kernels.inputs import FEW_TOKENS, MAX_TOKENS
from augury.backends.numba_cuda.kernels.matmul import HAS_BIAS, MOST_ROUTED, OF_ROUTES
from augury.backends.numba_cuda.kernels.sums import TILES
from augury.backends.numba_cuda.kernels.tensor_cores import MATRIX_TILE
from augury.backends.numba_cuda.products import WARPS, tile_of
from augury.backends.numba_cuda.rows import Rows, Tiles
from augury.backends.numba_cuda.tape import Gate, Tape, units_of, warps_of
from augury.blocks import Gating, Linear, Matrices
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cuda.device import Pointer
    from augury.backends.numba_cuda.rows import Operand
    from augury.backends.numba_cuda.weights import Matrix
    from augury.blocks import FeedForward, MixtureOfExperts
    from augury.types import ModelOptions

__all__ = ["GATINGS", "MixtureEmitter"]

GATINGS = {
    Gating.SOFTMAX: experts.SOFTMAX,
    Gating.SIGMOID: experts.SIGMOID,
    Gating.SOFTMAX_OF_CHOSEN: experts.SOFTMAX_OF_CHOSEN,
    Gating.SQRT_SOFTPLUS: experts.SQRT_SOFTPLUS,
}


class MixtureEmitter(Emitter):
    """Sorts the tokens of a pass by expert, on the device, so that a few at a time share one reading of its weights."""

    known = (
        *("norm", "gate", "limit", "limits_activated", "weighs_input", "shared", "shared_gate", "constants"),
        *("post_norm", "adjugate", "latent_down", "latent_up", "sum_norm"),
    )
    block: MixtureOfExperts

    def __init__(self, block: MixtureOfExperts, options: ModelOptions) -> None:
        super().__init__(block, options)
        if self._is_sum_apart and block.shared_gate is not None:
            raise UnsupportedError(
                "a gated shared expert beside a normed sum of experts is not computed here; use backend numba-cpu"
            )
        self._shared = None if block.shared is None else FeedForwardEmitter(block.shared, options)
        self._adjugate = None if block.adjugate is None else MixtureEmitter(block.adjugate, options)
        self._n_most = MAX_TOKENS * (block.router.n_used + self._may_join)  # rows of a pass

    def buffers(self, n_splits: int) -> Mapping[str, int]:
        """See `Emitter.buffers`."""
        block, n_most = self.block, self._n_most
        router, n_rows = block.router, n_most + MATRIX_TILE  # a tile reads as many rows as it has room for
        needed = {
            "router": 4 * MAX_TOKENS * (router.logits.n_out + 1),
            "scores of experts": 4 * MAX_TOKENS * (2 * router.logits.n_out + router.n_groups),
            "weights of experts": 4 * (n_most + MAX_TOKENS),
            "routes": 4 * routes.SECTIONS * n_most,
            "counters": 4 * max(1, -(-block.down.n_out // TILE_ROWS)),
            "experts' gate and up": 4 * n_rows * self._width,
            "experts' rows": 4 * n_most * block.down.n_out,
            "latents": 4 * MAX_TOKENS * block.up.n_in,
            "experts' sum": 4 * MAX_TOKENS * block.down.n_out,
            "shared expert": 4 * MAX_TOKENS * block.down.n_out if self._is_shared_apart else 0,
            **Tape.operand_buffers("normed", router.logits.n_in),
            **Tape.operand_buffers("summed", block.down.n_out if self._is_sum_apart else 0),
            **Tape.operand_buffers("gathered", block.up.n_in, n_rows),
            **Tape.operand_buffers("experts' hidden", block.down.n_in, n_rows),
            **({} if self._shared is None else self._shared.buffers(n_splits)),
        }
        others = {} if self._adjugate is None else self._adjugate.buffers(n_splits)
        return needed | {name: max(n_bytes, needed.get(name, 0)) for name, n_bytes in others.items()}

    def begin(self, tape: Tape) -> None:
        """See `Emitter.begin`."""
        if self.block.router.is_early:
            self._emit_logits(tape, tape.norm(None, [self.block.router.logits]))

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, shared, router = self.block, self._shared, self.block.router
        if shared is not None and shared.block.norm is not None:
            self._emit_shared(tape, shared, tape.norm(shared.block.norm, shared.inputs))
        tiles = None
        if router.norm is not None:
            tiles = self._emit_logits(tape, tape.norm(router.norm, [router.logits]))
        parts: list[Linear | Matrices] = [*(linear for linear, _ in self._logits()), *(() if shared is None else shared.inputs)]
        parts += [] if block.latent_down is None else [block.latent_down]
        parts += [] if tape.size.n_tokens > FEW_TOKENS else [part for part in (block.gate, block.up) if part is not None]
        normed = evolve(tape.operand("normed", tape.x.width, parts), as_floats=True)  # what is gathered is made of floats
        tape.norm_seen(block.norm, normed)
        tiles = self._emit_logits(tape, normed, self._logits()) or tiles or self.route(tape)
        if shared is not None and shared.block.norm is None and not self._joins(tape):
            self._emit_shared(tape, shared, normed)
        to = tape.x if block.post_norm is None else Rows(tape.buffers["y"], tape.x.width)
        summed = Rows(tape.buffers["experts' sum"], block.down.n_out)
        besides = tape.buffers["shared expert"] if self._is_shared_apart and not self._joins(tape) else None
        if self._is_sum_apart:
            self._emit_sum(tape, normed, summed, to, tiles)
            if besides is not None:
                tape.blend(to, Rows(besides, to.width), 1.0, 1.0)
        elif self._adjugate is None:
            self.emit_experts(tape, normed, to, besides, tiles, adds=to is tape.x)
        else:
            self.emit_experts(tape, normed, summed, besides, tiles, adds=False)
            x = evolve(normed, floats=summed.at, width=summed.width, as_bytes=False)
            tiles = self._adjugate.route(tape)
            self._adjugate.emit_experts(tape, x, to, summed.at, tiles, adds=to is tape.x)
        if block.post_norm is not None:
            tape.leave_rows(to, block.post_norm)

    def _emit_sum(self, tape: Tape, normed: Operand, summed: Rows, to: Rows, tiles: Tiles) -> None:
        """Write the experts' sum, normed, of fewer values where it is so, and brought back to as many as before."""
        block, x = self.block, normed
        if block.latent_down is not None:
            latents = Rows(tape.buffers["latents"], block.latent_down.n_out)
            tape.multiply(normed, ((block.latent_down, 0),), latents)
            x = evolve(normed, floats=latents.at, width=latents.width, as_bytes=False)
        self.emit_experts(tape, x, summed, None, tiles, adds=False)
        tape.norm_in_place(block.sum_norm, summed, summed.width)
        if block.latent_up is None:
            tape.blend(to, summed, float(to is tape.x), 1.0)
        else:
            operand = tape.operand("summed", summed.width, [block.latent_up])
            tape.put(summed, summed.width, operand)
            tape.multiply(operand, ((block.latent_up, 0),), to, adds=to is tape.x)

    def _emit_shared(self, tape: Tape, shared: FeedForwardEmitter, normed: Operand) -> None:
        """Write what the shared expert gives: apart, or added."""
        apart, down = Rows(tape.buffers["shared expert"], self.block.down.n_out), shared.block.down
        hidden = shared.hidden(tape, normed)
        if not self._is_shared_apart:
            tape.multiply(hidden, ((down, 0),), tape.x, adds=True)
            return
        tape.multiply(hidden, ((down, 0),), apart)
        tape.norm_in_place(shared.block.post_norm, apart, apart.width)

    def _emit_logits(self, tape: Tape, x: Operand, logits: Sequence[tuple[Linear, int]] | None = None) -> Tiles | None:
        """Write logits of the router, or others in their columns; of few tokens and with all of them, the choice as well."""
        block, n = self.block, tape.size.n_tokens
        some = ((block.router.logits, 0),) if logits is None else logits
        found = tape.weights.products(some)
        if len(found) == 1 and len(some) == 1 + (block.shared_gate is not None) and n <= FEW_TOKENS:
            matrix, _ = found[0]
            if matrix.format.name == "F32":
                return self.route(tape, matrix, x)
        tape.multiply(x, some, Rows(tape.buffers["router"], block.router.logits.n_out + 1))
        return None

    def _logits(self) -> list[tuple[Linear, int]]:
        """What logits are made of norm(x) by: the router's matrix, and that of the shared expert, each with its column."""
        router, gate = self.block.router, self.block.shared_gate
        made = [] if router.norm is not None or router.is_early else [(router.logits, 0)]
        return made if gate is None else [*made, (Linear(gate.weight, gate.size, 1), router.logits.n_out)]

    def route(self, tape: Tape, matrix: Matrix | None = None, x: Operand | None = None) -> Tiles:
        """Choose experts, and put rows together that go to one; perhaps by logits that are to be made of x first."""
        block, buffers, router = self.block, tape.buffers, self.block.router
        n_experts, is_joined = router.logits.n_out, self._joins(tape)
        n_rows = tape.size.n_tokens * (router.n_used + is_joined)
        tile = self._tile(tape, n_rows)
        bias = buffers["router"] if router.bias is None else tape.weights.vector(router.bias)
        table = tape.inputs if router.token_experts is None else tape.weights.integers(router.token_experts)
        scores, weights = buffers["scores of experts"], buffers["weights of experts"]
        places = (buffers["router"], scores, bias, table, weights, buffers["routes"])
        sizes = (self._n_most, n_experts, n_experts + 1, router.n_used, GATINGS[router.gating])
        groups = (router.n_groups, router.n_groups_used, router.n_alike)
        flags = (int(router.bias is not None), int(router.token_experts is not None), int(router.is_normalised), *groups)
        told: tuple[Pointer | float, ...] = (
            *places,
            *sizes,
            *flags,
            int(block.shared_gate is not None),
            int(is_joined),
            tile,
            router.scale,
        )
        if matrix is None or x is None:
            tape.add(experts.route, (1,), THREADS, *told)
        else:
            at_once, n_warps = tile_of(matrix, tape.size.n_tokens), max(WARPS, matrix.n_cuts)
            n_blocks = -(-matrix.n_tiles * matrix.n_cuts // n_warps)
            told += (matrix.words, x.floats, matrix.bias or x.floats, buffers["counters"], matrix.n_rows, matrix.n_units)
            told += (matrix.n_steps, matrix.n, matrix.n_cuts, 0 if matrix.bias is None else HAS_BIAS, n_blocks, matrix.scale)
            grid = (n_blocks, -(-tape.size.n_tokens // at_once))
            tape.add(experts.ROUTE[at_once], grid, WARP * n_warps, *told)
        n_tiles = min(n_rows, n_experts + is_joined + n_rows // tile)
        return Tiles(buffers["routes"], n_tiles, tile, self._n_most, router.n_used + is_joined)

    def _tile(self, tape: Tape, n_rows: int) -> int:
        """How many of a pass's rows share a reading of an expert's weights: as many as it is likely to have.

        Of more, its weights are read again, from a nearer memory. See docs/cuda.md for when tensor cores multiply.
        """
        block, n_tokens = self.block, tape.size.n_tokens
        wanted = 1 if n_tokens == 1 else max(2, 2 * n_rows // block.up.n)
        parts = [part for part in (block.gate, block.up, block.down) if part is not None]
        if wanted > TILES[-1] and n_tokens > FEW_TOKENS and not any(map(tape.weights.is_float, parts)):
            return MATRIX_TILE
        return next((each for each in TILES if each >= wanted), TILES[-1])

    def emit_experts(self, tape: Tape, x: Operand, to: Rows, besides: Pointer | None, tiles: Tiles, *, adds: bool) -> None:
        """Write the sum of what the experts give that were chosen, and of other rows."""
        block, buffers, k = self.block, tape.buffers, tiles.per_token
        inputs = [part for part in (block.gate, block.up) if part is not None]
        size, weights = block.down.n_in, buffers["weights of experts"]
        gathered, hidden = tape.operand("gathered", block.up.n_in, inputs), tape.operand("experts' hidden", size, [block.down])
        read, chosen = gathered, tiles
        is_there = x.as_floats >= gathered.as_floats and x.as_bytes >= gathered.as_bytes and not block.weighs_input
        if is_there and tape.size.n_tokens <= FEW_TOKENS and tiles.n_rows <= MOST_ROUTED:
            read, chosen = x, evolve(tiles, which=OF_ROUTES)
        else:
            places = (x.floats, weights, gathered.floats, gathered.quantised, gathered.factors, gathered.sums, tiles.at)
            flags = (int(block.weighs_input), int(gathered.as_floats), int(gathered.as_bytes))
            grid = (warps_of(units_of(x.width)), tape.size.n_tokens * k)
            tape.add(routes.gather_rows, grid, WARP * WARPS, *places, self._n_most, k, x.width, tiles.n_apart, *flags)
        gate = Gate(block.activation, block.limit, block.limits_activated, block.constants)
        if not tape.multiply_gated(read, inputs, hidden, gate, chosen):
            rows = Rows(buffers["experts' gate and up"], self._width)
            tape.multiply_tiles(read, inputs, rows, chosen)
            ups = None if block.gate is None else Rows(rows.at.at(4 * size), rows.width)
            activate(tape, gate, rows, ups, hidden, size, per_token=k, n_apart=tiles.n_apart)
        rows = Rows(buffers["experts' rows"], block.down.n_out)
        flags = (int(block.weighs_input), int(besides is not None), int(adds))
        combined = (weights, besides or to.at, to.at, block.router.n_used + 1, *flags)
        tape.multiply_combined(hidden, block.down, rows, tiles, combined)

    @property
    def _may_join(self) -> bool:
        """Whether the shared expert is like the others, so that it can be one more, if its matrices have their types."""
        block, shared = self.block, self.block.shared
        if shared is None or block.weighs_input or block.adjugate is not None or self._is_sum_apart:
            return False
        plain = (shared.norm, shared.post_norm, shared.hidden_norm, shared.divisors)
        alike = ("activation", "limit", "limits_activated", "constants")
        return (
            all(part is None for part in plain)
            and all(getattr(block, name) == getattr(shared, name) for name in alike)
            and all(_is_like(part, linear) for part, linear in self._pairs(shared))
        )

    def _joins(self, tape: Tape) -> bool:
        """Whether the shared expert is one more."""
        shared = self.block.shared
        if shared is None or not self._may_join:
            return False
        pairs = self._pairs(shared)
        return tape.weights.join([(part, linear) for part, linear in pairs if part is not None and linear is not None])

    def _pairs(self, shared: FeedForward) -> tuple[tuple[Matrices | None, Linear | None], ...]:
        """The experts' matrices, each with that of the shared expert."""
        block = self.block
        return (block.gate, shared.gate), (block.up, shared.up), (block.down, shared.down)

    @property
    def _is_sum_apart(self) -> bool:
        """Whether something is done to the experts' sum before anything is added."""
        return self.block.sum_norm is not None or self.block.latent_up is not None

    @property
    def _is_shared_apart(self) -> bool:
        """Whether what the shared expert gives is weighed or normed before it is added."""
        block, shared = self.block, self.block.shared
        parts = (block.shared_gate, block.post_norm, block.adjugate, shared and shared.norm, shared and shared.post_norm)
        return shared is not None and any(part is not None for part in parts)

    @property
    def _width(self) -> int:
        return self.block.down.n_in * (1 if self.block.gate is None else 2)


def _is_like(part: Matrices | None, linear: Linear | None) -> bool:
    """Whether a matrix can be one more of several."""
    if part is None or linear is None:
        return part is None and linear is None
    is_plain = (
        part.bias is None and part.scales is None and not part.is_transposed and (linear.bias, linear.scale) == (None, 1.0)
    )
    return is_plain and (part.n_in, part.n_out) == (linear.n_in, linear.n_out)
