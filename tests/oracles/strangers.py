"""Blocks of classes that no backend has heard of."""

import attrs

from augury.blocks import Block


def stranger(block):
    """The same block, of a class that no backend has heard of."""
    if type(block).lower is Block.lower:
        return block
    kind = type(f"Strange{type(block).__name__}", (type(block),), {})
    return kind(**attrs.asdict(block, recurse=False))


def with_strangers(plan):
    """A plan whose blocks are strangers, its embedding and output as well."""
    layers = [layer.with_blocks(stranger) for layer in plan.layers]
    assert any(type(block).__name__.startswith("Strange") for layer in layers for block in layer.blocks)
    return attrs.evolve(plan, layers=tuple(layers), **{name: stranger(getattr(plan, name)) for name in ("embedding", "output")})
