"""The slots of an engine, which are in use, and what the free ones hold, which can be written to a file: `SavedSlot`."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from attrs import define, evolve, field, frozen

from augury.engine.adapters import Scales
from augury.engine.context import EngineContext
from augury.errors import CapacityError, LostDeviceError, ModelFileError, OptionError, PluginError
from augury.files.atomic_file import write_atomically
from augury.guard import guarded
from augury.interfaces import Opened
from augury.sampling import SamplingParams
from augury.slot_states import join_parts, split_parts

if TYPE_CHECKING:
    from augury.engine.sequence import RunningSequence


_HEAD = struct.Struct("<8sI16s")
_MAGIC = b"augury\0s"
_VERSION = 3


@frozen(eq=False)
class SavedSlot:
    """A slot's text, and its request's sampling.

    `engine.generate(saved.tokens, **saved.params)` goes on as the request would have: the text's last token, which was sampled
    and not computed, is computed first, and random numbers follow those that were used up.

    Its file is a magic number, a version, a checksum of all that follows, and three parts, each after its length: facts in
    JSON, the text's tokens, and the bytes of `EngineContext.save`, which identify their models and options.
    """

    tokens: np.ndarray  # of the text, prompt and output, (n,) int32
    params: Mapping[str, Any]  # of the request, as far as sampling goes
    held: bytes = field(default=b"", repr=False)  # see `EngineContext.save`

    @classmethod
    def of(cls, sequence: RunningSequence) -> SavedSlot:
        """The contents of a request's slot, without its states."""
        params = sequence.sampler.going_on(sequence.history, sequence.n_emitted)
        return cls(sequence.history.copy(), params | ({"lora": lora} if (lora := sequence.request.lora) else {}))

    def write(self, path: Path, context: EngineContext) -> SavedSlot:
        """Write it to a file, which names the model; returns it without states."""
        facts = {
            **_owner_of(context),
            "model": context.info.name,
            "params": {**self.params, "logit_bias": list(self.params["logit_bias"].items())},
        }
        body = join_parts([json.dumps(facts).encode(), self.tokens.tobytes(), self.held])
        try:
            write_atomically(path, _HEAD.pack(_MAGIC, _VERSION, _checksum(body)) + body)
        except OSError as error:
            raise ModelFileError(f"{path}: a slot could not be saved: {error.strerror}") from error
        return attrs.evolve(self, held=b"")

    @classmethod
    def read(cls, path: Path, context: EngineContext) -> SavedSlot:
        """The contents of a file, which is whole and of this model."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ModelFileError(f"{path}: a saved slot could not be read: {error.strerror}") from error
        magic, version, checksum = _HEAD.unpack_from(data) if len(data) >= _HEAD.size else (b"", 0, b"")
        body = data[_HEAD.size :]
        if magic != _MAGIC:
            raise ModelFileError(f"{path}: is no saved slot; expected a file that augury has saved")
        if version != _VERSION:
            raise ModelFileError(f"{path}: is a saved slot of version {version}, expected {_VERSION}; save it again")
        if checksum != _checksum(body):
            raise ModelFileError(f"{path}: is a damaged slot, its checksum is wrong; remove it, and process its text again")
        header, tokens, held = split_parts(body)
        facts, owner = json.loads(header), _owner_of(context)
        if facts["weights"] != owner["weights"]:
            there, here = facts["model"], context.info.name
            raise ModelFileError(f"{path}: was saved with the weights of {there}, not of {here}; load those, or remove it")
        if facts["memory"] != owner["memory"]:
            there, here = facts["memory"], owner["memory"]
            raise ModelFileError(f"{path}: was saved with memory {there!r}, expected {here!r}; load that, or remove it")
        given = {**facts["params"], "logit_bias": dict(facts["params"]["logit_bias"])}
        lora = {name: given.pop(name) for name in ("lora",) if name in given}
        return cls(np.frombuffer(tokens, np.int32), attrs.asdict(SamplingParams(**given)) | lora, held)


def _owner_of(context: EngineContext) -> dict[str, str]:
    return {"weights": context.info.digest or context.info.name, "memory": context.memory.name}


def _checksum(body: bytes) -> bytes:
    from xxhash import xxh3_128_digest

    return xxh3_128_digest(body)


@define(eq=False)
class Slots:
    """Opens slots and frees them. The engine's thread alone calls it."""

    _context: EngineContext
    # called before every request; its exception is the request's error
    _check: Callable[[], None] | None = None
    in_use: set[int] = field(factory=set, init=False)  # also those of evaluations
    evaluating: set[int] = field(factory=set, init=False)
    ended: dict[int, SavedSlot] = field(factory=dict, init=False)  # by slot, its last request's text and sampling
    _unfreed: set[int] = field(factory=set, init=False)  # slots whose memory manager failed to free them

    def open(
        self, tokens: np.ndarray, *, may_reuse: bool, slot: int | None = None, scales: Scales | None = None
    ) -> Opened | None:
        """A slot for a prompt, or None while all are taken."""
        for unfreed in tuple(self._unfreed):
            with suppress(BaseException):  # it was said the first time
                self._end(unfreed)
        if self._check is not None:
            self._check()
        opened = self._context.open(tokens, may_reuse=may_reuse, slot=slot, scales=scales)
        if opened is not None:
            self.in_use.add(opened.slot)
            self._unfreed.discard(opened.slot)
            self.ended.pop(opened.slot, None)
        elif not self.in_use:
            name = self._context.memory.name
            raise PluginError(f"memory manager {name} has no free slot, and none is in use; load the model again")
        return opened

    def free(self, slot: int) -> None:
        """Free a slot; where its manager fails in that, it is asked again before the next one is opened."""
        self.in_use.discard(slot)
        self._unfreed.add(slot)
        guarded(self._end, slot)

    def _end(self, slot: int) -> None:
        with suppress(LostDeviceError):  # it is ended again when the device is back
            self._context.end(slot)
            self._unfreed.discard(slot)

    def reserve(self, tokens: np.ndarray) -> int | None:
        """A slot for a text that is evaluated and not continued, or None while all are taken."""
        if (opened := self.open(tokens[:0], may_reuse=True)) is not None:
            self.evaluating.add(opened.slot)
        return None if opened is None else opened.slot

    def release(self, slot: int) -> None:
        """Free such a slot."""
        self.evaluating.discard(slot)
        self.free(slot)

    def save(self, slot: int, running: SavedSlot | None) -> SavedSlot:
        """The text of a slot, between two rounds of its request, if it has one that is running, or after it."""
        if (known := running or self.ended.get(slot)) is None:
            raise OptionError(f"slot {slot} holds no request's text: none came, it was erased, or an evaluation took its place")
        return evolve(known, held=self._context.save(slot))

    def load(self, slot: int, saved: SavedSlot) -> SavedSlot:
        """Restore saved contents to a free slot."""
        self._context.restore(slot, saved.held)
        self.ended[slot] = evolve(saved, held=b"")
        return self.ended[slot]

    def erase(self, slot: int) -> int:
        """Let a free slot forget its contents; returns how many tokens these were."""
        if slot in self.in_use:
            raise CapacityError(f"slot {slot} is in use; erase it when its request has ended")
        n_erased = self._context.spec.n_ctx - self._context.room(slot)
        if self.open(np.zeros(1, np.int32), may_reuse=False, slot=slot) is not None:
            self.free(slot)
        return n_erased
