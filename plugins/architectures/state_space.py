"""The common parts of state-space models' files: their keys, and the tensors `ssm_*` under the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.blocks import Convolution, LinearRecurrence, Mamba, Mamba2, Norm, RowSelection

if TYPE_CHECKING:
    from augury.plugins.architectures.decoder import Decoder


def mamba2(decoder: Decoder, layer: int, *, factor: float = 1.0) -> Mamba2:
    """The Mamba-2 block of a layer; its output is multiplied by `factor`.

    Source: llama.cpp's `build_mamba2_layer` and the keys `ssm.*` as it reads them.
    """
    keys, at, n_embd = decoder.keys, f"blk.{layer}", decoder.n_embd
    n_heads, n_groups = keys.count("ssm.time_step_rank"), keys.count("ssm.group_count")
    n_inner, n_state = keys.count("ssm.inner_size"), keys.count("ssm.state_size")
    if n_inner % n_heads or n_heads % n_groups:
        keys.fail("ssm.time_step_rank", n_heads, f"a divisor of {n_inner}, and a multiple of the {n_groups} groups")
    n_conv, norm = n_inner + 2 * n_groups * n_state, f"{at}.ssm_norm.weight"
    out_norm = None
    if norm in decoder.file.tensors:
        shape = (n_groups, n_inner // n_groups)
        decoder.file.tensor(norm, shape)
        out_norm = Norm(norm, shape[1], decoder.eps, weight_shape=shape)
    return Mamba2(
        norm=decoder.norm(f"{at}.attn_norm"),
        inputs=decoder.linear(f"{at}.ssm_in", n_embd, n_inner + n_conv + n_heads),
        conv=convolution(decoder, layer, n_conv),
        dt=decoder.vector(f"{at}.ssm_dt.bias", n_heads),
        a=decoder.vector(f"{at}.ssm_a", n_heads, (n_heads, 1)),
        d=decoder.vector(f"{at}.ssm_d", n_heads, (n_heads, 1)),
        recurrence=LinearRecurrence(n_heads, n_groups, n_state, n_inner // n_heads, has_delta=False),
        o=decoder.linear(f"{at}.ssm_out", n_inner, n_embd, factor=factor),
        out_norm=out_norm,
    )


def mamba(decoder: Decoder, layer: int) -> Mamba:
    """The Mamba block of a layer.

    Source: llama.cpp's `build_mamba_layer` and the keys `ssm.*` as it reads them.
    """
    keys, at, n_embd = decoder.keys, f"blk.{layer}", decoder.n_embd
    n_inner, n_state, rank = keys.count("ssm.inner_size"), keys.count("ssm.state_size"), keys.count("ssm.time_step_rank")
    fused = rank + 2 * n_state
    rows = (
        RowSelection(0, rank, fused, fused),
        RowSelection(rank, n_state, fused, fused),
        RowSelection(rank + n_state, n_state, fused, fused),
    )
    t, key, query = (decoder.linear(f"{at}.ssm_x", n_inner, each.size, rows=each, has_scale=False) for each in rows)
    names = [f"{at}.ssm_{name}_norm" for name in ("dt", "b", "c")]
    norms: list[Norm | None] = [None] * 3
    if keys.flag("ssm.dt_b_c_rms", default=False) or all(f"{name}.weight" in decoder.file.tensors for name in names):
        norms = [
            decoder.norm(name, each.size) if f"{name}.weight" in decoder.file.tensors else Norm(None, each.size, decoder.eps)
            for name, each in zip(names, rows, strict=True)
        ]
    value, gate = decoder.fused(at, (), "ssm_in", (n_inner, n_inner))
    return Mamba(
        norm=decoder.norm(f"{at}.attn_norm"),
        value=value,
        gate=gate,
        conv=convolution(decoder, layer, n_inner),
        t=t,
        key=key,
        query=query,
        dt=decoder.linear(f"{at}.ssm_dt", rank, n_inner, has_scale=False),
        a=decoder.vector(f"{at}.ssm_a", n_inner * n_state, (n_inner, n_state)),
        d=decoder.vector(f"{at}.ssm_d", n_inner),
        recurrence=LinearRecurrence(1, 1, n_state, n_inner, has_delta=False, is_by_channel=True),
        o=decoder.linear(f"{at}.ssm_out", n_inner, n_embd),
        t_norm=norms[0],
        key_norm=norms[1],
        query_norm=norms[2],
    )


def convolution(decoder: Decoder, layer: int, n_channels: int, *, has_bias: bool = True) -> Convolution:
    """The convolution of a layer, with a bias where the file has one and the family takes note of it."""
    name, bias = f"blk.{layer}.ssm_conv1d.weight", f"blk.{layer}.ssm_conv1d.bias"
    size = decoder.keys.count("ssm.conv_kernel", least=2)
    return decoder.check(Convolution(name, n_channels, size, bias if has_bias and bias in decoder.file.tensors else None))
