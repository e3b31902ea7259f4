"""DeltaNet, whose mixer is made of augury's operations and known to no backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from augury.blocks import Block, Convolution, GateKind, Layer, LinearRecurrence
from augury.lowering import Activate, Constant, Convolve, Multiply, Recur, ScaleToLength
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.transformer import Transformer

if TYPE_CHECKING:
    from augury.blocks import Linear, Norm, Rope, SequenceState
    from augury.lowering import Builder

_EPS = 1e-6  # is added to squares of lengths


@frozen
class DeltaNetMixer(Block):
    """x += o(out_norm(y)) by head, with n = norm(x), and y the output of a recurrence with the delta rule and without decays.

    Queries, keys and values are silu(conv(q(n))), and so on; queries and keys are divided by their lengths, queries by sqrt(K).
    Betas are sigmoid(beta(n)).

    Source: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length" (arXiv 2406.06484).
    """

    norm: Norm
    q: Linear  # E → H K
    k: Linear  # E → H K
    v: Linear  # E → H V
    beta: Linear  # E → H
    q_conv: Convolution
    k_conv: Convolution
    v_conv: Convolution
    recurrence: LinearRecurrence
    out_norm: Norm  # of V values
    o: Linear  # H V → E

    def states(self) -> tuple[SequenceState, ...]:
        return (self.q_conv.state, self.k_conv.state, self.v_conv.state, self.recurrence.state)

    def lower(self, build: Builder) -> None:
        heads, n = self.recurrence, build.normalize(build.x, self.norm)
        *inputs, beta = build.add(Multiply, n, (self.q, self.k, self.v, self.beta), "queries, keys, values, betas")
        made = build.add(Convolve, tuple(inputs), (self.q_conv, self.k_conv, self.v_conv), (0, 1, 2), has_silu=True)
        both, values = made.split(2 * self.q.n_out, self.v.n_out)
        build.add(ScaleToLength, both, heads.key_dim, _EPS, heads.n_heads, heads.key_dim**-0.5)
        queries, keys = both.split(self.q.n_out, self.k.n_out)
        decays, betas = build.add(Constant, (1.0,) * heads.n_heads), build.add(Activate, beta, GateKind.SIGMOID)
        y = build.add(Recur, heads, 3, queries, keys, values, decays, betas)
        build.add_product(build.normalize(y, self.out_norm), self.o, "recurrence's output")


class DeltaNet(Transformer):
    """The delta rule in every layer, as in the models of flash-linear-attention: without gates, queries of length one."""

    name = "deltanet"
    rope_args = None
    ffn_args = {"has_scales": True}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:  # noqa: ARG003 - it has none
        return Layer(_mixer(decoder, layer), cls.feed_forward(decoder, layer))


def _mixer(decoder: Decoder, layer: int) -> DeltaNetMixer:
    at, n_embd, n_heads = f"blk.{layer}", decoder.n_embd, decoder.n_heads[layer]
    n_key, n_value = n_heads * decoder.head_dim, n_heads * decoder.value_dim
    n_taps, sizes = decoder.keys.count("ssm.conv_kernel", least=2), {"q": n_key, "k": n_key, "v": n_value}
    q, k, v = (decoder.linear(f"{at}.attn_{part}", n_embd, n) for part, n in sizes.items())
    q_conv, k_conv, v_conv = (
        decoder.check(Convolution(f"{at}.ssm_conv1d_{part}.weight", n, n_taps)) for part, n in sizes.items()
    )
    return DeltaNetMixer(
        norm=decoder.norm(f"{at}.attn_norm"),
        q=q,
        k=k,
        v=v,
        beta=decoder.linear(f"{at}.ssm_beta", n_embd, n_heads),
        q_conv=q_conv,
        k_conv=k_conv,
        v_conv=v_conv,
        recurrence=LinearRecurrence(n_heads, n_heads, decoder.head_dim, decoder.value_dim, has_delta=True),
        out_norm=decoder.norm(f"{at}.ssm_norm", decoder.value_dim),
        o=decoder.linear(f"{at}.attn_output", n_value, n_embd),
    )
