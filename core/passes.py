"""The results of a model's pass, `Pass`, and the objects that passes are made through: a `Context`, or a drafter's `Target`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from augury.errors import OptionError
from augury.types import Draft, ModelInfo, StateSpec, read_only

if TYPE_CHECKING:
    from augury.batch import PartInput, SlotInput
    from augury.interfaces.compiled import CompiledPass
    from augury.interfaces.memory_manager import Opened
    from augury.part import Part


class Pass(ABC):
    """One pass: r rows of logits over the vocabulary, in the order of `Batch.rows`, valid until the model's next pass.

    A handle, so that a backend need not move a vocabulary per token to Python. A device may still be computing it: every method
    waits for its own results.
    """

    def wait(self) -> float | None:
        """Wait until everything is computed; returns the seconds that the pass took by the device's own clock.

        None, as by default: it was over when `forward` returned, and the caller's clock is right.
        """
        return None

    @abstractmethod
    def argmax(self) -> np.ndarray:
        """The most probable token of each row, (r,) int32; of equals the lowest id.

        -1 where the row holds a NaN or its largest logit is infinite: from such a row nothing is chosen.
        """

    @abstractmethod
    def top_k(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The most probable tokens of some rows (m,) int32: ids (m, k) int32 and logits (m, k) float32, best first.

        Equals come by rising id; of a vocabulary smaller than k there are all. A row with a NaN has ids -1 and the logits NaN.
        """

    @abstractmethod
    def gather(self, row: int, ids: np.ndarray) -> np.ndarray:
        """The logits (m,) float32 of the tokens `ids` (m,) in a row."""

    @abstractmethod
    def log_normalizer(self, row: int) -> float:
        """log(sum(exp(logits))) of a row, accumulated in float64."""

    @abstractmethod
    def rows(self) -> np.ndarray:
        """All rows, (r, V) float32; a view that the next pass overwrites."""

    def row(self, row: int) -> np.ndarray:
        """One of them, (V,): where rows are far away the others stay there."""
        return self.rows()[row]

    def features(self, name: str) -> np.ndarray:
        """A feature that `Batch.features` names, (n, F) float32, in the order of tokens. Raises OptionError: it does not."""
        raise OptionError(f"feature {name!r} of a pass that was not asked for it; name it in Batch.features")

    def first(self, n: int) -> Pass:
        """The same rows over the first n tokens alone, for models whose logits are wider than their vocabulary.

        This one reads all rows; a device's pass, whose rows are far away, does better with one of its own.
        """
        return _Narrowed(self, n)


_NO_FEATURES: Mapping[str, np.ndarray] = MappingProxyType({})
_FEW = 4  # ids of tokens that are looked for one by one, so that a row that is far away stays there


