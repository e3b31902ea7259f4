"""Latent rows that are kept, attention to them, and products of heads with a matrix each.

Rows of heads come head by head, of each the tokens, in buffers that a block's operations share.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from augury.backends.numba_cuda.device import Arguments, Pointer
from augury.backends.numba_cuda.kernels import latent as kernels
from augury.backends.numba_cuda.kernels.cells import CacheArgs, StoreArgs
from augury.backends.numba_cuda.kernels.dialect import WARP, Kernel
from augury.backends.numba_cuda.kernels.fragments import ATTEND_THREADS, HEADS
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.latent_attention import ATTEND_LATENT, MAX_LATENT, MOST_MERGED, LatentArgs
from augury.backends.numba_cuda.kernels.quantise import TargetArgs
from augury.backends.numba_cuda.kernels.sums import TILES
from augury.backends.numba_cuda.operations.attention import FOREVER, choice_args, parts_bytes, shares_of, sharpened, turned
from augury.backends.numba_cuda.operations.emitter import EMITTERS, OperationEmitter, Scope, launches
from augury.backends.numba_cuda.operations.layout import Layout
from augury.backends.numba_cuda.operations.rewrites import AttendLatents, MultiplyHeadsGated
from augury.backends.numba_cuda.products import WARPS, DeviceRows, Operand, Tiles, units_of
from augury.backends.numba_cuda.tape import Tape, splits_of, warps_of
from augury.blocks import Matrices
from augury.errors import UnsupportedError
from augury.lowering import MultiplyHeads, PrepareLatents

_ROWS, _SPLIT = "rows of heads", "split heads"


@EMITTERS.of(PrepareLatents)
class PrepareLatentsEmitter(OperationEmitter[PrepareLatents]):
    """Keeps latents and the turned part, and multiplies queries by the matrices of keys."""

    def __init__(self, operation: PrepareLatents, scope: Scope) -> None:
        super().__init__(operation, scope)
        n_kept, n_latent = operation.latents.width, operation.norm.size
        if n_kept % 8 or n_kept > kernels.MAX_ROW or n_latent > MAX_LATENT:
            expected = f"multiples of 8 up to {kernels.MAX_ROW}, of them latents up to {MAX_LATENT}"
            raise UnsupportedError(
                f"rows of {n_latent} latents among {n_kept} values, backend numba-cuda keeps {expected}; choose another one"
            )

    def buffers(self) -> Mapping[str, int]:
        return _buffers(self.operation.keys)

    def emit(self, tape: Tape) -> None:
        operation, keys, weights, n_ctx = self.operation, self.operation.keys, tape.weights, self.scope.options.n_ctx
        cache, to = self.scope.cache(operation.cache), tape.operand(_SPLIT, keys.n_in, [keys])
        heads, latents = (self.layout.rows(value, tape) for value in (operation.queries, operation.latents))
        params: Arguments = {"rows": latents.at, "heads": heads.at, "stride": heads.width, "n": tape.size.n_tokens}
        params |= {"n_latent": operation.norm.size, "n_turned": operation.latents.width - operation.norm.size}
        params |= {"length": n_ctx, "head_dim": operation.queries.width // keys.n, "size": keys.n_in}
        arguments: Arguments = {"params": kernels.LatentsArgs(**params), "to": to.target}
        arguments["cache"] = StoreArgs(cache.codes, cache.halves, cache.number)
        arguments |= {"latent": weights.norm_arguments(operation.norm), "turn": turned(weights, operation.rope, n_ctx)}
        if operation.turned_norm is not None:
            arguments["turned"] = weights.norm_arguments(operation.turned_norm)
        tape.launch(kernels.prepare_latents, (1 + (keys.n if keys.n_in else 0), tape.size.n_tokens), WARP, **arguments)
        if keys.n_in:
            tape.multiply_matrices(
                to, tape.weights.several([keys]), DeviceRows(tape.buffers[_ROWS], keys.n_out), _tiles_of(tape, keys.n)
            )


@EMITTERS.of(AttendLatents)
class AttendLatentsEmitter(OperationEmitter[AttendLatents]):
    """Attends to latents, and leaves the mixes head by head."""

    def __init__(self, operation: AttendLatents, scope: Scope) -> None:
        super().__init__(operation, scope)
        if operation.attend.window is not None and operation.choice is not None:
            raise UnsupportedError("a choice of what a window shows is not computed here; use backend reference")
        self._n_latent = operation.out.width // operation.attend.n_heads

    def buffers(self) -> Mapping[str, int]:
        n_bytes = parts_bytes(self._part_bytes(splits_of(self.scope.options.n_ctx)))
        return {"counters": 4 * MAX_TOKENS * self.operation.attend.n_heads, "parts of attention": n_bytes}

    def _part_bytes(self, n_splits: int) -> int:
        """Bytes of splits' results for a token."""
        return 4 * self.operation.attend.n_heads * n_splits * (self._n_latent + 2)

    def emit(self, tape: Tape) -> None:
        operation, prepare, attend, weights = self.operation, self.operation.prepare, self.operation.attend, tape.weights
        cache, n_heads, n_splits = self.scope.cache(attend.keys), attend.n_heads, tape.size.n_splits
        rows, n_ctx = self.layout.rows(operation.queries, tape), self.scope.options.n_ctx
        is_merged, to = n_splits <= MOST_MERGED, tape.operand(_SPLIT, self._n_latent, [operation.values])
        n_rows = 2 if n_heads > HEADS and not is_merged and (cache.kept_as, 2) in ATTEND_LATENT else 1
        common: Arguments = {"n_heads": n_heads, "n_splits": n_splits, "window": min(attend.window or 0, FOREVER)}
        common |= {"n": tape.size.n_tokens, "parts": tape.buffers["parts of attention"]}
        if attend.sinks is not None:
            common |= {"sinks": weights.vector(attend.sinks), "has_sinks": True}
        arguments: Arguments = {"absorbed": self._absorbed(tape), "heads": rows.at, "stride": rows.width, "length": n_ctx}
        arguments |= {"dim": cache.dim, "n_latent": self._n_latent, "head_dim": operation.queries.width // n_heads}
        arguments |= {"counters": tape.buffers["counters"], "scale": attend.scale}
        arguments |= sharpened(weights, prepare.temperature, n_ctx)
        read: Arguments = {"cache": CacheArgs(cache.codes, cache.halves), "turn": turned(weights, prepare.rope, n_ctx)}
        read |= {"to": to.target if is_merged else TargetArgs()} | {"choice": choice_args(tape, attend.choice, n_ctx)}
        kernel, n_blocks = ATTEND_LATENT[cache.kept_as, n_rows], -(-n_heads // (HEADS * n_rows))
        for first, n in shares_of(tape.size.n_tokens, self._part_bytes(n_splits)):
            common["first_token"] = first
            params = LatentArgs(**arguments, **common)
            tape.launch(kernel, (n_splits, n_blocks, n), ATTEND_THREADS, params=params, **read)
            if not is_merged:
                _emit_rows(tape, kernels.merge_latents, to, n_heads * n, n_merged=n, size=self._n_latent, **common)

    def _absorbed(self, tape: Tape) -> Pointer:
        """The products of queries with the matrices of keys."""
        keys = self.operation.prepare.keys
        n_bytes = 4 * MAX_TOKENS * keys.n * keys.n_out
        zeros = None if keys.n_in else tape.weights.constant(("zeros", n_bytes), lambda: np.zeros(n_bytes, np.uint8))
        return tape.buffers[_ROWS] if zeros is None else zeros


@launches(MultiplyHeads, MultiplyHeadsGated, buffers=lambda heads: _buffers(heads.operation.matrices))
def _multiply_heads(operation: MultiplyHeads | MultiplyHeadsGated, layout: Layout, tape: Tape) -> None:
    """Multiplies heads by matrices, and puts the products of a token side by side, perhaps gated."""
    matrices, n = operation.matrices, tape.size.n_tokens
    x, to = tape.operand(_SPLIT, matrices.n_in, [matrices]), layout.operand(operation.out, tape)
    if not isinstance(layout.makers.get(operation.x.root), AttendLatents):
        heads, sizes = layout.rows(operation.x, tape), {"head_dim": matrices.n_in, "size": matrices.n_in}
        _emit_rows(tape, kernels.split_heads, x, matrices.n * n, x=heads.at, stride=heads.width, **sizes)
    tiles = _tiles_of(tape, matrices.n)
    gates: Arguments = {}
    if isinstance(operation, MultiplyHeadsGated):
        rows = layout.rows(operation.gates, tape)
        gates = {"gates": rows.at, "gate_stride": rows.width, "gate_size": operation.out.width // operation.gates.width}
    elif tape.multiply_heads(x, matrices, to, tiles):
        return
    made = DeviceRows(tape.buffers[_ROWS], matrices.n_out)
    tape.multiply_matrices(x, tape.weights.several([matrices]), made, tiles)
    _emit_rows(tape, kernels.join_heads, to, n, x=made.at, size=made.width, n_values=operation.out.width, **gates)


def _buffers(matrices: Matrices) -> dict[str, int]:
    """The memory of rows of heads before and after they are multiplied; a tile reads as many rows as it has room for."""
    n_rows = MAX_TOKENS * matrices.n + TILES[-1]
    return {_ROWS: 4 * n_rows * matrices.n_out, **Tape.operand_buffers(_SPLIT, matrices.n_in, n_rows)}


def _emit_rows(tape: Tape, kernel: Kernel, to: Operand, n_rows: int, **arguments: Pointer | float) -> None:
    """Write a kernel that makes an operand of some rows."""
    grid = (warps_of(units_of(to.width)), n_rows)
    tape.launch(kernel, grid, WARP * WARPS, **{"n": tape.size.n_tokens, **arguments}, to=to.target)


def _tiles_of(tape: Tape, n_heads: int) -> Tiles:
    """Which rows go through which head's matrix."""
    n = tape.size.n_tokens
    size = next((each for each in TILES if each >= n), TILES[-1])

    def make() -> np.ndarray:
        starts = np.arange(0, n, size)
        firsts = np.arange(n_heads)[:, None] * n + starts
        ends = np.arange(n_heads)[:, None] * n + np.minimum(starts + size, n)
        table = np.stack([np.broadcast_to(np.arange(n_heads)[:, None], firsts.shape), firsts, ends], axis=2)
        return np.array([firsts.size, *table.reshape(-1)], np.int32)

    return Tiles(tape.weights.constant(("tiles", n_heads, n), make), n_heads * -(-n // size), size)
