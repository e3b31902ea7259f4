"""Latent rows that are kept, queries that ask for them, and products of heads with a matrix each."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from augury.backends.numba_cpu.kernels import head
from augury.backends.numba_cpu.kernels.attention_tile import PART
from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS
from augury.backends.numba_cpu.kernels.rows import place_rows
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS
from augury.backends.numba_cpu.memory import up
from augury.backends.numba_cpu.operations.attention import place_steps, table_of
from augury.backends.numba_cpu.operations.emitter import EMITTERS, OperationEmitter
from augury.backends.numba_cpu.tape import Tape, ThreadRows, Work, row_bytes
from augury.backends.numba_cpu.weights import panels_of
from augury.blocks import Matrices, Preparation
from augury.lowering import MultiplyHeads, PrepareLatents, Scope

_PRODUCTS = "products of heads"


@EMITTERS.of(PrepareLatents)
class PrepareLatentsEmitter(OperationEmitter[PrepareLatents]):
    """Keeps latents and the turned part, each padded, and lays queries out likewise."""

    def __init__(self, operation: PrepareLatents, scope: Scope) -> None:
        super().__init__(operation, scope)
        self._n_turned = operation.latents.width - operation.norm.size
        self._padded, cache = up(operation.norm.size, PART), scope.cache(operation.cache)
        cache.size = self._size = self._padded + up(self._n_turned, PART)
        self._sharpens, self._kernel = operation.temperature is not None, head.prepare_kernel(cache.kind)
        own = (self._kernel, head.prepare_head, *[head.prepare_heads] * self._sharpens)
        self.kernels = (*own, head.multiply_heads, head.quantize_heads)

    def scratch_bytes(self) -> int:
        """See `OperationEmitter.scratch_bytes`: of rows that are quantised, or of a row that is stored."""
        return max(4 * MAX_TOKENS * self.operation.keys.n_in, 4 * self._size + 256)

    def tables(self) -> Mapping[Hashable, int]:
        return table_of(self.operation.rope, self.scope.options.n_ctx)

    def emit(self, tape: Tape) -> None:
        operation, placed, n_heads = self.operation, self.placed, self.operation.keys.n
        cache, n_ctx = self.scope.cache(operation.cache), self.scope.options.n_ctx
        turned = Preparation(norm=operation.turned_norm, rope=operation.rope)
        steps = (Preparation(norm=operation.norm), Preparation(rope=operation.rope), turned)
        norm, turn, turn_kept = (place_steps(each, placed, n_ctx) for each in steps)
        queries, latents, out = (placed.at(value) for value in (operation.queries, operation.latents, operation.out))
        head_dim = operation.queries.width // n_heads
        if self._sharpens:
            factors = place_steps(Preparation(temperature=operation.temperature), placed, n_ctx)
            part = head.HeadPart(x=queries, n_heads=n_heads, size=head_dim, steps=factors, **head.NOT_KEPT)
            operands = {"prepare_head": address(head.prepare_head), "parts": placed.table(part), "n_heads": n_heads}
            tape.add(Work("preparing heads"), head.prepare_heads, **operands)
        keys = _quantise_heads(tape, operation.keys, queries, head_dim, (out.address, self._size))
        fields = {
            "queries": queries,
            "head_dim": head_dim,
            "n_plain": operation.keys.n_in,
            "latents": latents,
            "n_latent": operation.norm.size,
            "padded": self._padded,
            "n_turned": self._n_turned,
            "norm": norm,
            "turn": turn,
            "turn_kept": turn_kept,
            "prepare_head": address(head.prepare_head),
            "out": out,
            "size": self._size,
            "n_heads": n_heads,
            "kept": cache.address,
            "n_rows": cache.n_rows,
        }
        tape.add(Work("storing latents"), self._kernel, **fields)
        tape.waits = False  # the next record reads nothing of this one, or only rows that the same thread wrote
        _multiply_heads(tape, operation.keys, keys)


@EMITTERS.of(MultiplyHeads)
class MultiplyHeadsEmitter(OperationEmitter[MultiplyHeads]):
    """Multiplies heads by matrices, and puts the products side by side where they end within a panel."""

    kernels = (head.multiply_heads, head.quantize_heads, place_rows)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        return {_PRODUCTS: row_bytes(self.operation.matrices.n * self._padded)} if self._is_padded else {}

    def scratch_bytes(self) -> int:
        """See `OperationEmitter.scratch_bytes`: of rows that are quantised."""
        return 4 * MAX_TOKENS * self.operation.matrices.n_in

    def emit(self, tape: Tape) -> None:
        part, placed = self.operation.matrices, self.placed
        x, to = placed.at(self.operation.x), placed.at(self.operation.out).address
        made = placed.buffers[_PRODUCTS] if self._is_padded else to
        place = _quantise_heads(tape, part, x, x.width // part.n, (made, self._padded))
        _multiply_heads(tape, part, place)
        if self._is_padded:
            rows = {"x": ThreadRows(made, self._padded), "to": ThreadRows(to, part.n_out), "n_parts": part.n}
            tape.add(Work("gathering rows"), place_rows, **rows, size=part.n_out, norm=0, group=0, is_private=False)

    @property
    def _padded(self) -> int:
        return up(self.operation.matrices.n_out, PANEL_ROWS)  # whole panels are written

    @property
    def _is_padded(self) -> bool:
        return self._padded != self.operation.matrices.n_out


def _quantise_heads(tape: Tape, part: Matrices, x: ThreadRows, head_dim: int, y: tuple[int, int]) -> head.HeadMatrices:
    """Write the records before products of heads; returns these' operands. `y` is where products go, and floats of one."""
    weights, private, (to, head_y) = tape.weights, tape.space.is_private, y
    heads = head.HeadMatrices(**tape.several(part, part.n, to, part.n * head_y), head_y=head_y, n_heads=part.n)
    kernel = weights.address(weights.matrix(part).kind, "quantize")
    quantize = {"heads": heads, "quantize": kernel, "x": x, "head_dim": head_dim}
    tape.add(Work("quantising activations"), head.quantize_heads, **quantize, is_private=private)
    return heads


def _multiply_heads(tape: Tape, part: Matrices, heads: head.HeadMatrices) -> None:
    """Write the products of heads with their matrices."""
    matrix = tape.weights.matrix(part)
    n_bytes = matrix.n_bytes * (up(part.n_out, PANEL_ROWS) // PANEL_ROWS) // panels_of(part)[1]
    work = Work(f"heads ({matrix.kind})", n_bytes, part.n * part.n_out * part.n_in)
    tape.add(work, head.multiply_heads, heads=heads)
