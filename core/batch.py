"""One pass of a model: its tokens, the share of each slot, and where the tokens of a tree are stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define, frozen

from augury.errors import CapacityError, OptionError
from augury.types import NO_DRAFT, Draft, ModelInfo, StateSpec


@frozen(eq=False)
class Batch:
    """One forward pass: n tokens of any number of sequences, each sequence's in rising order of position.

    A model keeps state of two kinds. *Per position*, such as keys and values: the pass stores it at (slot, position) before
    anything attends to it, and a token attends to its slot's positions up to its own. The rows that an earlier pass stored from
    `positions` on are overwritten, which is the whole rollback of a rejected draft.

    *Per sequence*, as recurrent and convolution states, which are updated in place: a pass takes in its tokens in order, except
    those that are `is_drafted`. It computes the logits of these, and keeps aside the inputs by which the slot's next pass takes
    in the `accepted` ones; the others are dropped. A slot's drafted tokens come after its certain ones, which are a chain, and
    are at most `ModelOptions.draft_max`. A pass that starts a slot at position 0 starts from an empty state. `restores` come
    before `accepted`, and both before anything else; they apply to all layers, not only to `layers`, as `saves` before
    the first token.

    A pass goes through one `part`, see `ModelPlan.parts`, and the output that belongs to it:

    * `main` reads tokens, or `hidden` in place of their embedding; as the draft model of another one both. It keeps all, and
      concerns all layers.
    * `mtp.0` and so on read tokens, and as `hidden` the state of the token before each; each has caches of its own.
    * `assistant` reads the same, each at the position of the token before it. It keeps nothing, and moves `accepted` first.
    * `inject` reads `hidden`, of tokens the places alone. Each layer keeps the keys and values that it makes of it.

    Some `layers` of `main` from the first on draft for their own model. Later ones, or the output alone, take on from others,
    which ask for `features` of their last layer, and no rows.

    A draft may need only the logits of a `vocabulary`. Those of other tokens may then be -inf, which saves computing them. A
    model keeps its preparation for a vocabulary as long as it is given the same array.

    With `parents` a slot's tokens form a tree: several may have one position, so the j-th of a slot's tokens is stored in the
    cell j after the first, and a token attends to its slot's positions before the pass, to its ancestors and to itself. Its
    logits have the bits of its path as a chain.
    """

    tokens: np.ndarray  # (n,) int32
    slots: np.ndarray  # (n,) int32
    positions: np.ndarray  # (n,) int32, logical: 0 is the sequence's first token
    rows: np.ndarray  # (r,) int32, rising indices into the n tokens whose logits are wanted; may be empty
    parents: np.ndarray | None = None  # (n,) int32, the index of each token's parent, -1: the slot's text; None: chains
    accepted: np.ndarray | None = None  # (m, 3) int32: slot, cell, position of tokens of its last pass; without a state per
    # sequence those alone that change place: they are copied in order
    layers: tuple[int, int] | None = None  # first, end: of these layers of `main` and the output alone; None: of all
    is_drafted: np.ndarray | None = None  # (n,) bool: not taken into the state of the sequence; None: all are certain
    restores: np.ndarray | None = None  # (m,) int32: slots whose state of the sequence is restored
    saves: np.ndarray | None = None  # (m, 2) int32: slot, j: it is saved when j of the slot's tokens here were taken in
    hidden: np.ndarray | None = None  # (n, S * E) float32: output of the layer before the first, in place of the embedding
    features: tuple[str, ...] = ()  # further results for every token, by their names in `Model.features`
    vocabulary: np.ndarray | None = None  # (m,) int32, rising: the tokens whose logits are wanted; None: all
    part: str = "main"  # that it goes through
    scales: np.ndarray | None = None  # (n_slots, adapters) float32: how much each adapter counts in a slot; None: nothing

    @classmethod
    def chain(
        cls, tokens: Sequence[int] | np.ndarray, *, slot: int = 0, start: int = 0, rows: np.ndarray | None = None, **more: Any
    ) -> Batch:
        """A pass over a copy of one slot's tokens (n,) from position `start` on, to time or check a model by itself.

        Without `rows` (r,) int32 all tokens have logits; `more` are other attributes.
        """
        n = len(tokens)
        positions = np.arange(start, start + n, dtype=np.int32)
        wanted = np.arange(n, dtype=np.int32) if rows is None else rows
        return cls(np.array(tokens, np.int32), np.full(n, slot, np.int32), positions, wanted, **more)


@frozen
class Reservation:
    """Permission to add tokens to a slot, and the work that the pass has to do before."""

    mark: int  # the position that the slot's tokens start at: those of `replay`, then the new ones
    # cells and positions of drafted tokens of the last pass that were accepted, which the pass takes into the state, or moves
    # to their position, before anything else; see `Batch.accepted`
    accepted: tuple[tuple[int, int], ...] = ()
    replay: tuple[int, ...] = ()  # tokens that are kept, but not in the restored state: computed again, as certain ones
    restore: bool = False  # whether the last saved state of the sequence is restored
    save: int | None = None  # after how many of the slot's tokens in the pass the state of the sequence is saved; None: never
    keeps_aside: bool = False  # whether the pass leaves drafted tokens out of the state of the sequence


@frozen(eq=False)
class SlotInput:
    """One slot's share of a pass: replayed tokens of its reservation, certain `tokens`, then a draft of the next ones."""

    slot: int
    reservation: Reservation
    tokens: np.ndarray  # (m,) int32
    rows: int | np.ndarray  # how many of the last ones have logits; or which of `tokens`, rising
    draft: Draft = NO_DRAFT
    n_before: int = 0  # tokens between the slot's and these, which an earlier pass left there
    n_more: int = 0  # further tokens that the model itself chooses and computes, see `Model.forward_chain`
    hidden: np.ndarray | None = None  # (n, E) float32 of its tokens in the pass, see `Batch.hidden`; of all feeds or of none

    @property
    def n_tokens(self) -> int:
        """Its tokens in the pass."""
        return len(self.reservation.replay) + len(self.tokens) + len(self.draft.tokens)


