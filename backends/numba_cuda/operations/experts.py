"""Routers, and the experts that they choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from augury.backends.numba_cuda.device import Arguments
from augury.backends.numba_cuda.kernels import experts, routes
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.formats import TILE_ROWS
from augury.backends.numba_cuda.kernels.inputs import FEW_TOKENS, MAX_TOKENS
from augury.backends.numba_cuda.kernels.matmul import MOST_ROUTED, OF_ROUTES
from augury.backends.numba_cuda.kernels.sums import TILES
from augury.backends.numba_cuda.kernels.tensor_cores import MATRIX_TILE
from augury.backends.numba_cuda.operations.emitter import EMITTERS, OperationEmitter, Scope, launches
from augury.backends.numba_cuda.operations.expert_rewrites import ChooseExperts, MultiplyAndChoose, SharedExpert
from augury.backends.numba_cuda.operations.layout import Layout
from augury.backends.numba_cuda.operations.rows import activate, multiply, multiply_activated
from augury.backends.numba_cuda.products import WARPS, DeviceRows, Operand, Tiles, tile_of, units_of
from augury.backends.numba_cuda.tape import Gate, Tape, warps_of
from augury.blocks import Gating
from augury.errors import UnsupportedError
from augury.lowering import AddWeighed, FeedExperts, Multiply
from augury.lowering.rewrites import FeedExpertsAndAdd, MultiplyActivated

GATINGS = {each: getattr(experts, each.name) for each in Gating}


def _n_most(choice: ChooseExperts) -> int:
    """Rows of a pass that go to experts, at most."""
    return MAX_TOKENS * (choice.router.n_used + bool(choice.joined))


def _choice_buffers(operation: ChooseExperts) -> dict[str, int]:
    router, n_most = operation.router, _n_most(operation)
    return {
        "scores of experts": 4 * MAX_TOKENS * (2 * router.logits.n_out + router.n_groups),
        "weights of experts": 4 * (n_most + MAX_TOKENS),
        "routes": 4 * routes.SECTIONS * n_most,
        "counters": 4,
    }


@launches(ChooseExperts, buffers=lambda choose: _choice_buffers(choose.operation))
def _choose(operation: ChooseExperts, layout: Layout, tape: Tape) -> None:
    """Sorts the tokens of a pass by expert, on the device, so that a few at a time share one reading of its weights."""
    tape.launch(experts.route, (1,), THREADS, params=_choice_args(operation, layout, tape))


def _choice_args(operation: ChooseExperts, layout: Layout, tape: Tape) -> Any:
    """The arguments of kernels; leaves the routes to their readers."""
    router, buffers = operation.router, tape.buffers
    logits, n_experts = layout.rows(operation.logits, tape), router.logits.n_out
    is_joined = bool(operation.joined) and tape.weights.join(operation.joined)
    k, n_most = router.n_used + is_joined, _n_most(operation)
    tile = _tile_of(operation, tape, tape.size.n_tokens * k)
    n_tiles = min(tape.size.n_tokens * k, n_experts + is_joined + tape.size.n_tokens * k // tile)
    tape.tiles[operation.out] = Tiles(buffers["routes"], n_tiles, tile, n_most, k)
    arguments: Arguments = {"logits": logits.at, "width": logits.width, "values": buffers["scores of experts"]}
    arguments |= {"weights": buffers["weights of experts"], "routes": buffers["routes"], "n_most": n_most}
    arguments |= {"n_experts": n_experts, "k": router.n_used, "gating": GATINGS[router.gating]}
    arguments |= {"is_normalised": router.is_normalised, "n_groups": router.n_groups, "n_alike": router.n_alike}
    arguments |= {"n_groups_used": router.n_groups_used, "scale": router.scale, "tile": tile, "is_joined": is_joined}
    arguments["has_share"] = operation.share is not None
    if router.bias is not None:
        arguments |= {"bias": tape.weights.vector(router.bias), "has_bias": True}
    if router.token_experts is not None:
        arguments |= {"table": tape.weights.integers(router.token_experts), "has_table": True}
    return experts.RouteArgs(**arguments)


def _tile_of(operation: ChooseExperts, tape: Tape, n_rows: int) -> int:
    """How many of a pass's rows share a reading of an expert's weights: as many as it is likely to have.

    Of more, its weights are read again, from a nearer memory. See docs/cuda.md for when tensor cores multiply.
    """
    block, n_tokens = operation.experts, tape.size.n_tokens
    wanted = 1 if n_tokens == 1 else max(2, 2 * n_rows // block.up.n)
    parts = [part for part in (block.gate, block.up, block.down) if part is not None]
    if wanted > TILES[-1] and n_tokens > FEW_TOKENS and not any(map(tape.weights.is_float, parts)):
        return MATRIX_TILE
    return next((each for each in TILES if each >= wanted), TILES[-1])


@launches(MultiplyAndChoose, buffers=lambda both: _choice_buffers(both.operation.operations[1]))
def _multiply_and_choose(operation: MultiplyAndChoose, layout: Layout, tape: Tape) -> None:
    """Makes a router's logits and chooses by them: of few tokens in one launch."""
    logits, choice = operation.operations
    assert isinstance(logits, Multiply) and isinstance(choice, ChooseExperts)  # noqa: PT018
    columns = [layout.row(out)[1] - layout.row(choice.logits)[1] for out in logits.out]
    found = tape.weights.products([*zip(logits.linears, columns, strict=True)])
    if len(found) > 1 or found[0][0].format.name != "F32" or tape.size.n_tokens > FEW_TOKENS:
        multiply(logits, layout, tape)
        _choose(choice, layout, tape)
        return
    matrix, at_once = found[0][0], tile_of(found[0][0], tape.size.n_tokens)
    n_warps = max(WARPS, matrix.n_cuts)
    n_blocks = -(-matrix.n_tiles * matrix.n_cuts // n_warps)
    grid = (n_blocks, -(-tape.size.n_tokens // at_once))
    product: Arguments = {"w": matrix.arguments, "counters": tape.buffers["counters"], "n_blocks": n_blocks}
    product["x"] = layout.operand(logits.x, tape).source(is_float=True)
    tape.launch(experts.ROUTE[at_once], grid, WARP * n_warps, params=_choice_args(choice, layout, tape), **product)


@launches(SharedExpert)
def _shared_expert(operation: SharedExpert, layout: Layout, tape: Tape) -> None:
    """Writes the output of an expert of all tokens, unless it is one more of the others."""
    hidden, down = operation.operations
    assert isinstance(hidden, MultiplyActivated) and isinstance(down, Multiply)  # noqa: PT018
    if not tape.weights.join(operation.joined):
        multiply_activated(hidden, layout, tape)
        multiply(down, layout, tape)


@EMITTERS.of(FeedExperts, FeedExpertsAndAdd)
class FeedExpertsEmitter(OperationEmitter[FeedExperts | FeedExpertsAndAdd]):
    """Sends rows through the experts that a router has chosen, and adds up each token's, and other rows."""

    def __init__(self, operation: FeedExperts | FeedExpertsAndAdd, scope: Scope) -> None:
        super().__init__(operation, scope)
        self._other = operation.sum.other if isinstance(operation, FeedExpertsAndAdd) else None
        self._block = block = (operation.feed if isinstance(operation, FeedExpertsAndAdd) else operation).experts
        self._width = block.down.n_in * (1 if block.gate is None else 2)

    def buffers(self) -> Mapping[str, int]:
        block, choice = self._block, self.layout.makers.get(self.operation.routes)
        assert isinstance(choice, ChooseExperts)
        n_rows = _n_most(choice) + MATRIX_TILE  # a tile reads as many rows as it has room for
        return {
            "counters": 4 * max(1, -(-block.down.n_out // TILE_ROWS)),
            "experts' gate and up": 4 * n_rows * self._width,
            "experts' rows": 4 * _n_most(choice) * block.down.n_out,
            **Tape.operand_buffers("gathered", block.up.n_in, n_rows),
            **Tape.operand_buffers("experts' hidden", block.down.n_in, n_rows),
        }

    def emit(self, tape: Tape) -> None:
        block, operation, layout, tiles = self._block, self.operation, self.layout, tape.tiles[self.operation.routes]
        size, weights, k = block.down.n_in, tape.buffers["weights of experts"], tiles.per_token
        inputs = [part for part in (block.gate, block.up) if part is not None]
        x, (read, chosen) = layout.operand(operation.x, tape), (tape.operand("gathered", block.up.n_in, inputs), tiles)
        is_there = x.as_floats >= read.as_floats and x.as_bytes >= read.as_bytes and not block.weighs_input
        if tape.weights.is_halved(block.up) and not block.weighs_input:  # which are gathered when halves are made of them
            read, chosen = evolve(x, quantised=read.quantised, factors=read.factors), evolve(tiles, which=OF_ROUTES)
        elif is_there and tape.size.n_tokens <= FEW_TOKENS and tiles.n_rows <= MOST_ROUTED:
            read, chosen = x, evolve(tiles, which=OF_ROUTES)
        else:
            self._gather(tape, x, read, tiles)
        hidden = tape.operand("experts' hidden", size, [block.down])
        gate = Gate(block.activation, block.limit, block.limits_activated, block.constants)
        if not tape.multiply_gated(read, inputs, hidden, gate, chosen):
            rows = DeviceRows(tape.buffers["experts' gate and up"], self._width)
            tape.multiply_matrices(read, tape.weights.several(inputs), rows, chosen)
            ups = None if block.gate is None else DeviceRows(rows.at.at(4 * size), rows.width)
            activate(tape, gate, rows, ups, hidden, size, per_token=k, n_apart=tiles.n_apart)
        to, rows = layout.rows(operation.out, tape), DeviceRows(tape.buffers["experts' rows"], block.down.n_out)
        combined: Arguments = {"weights": weights, "n_weights": block.router.n_used + 1}
        combined |= {"is_weighed": block.weighs_input, "adds": to is tape.x, "y": to.at}
        if self._other is not None and k == block.router.n_used:
            combined |= {"shared": layout.rows(self._other, tape).at, "has_shared": True}
        tape.multiply_combined(hidden, block.down, rows, tiles, **combined)

    def _gather(self, tape: Tape, x: Operand, to: Operand, tiles: Tiles) -> None:
        """Write that a row is copied for each of its experts."""
        k, grid = tiles.per_token, (warps_of(units_of(x.width)), tape.size.n_tokens * tiles.per_token)
        params = {"n_most": tiles.n_most, "k": k, "n_apart": tiles.n_apart, "has_weights": self._block.weighs_input}
        places = {"x": x.floats, "weights": tape.buffers["weights of experts"], "routes": tiles.at}
        tape.launch(routes.gather_rows, grid, WARP * WARPS, **places, **params, to=to.target)


def _check_gate(emitter: OperationEmitter[AddWeighed]) -> None:
    if emitter.operation.gate is not None:
        raise UnsupportedError(
            "a gated shared expert beside a normed sum of experts is not computed here; use backend numba-cpu"
        )


@launches(AddWeighed, check=_check_gate)
def _add_weighed(operation: AddWeighed, layout: Layout, tape: Tape) -> None:
    to, width = layout.rows(operation.out, tape), operation.out.width
    if operation.out not in layout.in_place:
        tape.blend(to, layout.rows(operation.y, tape), 0.0, 1.0, width=width)
    tape.blend(to, layout.rows(operation.other, tape), 1.0, 1.0, width=width)
