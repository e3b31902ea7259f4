"""Messages between a user's machine and a node, of one frame: a header of JSON, and arrays as they lie in memory.

Nothing in a message is code. Whoever receives one states what it expects of each field; anything else is a `WireError`, after
which the connection is over.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import attrs
import numpy as np
from attrs import Factory, frozen

from augury.batch import Batch
from augury.errors import AuguryError
from augury.types import ModelInfo, StateSpec

FRAME_BYTES = 1 << 30  # of a message, at most
_HEADER_BYTES = 1 << 20
_LENGTH_BYTES = 4  # before the header
_ALIGNED = 8
_N_ARRAYS = 4096  # a slot's memory has a few for each layer
_DTYPES = {name: np.dtype(name) for name in ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")}
_N_TEXT = 4096  # characters of a text
_LARGEST = 2**62
_COLUMNS = {  # of a `Batch`: the type, and the shape where n, r or m may be any number
    "tokens": ("i4", ("n",)),
    "slots": ("i4", ("n",)),
    "positions": ("i4", ("n",)),
    "rows": ("i4", ("r",)),
    "parents": ("i4", ("n",)),
    "accepted": ("i4", (None, 3)),
    "is_drafted": ("b1", ("n",)),
    "restores": ("i4", (None,)),
    "saves": ("i4", (None, 2)),
    "hidden": ("f4", ("n", None)),
    "vocabulary": ("i4", (None,)),
}


class WireError(AuguryError):
    """A message that breaks the format."""


@frozen(eq=False)
class Message:
    """One message: what it asks or tells, facts of JSON, and arrays by name."""

    kind: str
    facts: Mapping[str, Any] = Factory(dict)
    arrays: Mapping[str, np.ndarray] = Factory(dict)

    def frame(self) -> bytes:
        """The message to send: the header after its length, and all arrays, each from a multiple of 8 bytes on."""
        named = tuple([(name, array.dtype.str[1:], array.shape) for name, array in self.arrays.items()])
        try:
            parts = [_kept_written(self.kind, tuple(self.facts.items()), named)]
        except TypeError:  # a fact is a list
            parts = [_written(self.kind, tuple(self.facts.items()), named)]
        for array in self.arrays.values():
            parts.append(array.tobytes())
            if odd := array.nbytes % _ALIGNED:
                parts.append(bytes(_ALIGNED - odd))
        return b"".join(parts)

    @classmethod
    def of(cls, frames: Sequence[bytes]) -> Message:
        """Read a message, or raise WireError if it is none."""
        if len(frames) != 1 or len(frame := frames[0]) < _LENGTH_BYTES:
            raise WireError(f"a message of {len(frames)} frames, expected one with a header")
        start = _LENGTH_BYTES + int.from_bytes(frame[:_LENGTH_BYTES], "little")
        if start % _ALIGNED or start > min(len(frame), _HEADER_BYTES):
            raise WireError(f"a header that ends at byte {start}, expected a multiple of 8 up to {_HEADER_BYTES}")
        header = frame[_LENGTH_BYTES:start]
        kind, facts, places, n_bytes = (_kept_header if len(header) <= _N_TEXT else _header)(header)
        if start + n_bytes != len(frame):
            raise WireError(f"a message with {len(frame) - start} bytes of arrays, expected {n_bytes}")
        return cls(kind, facts, {name: np.ndarray(shape, dtype, frame, start + at) for name, dtype, shape, at in places})

    def whole(self, name: str, least: int = 0, most: int = _LARGEST) -> int:
        """A fact that is a whole number in this range."""
        value = self.facts.get(name)
        if type(value) is not int or not least <= value <= most:
            raise WireError(f"{name} is {str(value)[:40]!r}, expected a number from {least} to {most}")
        return value

    def text(self, name: str) -> str:
        """A fact that is a text."""
        value = self.facts.get(name)
        if not isinstance(value, str) or len(value) > _N_TEXT:
            raise WireError(f"{name} is {str(value)[:40]!r}, expected a text of {_N_TEXT} characters at most")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A fact that is a list of texts."""
        values = self.facts.get(name)
        if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
            raise WireError(f"{name} is {str(values)[:40]!r}, expected a list of texts")
        return tuple(values)

    def array(self, name: str, dtype: str, shape: tuple[int | None, ...]) -> np.ndarray:
        """An array of this type and shape, in which None stands for any size."""
        array = self.arrays.get(name)
        is_so = array is not None and array.dtype == _DTYPES[dtype] and array.ndim == len(shape)
        if array is None or not is_so or any(own not in (None, size) for own, size in zip(shape, array.shape, strict=True)):
            found = "missing" if array is None else f"{array.dtype} of shape {array.shape}"
            raise WireError(f"array {name} is {found}, expected {_DTYPES[dtype]} of shape {shape}")
        return array


