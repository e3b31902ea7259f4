"""`none`: plain decoding, and the yardstick for every other drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.hookspecs import hookimpl
from augury.interfaces import Drafter
from augury.types import Draft

if TYPE_CHECKING:
    import numpy as np

__all__ = ["NoDrafter"]


class NoDrafter(Drafter):
    """Declines every time."""

    name = "none"
    scope = "request"

    def draft(self, history: np.ndarray, limit: int) -> Draft:  # noqa: ARG002 - the interface's
        """Decline."""
        return Draft()


@hookimpl
def augury_drafters() -> list[type[Drafter]]:
    """Offer `none`."""
    return [NoDrafter]
