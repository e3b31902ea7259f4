"""The parts of a model, which a pass goes through by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from augury.blocks.drafting import DraftBlock


@frozen
class Part:
    """Layers that a pass goes through by themselves; see `Batch.part`."""

    layers: tuple[int, int]  # the number of the first one, and of the one after the last
    # features of the model that it drafts for, of which its hidden states are made, side by side; an empty name: zeros
    input: tuple[str, ...]
    output: str  # the feature that it gives on, for one token more
    width: int  # values of each hidden state that a pass may be given
    caches: bool = True  # whether it keeps something of tokens, and does not only attend to the caches of other parts
    needs_hidden: bool = False  # whether a pass has to be given hidden states
    block: DraftBlock | None = None  # the tokens of a pass that drafts several of them
