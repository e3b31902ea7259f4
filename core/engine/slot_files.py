"""`SavedSlot`, the contents of a slot, which can be written to a file.

A file is a magic number, a version, a checksum of all that follows, and three parts, each after its length: facts in JSON, the
text's tokens, and the bytes of `EngineContext.save`, which identify their models and options.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from attrs import field, frozen

from augury.errors import ModelFileError
from augury.files.atomic_file import write_atomically
from augury.sampling import SamplingParams
from augury.slot_states import join_parts, split_parts

if TYPE_CHECKING:
    from augury.engine.context import EngineContext
    from augury.engine.sequence import RunningSequence

_HEAD = struct.Struct("<8sI16s")
_MAGIC = b"augury\0s"
_VERSION = 3


@frozen(eq=False)
class SavedSlot:
    """A slot's text, and its request's sampling.

    `engine.generate(saved.tokens, **saved.params)` goes on as the request would have: the text's last token, which was sampled
    and not computed, is computed first, and random numbers follow those that were used up.
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
