"""Heads that are prepared and kept, attention to the cache, and the choice of positions for it, by the highest scores of keys.

A choice lies in a buffer that all layers share, so that layers after the one that chooses may read it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from augury.backends.numba_cuda.device import Arguments
from augury.backends.numba_cuda.kernels.attention import ATTEND, ATTEND_POOLED, AttendArgs, ChoiceArgs
from augury.backends.numba_cuda.kernels.cells import NOT_KEPT, CacheArgs, StoreArgs
from augury.backends.numba_cuda.kernels.choice import CHOOSE, CHOOSE_BLOCKS, BlocksArgs
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.fragments import ATTEND_THREADS, HEADS
from augury.backends.numba_cuda.kernels.heads import MAX_DIM, HeadsArgs, TurnArgs, prepare_heads
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.splits import SPLIT, MergeArgs
from augury.backends.numba_cuda.operations.emitter import EMITTERS, OperationEmitter, Scope
from augury.backends.numba_cuda.operations.rewrites import AttendGated
from augury.backends.numba_cuda.slot_memory import Cache
from augury.backends.numba_cuda.tape import Tape, splits_of, splits_seen
from augury.backends.numba_cuda.weights import Weights
from augury.blocks import GateKind, Rope, Temperature
from augury.errors import UnsupportedError
from augury.lowering import Attend, Choose, ChooseByHead, PositionChoice, PrepareHeads

CHOSEN = "chosen blocks"
_SCORES, _COUNTERS = "scores of blocks", "tokens' counters"
FOREVER = 2**30  # a window that sees all
MOST_PARTS = 128 << 20  # bytes of splits' results; those of one token may be more


@EMITTERS.of(PrepareHeads)
class PrepareHeadsEmitter(OperationEmitter[PrepareHeads]):
    """Prepares heads in place, and keeps them where there is a cache: queries, keys and values, side by side, or only these."""

    def emit(self, tape: Tape) -> None:
        operation, layout, n_ctx = self.operation, self.layout, self.scope.options.n_ctx
        if (most := max(operation.dims)) > MAX_DIM:
            check_dim("heads", most)
        columns = [layout.row(x) for x in operation.x]
        ends = [(name, column + x.width) for (name, column), x in zip(columns, operation.x, strict=True)]
        if columns[1:] != ends[:-1] or not layout.in_place.keys() >= {*operation.out}:
            raise UnsupportedError("heads that do not lie side by side, or that others read, too; use backend reference")
        rows, first, roles = layout.rows(operation.x[0], tape), operation.steps[0], ("q", "k", "v")
        counts = [x.width // dim for x, dim in zip(operation.x, operation.dims, strict=True)]
        named = dict(zip(roles[operation.caches[0] is not None :], counts, strict=False))
        params: Arguments = {"rows": rows.at, "stride": rows.width, "length": n_ctx, "lag": first.lag}
        params |= {"limit": np.inf if first.clamp is None else first.clamp, "is_rope_first": first.is_rope_first}
        params |= {"n_heads": named.get("q", 0), "n_kv_heads": named.get("k", 0)}
        params |= {"head_dim": operation.dims[0], "value_dim": operation.dims[-1]}
        arguments: Arguments = dict.fromkeys(("keys", "values"), StoreArgs(kept_as=NOT_KEPT))
        for (role, n), steps, place in zip(named.items(), operation.steps, operation.caches, strict=True):
            if steps.norm is not None:
                arguments[role] = tape.weights.norm_arguments(steps.norm, n)
            if place is not None:
                cache = self.scope.cache(place, operation.source)
                arguments["keys" if role == "k" else "values"] = StoreArgs(cache.codes, cache.halves, cache.number)
            params |= sharpened(tape.weights, steps.temperature, n_ctx)
        arguments |= {"params": HeadsArgs(**params), "turn": turned(tape.weights, first.rope, n_ctx)}
        tape.launch(prepare_heads, (sum(counts), tape.size.n_tokens), WARP, **arguments)


@EMITTERS.of(Attend, AttendGated)
class AttendEmitter(OperationEmitter[Attend | AttendGated]):
    """Attends to keys and values, or to rows that are both, and to pooled rows; the mix may be gated.

    The results of positions' splits come first among the parts of attention, then those of pooled rows' splits.
    """

    def __init__(self, operation: Attend, scope: Scope) -> None:
        super().__init__(operation, scope)
        self._keys = scope.cache(operation.keys, operation.source)
        self._values = self._keys if operation.values is None else scope.cache(operation.values, operation.source)
        self._head_dim, self._value_dim = (each.width // operation.n_heads for each in (operation.queries, operation.out))
        for dim in (self._head_dim, self._value_dim):
            check_dim("heads", dim)
        choice = operation.choice
        self._blocks = None if choice is None or choice.window is None else choice  # of pooled rows
        if (self._blocks is None) != (operation.pooled is None):
            raise UnsupportedError("pooled rows are attended to beside a window, by a choice of blocks; use backend reference")

    def buffers(self) -> Mapping[str, int]:
        n_bytes = parts_bytes(self._part_bytes(splits_of(self.scope.options.n_ctx)))
        return {"parts of attention": n_bytes, "counters": 4 * MAX_TOKENS * self.operation.n_heads}

    def _n_pooled_splits(self, n_splits: int) -> int:
        """Splits of pooled rows, where there are so many of positions."""
        return 0 if self._blocks is None else -(-n_splits // self._blocks.size)

    def _part_bytes(self, n_splits: int) -> int:
        """Bytes of splits' results for a token."""
        return 4 * self.operation.n_heads * (n_splits + self._n_pooled_splits(n_splits)) * (self._value_dim + 2)

    def emit(self, tape: Tape) -> None:
        attend, keys, values, blocks, n_splits = self.operation, self._keys, self._values, self._blocks, tape.size.n_splits
        n_pooled, window = self._n_pooled_splits(n_splits), (attend if blocks is None else blocks).window
        rows, choice = self.layout.rows(attend.queries, tape), choice_args(tape, attend.choice, self.scope.options.n_ctx)
        arguments: Arguments = {"rows": rows.at, "stride": rows.width, "scale": attend.scale, "cap": attend.softcap or 0.0}
        arguments |= {"n_heads": attend.n_heads, "n_kv_heads": keys.n_heads, "length": self.scope.options.n_ctx}
        arguments["n_of_group"] = n_of_group = attend.n_heads // keys.n_heads
        arguments |= {"head_dim": self._head_dim, "value_dim": self._value_dim, "n_splits": n_splits + n_pooled}
        arguments |= {"window": min(window or 0, FOREVER), "chunk": min(attend.chunk or 0, FOREVER)}
        arguments |= {"parts": tape.buffers["parts of attention"], "counters": tape.buffers["counters"]}
        if attend.slopes is not None:
            slopes = tape.weights.constant(("slopes", attend.slopes), lambda: np.array(attend.slopes, np.float32))
            arguments |= {"slopes": slopes, "has_slopes": True}
        own = AttendArgs(**arguments, sees_block=not attend.is_causal, pool=1)
        read: Arguments = {"keys": _planes(keys), "values": _planes(values), "choice": ChoiceArgs() if blocks else choice}
        most_seen = min(filter(None, (window, attend.chunk)), default=0)
        launches = [(ATTEND[keys.kept_as, values.kept_as], n_splits, most_seen, own, read)]
        if blocks is not None and attend.pooled is not None:
            cache = self.scope.cache(attend.pooled)
            pooled = AttendArgs(**arguments, pool=blocks.size, first_split=n_splits)
            if choice.block_size:
                choice = choice._replace(block_size=1)  # not of positions, but of blocks
            read = {"keys": _planes(cache), "values": _planes(cache), "choice": choice}
            launches.append((ATTEND_POOLED[cache.kept_as], n_pooled, 0, pooled, read))
        read |= self._merged(tape)
        for first, n in shares_of(tape.size.n_tokens, self._part_bytes(n_splits)):
            for kernel, n_all, reach, params, more in launches:
                n_doublings = 0 if more["choice"].block_size else doublings_of_tile(n_of_group, n)
                step = n_doublings if tape.size.is_run else 0
                n_blocks = splits_seen(n_all, reach, tape.size.n_tokens if params.sees_block else 1 << n_doublings)
                grid = (n_blocks, keys.n_heads * -(-n_of_group // HEADS), -(-n >> step))
                how_many = params._replace(first_token=first, n_doublings=n_doublings, step=step)
                tape.launch(kernel, grid, ATTEND_THREADS, params=how_many, **more)

    def _merged(self, tape: Tape) -> Arguments:
        """The arguments of the launch that merges splits."""
        operation, sinks, arguments = self.operation, self.operation.sinks, dict[str, Any]()
        if sinks is not None:
            arguments = {"sinks": tape.weights.vector(sinks), "has_sinks": True}
        if isinstance(operation, AttendGated):
            gates = self.layout.rows(operation.gates, tape)
            arguments |= {"gates": gates.at, "gate_stride": gates.width, "is_softplus": operation.kind is GateKind.SOFTPLUS}
            arguments["gate_size"] = operation.out.width // operation.gates.width
        return {"merge": MergeArgs(**arguments), "to": self.layout.operand(operation.out, tape).target}


def n_blocks(choice: PositionChoice, n_ctx: int) -> int:
    """The number of blocks in a list of chosen ones: the last need not be whole."""
    return n_ctx // choice.size + 1


def choice_args(tape: Tape, choice: PositionChoice | None, n_ctx: int) -> Any:
    """The arguments of kernels for the positions that tokens attend to."""
    if choice is None or choice.is_all:
        return ChoiceArgs()
    n = n_blocks(choice, n_ctx)
    return ChoiceArgs(tape.buffers[CHOSEN], choice.size, choice.width * n, n if choice.width > 1 else 0)


def _planes(cache: Cache) -> Any:
    return CacheArgs(cache.codes, cache.halves)


def doublings_of_tile(n_of_group: int, n_tokens: int) -> int:
    """How often one token is doubled to give the tokens of a block, so many heads of each, of `n_tokens` at most."""
    return max(1, min(HEADS // n_of_group, n_tokens)).bit_length() - 1


def check_dim(what: str, dim: int) -> None:
    """Refuse heads, or rows, of a size that kernels do not compute."""
    if dim % 8 or dim > MAX_DIM:
        expected = f"multiples of 8 up to {MAX_DIM}"
        raise UnsupportedError(f"{what} of {dim} values, backend numba-cuda computes {expected}; choose another one")


def parts_bytes(n_bytes: int) -> int:
    """Bytes of splits' results for the tokens of a pass until they are merged, `n_bytes` each, as far as there is room."""
    return max(n_bytes, min(MOST_PARTS, MAX_TOKENS * n_bytes))


def shares_of(n_tokens: int, n_bytes: int) -> Iterator[tuple[int, int]]:
    """Which tokens attend at once, as far as there is room for their splits' results: the first, and how many, a power of 2."""
    n = 1 << (max(1, MOST_PARTS // n_bytes).bit_length() - 1)
    for first in range(0, n_tokens, n):
        yield first, min(n, n_tokens - first)


def turned(weights: Weights, rope: Rope | None, n_ctx: int) -> Any:
    """The arguments of kernels for a rope."""
    if rope is None:
        return TurnArgs()
    turns = weights.constant(rope.key, lambda: rope.turns(n_ctx).swapaxes(1, 2).astype(np.float32))
    return TurnArgs(turns, len(rope.frequencies), rope.offset, rope.is_interleaved)


def sharpened(weights: Weights, temperature: Temperature | None, n_ctx: int) -> Arguments:
    """The arguments of kernels for factors of queries, by position."""
    if temperature is None:
        return {}
    factors = weights.constant((temperature, n_ctx), lambda: temperature.factors(n_ctx).astype(np.float32))
    return {"factors": factors, "has_factors": True}


@EMITTERS.of(Choose, ChooseByHead)
class ChooseEmitter(OperationEmitter[Choose | ChooseByHead]):
    """Scores blocks of positions, and writes down which are chosen; nothing where all are."""

    def __init__(self, operation: Choose | ChooseByHead, scope: Scope) -> None:
        super().__init__(operation, scope)
        if isinstance(operation, ChooseByHead) and not operation.n_local:
            raise UnsupportedError(
                "an indexer that does not always choose the last block is not computed here; use backend reference"
            )

    def buffers(self) -> Mapping[str, int]:
        n_ctx, choice = self.scope.options.n_ctx, self.operation.out
        n_bytes = 4 * MAX_TOKENS * choice.width * n_blocks(choice, n_ctx)
        return {_SCORES: n_bytes, CHOSEN: n_bytes, _COUNTERS: 4 * MAX_TOKENS}

    def emit(self, tape: Tape) -> None:
        operation, layout, n_tokens, n_ctx = self.operation, self.layout, tape.size.n_tokens, self.scope.options.n_ctx
        if operation.queries is None or operation.keys is None:
            return
        rows, keys = layout.rows(operation.queries, tape), self.scope.cache(operation.keys)
        size, n_all = operation.out.size, n_blocks(operation.out, n_ctx)
        arguments: Arguments = {"rows": rows.at, "stride": rows.width, "dim": keys.dim, "size": size, "length": n_ctx}
        arguments |= {"scores": tape.buffers[_SCORES], "chosen": tape.buffers[CHOSEN]}
        params = BlocksArgs(**arguments, n_blocks=n_all, n_chosen=operation.n_chosen)
        given: Arguments = {"params": params, "keys": CacheArgs(keys.codes, keys.halves)}
        if isinstance(operation, ChooseByHead):
            lists = {"n_local": operation.n_local, "n_groups": operation.out.width}
            tape.launch(CHOOSE_BLOCKS[keys.kept_as], (operation.out.width, n_tokens), THREADS, **lists, **given)
            return
        n_most, n_heads = min(n_all, tape.size.n_splits * SPLIT // size), operation.queries.width // keys.dim
        given |= {"n_heads": n_heads, "counters": tape.buffers[_COUNTERS], "share": 1 / math.sqrt(keys.dim)}
        if operation.weights is not None:
            (name, start), (other, column) = (layout.row(each) for each in (operation.queries, operation.weights))
            if name != other or column <= start:
                raise UnsupportedError("weights of queries that do not lie after these; use backend reference")
            given |= {"shares": column - start, "share": layout.scale(operation.weights)}
        tape.launch(CHOOSE[keys.kept_as], (-(-n_most // THREADS), n_tokens), THREADS, **given)
