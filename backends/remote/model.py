"""A model whose layers, all of them or some, a node computes: passes travel there, and results back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import define, evolve

from augury.backends.remote.connection import Connection, Endpoint
from augury.backends.remote.wire import Message, WireError, batch_message, spec_of
from augury.batch import Batch
from augury.errors import AuguryError, LostDeviceError, UnsupportedError
from augury.interfaces import Model
from augury.passes import Pass
from augury.types import Allocation, ModelInfo, ModelOptions, read_only

if TYPE_CHECKING:
    from augury.blocks import ModelPlan
    from augury.files.gguf import ModelFile

_N_TRIPS = 3  # that are timed, for the least of them
_CHAIN_ROWS = 64  # of a chain of passes, which is one trip


@define
class Wants:
    """What was asked of rows of logits lately, so that the next answer brings it along."""

    n_first: int = 0  # the first tokens alone count; 0: all do
    n_top: int = 0  # the best tokens of each row
    normalizers: bool = False

    def facts(self) -> dict[str, Any]:
        """The same for a message."""
        return {"n_first": self.n_first, "n_top": self.n_top, "normalizers": self.normalizers}


class RemoteModel(Model):
    """Layers on a node. After a `LostDeviceError` it asks for them again in `regain`."""

    chain_rows = _CHAIN_ROWS

    def __init__(self, endpoint: Endpoint, request: Message, file: ModelFile, plan: ModelPlan, options: ModelOptions) -> None:
        """Have a node load what `request` says, and wait for it. Raises AuguryError: the node cannot be reached, or refuses."""
        self.info, self.features, self.options = ModelInfo.of(file, plan), plan.features, options
        self._endpoint, self._request = endpoint, request
        self._connection: Connection | None = endpoint.connect()
        self._pending: Connection | None = None
        self._refusal: AuguryError | None = None
        self._vocabulary: np.ndarray | None = None  # that the node knows
        self._read: tuple[dict[str, Any], dict[str, np.ndarray]] = {}, {}
        self.wants = Wants()
        try:
            self._loaded = self._connection.ask(request)
            self.state_spec = spec_of(self._loaded)
            self.n_threads, self.isa = self._loaded.whole("n_threads"), self._loaded.text("isa")
            self.trip_s = min(self._trip_s() for _ in range(_N_TRIPS))
        except BaseException:
            self.close()
            raise

    def _trip_s(self) -> float:
        start = perf_counter()
        self.ask(Message("check"))
        return perf_counter() - start

    @property
    def identity(self) -> str:
        return self._loaded.text("identity")

    def ask(self, message: Message) -> Message:
        """The node's answer; without one the layers are lost."""
        if self._connection is None:
            raise LostDeviceError(f"{self._endpoint.name} is gone")
        try:
            return self._connection.ask(message)
        except (LostDeviceError, WireError) as error:
            self._disconnect()
            raise LostDeviceError(str(error)) from error

    @property
    def is_lost(self) -> bool:
        return self._connection is None

    def regain(self, wait_s: float) -> bool:
        """See `Model.regain`: the node loads its layers again, as soon as it can be reached."""
        if self._connection is not None:
            return True
        try:
            if self._pending is None:
                self._pending = self._endpoint.connect(wait_s)
                self._pending.send(self._request)
            if (loaded := self._pending.receive(wait_s)) is None:
                return False
        except LostDeviceError:
            self._forget_pending()
            return False
        except AuguryError:
            self._forget_pending()
            raise
        self._connection, self._pending, self._vocabulary = self._pending, None, None
        if loaded.facts != self._loaded.facts:
            self._disconnect()
            raise UnsupportedError(f"{self._endpoint.name} is back, but computes differently now")
        return True

    def forward(self, batch: Batch) -> Pass:
        return self.forward_chain(batch, 1)

    def forward_chain(self, batch: Batch, n_passes: int) -> Pass:
        knows = batch.vocabulary is not None and batch.vocabulary is self._vocabulary
        facts = {"n_passes": n_passes, **self.wants.facts()}
        answer = self.ask(batch_message(batch, facts, knows_vocabulary=knows))
        self._vocabulary = batch.vocabulary if batch.vocabulary is not None else self._vocabulary
        n_tokens = len(batch.tokens) if n_passes == 1 else len(batch.rows)
        features = {name: answer.array(name, "f4", (n_tokens, self.features.get(name))) for name in batch.features}
        return RemotePass(self, answer, len(batch.rows) * n_passes, features)

    def check(self) -> None:
        with suppress(LostDeviceError):  # which passes will find out
            self.ask(Message("check"))

    def slot_memory(self, slot: int, n: int, start: int | None = None) -> Sequence[np.ndarray]:
        """See `Model.slot_memory`: copies."""
        facts = {"slot": slot, "n": n, "start": -1 if start is None else start}
        answer = self.ask(Message("states", facts))
        self._read = facts, {name: array.copy() for name, array in answer.arrays.items()}
        return list(self._read[1].values())

    def slot_written(self) -> None:
        self.ask(Message("write", *self._read))

    def copy(self, source: int, target: int, n: int) -> None:
        """See `SlotStates.copy`: where they live."""
        spec = self.state_spec
        if not (0 <= min(source, target) <= max(source, target) < spec.n_slots and 0 <= n <= spec.n_ctx):
            raise UnsupportedError(f"{n} positions from slot {source} to {target}, of {spec.n_slots} slots of {spec.n_ctx}")
        self.ask(Message("copy", {"source": source, "target": target, "n": n}))

    def memory_table(self) -> Sequence[Allocation]:
        lines = self._loaded.facts.get("memory", [])
        return [Allocation(str(purpose), int(n_bytes), self._endpoint.name) for purpose, n_bytes in lines]

    def close(self) -> None:
        self._disconnect()
        self._endpoint.close()

    def _disconnect(self) -> None:
        self._forget_pending()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _forget_pending(self) -> None:
        if self._pending is not None:
            self._pending.close()
            self._pending = None