@frozen(eq=False)
class PartInput:
    """One slot's share of a pass through a part that predicts further tokens."""

    slot: int
    start: int  # the position of the first token
    tokens: np.ndarray  # (m,) int32: the first `n_certain` are of the text, the others are drafted
    hidden: np.ndarray  # (m, F) float32, output of the layers before for the token before each; zeros for position 0
    n_certain: int
    n_rows: int = 1  # how many of the last ones have logits


class Tree:
    """The places of a pass's tokens: the j-th token of a slot is stored j cells after the slot's first.

    In a chain, a token's cell is its position. In a tree, positions before the slot's first token stay in place, and from there
    on the state of a logical position lies in the cell of the ancestor that has it.

    Attributes:
        cells: (n,) int32, where each token's state is stored.
        marks: (n,) int32, the first cell that the pass writes in the token's slot.
        parents: (n,) int32, see `Batch.parents`.

    Example:
        After the three tokens of a slot, a token with two children, the second of which has a child of its own:

        >>> from augury.batch import Batch
        >>> tokens, slots, positions, rows = np.int32([[7, 8, 9, 5], [0, 0, 0, 0], [3, 4, 4, 5], [0, 1, 2, 3]])
        >>> tree = Tree(Batch(tokens, slots, positions, rows, parents=np.int32([-1, 0, 0, 2])), n_ctx=8)
        >>> tree.cells.tolist()
        [3, 4, 5, 6]
        >>> tree.seen(3).tolist()
        [0, 1, 2, 3, 5, 6]
    """

    def __init__(self, batch: Batch, n_ctx: int) -> None:
        """Place the tokens of a batch that has parents into slots of `n_ctx` cells.

        Raises OptionError: a parent is not an earlier token of the same slot, or a position is not after its parent's.
        CapacityError: a slot has too few cells.
        """
        assert batch.parents is not None
        slots, positions, parents = batch.slots.tolist(), batch.positions.tolist(), batch.parents.tolist()
        ends: dict[int, tuple[int, int]] = {}  # by slot: its first cell, and the next one
        marks: list[int] = []  # of a round's few tokens NumPy's calls take longer
        cells: list[int] = []
        for i, (slot, position, parent) in enumerate(zip(slots, positions, parents, strict=True)):
            mark, cell = ends.get(slot, (position, position))
            is_known = -1 <= parent < i and (parent < 0 or slots[parent] == slot)
            if not is_known or position != (mark if parent < 0 else positions[parent] + 1):
                raise OptionError(
                    f"token {i} of a tree, at position {position} of slot {slot}, has parent {parent}; expected an earlier "
                    "token of its slot one position before it, or -1 at the position of the slot's first"
                )
            ends[slot] = mark, cell + 1
            marks.append(mark)
            cells.append(cell)
        if (n := max([end for _, end in ends.values()], default=0)) > n_ctx:
            raise CapacityError(f"a tree needs {n} cells of its slot, which has {n_ctx}; draft fewer tokens")
        self.parents, self.marks, self.cells = batch.parents, np.array(marks, np.int32), np.array(cells, np.int32)

    def seen(self, token: int) -> np.ndarray:
        """The cells (position + 1,) of all that a token attends to, from its sequence's first position to its own."""
        above = []
        while token != -1:
            above.append(self.cells[token])
            mark, token = self.marks[token], self.parents[token]
        return np.concatenate([np.arange(mark, dtype=np.int32), np.array(above[::-1], np.int32)])


