"""The types that keys and values can be kept as, and which models can use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from augury.blocks import ModelPlan
    from augury.types import ModelOptions

__all__ = ["CACHE_BLOCK", "CACHE_TYPES", "check_cache_types"]

CACHE_TYPES = ("f16", "f32", "bf16", "q8_0", "q4_0")
CACHE_BLOCK = 32  # neighbouring components of a head that share a scale in the types q8_0 and q4_0


def check_cache_types(plan: ModelPlan, options: ModelOptions) -> None:
    """Refuse cache types that do not exist, or that cannot hold heads of this model's size.

    Raises:
        UnsupportedError: Either of the two.
    """
    for flag, found in (("cache_type_k", options.cache_type_k), ("cache_type_v", options.cache_type_v)):
        if found not in CACHE_TYPES:
            raise UnsupportedError(f"{flag} is {found!r}, expected one of {', '.join(CACHE_TYPES)}")
        for layer in plan.attentions:
            size = layer.head_dim if flag == "cache_type_k" else layer.value_dim
            if found.startswith("q") and size % CACHE_BLOCK:
                raise UnsupportedError(
                    f"{flag} is {found!r}, which keeps {CACHE_BLOCK} components together, but heads have {size}; "
                    "choose f16, bf16 or f32"
                )
