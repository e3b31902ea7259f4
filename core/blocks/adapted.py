"""A plan with adapters: its matrices have what is added to their products."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from attrs import evolve, fields

from augury.errors import ModelFileError, UnsupportedError
from augury.lowering.operations import Multiply
from augury.lowering.parts import HasParts, Linear, LowRank

if TYPE_CHECKING:
    from augury.blocks.plan import ModelPlan
    from augury.files.adapter import Adapter

_Part = TypeVar("_Part", bound=HasParts)


def with_adapters(plan: ModelPlan, adapters: Sequence[Adapter]) -> ModelPlan:
    """A plan whose products have adapters, in the order of `Batch.scales`; weights stay as they are.

    Raises ModelFileError: one adapts what the model lacks, or has in another shape. UnsupportedError: it is no matrix of a
    product.
    """
    products = products_of(plan)
    for adapter in adapters:
        _check(adapter, plan.shapes(), products)

    def changed(part: _Part) -> _Part:
        return _adapted(part, lambda linear: _low_rank(linear, adapters))

    plan, ends = plan.with_blocks(changed), ("embedding", "input", "output")
    mtp = tuple(evolve(each, **{name: changed(getattr(each, name)) for name in ends}) for each in plan.mtp)
    embedding, output = changed(plan.embedding), changed(plan.output)
    return evolve(plan, embedding=embedding, output=output, mtp=mtp, n_adapters=len(adapters))


def products_of(plan: ModelPlan) -> set[str]:
    """The matrices of a plan that multiply every token's row, and do nothing else."""
    lowered = [each for block in plan.blocks() for each in block.lowered(plan.n_seen(block)).operations]
    found = {linear.weight for each in lowered if isinstance(each, Multiply) for linear in each.linears}
    others = [part for part in plan.tensors() if not (isinstance(part, Linear) and part.weight in found)]
    return found.difference(*(part.shapes for part in others))


def _check(adapter: Adapter, shapes: Mapping[str, tuple[int, ...]], products: Container[str]) -> None:
    for name, (down, up) in adapter.matrices.items():
        if (shape := shapes.get(name)) is None:
            raise ModelFileError(f"{adapter.path}: it adapts {name!r}, which this model lacks; take one that was made for it")
        if name not in products:
            raise UnsupportedError(
                f"{adapter.path}: it adapts {name!r}, and only matrices that multiply every token's row are adapted: no "
                "embeddings, outputs or experts; take an adapter without it"
            )
        if (found := (len(up), down.shape[-1])) != shape:
            raise ModelFileError(f"{adapter.path}: it adapts {name!r} of shape {found}, which has shape {shape} in this model")


def _adapted(part: _Part, low_rank: Callable[[Linear], LowRank | None]) -> _Part:
    made: dict[str, Any] = {}
    for each in fields(type(part)):
        value = getattr(part, each.name)
        if isinstance(value, Linear) and (added := low_rank(value)) is not None:
            made[each.name] = evolve(value, low_rank=added)
        elif isinstance(value, HasParts) and (other := _adapted(value, low_rank)) is not value:
            made[each.name] = other
    return evolve(part, **made) if made else part


def _low_rank(linear: Linear, adapters: Sequence[Adapter]) -> LowRank | None:
    """What adapters add to the products of a matrix, scaled as its bias is: a file's scale comes before both, or after both.

    Source: llama.cpp, `build_lora_mm` and its callers.
    """
    found = [(i, *each.matrices[linear.weight]) for i, each in enumerate(adapters) if linear.weight in each.matrices]
    if not found:
        return None
    down = np.concatenate([down for _, down, _ in found])
    up = np.concatenate([linear.of(up).T for _, _, up in found]) * np.float32(linear.bias_scale)
    of_rows = np.concatenate([np.full(len(down), i, np.int32) for i, down, _ in found])
    return LowRank(down, up, of_rows, len(adapters))
