"""A log of every verified draft, token by token: the command line's `-vv`."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from augury.engine.sequence import RunningSequence
from augury.log import DRAFT_LOGGER
from augury.passes import Pass
from augury.speculation.drafts import VerifiedNodes
from augury.speculation.verification import Accepted
from augury.types import TokenLogprob


@frozen
class DraftedToken:
    """A token of a draft, and its fate."""

    token: int
    bytes: bytes | None  # None: no tokenizer
    probability: float | None  # by the drafter, where it says so
    target: TokenLogprob | None  # the target's choice in its place; None where verification ended before
    is_accepted: bool


@frozen
class VerifiedDraft:
    """A draft, and the target's verdict. Tokens of a tree are in the draft's order."""

    slot: int
    drafters: tuple[str, ...]
    tokens: tuple[DraftedToken, ...]
    target: TokenLogprob  # the target's own choice after the last accepted token

    @property
    def n_accepted(self) -> int:
        """How many of the tokens were emitted."""
        return sum(token.is_accepted for token in self.tokens)

    def __str__(self) -> str:
        n = len(self.tokens)
        return f"slot {self.slot}: {' and '.join(self.drafters)} drafted {n} token{'s' * (n > 1)}, {self.n_accepted} accepted"


def log_draft(
    sequence: RunningSequence, choice: VerifiedNodes, accepted: Accepted, n_emitted: int, logits: Pass, first_row: int
) -> None:
    """Log a verified draft; the history's row is `first_row`, and of `accepted` the first `n_emitted` were emitted."""
    draft, chances = choice.draft, choice.proposals.tree.chances
    path = list(accepted.path)[: n_emitted - 1]
    reached = [-1, *path]  # the places after which the target chose
    chosen = {
        node: _target_choice(sequence, token, logits, first_row + 1 + node)
        for node, token in zip(reached, accepted.tokens, strict=False)
    }
    probabilities = chances[choice.nodes].tolist() if chances.any() else None
    if draft.probabilities is not None:
        probabilities = draft.probabilities[np.arange(len(draft)), draft.tokens].tolist()
    tokens = tuple(
        DraftedToken(
            token,
            sequence.bytes_of(token),
            None if probabilities is None else probabilities[i],
            chosen.get(parent),
            is_accepted=i in path,
        )
        for i, (token, parent) in enumerate(zip(draft.tokens.tolist(), draft.above.tolist(), strict=True))
    )
    verified = VerifiedDraft(sequence.slot, tuple(dict.fromkeys(choice.names)), tokens, chosen[reached[-1]])
    DRAFT_LOGGER.debug("%s", verified, extra={"draft": verified})


def _target_choice(sequence: RunningSequence, token: int, logits: Pass, row: int) -> TokenLogprob:
    logit = float(logits.gather(row, np.array([token], np.int32))[0])
    return TokenLogprob(token, logit - logits.log_normalizer(row), sequence.bytes_of(token))
