"""The states of a model's slot, as bytes that show whether they are whole and whose they are."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from augury.errors import CapacityError, ModelFileError, UnsupportedError

if TYPE_CHECKING:
    from augury.types import ModelInfo, ModelOptions, StateSpec

_HEAD = struct.Struct("<8s16sII")  # magic; a digest of all else, and of the model; positions, and the first of them alone
_KIND = b"augury 3"
_WHOLE = 2**32 - 1  # of all positions from 0 on, and of the sequence
LENGTH = struct.Struct("<Q")
"""Of the length in front of each part, see `join_parts`."""


class SlotStates:
    """Saves and restores the contents of a model's slots: the part of a model that its memory manager sees.

    A backend states where a slot's memory lies, or overrides `save` and `restore`.
    """

    info: ModelInfo
    options: ModelOptions  # how it was loaded
    state_spec: StateSpec
    isa: str = "generic"  # the instruction set that it was compiled for, as its backend calls them
    memory_layout: str = ""  # of a slot, where it depends on more than the model and the types of its cache

    @property
    def identity(self) -> str:
        """A digest of the model, not of its file's name, and of how it was loaded; only the same restores saved contents."""
        kind = type(self)
        of = f"{kind.__module__}.{kind.__qualname__}", attrs.evolve(self.info, name="")
        window = "" if self.options.window is None else f"window {self.options.window}"
        return ", ".join(str(fact) for fact in (*of, self.memory_layout, self.isa, self._cache_types, window) if fact)

    @property
    def _cache_types(self) -> str:
        return f"keys {self.options.cache_type_k}, values {self.options.cache_type_v}"

    def slot_memory(self, slot: int, n: int, start: int | None = None) -> Sequence[np.ndarray]:  # noqa: ARG002 - see Raises
        """Views of a slot's memory of its first n positions, and of its sequence; or copies, see `slot_written`.

        With `start`, a multiple of 256, the memory of positions from there on alone, without that of the sequence. It is asked
        for slots and positions that there are. Raises UnsupportedError: the backend cannot save slots.
        """
        raise UnsupportedError(f"{type(self).__name__} cannot save slots")

    def slot_written(self) -> None:
        """The arrays of the last `slot_memory` were written over; copies are written back."""

    def save(self, slot: int, n: int, start: int | None = None) -> bytes:
        """The states of a slot's first n positions, of which there may be none, and its state of the sequence as it stands.

        With `start` those of the positions from there on alone; see `slot_memory`. Accepted tokens of the slot's last pass are
        included only after the next pass has taken them in. Not to be called during a pass, like `restore`. Raises
        CapacityError: there is no such slot, or it has fewer positions. UnsupportedError: the backend cannot save slots.
        """
        body = [np.ascontiguousarray(array).data for array in self._memory_of(slot, n, start)]
        first = _WHOLE if start is None else start
        return b"".join([_HEAD.pack(_KIND, self._digest(n, first, body), n, first), *body])  # copied once

    def restore(self, slot: int, data: bytes) -> None:
        """Restore saved contents, of this slot or another, of this process or another, to a slot; errors as of `save`.

        Raises ModelFileError: the bytes are damaged, or of another model or other options; then nothing is changed.
        """
        body = memoryview(data)[_HEAD.size :]
        kind, digest, n, first = _HEAD.unpack_from(data) if len(data) >= _HEAD.size else (b"", b"", 0, _WHOLE)
        if kind != _KIND or digest != self._digest(n, first, [body]):
            raise ModelFileError(
                f"a saved slot of {len(data)} bytes is damaged, or of another model or backend than this one "
                f"({self.info.architecture}, {self.isa}, {self._cache_types}); load the model as it was when that was saved, "
                "or remove it and process its text again"
            )
        start = 0
        for array in self._memory_of(slot, n, None if first == _WHOLE else first):
            array[...] = np.frombuffer(body[start : start + array.nbytes], array.dtype).reshape(array.shape)
            start += array.nbytes
        self.slot_written()

    def copy(self, source: int, target: int, n: int) -> None:
        """Let a slot hold the first n positions of another, and its state of the sequence as it stands. Not during a pass.

        Raises CapacityError: there is no such slot, or it has fewer positions. UnsupportedError: the backend cannot copy slots.
        """
        try:
            views = zip(self._memory_of(source, n), self._memory_of(target, n), strict=True)
        except UnsupportedError:  # it may save and restore in a way of its own
            self.restore(target, self.save(source, n))
            return
        for there, here in views:
            here[...] = there
        self.slot_written()

    def _memory_of(self, slot: int, n: int, start: int | None = None) -> Sequence[np.ndarray]:
        spec = self.state_spec
        if not (0 <= slot < spec.n_slots and 0 <= n <= spec.n_ctx):
            raise CapacityError(f"{n} positions of slot {slot}, expected {spec.n_ctx} at most, of {spec.n_slots} slots")
        return self.slot_memory(slot, n) if start is None else self.slot_memory(slot, n, start)

    def _digest(self, n: int, first: int, body: Sequence[memoryview]) -> bytes:
        from xxhash import xxh3_128

        made = xxh3_128(f"{self.identity}\n{n} {first}\n".encode())
        for part in body:
            made.update(part)
        return made.digest()


def join_parts(parts: Iterable[bytes]) -> bytes:
    """Several byte strings as one, of which `split_parts` makes them again."""
    return b"".join(each for part in parts for each in (LENGTH.pack(len(part)), part))


def split_parts(data: bytes) -> list[bytes]:
    """The parts that `join_parts` was given. Raises ModelFileError: it is something else.

    >>> split_parts(join_parts([b"text", b"", b"states"]))
    [b'text', b'', b'states']
    """
    parts, start = list[bytes](), 0
    while start < len(data):
        head = data[start : start + LENGTH.size]
        end = start + LENGTH.size + (LENGTH.unpack(head)[0] if len(head) == LENGTH.size else len(data))
        if end > len(data):
            raise ModelFileError(f"a saved slot of {len(data)} bytes is damaged; remove it, and process its text again")
        parts.append(data[start + LENGTH.size : end])
        start = end
    return parts
