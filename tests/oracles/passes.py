"""Batches, written briefly, and passes through layers that predict further tokens."""

from __future__ import annotations

import attrs
import numpy as np

from augury.batch import Batch


def run_of(tokens, *, slot=0, start=0, rows=None) -> Batch:
    """Consecutive tokens of one slot, with the logits of all of them or of `rows`."""
    n = len(tokens)
    return Batch(
        np.array(tokens, np.int32),
        np.full(n, slot, np.int32),
        np.arange(start, start + n, dtype=np.int32),
        np.arange(n, dtype=np.int32) if rows is None else np.array(rows, np.int32),
    )


def tree_of(tokens, parents, *, slot=0, start=0) -> Batch:
    """A tree of tokens after position `start - 1` of one slot, with the logits of all."""
    above, depths = list(parents), []
    for parent in above:
        depths.append(0 if parent == -1 else depths[parent] + 1)
    batch = run_of(tokens, slot=slot)
    return attrs.evolve(batch, positions=np.array(depths, np.int32) + np.int32(start), parents=np.array(above, np.int32))


def joined(*batches) -> Batch:
    """Several batches, of chains alone or of trees alone, as one pass."""
    starts = np.cumsum([0, *(len(batch.tokens) for batch in batches)])
    parents = None
    if batches[0].parents is not None:
        moved = [np.where(batch.parents < 0, -1, batch.parents + start) for batch, start in zip(batches, starts, strict=False)]
        parents = np.concatenate(moved).astype(np.int32)
    return Batch(
        np.concatenate([batch.tokens for batch in batches]),
        np.concatenate([batch.slots for batch in batches]),
        np.concatenate([batch.positions for batch in batches]),
        np.concatenate([batch.rows + start for batch, start in zip(batches, starts, strict=False)]).astype(np.int32),
        parents=parents,
    )


def hidden_states(model, text, slot=0):
    """What is given for each token: what the model made of the one before."""
    (name,) = next(iter(model.info.heads.values())).input
    rows = np.empty(0, np.int32)
    found = model.forward(Batch.chain(text, slot=slot, rows=rows, features=(name,))).features(name)
    return np.concatenate([np.zeros_like(found[:1]), found])


def mtp(model, tokens, start, hidden, *, slot=0, rows=None, layer=0):
    """A pass through a layer that predicts further tokens: its logits, and what it gives on."""
    name, part = [*model.info.heads.items()][layer]
    at, given = start - (not part.caches), np.ascontiguousarray(hidden)
    batch = Batch.chain(tokens, start=at, slot=slot, rows=rows, part=name, hidden=given, features=(part.output,))
    passed = model.forward(batch)
    return passed.rows().copy(), passed.features(part.output).copy()


def all_that_passes_tell(model):
    """Logits and features of a prompt, a tree, what follows its second path, early exits, and a slot that was copied."""
    tokens = np.random.default_rng(3).integers(0, 100, 9).astype(np.int32)
    n_layers, names = model.info.n_layers, tuple(model.features)
    is_drafted = bool(model.state_spec.n_bytes_per_sequence)

    def drafted(batch):
        return attrs.evolve(batch, is_drafted=np.ones(len(batch.tokens), bool)) if is_drafted else batch

    passed = model.forward(attrs.evolve(run_of(tokens, rows=[2, 8]), features=names))
    yield from [passed.rows(), *map(passed.features, names)]
    yield model.forward(drafted(tree_of([5, 6, 7, 8], [-1, 0, 0, 2], start=9))).rows()
    accepted = np.int32([[0, 9, 9], [0, 11, 10], [0, 12, 11]])
    first = attrs.evolve(drafted(run_of([1, 2, 3], start=12)), layers=(0, 1), accepted=accepted)  # concerns all layers
    yield model.forward(first).rows()
    yield from (model.forward(attrs.evolve(first, layers=(0, end), accepted=None)).rows() for end in range(2, n_layers + 1))
    yield model.forward(run_of([9], start=12)).rows()
    model.restore(1, model.save(0, 13))
    model.copy(1, 2, 13)
    yield model.forward(attrs.evolve(run_of([3], start=13, slot=2), features=names[-1:])).features(names[-1])