def _written(kind: str, facts: tuple[tuple[str, Any], ...], arrays: tuple[tuple[str, str, tuple[int, ...]], ...]) -> bytes:
    """The header of a message, after its length."""
    header = json.dumps({"kind": kind, "facts": dict(facts), "arrays": arrays}).encode()
    header += b" " * (-(_LENGTH_BYTES + len(header)) % _ALIGNED)
    return len(header).to_bytes(_LENGTH_BYTES, "little") + header


_kept_written = lru_cache(64)(_written)  # likewise; of one kind a fact has one type, so True is never taken for 1


def _header(header: bytes) -> tuple[str, Mapping[str, Any], list[tuple[str, np.dtype[Any], tuple[int, ...], int]], int]:
    """What a header says: kind, facts, where each array lies, and the bytes of all of them."""
    try:
        found = json.loads(header)
        kind, facts, shapes = found["kind"], found["facts"], found["arrays"]
        named = [(str(name), _DTYPES[dtype], tuple(shape)) for name, dtype, shape in shapes if dtype in _DTYPES]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError(f"a message without a header that can be read ({type(error).__name__})") from None
    if not (isinstance(kind, str) and isinstance(facts, dict) and len(named) == len(shapes) <= _N_ARRAYS):
        raise WireError(f"a message whose header tells of {len(shapes)} arrays, {len(named)} of known types")
    places, start = [], 0
    for name, dtype, shape in named:
        if len(shape) > 8 or not all(type(size) is int and 0 <= size <= FRAME_BYTES for size in shape):
            raise WireError(f"array {name[:20]!r} of shape {str(shape)[:80]}, expected up to eight sizes")
        places.append((name, dtype, shape, start))
        n_bytes = math.prod(shape) * dtype.itemsize
        start += n_bytes + -n_bytes % _ALIGNED
    return kind, facts, places, start


_kept_header = lru_cache(64)(_header)  # passes of one shape have the same


def batch_message(batch: Batch, facts: Mapping[str, Any], *, knows_vocabulary: bool) -> Message:
    """A pass to be computed; a vocabulary that the node `knows` is that of the pass before."""
    arrays = {name: array for name in _COLUMNS if (array := getattr(batch, name)) is not None}
    if knows_vocabulary:
        del arrays["vocabulary"]
    own = {"layers": batch.layers, "features": batch.features, "part": batch.part, "same_vocabulary": knows_vocabulary}
    return Message("forward", {**facts, **own}, arrays)


def batch_of(message: Message, spec: StateSpec, info: ModelInfo, known: np.ndarray | None) -> Batch:
    """The pass that a message asks for, with the vocabulary of the pass before where it says so.

    Kernels do not check. What `check_batch` leaves out is checked here, the rest by the model.

    Raises:
        WireError: It is none for slots of this kind.
    """
    sizes: dict[str | None, int | None] = {None: None, "n": len(message.array("tokens", "i4", (None,)))}
    sizes["r"] = len(message.array("rows", "i4", (None,)))
    columns: dict[str, Any] = {}
    for name, (dtype, letters) in _COLUMNS.items():
        if name in message.arrays or name in {"slots", "positions"}:
            columns[name] = message.array(
                name, dtype, tuple(each if isinstance(each, int) else sizes[each] for each in letters)
            )
    rows, n = columns["rows"], sizes["n"] or 0
    for name, end in (("rows", n), ("restores", spec.n_slots), ("vocabulary", info.n_vocab)):
        if name in columns and len(column := columns[name]) and not 0 <= column.min() <= column.max() < end:
            raise WireError(f"{name} of a pass are out of range, expected 0 to {end - 1}")
    saves = columns.get("saves")
    is_saved = saves is None or ((saves >= 0) & (saves < (spec.n_slots, n + 1))).all()
    if (len(rows) > 1 and (rows[1:] <= rows[:-1]).any()) or not is_saved:
        raise WireError("rows of a pass that do not rise, or states to be saved of slots or tokens that there are not")
    if (layers := message.facts.get("layers")) is not None:
        if not (isinstance(layers, list) and len(layers) == 2 and all(type(each) is int for each in layers)):
            raise WireError(f"layers are {str(layers)[:40]!r}, expected two numbers")
        layers = tuple(layers)
    if message.facts.get("same_vocabulary"):
        columns["vocabulary"] = known
    return Batch(**columns, layers=layers, features=message.texts("features"), part=message.text("part"))


def spec_facts(spec: StateSpec) -> dict[str, Any]:
    """The sizes of slots, as facts."""
    return {"spec": list(attrs.astuple(spec))}


def spec_of(message: Message) -> StateSpec:
    """The sizes of slots that a message tells."""
    values = message.facts.get("spec")
    kinds: tuple[Any, ...] = (int, int, int, int, bool, (int, type(None)))
    is_so = isinstance(values, list) and len(values) == len(kinds)
    if not is_so or not all(isinstance(each, kind) for each, kind in zip(values or (), kinds, strict=True)):
        raise WireError(f"sizes of slots are {str(values)[:80]!r}, expected six numbers")
    return StateSpec(*(values or ()))
