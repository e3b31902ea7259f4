"""Messages between a user's machine and a node: a header of JSON, and arrays as they lie in memory.

Nothing in a message is code. Whoever receives one states what it expects of each field; anything else is a `WireError`, after
which the connection is over.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from attrs import Factory, frozen

from augury.batch import Batch
from augury.errors import AuguryError
from augury.types import ModelInfo, StateSpec

FRAME_BYTES = 1 << 30  # of a part of a message, at most
_HEADER_BYTES = 1 << 20
_ALIGNED = 8
_N_ARRAYS = 4096  # a slot's memory has a few for each layer
_DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
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

    def frames(self) -> list[bytes]:
        """The message as two parts to send: the header, and all arrays, each from a multiple of 8 bytes on."""
        arrays = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
        shapes = [[name, array.dtype.str[1:], list(array.shape)] for name, array in arrays.items()]
        header = json.dumps({"kind": self.kind, "facts": dict(self.facts), "arrays": shapes}).encode()
        return [header, b"".join(part for each in arrays.values() for part in (each.tobytes(), bytes(-each.nbytes % _ALIGNED)))]

    @classmethod
    def of(cls, frames: Sequence[bytes]) -> Message:
        """Read a message.

        Raises:
            WireError: It is none.
        """
        if len(frames) != 2 or len(frames[0]) > _HEADER_BYTES:
            raise WireError(f"a message of {len(frames)} parts, expected a header of {_HEADER_BYTES} bytes at most and arrays")
        try:
            header = json.loads(frames[0])
            kind, facts, shapes = header["kind"], header["facts"], header["arrays"]
            named = [(str(name), np.dtype(dtype), tuple(shape)) for name, dtype, shape in shapes if dtype in _DTYPES]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise WireError(f"a message without a header that can be read ({type(error).__name__})") from None
        if not (isinstance(kind, str) and isinstance(facts, dict) and len(named) == len(shapes) <= _N_ARRAYS):
            raise WireError(f"a message whose header tells of {len(shapes)} arrays, {len(named)} of known types")
        arrays, start, body = {}, 0, frames[1]
        for name, dtype, shape in named:
            are_sizes = len(shape) <= 8 and all(type(size) is int and 0 <= size <= FRAME_BYTES for size in shape)
            n_bytes = math.prod(shape) * dtype.itemsize if are_sizes else FRAME_BYTES + 1
            if start + n_bytes > len(body):
                raise WireError(f"array {name[:20]!r} of shape {str(shape)[:80]}, with {len(body) - start} bytes left")
            arrays[name] = np.frombuffer(body, np.uint8, n_bytes, start).view(dtype).reshape(shape)
            start += n_bytes + -n_bytes % _ALIGNED
        if start != len(body):
            raise WireError(f"a message with {len(body)} bytes of arrays, expected {start}")
        return cls(kind, facts, arrays)

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
        is_so = array is not None and array.dtype == np.dtype(dtype) and array.ndim == len(shape)
        if array is None or not is_so or any(own not in (None, size) for own, size in zip(shape, array.shape, strict=True)):
            found = "missing" if array is None else f"{array.dtype} of shape {array.shape}"
            raise WireError(f"array {name} is {found}, expected {np.dtype(dtype)} of shape {shape}")
        return array


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
            shape = tuple(letter if isinstance(letter, int) else sizes[letter] for letter in letters)
            columns[name] = message.array(name, dtype, shape)
    rows, most = columns["rows"], (spec.n_slots, sizes["n"] or 0)
    bounds = {"rows": (0, most[1]), "restores": (0, most[0]), "vocabulary": (0, info.n_vocab)}
    for name, (least, end) in bounds.items():
        if name in columns and not ((columns[name] >= least) & (columns[name] < end)).all():
            raise WireError(f"{name} of a pass are out of range, expected {least} to {end - 1}")
    saves = columns.get("saves", np.empty((0, 2), np.int32))
    if (rows[1:] <= rows[:-1]).any() or not ((saves >= 0) & (saves < (most[0], most[1] + 1))).all():
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
