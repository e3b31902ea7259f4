"""Drafts made ahead: while a pass verifies drafts on a device of its own, drafters write on as if all of them were accepted.

The target's own token after a draft is guessed as well. If the text goes on that way, what follows is the next draft, and took
no time. Otherwise it is thrown away, and a drafter cuts back its state as after any rejection.

Source: the post-verify of PEARL (Liu et al. 2024, arXiv 2408.11850).
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np

from augury.interfaces import Ask
from augury.speculation.drafter_guard import draft_together_ahead
from augury.speculation.drafts import AheadDraft, SlotDraft
from augury.speculation.planner import DraftPlanner
from augury.types import Draft

__all__ = ["draft_ahead", "settle_ahead"]


def draft_ahead(planner: DraftPlanner, slots: Items[SlotDraft], n_beside: int, begun_s: float) -> float:
    """Let the drafters of a pass that is being computed draft ahead.

    Args:
        planner: Which says how far.
        slots: That decode in the pass.
        n_beside: Tokens of prompts in it.
        begun_s: Seconds of it that are over.

    Returns:
        The seconds that it took; 0 where nobody was asked.
    """
    able = [slot for slot in slots if _is_able(slot)]
    asks: dict[int, list[tuple[SlotDraft, Ask]]] = {}
    for slot, n in zip(able, planner.n_ahead(slots, able, n_beside, begun_s) if able else (), strict=True):
        assert slot.drafter is not None
        guard = slot.drafters.guards[slot.drafter]
        if n:
            ask = Ask(guard.drafter, guard.history, 1 + n, slot.draft.tokens)
            asks.setdefault(slot.drafter, []).append((slot, ask))
    for index, asked in asks.items():
        guards = [slot.drafters.guards[index] for slot, _ in asked]
        drafts = draft_together_ahead(guards, [ask for _, ask in asked])
        for (slot, ask), guard, draft in zip(asked, guards, drafts, strict=True):
            slot.ahead_s, slot.drafters.ahead = guard.seconds, None
            if draft is not None and len(draft):
                planner.observe_ahead(index, len(draft), guard.seconds)
                guess = np.append(ask.guess, draft.tokens[:1])
                confidence = None if draft.confidence is None else draft.confidence[1:]
                rest = Draft(draft.tokens[1:], confidence=confidence)
                slot.drafters.ahead = AheadDraft(index, slot.n_context, guess, rest)
    return sum(slot.ahead_s for slot in able)


def _is_able(slot: SlotDraft) -> bool:
    """Whether a slot's drafter can say what follows its draft."""
    if slot.drafter is None or not len(slot.draft) or slot.draft.parents is not None:
        return False
    # what is drawn would be other tokens, of which others are accepted
    return slot.sequence.request.speculation.verify == "match" and slot.drafters.guards[slot.drafter].drafts_ahead


def settle_ahead(slots: Items[SlotDraft], late: float) -> None:
    """The pass is over, and hid the time of drafting ahead but for a share of it."""
    for slot in slots:
        if slot.drafter is not None and slot.ahead_s:
            late_s, ahead = late * slot.ahead_s, slot.drafters.ahead
            slot.draft_s += late_s
            name, n_tokens = slot.drafters.guards[slot.drafter].name, 0 if ahead is None else len(ahead.draft)
            slot.sequence.counter.drafted_ahead(name, n_tokens, late_s, slot.ahead_s - late_s)
