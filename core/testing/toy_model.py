"""Models whose logits are a hash of everything that their memory holds up to a token: any slip of memory or order shows."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from augury.batch import Batch, Tree, check_batch
from augury.errors import AuguryError, UnsupportedError
from augury.interfaces import Model
from augury.passes import ArrayPass, Pass
from augury.types import Allocation, ModelInfo, ModelOptions, StateSpec

_NOTHING = -1  # in a cell that no token was stored in
_SURPRISES = 41 / 256  # share of the tokens that do not repeat the token a period before


class ToyModel(Model):
    """Remembers tokens by slot and place, trees and moves included, and computes nothing else."""

    def __init__(
        self,
        *,
        n_vocab: int = 16,
        n_slots: int = 1,
        n_ctx: int = 64,
        period: int | None = None,
        surprises: float = _SURPRISES,
        errors: float = 0.0,
        info: ModelInfo | None = None,
    ) -> None:
        """Make a model that holds `n_slots` sequences of `n_ctx` positions.

        Args:
            n_vocab: V.
            n_slots: How many sequences it holds.
            n_ctx: Positions of a slot.
            period: Text tends to repeat the token so many tokens before, so that drafts are often right. None: it does not.
            surprises: Share of the tokens of which that is not true.
            errors: Share of texts after which it expects something else than one without errors does, as a draft model may.
            info: Its `ModelInfo`; None for a model called "toy".
        """
        self.info = info or ModelInfo("toy", "toy", n_vocab, 4, 1, n_ctx, 0)
        self.state_spec = StateSpec(n_slots, n_ctx, 8)
        self.options = ModelOptions(n_slots=n_slots, n_ctx=n_ctx)
        self.features = dict.fromkeys(
            ["embedding", "output", *(f"layer.{i}" for i in range(self.info.n_layers))], self.info.n_embd
        )
        # (n_slots, n_ctx), the tokens that were stored, and those of the layer that predicts further tokens
        self.cells, self.mtp_cells = np.full((2, n_slots, n_ctx), _NOTHING, np.int64)
        self.batches: list[Batch] = []  # the passes so far
        self.on_forward: Callable[[], object] = lambda: None  # called at the beginning of every pass
        self.is_closed = False
        self._period = period
        self._surprises = surprises
        self._errors = errors

    def forward(self, batch: Batch) -> Pass:
        """See `Model.forward`; a gap between a slot's positions and the batch's is an error of the caller."""
        self._check(batch)
        self.batches.append(batch)
        self.on_forward()
        if batch.part != "main":
            return self._mtp(batch)
        self._begin(batch)
        rows, wanted, (_, n_layers) = [], set(batch.rows.tolist()), batch.layers or (0, None)
        held: list[Any] = []  # after each token of the pass
        starts: dict[int, tuple[int, Any]] = {}  # by slot: the position of its first token, and what was held before that
        places: dict[int, list[int]] = {}  # by slot: its tokens in the pass
        columns = zip(batch.tokens.tolist(), batch.slots.tolist(), batch.positions.tolist(), strict=True)
        for i, (token, slot, position) in enumerate(columns):
            if slot not in starts:
                starts[slot], places[slot] = (position, self._before(batch, slot, position)), [-1]
            start, before = starts[slot]
            cell = start + len(places[slot]) - 1
            if batch.parents is None and position != cell:
                raise AuguryError(f"slot {slot}: a token at position {position} stands after one at {cell - 1}")
            above = places[slot][-1] if batch.parents is None else int(batch.parents[i])
            held.append(self._after(held[above] if above >= 0 else before, token))
            places[slot].append(i)
            self.cells[slot, cell] = token
            self._take(batch, i, cell, held[i])
            if i in wanted:
                rows.append(self._of(held[i], n_layers))
        return self._passed(batch, rows, map(self._seen, held))

    def logits(self, tokens: np.ndarray, *, n_layers: int | None = None) -> np.ndarray:
        """The logits after `tokens` (t,): (V,) float64. With fewer layers than it has, every fourth time others."""
        if (tokens < 0).any():
            raise AuguryError(f"the token at position {len(tokens) - 1} follows positions that hold nothing")
        repeated = tokens[-self._period] if self._period is not None and len(tokens) >= self._period else None
        return self._logits(_bytes(tokens), repeated, n_layers)

    # What is held of a text: all of it. Other models hold something else.

    def _begin(self, batch: Batch) -> None:
        """Take in the accepted tokens of the last pass."""
        for slot, cell, position in batch.accepted if batch.accepted is not None else ():
            self.cells[slot, position] = self.cells[slot, cell]

    def _before(self, batch: Batch, slot: int, position: int) -> Any:  # noqa: ARG002 - for models with states
        """What a slot holds when a pass over tokens from a position on begins."""
        return self.cells[slot, :position].copy()

    def _after(self, held: Any, token: int) -> Any:
        """The same with one token more."""
        return np.append(held, token)

    def _take(self, batch: Batch, i: int, cell: int, held: Any) -> None:
        """Token i of a pass was stored in a cell; with it so much is held."""

    def _follow(self, tokens: np.ndarray) -> Any:
        """What is held after a text."""
        return np.asarray(tokens)

    def _seen(self, held: Any) -> bytes:
        """All that its logits depend on."""
        return _bytes(held)

    def _of(self, held: Any, n_layers: int | None) -> np.ndarray:
        return self.logits(held, n_layers=n_layers)

    def _mtp(self, batch: Batch) -> Pass:
        """A pass through a layer that predicts further tokens: it expects the tokens of a model with fewer layers.

        Raises AuguryError: a hidden state is not that of the token before.
        """
        assert batch.hidden is not None
        rows, held, wanted = [], [], set(batch.rows.tolist())
        columns = zip(batch.tokens.tolist(), batch.slots.tolist(), batch.positions.tolist(), strict=True)
        for i, (token, slot, position) in enumerate(columns):
            self.mtp_cells[slot, position] = token
            text = self.mtp_cells[slot, : position + 1]
            before = self._feature(self._seen(self._follow(text[:-1]))) if position else np.zeros(self.info.n_embd, np.float32)
            if not np.array_equal(batch.hidden[i], before):
                raise AuguryError(f"slot {slot}: the hidden state at position {position} is not that of the token before")
            held.append(self._seen(self._follow(text)))
            if i in wanted:
                rows.append(self.logits(text, n_layers=0))
        return self._passed(batch, rows, held)

    def _feature(self, held: bytes) -> np.ndarray:
        """The features of a token of which this is held."""
        return _normal(hashlib.sha256(held).digest()[18:26], self.info.n_embd).astype(np.float32)

    def _passed(self, batch: Batch, rows: Sequence[np.ndarray], held: Iterable[bytes]) -> Pass:
        """Rows of logits, and, where they are asked for, features of every token, of which this is held."""
        asked = held if batch.features else ()
        features = [self._feature(each) for each in asked]
        by_name = {name: np.array(features, np.float32).reshape(-1, self.info.n_embd) for name in batch.features}
        return ArrayPass(np.array(rows, np.float32).reshape(len(rows), self.info.n_vocab), by_name)

    def _logits(self, held: bytes, repeated: int | None, n_layers: int | None) -> np.ndarray:
        """The logits after the held text, where `repeated` is the token a period before."""
        digest = hashlib.sha256(held).digest()
        values = _normal(digest[:8], self.info.n_vocab)
        if repeated is not None and digest[8] >= self._surprises * 256:
            values[repeated] += 8
        errors = self._errors if n_layers is None or n_layers >= self.info.n_layers else 0.25
        return values if digest[9] >= errors * 256 else _normal(digest[10:18], self.info.n_vocab)

    def slot_memory(self, slot: int, n: int, start: int | None = None) -> Sequence[np.ndarray]:
        return [cells[slot, start:n] for cells in (self.cells, self.mtp_cells)[: 1 + bool(self.info.heads)]]

    def memory_table(self) -> Sequence[Allocation]:
        return [Allocation("cells", self.cells.nbytes)]

    def close(self) -> None:
        self.is_closed = True

    def plain(self, prompt: Sequence[int], n: int, choose: Callable[[np.ndarray], object] = np.argmax) -> list[int]:
        """Plain decoding: n tokens after `prompt`."""
        held, tokens = self._follow(np.array(prompt)), list[int]()
        for _ in range(n):
            tokens.append(int(choose(self._of(held, None))))  # type: ignore[call-overload]
            held = self._after(held, tokens[-1])
        return tokens

    def _check(self, batch: Batch) -> None:
        if self.is_closed:
            raise AuguryError("the toy model is closed")
        check_batch(batch, self.info.n_vocab, self.info, self.state_spec, self.features)
        if batch.parents is not None:
            Tree(batch, self.state_spec.n_ctx)  # which checks them
        if batch.hidden is not None and batch.part == "main":
            raise UnsupportedError("the toy model computes tokens, not hidden states")


def _bytes(tokens: np.ndarray) -> bytes:
    return np.asarray(tokens).astype(np.int32).tobytes()


class _Key(ISeedSequence):
    """Gives a generator 8 bytes for a key. Given a key by name, it would also ask the system for randomness, and not use it."""

    def __init__(self, key: bytes) -> None:
        self._words = np.array([int.from_bytes(key, "little"), 0], np.uint64)

    def generate_state(self, n_words: int, dtype: object = np.uint64) -> np.ndarray:  # noqa: ARG002 - as numpy calls it
        return self._words


def _normal(key: bytes, n: int) -> np.ndarray:
    philox = np.random.Philox(_Key(key))  # type: ignore[arg-type] # its types list only some keys
    return np.random.Generator(philox).standard_normal(n)


_N_CONV = 3
_FACTOR = np.uint64(6364136223846793005)  # odd, so that nothing of a state is lost
_WEIGHTS = (3, 5, 7)
_TURNED = np.array([3, 0, 1, 2])


class ToyRecurrentModel(ToyModel):
    """Keeps of a slot's text one vector, updated in place token by token, and the last three tokens.

    The vector turns by one number, is multiplied and added to, in 64-bit integers: two tokens in another order, or one too
    many, leave another vector. Its logits are a hash of both, and with `is_hybrid` of the tokens in its cells, too.
    """

    def __init__(self, *, can_keep_aside: bool = True, is_hybrid: bool = False, **model: Any) -> None:
        """Make a `ToyModel`, whose texts tend to repeat the token three tokens before.

        Its passes leave drafted tokens out of the state if it `can_keep_aside`; it has cells as well if it `is_hybrid`.
        """
        super().__init__(**model)
        n_slots, n_ctx = self.cells.shape
        self.state = np.zeros((n_slots, 4), np.uint64)
        self.conv = np.full((n_slots, _N_CONV), -1, np.int64)  # the token before the last last
        self.aside: dict[int, dict[int, int]] = {}  # by slot, the drafted tokens of its last pass by cell
        self.saved: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # by slot, its state and convolution that were saved last
        self._is_hybrid = is_hybrid
        n_bytes = self.state[0].nbytes + self.conv[0].nbytes
        self.state_spec = StateSpec(n_slots, n_ctx, 8 if is_hybrid else 0, n_bytes, can_keep_aside)

    def logits(self, tokens: np.ndarray, *, n_layers: int | None = None) -> np.ndarray:
        return self._of(self._follow(tokens), n_layers)

    def slot_memory(self, slot: int, n: int, start: int | None = None) -> Sequence[np.ndarray]:
        views = super().slot_memory(slot, n, start)
        return views if start is not None else [*views, self.state[slot], self.conv[slot]]

    def memory_table(self) -> Sequence[Allocation]:
        return [*super().memory_table(), Allocation("states", self.state.nbytes + self.conv.nbytes)]

    def _check(self, batch: Batch) -> None:
        super()._check(batch)
        if batch.is_drafted is not None and not self.state_spec.can_keep_aside:
            raise AuguryError("a toy that cannot keep tokens aside is given drafted ones")

    def _begin(self, batch: Batch) -> None:
        super()._begin(batch)
        for slot in batch.restores.tolist() if batch.restores is not None else ():
            self.state[slot], self.conv[slot] = self.saved[slot]
        for slot, cell, _ in batch.accepted.tolist() if batch.accepted is not None else ():
            self.state[slot], self.conv[slot], _ = self._after((self.state[slot], self.conv[slot], ()), self.aside[slot][cell])
        self.aside |= {slot: {} for slot in batch.slots.tolist()}
        self._n_taken = Counter[int]()

    def _before(self, batch: Batch, slot: int, position: int) -> Any:
        if position == 0:
            self.state[slot], self.conv[slot], _ = self._follow(np.empty(0))
        self._save(batch, slot)
        return self.state[slot].copy(), self.conv[slot].copy(), tuple(self.cells[slot, :position].tolist())

    def _take(self, batch: Batch, i: int, cell: int, held: Any) -> None:
        slot = int(batch.slots[i])
        if batch.is_drafted is not None and batch.is_drafted[i]:
            self.aside[slot][cell] = int(batch.tokens[i])
        else:
            self.state[slot], self.conv[slot] = held[0], held[1]
            self._n_taken[slot] += 1
            self._save(batch, slot)

    def _save(self, batch: Batch, slot: int) -> None:
        if batch.saves is not None and [slot, self._n_taken[slot]] in batch.saves.tolist():
            self.saved[slot] = self.state[slot].copy(), self.conv[slot].copy()

    def _follow(self, tokens: np.ndarray) -> Any:
        held: Any = np.zeros(4, np.uint64), np.full(_N_CONV, -1, np.int64), ()
        for token in tokens:
            held = self._after(held, int(token))
        return held

    def _after(self, held: Any, token: int) -> Any:
        state, conv, cells = held
        before = conv.tolist()
        new = token + 1 + sum(weight * (each + 1) for weight, each in zip(_WEIGHTS, before, strict=True))
        return state[_TURNED] * _FACTOR + np.uint64(new), np.array([*before[1:], token]), (*cells, token)

    def _of(self, held: Any, n_layers: int | None) -> np.ndarray:
        conv = held[1]
        return self._logits(self._seen(held), None if self._period is None or conv[0] < 0 else int(conv[0]), n_layers)

    def _seen(self, held: Any) -> bytes:
        state, conv, cells = held
        return state.tobytes() + conv.tobytes() + (np.int64(cells).tobytes() if self._is_hybrid else b"")
