"""The common parts of mixtures of experts' files: their keys, and the experts' tensors under the same names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import attrs

from augury.blocks import Activation, FeedForward, Gating, Matrices, MixtureOfExperts, Norm, Router
from augury.errors import ModelFileError, UnsupportedError

if TYPE_CHECKING:
    from augury.plugins.architectures.decoder import Decoder

_MOST = 512  # experts that llama.cpp takes
_LEAST_LIMIT = 1e-6  # anything less is none
_GATINGS = {1: Gating.SOFTMAX, 2: Gating.SIGMOID, 3: Gating.SOFTMAX_OF_CHOSEN, 4: Gating.SQRT_SOFTPLUS}


def has_experts(decoder: Decoder, layer: int) -> bool:
    """Whether the feed-forward of a layer is a mixture: whether it has a router."""
    return f"blk.{layer}.ffn_gate_inp.weight" in decoder.file.tensors


def expert_limit(decoder: Decoder, layer: int, key: str = "swiglu_clamp_exp") -> float | None:
    """The limit of the hidden values of a layer's experts, or of others by another key, if the file has it.

    The key has a number for each layer; layers that predict further tokens have no limit where the numbers leave them out.
    """
    numbers = decoder.keys.numbers(key, decoder.n_layers, decoder.n_stored) if key in decoder.keys else ()
    found = numbers[layer] if layer < len(numbers) else 0.0
    return found if found > _LEAST_LIMIT else None


def limited_feed_forward(
    decoder: Decoder,
    layer: int,
    *,
    has_biases: bool = True,
    limits_activated: bool = True,
    shares_limit: bool = False,
    **experts: Any,
) -> FeedForward | MixtureOfExperts:
    """The feed-forward of a layer, whose gates are limited where the file says so, for experts and for others.

    Args:
        limits_activated: Whether activated gates are limited, not the gates themselves.
        shares_limit: Whether others have the limit of experts where the file does not state theirs.
        **experts: Arguments of `mixture`.
    """
    own, of_experts = "swiglu_clamp_shexp", expert_limit(decoder, layer)
    most = of_experts if shares_limit and own not in decoder.keys else expert_limit(decoder, layer, own)
    is_activated = limits_activated and most is not None
    if not has_experts(decoder, layer):
        return decoder.feed_forward(layer, has_biases=has_biases, limit=most, limits_activated=is_activated)
    block = mixture(decoder, layer, limit=of_experts, limits_activated=limits_activated, **experts)
    if block.shared is None:
        return block
    return attrs.evolve(block, shared=attrs.evolve(block.shared, limit=most, limits_activated=is_activated))


def mixture(
    decoder: Decoder,
    layer: int,
    *,
    gating: Gating | None = None,
    fallback: Gating = Gating.SOFTMAX,
    activation: Activation = Activation.SILU,
    is_normalised: bool | None = None,
    has_weights_scale: bool = False,
    has_scales: bool = False,
    has_gate: bool = True,
    norm: str | Norm | None = "ffn_norm",
    has_post_norm: bool = False,
    has_router_norm: bool = False,
    n_latent: int | None = None,
    factor: float = 1.0,
    **others: Any,
) -> MixtureOfExperts:
    """The mixture of a layer, with a shared expert where the file has one; for arguments that are not here see `Decoder`.

    Args:
        gating: As the family has it; None: as `expert_gating_func` says.
        fallback: Its value without the key.
        activation: The activation of the experts' gates.
        is_normalised: Whether the weights are divided by their sum; None: as `expert_weights_norm` says.
        has_weights_scale: Whether the family takes note of `expert_weights_scale`, where 0 stands for "not set".
        has_gate: Whether experts have gates.
        has_router_norm: Whether the router has a norm of its own, whose weights are called its scale.
        n_latent: The values that go into experts and come out, where these are not E.

    Source: the keys `expert_*` and the names of tensors as llama.cpp reads them.
    """
    at, keys = f"blk.{layer}", decoder.keys
    n_experts, n_used, n_groups, n_groups_used = _counts(decoder, layer)
    name, n_embd = f"{at}.ffn_gate_inp", decoder.n_embd
    logits = decoder.linear(name, n_embd, n_experts, has_scale=not has_router_norm)
    router_norm, scale = decoder.norm(name, suffix=".scale") if has_router_norm else None, 1.0 / math.sqrt(n_embd)
    router = Router(
        logits=attrs.evolve(logits, scale=scale, bias_scale=scale) if has_router_norm else logits,
        n_used=n_used,
        gating=_gating(decoder, fallback) if gating is None else gating,
        bias=decoder.optional_vector(f"{at}.exp_probs_b.bias", n_experts)
        or decoder.optional_vector(f"{at}.exp_probs_b", n_experts),
        is_normalised=keys.flag("expert_weights_norm", default=False) if is_normalised is None else is_normalised,
        scale=factor * ((keys.number("expert_weights_scale", 0.0) or 1.0) if has_weights_scale else 1.0),
        norm=router_norm,
        n_groups=n_groups,
        n_groups_used=n_groups_used,
    )
    shared, down = None, f"{at}.ffn_down_shexp.weight"
    if down in decoder.file.tensors:
        gate: Literal["own", "fused"] = "own" if f"{at}.ffn_gate_shexp.weight" in decoder.file.tensors else "fused"
        shared = decoder.feed_forward(
            layer,
            activation,
            gate=gate if has_gate else None,
            norm=None,
            has_scales=has_scales,
            factor=factor,
            n_ff=_n_ff(decoder, down, (n_embd,)),
            suffix="_shexp",
        )
    block = MixtureOfExperts(
        norm=decoder.norm(f"{at}.{norm}") if isinstance(norm, str) else norm,
        router=router,
        **expert_matrices(decoder, layer, n_experts, n_embd=n_latent, has_gate=has_gate, has_scales=has_scales),
        activation=activation,
        shared=shared,
        shared_gate=None if shared is None else decoder.optional_vector(f"{at}.ffn_gate_inp_shexp.weight", decoder.n_embd),
        post_norm=decoder.norm(f"{at}.post_ffw_norm") if has_post_norm else None,
    )
    return attrs.evolve(block, **others)


def _counts(decoder: Decoder, layer: int) -> tuple[int, int, int, int]:
    """How many experts a layer has, and how many a token uses; then the same of their groups."""
    keys = decoder.keys
    n_experts = keys.count("expert_count", most=_MOST)
    n_used = keys.counts("expert_used_count", decoder.n_stored, least=0)[layer]
    if not 1 <= n_used <= n_experts:
        keys.fail("expert_used_count", n_used, f"1 to {n_experts}, the number of experts")
    n_groups = keys.count("expert_group_count", 0, least=0, most=n_experts) or 1
    if n_experts % n_groups:
        keys.fail("expert_group_count", n_groups, f"a divisor of the {n_experts} experts")
    n_groups_used = keys.count("expert_group_used_count", 0, least=0, most=n_groups) or n_groups
    if n_groups_used * (n_experts // n_groups) < n_used:
        keys.fail("expert_group_used_count", n_groups_used, f"groups with at least the {n_used} experts that are used")
    return n_experts, n_used, n_groups, n_groups_used


def expert_matrices(
    decoder: Decoder,
    layer: int,
    n_experts: int,
    *,
    suffix: str = "exps",
    n_embd: int | None = None,
    has_gate: bool = True,
    has_scales: bool = False,
) -> Mapping[str, Any]:
    """The fields `gate`, `up` and `down` of a `MixtureOfExperts`.

    Args:
        n_experts: How many matrices each tensor holds.
        suffix: The end of their names.
        n_embd: The values that go in and come out, if not E.
    """
    at, tensors, n_embd = f"blk.{layer}", decoder.file.tensors, n_embd or decoder.n_embd
    n_ff = _n_ff(decoder, f"{at}.ffn_down_{suffix}.weight", (n_experts, n_embd))

    def experts(part: str, n_in: int, n_out: int, *, first: int = 0, n_stored: int | None = None) -> Matrices:
        name, shape = f"{at}.ffn_{part}_{suffix}", (n_experts, n_out if n_stored is None else n_stored)
        decoder.file.tensor(f"{name}.weight", (*shape, n_in))
        bias, scales = f"{name}.bias", f"{name.replace('gate_up', 'up')}.scale"
        if bias in tensors:
            decoder.file.tensor(bias, shape)
        given = tuple(decoder.values(scales, n_experts).tolist()) if has_scales and scales in tensors else None
        return Matrices(f"{name}.weight", n_experts, n_in, n_out, first, n_stored, bias if bias in tensors else None, given)

    down = experts("down", n_ff, n_embd)
    if f"{at}.ffn_gate_up_{suffix}.weight" in tensors:
        gate = experts("gate_up", n_embd, n_ff, n_stored=2 * n_ff)
        return {"gate": gate, "up": experts("gate_up", n_embd, n_ff, first=n_ff, n_stored=2 * n_ff), "down": down}
    return {"gate": experts("gate", n_embd, n_ff) if has_gate else None, "up": experts("up", n_embd, n_ff), "down": down}


def _gating(decoder: Decoder, fallback: Gating) -> Gating:
    if not (number := decoder.keys.count("expert_gating_func", 0, least=0)):
        return fallback
    if number not in _GATINGS:
        raise UnsupportedError(
            f"{decoder.file.path}: {decoder.keys.full('expert_gating_func')!r} is {number}; supported are {sorted(_GATINGS)}"
        )
    return _GATINGS[number]


def _n_ff(decoder: Decoder, name: str, shape: tuple[int, ...]) -> int:
    """F, of a tensor (…, F): files state it under several keys, and some not at all."""
    found = decoder.file.tensor(name).shape
    if found[:-1] != shape:
        raise ModelFileError(f"{decoder.file.path}: tensor {name!r} has shape {found}, expected {(*shape, 'any')}")
    return found[-1]
