"""`none`: plain decoding, and the yardstick for every other drafter."""

from __future__ import annotations

import numpy as np

from augury.interfaces import Drafter, DrafterTraits
from augury.types import Draft


class NoDrafter(Drafter):
    """Declines every time."""

    name = "none"
    traits = DrafterTraits(scope="request")

    def draft(self, history: np.ndarray, limit: int) -> Draft:  # noqa: ARG002 - the interface's
        return Draft()
