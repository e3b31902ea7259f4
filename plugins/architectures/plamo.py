"""PLaMo 1 and 3."""

from __future__ import annotations

from collections.abc import Mapping

from augury.blocks import Layer, ModelPlan
from augury.files.gguf import ModelFile
from augury.hookspecs import hookimpl
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.rope import base_of
from augury.plugins.architectures.transformer import Transformer


class Plamo(Transformer):
    """Attention and feed-forward see one norm of the same input."""

    name = "plamo"
    feeding = {"norm": "attn_norm", "has_scales": False}
    is_parallel = True


class Plamo3(Architecture):
    """Fused matrices, normed heads, norms before and after; seven layers of eight may see a window only."""

    name = "plamo3"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        """Read the file's metadata and tensor table."""
        decoder = Decoder(file)
        wide_rope = decoder.rope()
        local_rope = decoder.rope(base=base_of(decoder, "rope.freq_base_swa"), is_scaled=False)
        layers = []
        for layer, window in enumerate(decoder.windows(8)):
            at = f"blk.{layer}"
            attention = decoder.attention(
                layer,
                wide_rope if window is None else local_rope,
                has_head_norms=True,
                has_scales=False,
                window=window,
                post_norm=decoder.norm(f"{at}.post_attention_norm", suffix=""),
            )
            post_norm = decoder.norm(f"{at}.post_ffw_norm", suffix="")
            layers.append(Layer(attention, decoder.feed_forward(layer, gate="fused", has_scales=False, post_norm=post_norm)))
        return {"main": decoder.plan(layers)}


@hookimpl
def augury_architectures() -> tuple[type[Architecture], ...]:
    """Offer `plamo` and `plamo3`."""
    return (Plamo, Plamo3)
