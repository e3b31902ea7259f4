"""Heads that are prepared and kept, attention to the cache, and the choice of cells for it, by the highest scores of keys.

Lists of cells lie in buffers that all layers share, so that layers after the one that chooses may read them. Of latents, rows
are kept that are keys and values of all heads, which have a matrix each.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping

import numpy as np

from augury import lowering as op
from augury.backends.numba_cpu.kernels import attention_tile, choice, head
from augury.backends.numba_cpu.kernels.attention import adjust_scores, attend_kernel
from augury.backends.numba_cpu.kernels.attention_tile import CHUNK, PART
from augury.backends.numba_cpu.kernels.cache_type import BLOCK, BYTES, LANES, CachedRows
from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS
from augury.backends.numba_cpu.kernels.rows import place_rows
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS
from augury.backends.numba_cpu.kernels.struct import dtype
from augury.backends.numba_cpu.kernels.team import Segment
from augury.backends.numba_cpu.memory import up
from augury.backends.numba_cpu.operations.emitter import EMITTERS, OperationEmitter, Placed, require_multiple
from augury.backends.numba_cpu.tape import Tape, ThreadRows, Work, row_bytes
from augury.backends.numba_cpu.weights import panels_of
from augury.blocks import Matrices, Preparation, Rope
from augury.errors import UnsupportedError

_NO_WINDOW = 1 << 40
_OVERREAD = 16  # floats that a kernel may read (never use) beyond a table
_TABLES = "rope tables"
NO_LISTS = attention_tile.Lists(chosen=0, n_lists=0, ld_chosen=0, runs=0, ends=0)
_PRODUCTS = "products of heads"
_CHOSEN, _RUNS, _ENDS, _SCORES = "chosen cells", "runs of chosen cells", "ends of chosen cells", "scores of positions"


@EMITTERS.of(op.PrepareHeads)
class PrepareHeadsEmitter(OperationEmitter[op.PrepareHeads]):
    """Prepares heads in place, and keeps them where there is a cache."""

    def __init__(self, operation: op.PrepareHeads, scope: op.Scope) -> None:
        super().__init__(operation, scope)
        kept = [scope.cache(place, operation.source).put for place in operation.caches if place is not None]
        self._work = Work("storing keys and values" if kept else "preparing heads")
        self.kernels = (head.prepare_heads, head.prepare_head, *kept)

    def tables(self) -> Mapping[Hashable, int]:
        n_ctx = self.scope.options.n_ctx
        return {key: size for steps in self.operation.steps for key, size in table_of(steps.rope, n_ctx).items()}

    def emit(self, tape: Tape) -> None:
        operation, n_ctx, parts, n_all = self.operation, self.scope.options.n_ctx, list[head.HeadPart](), 0
        for x, dim, steps, place in zip(operation.x, operation.dims, operation.steps, operation.caches, strict=True):
            n_heads, kept = x.width // dim, head.NOT_KEPT
            if place is not None:
                cache = self.scope.cache(place, operation.source)
                kept = {"put": address(cache.put), "kept": cache.address, "n_rows": cache.n_rows, "first": cache.first}
            done = place_steps(steps, self.placed, n_ctx)
            parts.append(head.HeadPart(x=self.placed.at(x), n_heads=n_heads, size=dim, steps=done, **kept))
            n_all += n_heads
        operands = {"prepare_head": address(head.prepare_head), "parts": self.placed.table(*parts), "n_heads": n_all}
        tape.add(self._work, head.prepare_heads, **operands)

    @property
    def written(self) -> tuple[op.Value, ...]:
        return (*self.operation.x, *self.operation.out)


@EMITTERS.of(op.Attend)
class AttendEmitter(OperationEmitter[op.Attend]):
    """Attends to keys and values, or to rows that are both, in all cells that tokens see or in listed ones."""

    def __init__(self, operation: op.Attend, scope: op.Scope) -> None:
        super().__init__(operation, scope)
        self._keys = keys = scope.cache(operation.keys, operation.source)
        self._values = values = None if operation.values is None else scope.cache(operation.values, operation.source)
        self._value_dim = operation.out.width // operation.n_heads
        if values is None:
            self._value_dim = up(self._value_dim, attention_tile.PART)
            require_multiple(keys.size, attention_tile.PART, f"attention to rows of {keys.size} values")
        if operation.choice is not None:
            _check_sparse(operation, keys.size if values is not None else 0, self._value_dim)
        kinds = (keys.kind, keys.kind if values is None else values.kind)
        self._kernel = attend_kernel(*kinds, is_latent=values is None, is_sparse=operation.choice is not None)
        if operation.pooled is not None:
            scope.cache(operation.pooled).follow(keys)
        n_ctx = scope.options.n_ctx
        self._n_cells = n_ctx if operation.choice is None else n_listed(operation.choice, n_ctx)
        self._adjusts_scores = operation.softcap is not None or operation.slopes is not None
        self.kernels = (self._kernel, *[adjust_scores] * self._adjusts_scores)

    def buffers(self, n_threads: int) -> Mapping[str, int]:
        choice, n_ctx = self.operation.choice, self.scope.options.n_ctx
        lists = {} if choice is None else list_buffers(choice, n_ctx)
        return {
            **lists,
            "parts of attention": attention_tile.parts_bytes(self._value_dim, self._n_cells, n_threads),
            "counts of attention": attention_tile.counts_bytes(n_threads),
        }

    def scratch_bytes(self) -> int:
        return attention_tile.scratch_bytes(self._keys.size, self._value_dim)

    def emit(self, tape: Tape) -> None:
        operation, placed, buffers, keys = self.operation, self.placed, self.placed.buffers, self._keys
        values, slopes = keys if self._values is None else self._values, operation.slopes
        choice, n_ctx, n_heads = operation.choice, self.scope.options.n_ctx, operation.n_heads
        lists = NO_LISTS if choice is None else list_places(choice, n_ctx, buffers)
        layer = attention_tile.AttentionLayer(
            q=placed.at(operation.queries),
            out=placed.at(operation.out).address,
            d=keys.size,
            dv=self._value_dim,
            value_row=up(values.size, LANES),
            n_heads=n_heads,
            n_kv_heads=keys.n_heads,
            keys=keys.address,
            values=values.address,
            n_rows=keys.n_rows,
            scale=operation.scale,
            window=operation.window or _NO_WINDOW,
            chunk=operation.chunk or 0,
            sees_run=not operation.is_causal,
            sinks=placed.weights.vector(operation.sinks),
            adjust_scores=address(adjust_scores) if self._adjusts_scores else 0,
            cap=operation.softcap or 0.0,
            slopes=0 if slopes is None else placed.constant(slopes, lambda: np.array(slopes, np.float32)),
            parts=buffers["parts of attention"],
            counts=buffers["counts of attention"],
            lists=lists,
        )
        read = [each for each in (keys, self._values) if each is not None]
        n_bytes = sum(each.n_heads * each.size * BYTES[each.kind] // LANES for each in read)
        n_work = n_heads * (keys.size + self._value_dim)
        work = Work("attention", bytes_per_position=n_bytes, multiply_adds_per_position=n_work)
        tape.add(work, self._kernel, layer=layer)


def _check_sparse(operation: op.Attend, key_dim: int, value_dim: int) -> None:
    """Refuse attention by positions or sizes that a list of cells does not have."""
    odd = [name for name in ("window", "chunk", "slopes", "source") if getattr(operation, name) is not None]
    odd += ["later tokens"] * (not operation.is_causal)
    if key_dim and (odd or key_dim % BLOCK or value_dim % BLOCK):
        found = f"with {odd[0]}" if odd else f"of heads of {key_dim} and {value_dim} values"
        raise UnsupportedError(
            f"attention {found} to the choice of an indexer, expected no window or slopes, and heads of a multiple of {BLOCK} "
            "values; use backend reference"
        )


def place_steps(steps: Preparation, placed: Placed, n_ctx: int) -> int:
    """The address of the `HeadSteps` that prepare heads; 0 if there are none."""
    if steps.is_nothing:
        return 0
    turns, n_pairs, is_interleaved, offset = 0, 0, False, 0
    if (rope := steps.rope) is not None:
        turns = placed.arena.shared(rope.key, lambda: np.pad(rope.turns(n_ctx).ravel(), (0, _OVERREAD)).astype("f4"), _TABLES)
        n_pairs, is_interleaved, offset = len(rope.frequencies), rope.is_interleaved, rope.offset
    factors = 0
    if (temperature := steps.temperature) is not None:
        factors = placed.arena.shared(temperature, lambda: temperature.factors(n_ctx).astype("f4"), _TABLES)
    written = head.HeadSteps(
        limit=steps.clamp or 0.0,
        norm=placed.weights.norm(steps.norm),
        turns=turns,
        n_pairs=n_pairs,
        is_interleaved=is_interleaved,
        is_turned_first=steps.is_rope_first,
        factors=factors,
        offset=offset,
        lag=steps.lag,
    )
    return placed.table(written)


def table_of(rope: Rope | None, n_ctx: int) -> Mapping[Hashable, int]:
    """Bytes of a rope's table: of every position's turns float64 exist for a moment, beside the float32 that stay."""
    return {} if rope is None else {rope.key: n_ctx * len(rope.frequencies) * 8 * 5}


def n_listed(choice: op.PositionChoice, n_ctx: int) -> int:
    """How many cells a list has at most."""
    return n_ctx + (0 if choice.window is None else n_ctx // choice.size)


def list_places(choice: op.PositionChoice, n_ctx: int, buffers: Mapping[str, int]) -> attention_tile.Lists:
    """Where the lists of a choice lie."""
    places = {"chosen": buffers[_CHOSEN], "runs": buffers[_RUNS], "ends": buffers[_ENDS]}
    return attention_tile.Lists(n_lists=choice.width, ld_chosen=n_listed(choice, n_ctx), **places)


def list_buffers(choice: op.PositionChoice, n_ctx: int) -> Mapping[str, int]:
    """Bytes of the memory where lists are left, by name."""
    n_cells = MAX_TOKENS * choice.width * n_listed(choice, n_ctx)
    return {_CHOSEN: 8 * n_cells, _RUNS: dtype(Segment).itemsize * MAX_TOKENS, _ENDS: 8 * MAX_TOKENS}


@EMITTERS.of(op.Choose, op.ChooseByHead)
class ChooseEmitter(OperationEmitter[op.Choose | op.ChooseByHead]):
    """Scores the blocks of positions that every token sees, and leaves the cells of the highest scores, or of all."""

    def __init__(self, operation: op.Choose | op.ChooseByHead, scope: op.Scope) -> None:
        super().__init__(operation, scope)
        self._keys = keys = None if operation.keys is None else scope.cache(operation.keys)
        self._n_local = operation.n_local if isinstance(operation, op.ChooseByHead) else 0
        self._score, self.kernels = None, (choice.choose,)
        if keys is None:
            return
        require_multiple(keys.size, PART, f"an indexer compares {keys.size} values")
        if isinstance(operation, op.ChooseByHead) and not 1 <= operation.n_local <= operation.n_chosen:
            raise UnsupportedError(
                f"an indexer chooses {operation.n_chosen} blocks, the last {operation.n_local} in any case, expected 1 to "
                f"{operation.n_chosen} of these; use backend reference"
            )
        self._score = choice.score_blocks
        if isinstance(operation, op.ChooseByHead) or (operation.out.size == 1 and operation.weights is not None):
            self._score = choice.score_kernel(keys.kind, is_by_head=isinstance(operation, op.ChooseByHead))
        elif keys.kind != "f32":
            raise UnsupportedError(f"an indexer of blocks with keys of type {keys.kind}, expected f32; use backend reference")
        self.kernels = (self._score, choice.choose)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        lists = list_buffers(self.operation.out, self.scope.options.n_ctx)
        return lists if self._score is None else {**lists, _SCORES: row_bytes(self.operation.out.width * self._ld_scores)}

    @property
    def _ld_scores(self) -> int:
        n_ctx, size = self.scope.options.n_ctx, self.operation.out.size
        return up(n_ctx if self._n_local else n_ctx // size, CHUNK)

    def scratch_bytes(self) -> int:
        return choice.scratch_bytes(-(-self.scope.options.n_ctx // self.operation.out.size))

    def emit(self, tape: Tape) -> None:
        operation, placed, keys, n_ctx = self.operation, self.placed, self._keys, self.scope.options.n_ctx
        weights = operation.weights if isinstance(operation, op.Choose) else None
        size, n_heads, rows = 1, 0, CachedRows(address=0, row_bytes=0, n_rows=0)
        if keys is not None and operation.queries is not None:
            size, n_heads, rows = keys.size, operation.queries.width // keys.size, keys.rows
        fields = {
            "queries": placed.at(operation.queries),
            "weights": placed.at(weights),
            "factor": 1.0 / math.sqrt(size),
            "n_heads": n_heads,
            "width": size,
            "keys": rows,
            "scores": placed.buffers.get(_SCORES, 0),
            "ld_scores": self._ld_scores,
            "size": operation.out.size,
            "n_chosen": operation.n_chosen,
            "n_local": self._n_local,
            "window": operation.out.window or 0,
            "first_row": self.scope.caches[0].length,
            "lists": list_places(operation.out, n_ctx, placed.buffers),
        }
        if keys is not None and operation.queries is not None:
            n = 1 if self._n_local else operation.out.size  # positions that share a key
            tape.add(Work("indexer", keys.row_bytes // n, operation.queries.width // n), self._score, **fields)
        tape.add(Work("choosing"), choice.choose, **fields)


# Latent rows that are kept, queries that ask for them, and products of heads with a matrix each


@EMITTERS.of(op.PrepareLatents)
class PrepareLatentsEmitter(OperationEmitter[op.PrepareLatents]):
    """Keeps latents and the turned part, each padded, and lays queries out likewise."""

    def __init__(self, operation: op.PrepareLatents, scope: op.Scope) -> None:
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


@EMITTERS.of(op.MultiplyHeads)
class MultiplyHeadsEmitter(OperationEmitter[op.MultiplyHeads]):
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