@define
class StateUpdate:
    """The update of a slot's state of the sequence in a pass: in this order, and then it takes in the slot's certain tokens."""

    is_start: bool = False  # it is emptied
    is_restored: bool = False  # the last saved state is restored
    accepted: Sequence[int] = ()  # cells of tokens that were kept aside and are taken in
    save: int = -1  # after how many of the certain tokens it is saved; -1: not in this pass


class StateUpdates:
    """The effect of a batch on the states of its sequences, whose tokens may be computed in several passes.

    Example:
        Two drafted tokens were accepted, and the state is to be saved after three tokens that come in two passes:

        >>> from augury.batch import Batch
        >>> accepted, saves = np.int32([[0, 4, 4], [0, 5, 5]]), np.int32([[0, 3]])
        >>> updates = StateUpdates(Batch.chain([7, 8, 9, 1], start=6, accepted=accepted, saves=saves))
        >>> updates.before(), updates.take(0, 2)
        ([], StateUpdate(is_start=False, is_restored=False, accepted=[4, 5], save=-1))
        >>> updates.take(0, 2)
        StateUpdate(is_start=False, is_restored=False, accepted=(), save=1)
    """

    def __init__(self, batch: Batch) -> None:
        self._left = defaultdict[int, StateUpdate](StateUpdate)
        for slot in batch.slots[batch.positions == 0].tolist():
            self._left[slot].is_start = True
        cells = defaultdict[int, list[int]](list)
        for slot, cell, _ in batch.accepted.tolist() if batch.accepted is not None else ():
            cells[slot].append(cell)
        for slot, accepted in cells.items():
            self._left[slot].accepted = accepted
        for slot in batch.restores.tolist() if batch.restores is not None else ():
            self._left[slot].is_restored = True
        for slot, n in batch.saves.tolist() if batch.saves is not None else ():
            self._left[slot].save = n
        self._in_turn = set(batch.slots.tolist()) if batch.part == "main" and batch.layers is None else set[int]()

    def before(self) -> list[tuple[int, StateUpdate]]:
        """Slots, each with the changes of its state in all layers before the batch, by a pass over no tokens.

        A pass through some layers begins for all: it restores, takes in or saves before its own tokens.
        """
        touched = [slot for slot, each in self._left.items() if each.accepted or each.is_restored or each.save == 0]
        return [(slot, self._taken(slot, 0)) for slot in sorted({*touched} - self._in_turn)]

    def take(self, slot: int, n_certain: int) -> StateUpdate:
        """The changes of a slot's state in its next pass, over so many certain tokens."""
        update = self._taken(slot, n_certain)
        self._left[slot].is_start = False
        return update

    def _taken(self, slot: int, n_certain: int) -> StateUpdate:
        left = self._left[slot]
        is_start, is_saved = left.is_start, left.save <= n_certain
        self._left[slot] = StateUpdate(is_start, save=-1 if is_saved else left.save - n_certain)
        save = left.save if is_saved else -1
        return StateUpdate(True, save=save) if is_start else StateUpdate(False, left.is_restored, left.accepted, save)


def check_batch(batch: Batch, n_tokens: int, info: ModelInfo, spec: StateSpec, features: Mapping[str, int]) -> None:
    """Refuse a pass over positions, slots, tokens, parts or features that a model does not have: kernels do not check.

    The embedding knows `n_tokens`; logits may be of fewer or of more. `info`, `spec` and `features` are the `Model`'s. The
    `Tree` of a pass with `parents` checks these. Raises CapacityError: a position, slot or cell does not exist, or a slot has
    more drafted tokens than are kept aside. OptionError: the same of a token, part, layer or feature, or certain and drafted
    tokens are out of order.
    """
    # lists: of a round's few tokens NumPy's reductions take longer
    positions, slots, tokens = batch.positions.tolist(), batch.slots.tolist(), batch.tokens.tolist()
    if positions and not 0 <= min(positions) <= max(positions) < spec.n_ctx:
        raise CapacityError(f"position {max(positions)} does not fit into a slot of {spec.n_ctx} positions")
    if slots and not 0 <= min(slots) <= max(slots) < spec.n_slots:
        raise CapacityError(f"slot {max(slots)} does not exist; there are {spec.n_slots}")
    if tokens and not 0 <= min(tokens) <= max(tokens) < n_tokens:
        raise OptionError(f"tokens from {min(tokens)} to {max(tokens)}, expected ids from 0 to {n_tokens - 1}")
    is_plain = batch.part == "main" and batch.layers is None and batch.hidden is None and not batch.features
    if not is_plain or (main := info.parts.get("main")) is None or main.needs_hidden:
        _check_part(batch, info, features)
    if batch.accepted is not None and len(batch.accepted):
        _check_accepted(batch.accepted, spec)
    if spec.draft_max is not None and (batch.is_drafted is not None or batch.parents is not None):
        _check_drafted(batch, spec.draft_max)


