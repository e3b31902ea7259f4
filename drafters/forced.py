"""`forced`: tokens that the request's constraint leaves no alternative to.

If a schema or grammar dictates the next tokens, such as the names and brackets of a JSON object, nothing has to be guessed:
all of it is verified in one pass. It serves every request that has a constraint, named or not.
"""

from __future__ import annotations

import numpy as np

from augury.interfaces import Drafter, DrafterTraits
from augury.types import Draft


class Forced(Drafter):
    """Proposes the tokens that the constraint forces."""

    name = "forced"
    traits = DrafterTraits(scope="request", serves="constraint", is_certain=True)

    def draft(self, history: np.ndarray, limit: int) -> Draft:  # noqa: ARG002 - the constraint has followed it
        return Draft(self.session.forced(limit))
