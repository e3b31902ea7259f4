"""Mixtures of experts: a feed-forward of many, of which each token goes through a few."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from augury.blocks.block import Block
from augury.lowering.operations import Add, AddWeighed, FeedExperts, Multiply, Route
from augury.lowering.parts import Activation, Experts, Linear, Matrices, Norm, Router, Vector

if TYPE_CHECKING:
    from augury.blocks.transformer import FeedForward
    from augury.lowering.builder import Builder
    from augury.lowering.operation import Value


@frozen
class MixtureOfExperts(Block):
    """x += post_norm(sum of w_e * expert_e(n) over the token's experts + s * shared(n)) with n = norm(x).

    An expert is a feed-forward, down_e(activation(gate_e(n)) * up_e(n)). `shared` is one that all tokens pass through, with
    s = sigmoid(shared_gate · n), or 1 where there is no such gate. The sum of all is sent through the `adjugate` mixture,
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
    limits_activated: bool = False  # the limit of the activated gate, not of the gate itself
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
        given = x if self.latent_down is None else build.add(Multiply, x, (self.latent_down,), "latents")[0]
        y = build.normalize(build.add(FeedExperts, given, build.add(Route, logits, router), self.experts), self.sum_norm)
        if self.latent_up is not None:
            (y,) = build.add(Multiply, y, (self.latent_up,), "experts' output")
        if other is not None:
            y = build.add(AddWeighed, y, other, self.shared_gate, None if self.shared_gate is None else x)
        if self.adjugate is not None:
            y = build.add(
                AddWeighed, build.add(FeedExperts, y, build.add(Route, logits, self.adjugate.router), self.adjugate.experts), y
            )
        build.add(Add, y, self.post_norm)

    @property
    def experts(self) -> Experts:
        """The experts that a router chooses among."""
        limits = (self.limit, self.limits_activated)
        matrices = (self.gate, self.up, self.down)
        return Experts(self.router, *matrices, self.activation, *limits, self.weighs_input, self.constants)

    def _logits(self, build: Builder, x: Value) -> Value:
        (logits,) = build.add(Multiply, x, (self.router.logits,), "router")
        return logits
