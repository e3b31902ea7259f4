"""Drafts made ahead: while a pass verifies drafts on a device of its own, drafters write on after the likeliest path of each.

The target's own token after a draft is guessed as well. If the text goes on that way, the rest is the next draft, and took
no time. Otherwise it is thrown away, and a drafter cuts back its state as after any rejection.

Source: the post-verify of PEARL (Liu et al. 2024, arXiv 2408.11850).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from augury.interfaces import Ask
from augury.speculation.drafter_guard import draft_for_all
from augury.speculation.drafts import VerifiedNodes
from augury.speculation.planner import DraftPlanner
from augury.speculation.profiles import AheadDraft, RequestDrafter
from augury.types import Draft


def draft_ahead(planner: DraftPlanner, choices: Sequence[VerifiedNodes], n_others: int, begun_s: float) -> float:
    """Let the drafters of a pass draft ahead: `begun_s` of it are over, and it has `n_others` other tokens.

    Returns:
        The seconds that it took; 0 where nobody was asked.
    """
    able = [(choice, drafter, choice.path()) for choice in choices if (drafter := _able(choice)) is not None]
    lengths = planner.n_ahead(choices, able, n_others, begun_s) if able else ()
    asks = [
        (
            choice.proposals,
            drafter,
            Ask(drafter.guard.drafter, drafter.guard.history, 1 + n, choice.proposals.tree.part(path).tokens),
        )
        for (choice, drafter, path), n in zip(able, lengths, strict=True)
        if n
    ]
    drafts, seconds = draft_for_all([(drafter.guard, ask) for _, drafter, ask in asks]), 0.0
    for proposals, drafter, ask in asks:
        draft, took_s = drafts[drafter.guard], drafter.guard.seconds
        seconds += took_s
        if len(draft):
            drafter.profile.cost.observe(len(draft), 0, drafter.guard.own_s)
        guess = np.append(ask.guess, draft.tokens[:1])
        confidence = None if draft.confidence is None else draft.confidence[1:]
        rest = Draft(draft.tokens[1:], confidence=confidence)
        proposals.drafters.ahead = AheadDraft(drafter, proposals.n_context, guess, rest, took_s)
    return seconds


def _able(choice: VerifiedNodes) -> RequestDrafter | None:
    """The drafter that can continue a slot's draft."""
    if not len(choice.draft):
        return None
    # other tokens would be drawn, of which others are accepted
    if choice.proposals.sequence.speculation.rule.depends_on_draft:
        return None
    asked = (drafter for drafter in choice.proposals.by_drafter if drafter.profile.is_costly and drafter.guard.drafts_ahead)
    return next(asked, None)


def settle_ahead(choices: Sequence[VerifiedNodes], late: float) -> None:
    """The pass is over, and hid the time of drafting ahead except for a share of it."""
    for choice in choices:
        if (ahead := choice.proposals.drafters.ahead) is not None:
            late_s = late * ahead.seconds
            ahead.drafter.spent_s += late_s
            name = ahead.drafter.profile.name
            choice.proposals.sequence.counter.drafted_ahead(name, len(ahead.draft), late_s, ahead.seconds - late_s)
