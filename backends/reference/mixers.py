"""All mixers, by their type, and what the backend computes in all."""

from __future__ import annotations

from augury.backends.reference import blocks, compressed, latent, pooling, recurrent, residual

__all__ = ["CACHES", "KNOWN", "MIXERS"]

CACHES = {**blocks.CACHES, **compressed.CACHES, **latent.CACHES, **dict.fromkeys(recurrent.MIXERS, recurrent.LayerStates)}
"""What a mixer keeps of its slots."""
MIXERS = {**blocks.MIXERS, **compressed.MIXERS, **latent.MIXERS, **recurrent.MIXERS}
"""What a mixer that keeps something adds to x."""
KNOWN = {**blocks.KNOWN, **compressed.KNOWN, **latent.KNOWN, **pooling.KNOWN, **recurrent.KNOWN, **residual.KNOWN}
"""See `ModelPlan.check_blocks`."""
