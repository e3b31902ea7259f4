"""Mixers that keep a state per sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from augury.blocks.parts import Block

if TYPE_CHECKING:
    from augury.blocks.parts import Convolution, Linear, Norm, SequenceState

__all__ = ["ShortConvolution"]


@frozen
class ShortConvolution(Block):
    """x += o(c * conv(b * v)), element by element, with b, c and v computed from norm(x)."""

    norm: Norm
    inputs: Linear  # E → 3 C: b, c, v
    conv: Convolution
    o: Linear  # C → E

    def states(self) -> tuple[SequenceState, ...]:
        """The convolution's inputs."""
        return (self.conv.state,)