class RemotePass(Pass):
    """A pass whose rows of logits lie on a node. What every pass is asked for comes with the answer, the rest when asked."""

    def __init__(
        self, model: RemoteModel, answer: Message, n_rows: int, features: Mapping[str, np.ndarray], n_first: int = 0
    ) -> None:
        self._model, self._answer, self._n_rows, self._features = model, answer, n_rows, features
        self._n_first = n_first
        self._of = answer.whole("n_first")  # what the answer was made for

    def argmax(self) -> np.ndarray:
        return self._known("argmax").array("argmax", "i4", (self._n_rows,))

    def top_k(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        k = max(0, min(k, self._n_vocab))
        self._model.wants.n_top = max(self._model.wants.n_top, k)
        answer = self._known("top_ids", k)
        ids, logits = (answer.array(name, kind, (self._n_rows, None)) for name, kind in (("top_ids", "i4"), ("top", "f4")))
        return ids[rows, :k], logits[rows, :k]

    def gather(self, row: int, ids: np.ndarray) -> np.ndarray:
        if self._has("top_ids"):
            known = dict(zip(*(self._answer.arrays[name][row].tolist() for name in ("top_ids", "top")), strict=True))
            if all(token in known for token in ids.tolist()):
                return np.array([known[token] for token in ids.tolist()], np.float32)
        return self.row(row)[ids]

    def log_normalizer(self, row: int) -> float:
        self._model.wants.normalizers = True
        return float(self._known("normalizers").array("normalizers", "f8", (self._n_rows,))[row])

    def rows(self) -> np.ndarray:
        return self._logits(-1)

    def row(self, row: int) -> np.ndarray:
        return self._logits(row)[0]

    def features(self, name: str) -> np.ndarray:
        return read_only(self._features[name]) if name in self._features else super().features(name)

    def first(self, n: int) -> Pass:
        self._model.wants.n_first = n
        return RemotePass(self._model, self._answer, self._n_rows, self._features, n)

    @property
    def _n_vocab(self) -> int:
        return self._n_first or self._model.info.n_vocab

    def _has(self, name: str, k: int = 0) -> bool:
        array = self._answer.arrays.get(name)
        return array is not None and self._of == self._n_first and (not k or array.shape[1] >= k)

    def _known(self, name: str, k: int = 0) -> Message:
        """An answer that holds an array."""
        if not self._has(name, k):
            wants = evolve(self._model.wants, n_first=self._n_first)
            self._answer, self._of = self._model.ask(Message("rows", wants.facts())), self._n_first
        return self._answer

    def _logits(self, row: int) -> np.ndarray:
        answer = self._model.ask(Message("logits", {"row": row, "n_first": self._n_first}))
        return answer.array("logits", "f4", (self._n_rows if row < 0 else 1, self._n_vocab))