class ArrayPass(Pass):
    """Rows of logits (r, V) float32 in memory, read-only to callers."""

    def __init__(self, array: np.ndarray, features: Mapping[str, np.ndarray] | None = None) -> None:
        self._array = array
        self._features = {name: read_only(values) for name, values in features.items()} if features else _NO_FEATURES

    def argmax(self) -> np.ndarray:
        """See `Pass.argmax`.

        >>> ArrayPass(np.float32([[1, 3, 3], [1, 9, np.nan], [1, 9, np.inf], [1, 9, -np.inf]])).argmax().tolist()
        [1, -1, -1, 1]
        """
        best: np.ndarray = self._array.argmax(axis=1).astype(np.int32)  # to argmax NaN is more than anything
        best[~np.isfinite(self._array[np.arange(len(best)), best])] = -1
        return best

    def top_k(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Pass.top_k`.

        >>> ids, logits = ArrayPass(np.float32([[1, 3, 3, 2], [0, np.nan, 9, 9]])).top_k(np.int32([0, 1]), 3)
        >>> ids.tolist(), logits.tolist()
        ([[1, 2, 3], [-1, -1, -1]], [[3.0, 3.0, 2.0], [nan, nan, nan]])
        """
        n = self._array.shape[1]
        k = max(0, min(k, n))
        ids, best = np.full((len(rows), k), -1, np.int32), np.full((len(rows), k), np.nan, np.float32)
        for i, row in enumerate(rows if k else ()):
            logits = self._array[row]
            if not np.isnan(logits).any():
                worst = -np.partition(-logits, k - 1)[k - 1]  # from the other side many -inf take 16 times as long
                above = np.flatnonzero(logits > worst)
                found = np.concatenate([above, np.flatnonzero(logits == worst)[: k - len(above)]])
                ids[i] = found[np.lexsort((found, -logits[found]))]
                best[i] = logits[ids[i]]
        return ids, best

    def gather(self, row: int, ids: np.ndarray) -> np.ndarray:
        logits: np.ndarray = self._array[row, ids]
        return logits

    def log_normalizer(self, row: int) -> float:
        logits = self._array[row].astype(np.float64)
        largest = logits.max()
        return float(largest + np.log(np.exp(logits - largest).sum()))

    def rows(self) -> np.ndarray:
        return read_only(self._array)

    def features(self, name: str) -> np.ndarray:
        return self._features[name] if name in self._features else super().features(name)

    def first(self, n: int) -> Pass:
        return type(self)(self._array[:, :n], self._features)


class WrappedPass(Pass):
    """A pass that gives the results of another one, `whole`, except for those that a subclass changes."""

    def __init__(self, whole: Pass) -> None:
        self._whole = whole

    def wait(self) -> float | None:
        return self._whole.wait()

    def argmax(self) -> np.ndarray:
        return self._whole.argmax()

    def top_k(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        return self._whole.top_k(rows, k)

    def gather(self, row: int, ids: np.ndarray) -> np.ndarray:
        return self._whole.gather(row, ids)

    def log_normalizer(self, row: int) -> float:
        return self._whole.log_normalizer(row)

    def rows(self) -> np.ndarray:
        return self._whole.rows()

    def row(self, row: int) -> np.ndarray:
        return self._whole.row(row)

    def features(self, name: str) -> np.ndarray:
        return self._whole.features(name)


class _Narrowed(ArrayPass):
    """The first tokens of a pass's rows; all else is the pass's."""

    def __init__(self, whole: Pass, n: int) -> None:
        super().__init__(whole.rows()[:, :n])
        self._whole = whole

    def wait(self) -> float | None:
        return self._whole.wait()

    def features(self, name: str) -> np.ndarray:
        return self._whole.features(name)


class NamedPass(WrappedPass):
    """A pass whose logits are those of some tokens, in any order; the logits of all others are -inf.

    >>> named = NamedPass(ArrayPass(np.float32([[1, 3, 2]])), np.int32([0, 4, 1]), 5)
    >>> named.argmax().tolist(), named.rows().tolist()
    ([4], [[1.0, 2.0, -inf, -inf, 3.0]])
    >>> named.gather(0, np.int32([1, 2])).tolist()
    [2.0, -inf]
    """

    def __init__(self, whole: Pass, tokens: np.ndarray, n_vocab: int) -> None:
        """Name the logits of a pass, which are as many as `tokens` (m,) int32, each below `n_vocab`."""
        super().__init__(whole)
        self._tokens, self._n_vocab = tokens, n_vocab

    def argmax(self) -> np.ndarray:
        return self._named(self._whole.argmax())

    def top_k(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        places, logits = self._whole.top_k(rows, k)
        return self._named(places), logits

    def gather(self, row: int, ids: np.ndarray) -> np.ndarray:
        if len(ids) > _FEW:
            of_row: np.ndarray = self.row(row)[ids]
            return of_row
        places = [np.flatnonzero(self._tokens == token) for token in ids.tolist()]
        logits = [self._whole.gather(row, place)[0] if len(place) else -np.inf for place in places]
        return np.array(logits, np.float32)

    def rows(self) -> np.ndarray:
        return self._among_all(self._whole.rows())

    def row(self, row: int) -> np.ndarray:
        return self._among_all(self._whole.row(row))

    def _among_all(self, logits: np.ndarray) -> np.ndarray:
        every = np.full((*logits.shape[:-1], self._n_vocab), -np.inf, np.float32)
        every[..., self._tokens] = logits
        return every

    def _named(self, places: np.ndarray) -> np.ndarray:
        tokens: np.ndarray = np.where(places < 0, np.int32(-1), self._tokens[places])
        return tokens


class Context(ABC):
    """A model, the memory of its slots, and the making of its passes: all passes of a model go through one.

    A pass takes three calls: `feed` for every slot that takes part, `forward` for all of them, and `commit` for each. `open`,
    `room`, `truncate` and `end` are the memory manager's.
    """

    info: ModelInfo
    spec: StateSpec
    is_asynchronous: bool = False  # see `Model`
    chain_rows: int = 0  # see `Model`

    @property
    def trip_s(self) -> float:
        """See `Model.trip_s`."""
        return 0.0

    @property
    def is_lost(self) -> bool:
        """See `Model.is_lost`."""
        return False

    @abstractmethod
    def open(self, tokens: np.ndarray, *, may_reuse: bool = True, slot: int | None = None) -> Opened | None:
        """A slot for a text (n,), or a free one that is named, and how much it holds already; None while all are taken."""

    @abstractmethod
    def room(self, slot: int) -> int:
        """How many more tokens the slot can take."""

    @abstractmethod
    def truncate(self, slot: int, n: int) -> int:
        """Keep the slot's first n tokens at most; returns how many are kept."""

    @abstractmethod
    def end(self, slot: int) -> None:
        """Free the slot; a later text may reuse its contents."""

    @abstractmethod
    def prepare(
        self, slot: int, tokens: np.ndarray, rows: int | np.ndarray = 0, draft: Draft | None = None, n_more: int = 0
    ) -> SlotInput:
        """A slot's share of the next pass.

        Args:
            slot: An open one.
            tokens: (m,) int32, certain to follow the slot's text.
            rows: How many of the last tokens, those of the draft included, have logits; or which of `tokens` alone.
            draft: Tokens after them that may be undone.
            n_more: How many further passes there are, each over the best token after the one before; the same number of all
                shares, which then have one row and no draft. The slot takes all chosen tokens but the last.
                Tokens that are to stay join the `tokens` of the feed that is committed.

        Raises CapacityError: they do not fit. OptionError: no such tokens or slot, or the state cannot be cut back so far.
        """

    @abstractmethod
    def forward(self, feeds: Sequence[SlotInput], features: tuple[str, ...] = (), vocabulary: np.ndarray | None = None) -> Pass:
        """One pass over the shares of several slots, or several; rows in the order of the feeds.

        Shares of a model that is given hidden states have them added, see `SlotInput.hidden`. For the others see `Batch`.
        """

    @abstractmethod
    def commit(self, feed: SlotInput, path: Sequence[int] = ()) -> None:
        """After the pass: keep a feed's certain tokens, and those of its draft that `path` names, rising."""

    def compiled_pass(
        self,
        slot: int,  # noqa: ARG002 - for those of models that have some
        room: int,  # noqa: ARG002
        k: int,  # noqa: ARG002
        features: tuple[str, ...] = (),  # noqa: ARG002
        *,
        is_given: bool = False,  # noqa: ARG002
    ) -> CompiledPass | None:
        """See `Model.compiled_pass`; the slot's input comes before, and is committed afterwards. By default there are none."""
        return None


class Target(ABC):
    """The model that is drafted for, as far as its drafters may use it: passes through some layers and an output.

    A drafter may make such passes inside `draft`, `feed`, `begin` and `teacher_forced`, for its own slot, and inside
    `draft_together`, for all slots that are asked for. Only the thread that called the drafter may make them.
    """

    n_layers: int
    heads: Mapping[str, Part] = MappingProxyType({})
    """Its parts that predict further tokens, by name. Empty where there are none; a target whose file has such parts loads them
    for drafters with `uses_mtp`."""
    lack_of_heads: str = "the target has no layers that predict further tokens"  # why there are none, where that is so
    features: Mapping[str, int] = MappingProxyType({})  # of each token, for drafters; see `Model.features`
    chain_rows: int = 0  # of passes of `forward_part` that follow each other; see `Model`

    @abstractmethod
    def forward(self, written: Mapping[int, np.ndarray], n_layers: int, vocabulary: np.ndarray | None = None) -> Pass:
        """The logits after each slot's last token by the first `n_layers` layers and the output, until the next pass.

        Args:
            written: By slot (m,) int32, all tokens that follow the slot's contents: the last of its history, which is not there
                yet, and the drafted ones so far. Tokens that an earlier call has computed are not computed again, if the memory
                allows that.
            n_layers: From 1 to all of them.
            vocabulary: See `Batch.vocabulary`.

        Nothing is kept. Raises OptionError: a number of layers, token or slot does not exist. CapacityError: the tokens do not
        fit into a slot.
        """

    def forward_part(
        self,
        part: str,
        feeds: Sequence[PartInput],  # noqa: ARG002
        vocabulary: np.ndarray | None = None,  # noqa: ARG002
        n_more: int = 0,  # noqa: ARG002
    ) -> Pass:
        """Compute one of the `heads` for several slots, and the output that belongs to it.

        The states of certain tokens stay with the slot's text, wherever that goes. The next certain token overwrites those of
        drafted tokens. A part without `caches` keeps none: each of its tokens attends to the target's positions before `start`.

        Args:
            part: Its name.
            feeds: The shares, one for each slot.
            vocabulary: See `Batch.vocabulary`.
            n_more: How many further passes through the part there are, each over the best token of the one before, with the
                features handed on; of shares that all have one row.

        Returns:
            Rows in the order of the feeds, those of the first pass first; if there are any, the feature `Part.output` of the
            last pass is the hidden state for one token more.

        Raises:
            OptionError: There is no such part, or a share does not fit.
            CapacityError: A position does not fit into a slot.
        """
        raise OptionError(f"a pass through part {part!r} of this target, expected one of {', '.join(self.heads) or 'none'}")

    def n_held(self, part: str, slot: int, text: np.ndarray) -> int:  # noqa: ARG002
        """How many of the first tokens of `text` (t,) int32 a part has computed in a slot, wherever that came from."""
        return 0
