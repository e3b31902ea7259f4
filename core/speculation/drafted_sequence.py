"""The view that speculation has of a running request: the engine's sequences are such, and no more of them is known here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Items

import numpy as np

from augury.interfaces import Session
from augury.speculation.config import Speculation
from augury.speculation.drafting_counter import DraftingCounter
from augury.types import Draft, Token

__all__ = ["DraftedSequence"]


class DraftedSequence(ABC):
    """A running request that drafters draft for.

    Attributes:
        id: The request's.
        slot: That it has.
        speculation: Which drafters may draft how far.
        n_reused: Tokens of the text that the slot held when the text was processed.
        history: Prompt and output so far, (h,) int32, read-only.
        pieces: The emitted tokens.
        counter: Of its drafters' work.
        is_drafted: Whether it has drafters.
        waits_for_drafters: Whether some of them are still at its prompt.
    """

    id: str
    slot: int
    speculation: Speculation
    n_reused: int
    history: np.ndarray
    pieces: Items[Token]
    counter: DraftingCounter
    is_drafted: bool = False
    waits_for_drafters: bool = False

    @property
    @abstractmethod
    def n_left(self) -> int:
        """Tokens that may still be emitted before the end, or before the context is full."""

    @abstractmethod
    def possible(self, tokens: Items[int], parents: Items[int]) -> list[int] | None:
        """The tokens of a draft that its constraint does not forbid, by their places, rising; None for all."""

    @abstractmethod
    def truth(self, proposal: Draft, n_emitted: int) -> np.ndarray:
        """The tokens that a proposal is judged by, where it was made before the last `n_emitted` tokens."""

    @abstractmethod
    def describe(self, session: Session) -> None:
        """Set the request's part of a drafter's session."""
