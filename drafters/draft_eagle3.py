"""`draft-eagle3`: a head of one layer writes ahead, from hidden states of the target.

For each token the head gets the outputs of some of the target's layers. It makes one hidden state of them, adds the token after
it, and predicts the one after that. It goes through the prompt while that is processed, and writes a chain; where a planner
asks, the candidates that it considered for each place become branches.

Source: Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test"; for
branches by calibrated chances Li et al. 2024, "EAGLE-2".
"""

from __future__ import annotations

from augury.drafters.model.head_drafter import HeadDrafter
from augury.hookspecs import hookimpl
from augury.interfaces import Drafter


class DraftEagle3(HeadDrafter):
    """Lets an EAGLE-3 head write ahead."""

    name = "draft-eagle3"
    aliases = ("eagle3",)
    architecture = "eagle3"


@hookimpl
def augury_drafters() -> list[type[Drafter]]:
    """Offer `draft-eagle3`."""
    return [DraftEagle3]
