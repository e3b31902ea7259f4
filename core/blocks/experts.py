"""Mixtures of experts: a feed-forward of many, of which each token goes through a few."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from attrs import frozen

from augury.blocks.block import Block

if TYPE_CHECKING:
    from augury.blocks.parts import Activation, Integers, Linear, Matrices, Norm, Part, Vector
    from augury.blocks.transformer import FeedForward
    from augury.lowering.builder import Builder
    from augury.lowering.operations import Value

__all__ = ["Gating", "MixtureOfExperts", "Router"]


class Gating(Enum):
    """What makes experts' weights of a router's logits."""

    SOFTMAX = "softmax"  # over all experts
    SIGMOID = "sigmoid"
    SOFTMAX_OF_CHOSEN = "softmax of chosen"  # over those that were chosen, by their logits
    SQRT_SOFTPLUS = "sqrt softplus"  # sqrt(ln(1 + e^l))


@frozen
class Router:
    """Chooses a token's experts and weighs them.

    Scores are the gated logits, plus `bias` where there is one; the `n_used` experts of highest score are chosen, equal ones by
    number. With groups, of experts that stand beside each other, only those of the `n_groups_used` groups are candidates whose
    two highest scores have the greatest sum. Their weights are the gated logits without the bias; `is_normalised`, they are
    divided by their sum, or by `LEAST_SUM` where it is less; and multiplied with `scale`. With `n_alike`, what was chosen as e
    is expert e // n_alike, and weighed as such.

    With `token_experts`, no scores are compared: what is chosen for a token stands in the row of its id, some experts perhaps
    more than once. They are weighed as others are.
    """

    logits: Linear  # E → n_experts
    n_used: int
    gating: Gating
    bias: Vector | None = None  # (n_experts,)
    is_normalised: bool = False
    scale: float = 1.0
    n_groups: int = 1
    n_groups_used: int = 1
    norm: Norm | None = None  # the logits are of this norm of x, not of the experts' input
    is_early: bool = False  # the logits are of x as it is before the layer, without a norm
    n_alike: int = 1  # candidates that are one expert
    token_experts: Integers | None = None  # (V, n_used), each below n_experts

    LEAST_SUM: ClassVar[float] = 2.0**-14


@frozen
class MixtureOfExperts(Block):
    """x += post_norm(sum of w_e * expert_e(n) over the token's experts + s * shared(n)) with n = norm(x).

    An expert is a feed-forward, down_e(activation(gate_e(n)) * up_e(n)). `shared` is one that all tokens pass through, with
    s = sigmoid(shared_gate · n), or 1 where there is no such gate. What comes of all is sent through the `adjugate` mixture,
    too, whose router has the same logits, and both are added.

    With `latent_down` and `latent_up`, experts are of another size: expert_e(latent_down(n)), and latent_up(sum_norm(sum)).
    """

    norm: Norm | None
    router: Router
    gate: Matrices | None
    up: Matrices
    down: Matrices
    activation: Activation
    limit: float | None = None  # gate_e(n) is at most that, up_e(n) between it and its negative
    limits_activated: bool = False  # not the gate is at most that, but what the activation makes of it
    weighs_input: bool = False  # expert_e(w_e * n) instead of w_e * expert_e(n)
    shared: FeedForward | None = None  # given n; given x where it has a norm
    shared_gate: Vector | None = None  # (E,)
    post_norm: Norm | None = None
    adjugate: MixtureOfExperts | None = None  # without norms
    constants: tuple[float, ...] = ()  # of the activation
    latent_down: Linear | None = None
    latent_up: Linear | None = None
    sum_norm: Norm | None = None  # of the experts' sum, before anything is added

    def lower(self, build: Builder) -> None:
        """See `Block.lower`: every norm of x is read before the next."""
        router, shared, other = self.router, self.shared, None
        if router.is_early:
            logits = self._logits(build, build.normalize(build.before, None))
        if shared is not None and shared.norm is not None:
            other = shared.feed(build, build.normalize(build.x, shared.norm))
        if router.norm is not None:
            logits = self._logits(build, build.normalize(build.x, router.norm))
        x = build.normalize(build.x, self.norm)
        if router.norm is None and not router.is_early:
            logits = self._logits(build, x)
        if shared is not None and other is None:
            other = shared.feed(build, x)
        given = x if self.latent_down is None else build.multiply(x, self.latent_down, purpose="latents")[0]
        y = build.normalize(build.feed_experts(given, build.route(logits, router), self), self.sum_norm)
        if self.latent_up is not None:
            (y,) = build.multiply(y, self.latent_up, purpose="experts' output")
        if other is not None:
            y = build.add_weighed(y, other, self.shared_gate, None if self.shared_gate is None else x)
        if self.adjugate is not None:
            y = build.add_weighed(build.feed_experts(y, build.route(logits, self.adjugate.router), self.adjugate), y)
        build.add(y, self.post_norm)

    def _logits(self, build: Builder, x: Value) -> Value:
        (logits,) = build.multiply(x, self.router.logits, purpose="router")
        return logits

    def tensors(self) -> tuple[Part, ...]:
        """Its matrices and norms, those of the router, of the shared expert and of the adjugate mixture among them."""
        parts = (self.router.logits, self.router.norm, self.router.bias, self.router.token_experts)
        router = [part for part in parts if part is not None]
        others = [part for block in (self.shared, self.adjugate) if block is not None for part in block.tensors()]
        return (*router, *super().tensors(), *others)
