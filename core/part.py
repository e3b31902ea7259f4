"""The parts of a model, which a pass goes through by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from augury.blocks.drafting import DraftBlock


@frozen
class Part:
    """Layers that a pass goes through by themselves; see `Batch.part`.

    Attributes:
        layers: The number of the first one, and of the one after the last.
        input: Names of features of the model that it drafts for, of which its hidden states are made, side by side; an empty
            name: zeros.
        output: The feature that it gives on, for one token more.
        width: Values of each hidden state that a pass may be given.
        caches: Whether it keeps something of tokens, and does not only attend to the caches of other parts.
        needs_hidden: Whether a pass has to be given hidden states.
        block: The tokens of a pass that drafts several of them.
    """

    layers: tuple[int, int]
    input: tuple[str, ...]
    output: str
    width: int
    caches: bool = True
    needs_hidden: bool = False
    block: DraftBlock | None = None