def check_vocabulary(vocabulary: np.ndarray, n_vocab: int) -> None:
    """Raise an OptionError if a `Batch.vocabulary` (m,) holds no tokens, others than a model's `n_vocab`, or does not rise."""
    n = len(vocabulary)
    if not n or vocabulary[0] < 0 or vocabulary[-1] >= n_vocab or (vocabulary[1:] <= vocabulary[:-1]).any():
        raise OptionError(f"a vocabulary of {n} tokens, expected some, which rise from 0 to {n_vocab - 1}")


def _check_part(batch: Batch, info: ModelInfo, features: Mapping[str, int]) -> None:
    if (part := info.parts.get(batch.part)) is None:
        raise OptionError(f"a pass through part {batch.part!r}, of a model that has {', '.join(info.parts)}")
    (first, end), found, n_layers = batch.layers or part.layers, batch.hidden, info.n_layers
    is_given, is_main = found is not None, batch.part == "main"
    is_some = first < end or not n_layers or is_given or part.needs_hidden
    if batch.layers is not None and not (is_main and 0 <= first <= end <= n_layers and is_some):
        raise OptionError(f"a pass through layers {first} to {end} of {batch.part}, expected some of 0 to {n_layers} of main")
    if (first or is_given) and is_main and n_layers and "layer.0" not in features:
        raise OptionError(
            f"a pass from layer {first} on{' with hidden states' * is_given}, but the model's layers begin or "
            "trade residual streams, which are not known there; begin with tokens at layer 0"
        )
    shape = (len(batch.tokens), part.width)
    if (first or part.needs_hidden) if found is None else found.shape != shape or found.dtype != np.float32:
        given = "missing" if found is None else f"{found.dtype} of shape {found.shape}"
        raise OptionError(f"hidden states for a pass from layer {first} on are {given}, expected float32 of shape {shape}")
    for name in batch.features:
        _, _, layer = name.partition("layer.")
        is_begun = name == "embedding" and (first > 0 or is_given)
        if name not in features or is_begun or (layer and not (batch.part != "inject" and first <= int(layer) < end)):
            known = ", ".join(each for each in features) or "none"
            raise OptionError(f"feature {name!r} of a pass through layers {first} to {end}; the model has {known}")


def _check_drafted(batch: Batch, n_most: int) -> None:
    """Refuse a batch that a state per sequence, with room for so many drafted tokens of a slot, cannot follow."""
    slots, is_drafted, parents = batch.slots, batch.is_drafted, batch.parents
    order = np.argsort(slots, kind="stable")
    drafted = np.zeros(len(slots), bool) if is_drafted is None else is_drafted[order]
    is_first = np.diff(slots[order], prepend=-1) != 0
    if (~drafted[1:] & drafted[:-1] & ~is_first[1:]).any():
        raise OptionError("a certain token comes after a drafted one of its slot, expected it before all that are drafted")
    if (n_largest := np.bincount(slots[order][drafted]).max(initial=0)) > n_most:
        raise CapacityError(f"{n_largest} drafted tokens of a slot, expected at most {n_most}; raise draft_max")
    if parents is not None:
        before = np.append(-1, order[:-1])
        before[is_first] = -1
        last = np.maximum.accumulate(np.where(~drafted | is_first, np.arange(len(order)), 0))  # certain one, or the first
        is_chain = parents[order] == before
        is_after = parents[order] >= np.where(drafted[last], -1, order[last])
        if not (is_chain | (drafted & is_after)).all():
            raise OptionError("certain tokens of a slot branch, or a draft starts before the last of them; expected a chain")


def _check_accepted(accepted: np.ndarray, spec: StateSpec) -> None:
    is_inside = (accepted >= 0) & (accepted < (spec.n_slots, spec.n_ctx, spec.n_ctx))
    if not is_inside.all():
        slot, cell, position = accepted[int(is_inside.all(axis=1).argmin())]
        raise CapacityError(
            f"a token moves from cell {cell} to position {position} of slot {slot}, "
            f"expected one of {spec.n_slots} slots of {spec.n_ctx} positions"
        )
