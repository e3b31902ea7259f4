"""Model files: GGUF metadata and memory-mapped tensors, in one file or in parts."""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar, overload
from weakref import WeakValueDictionary

import numpy as np
from attrs import NOTHING, define, evolve, field, frozen, setters

from augury.errors import ModelFileError
from augury.files.header import quoted, read_header
from augury.files.ollama import in_llama_cpp_words
from augury.files.override import Scalar, Untyped, overriding
from augury.files.tensor_type import TensorType
from augury.memory_limit import lack_of_memory

BORROWED = "target/"
"""The prefix of names of tensors that a draft model's plan borrows from its target's file."""

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


Value = TypeVar("Value")
Default = TypeVar("Default")

# The types that `ModelFile.get` can be asked for → their names in error messages.
_KINDS: dict[object, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list[int]: "an array of integers",
    list[float]: "an array of numbers",
    list[bool]: "an array of truth values",
    list[str]: "an array of strings",
    np.ndarray: "an array of numbers",
}
_DTYPE_KINDS: dict[object, str] = {np.ndarray: "iufb", list[int]: "iu", list[float]: "iuf", list[bool]: "b"}


@frozen(eq=False)
class Tensor:
    """A tensor of a model file.

    `shape` is in numpy's order: the reverse of GGUF's dimensions, the last axis contiguous. `data` (n_bytes,) uint8 is
    a read-only view of the memory-mapped file; it starts at a multiple of 8 bytes or more (the file's alignment).
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    data: np.ndarray = field(repr=False)

    @property
    def n_bytes(self) -> int:
        """Bytes that the tensor takes in the file."""
        return self.data.size

    def floats(self) -> np.ndarray:
        """The weights, float32 in their shape: a view of the file where they are stored so.

        Source: the `gguf` package's definition of each weight type.
        """
        if self.type is TensorType.F32:
            return self.data.view(np.float32).reshape(self.shape)
        import gguf

        kind = gguf.GGMLQuantizationType[self.type.name]
        return np.asarray(gguf.quants.dequantize(self.data, kind), np.float32).reshape(self.shape)


_N_SAMPLED, _SAMPLE = 256, 256  # tensors, and bytes in the middle of each: a page of the disk is read for it


def _unchanging(given: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(given))


@define(eq=False, slots=False, on_setattr=setters.NO_OP)
class ModelFile:
    """A GGUF model: metadata and tensors, whether it is one file or several parts.

    Metadata values are str, int, float, bool, list[str] for arrays of strings, read-only numpy arrays for arrays of
    numbers and truth values, and lists of these for nested arrays. Text that is not valid UTF-8 (single tokens of a
    vocabulary may be such) holds its bytes as surrogate escapes: `text.encode("utf-8", "surrogateescape")` gives them
    back.
    """

    path: Path  # of the file that was asked for
    paths: tuple[Path, ...]  # of all files of the model, in order
    n_bytes: int  # of them together
    metadata: Mapping[str, object] = field(converter=_unchanging)  # as the first part states them, or as overridden
    tensors: Mapping[str, Tensor] = field(converter=_unchanging)  # by name, of all parts, in the order of the files
    # device, inode, size and times of last change (ns) of each file when it was opened: files whose identity is the same have
    # the same content; empty if it was not read from files
    identity: tuple[tuple[int, ...], ...] = ()
    head: bytes = b""  # a hash of the files' headers
    reference: str = field(default="", init=False)  # by which `open_model` found it; empty of one that was put together
    quant: str | None = field(default=None, init=False)  # what its matrices were quantised to for this use, see `quantized`
    target: ModelFile | None = field(default=None, init=False)  # whose tensors a draft model's borrows, see `BORROWED`
    # by backend and tensor, the weights that a backend made of a tensor, as long as it holds them
    in_memory: WeakValueDictionary[tuple[str, str], Any] = field(factory=WeakValueDictionary, init=False)

    @classmethod
    def open(cls, path: str | Path, override_kv: Mapping[str, Scalar | Untyped] | None = None) -> ModelFile:
        """Read the header of a model file and map its tensors; any part of a split model stands for the whole.

        What Ollama's converter names otherwise has the names of llama.cpp's. `override_kv` are values in place of the file's
        own. Raises ModelFileError: a file is missing, unreadable, not GGUF 2 or 3, or damaged, or the parts do not match.
        UnsupportedError: a tensor's type is not read. OptionError: a value does not fit the one that it replaces.
        """
        file = cls._open_parts(Path(path))
        metadata, tensors = in_llama_cpp_words(file.metadata, file.tensors)
        file.metadata, file.tensors = _unchanging(metadata), _unchanging(tensors)
        return file.overridden(override_kv)

    def overridden(self, override_kv: Mapping[str, Scalar | Untyped] | None) -> ModelFile:
        """The file itself, with other values in place of its own metadata. Raises OptionError: a value does not fit."""
        if override_kv:
            given = overriding(self.metadata, override_kv, self.path)
            self.metadata = MappingProxyType({**self.metadata, **given})
            self.head += repr(sorted(given.items())).encode()
        return self

    @classmethod
    def _open_parts(cls, path: Path) -> ModelFile:
        asked = cls._open_one(path)
        count = asked.get("split.count", int, 1)
        if count <= 1:
            return asked
        paths = _part_paths(path, count)
        parts = [asked if part == path else cls._open_one(part) for part in paths]
        tensors: dict[str, Tensor] = {}
        for number, part in enumerate(parts):
            for key, expected in (("split.no", number), ("split.count", count)):
                if (found := part.get(key, int)) != expected:
                    raise ModelFileError(f"{part.path}: {key} is {found}, expected {expected} in part {number + 1} of {count}")
            for key in sorted(part.metadata.keys() & parts[0].metadata.keys() - {"split.no", "split.tensors.count"}):
                here, there = (each.metadata[key] for each in (part, parts[0]))
                if _described(here) != _described(there):
                    differing = f"{quoted(key)} is {_described(here)}, but {_described(there)} in part 1"
                    raise ModelFileError(f"{part.path}: {differing}; take all parts from one model")
            if both := tensors.keys() & part.tensors.keys():
                raise ModelFileError(f"{part.path}: tensor {quoted(min(both))} is in an earlier part too")
            tensors |= part.tensors
        for part in parts:
            if (said := part.get("split.tensors.count", int)) != len(tensors):
                raise ModelFileError(
                    f"{part.path}: split.tensors.count is {said}, but the {count} parts hold {len(tensors)} tensors"
                )
        identity = tuple(one for part in parts for one in part.identity)
        head = b"".join(part.head for part in parts)
        return cls(path, paths, sum(part.n_bytes for part in parts), parts[0].metadata, tensors, identity, head)

    @classmethod
    def _open_one(cls, path: Path) -> ModelFile:
        data, identity = mapped(path)
        header = read_header(path, data)
        tensors: dict[str, Tensor] = {}
        for entry in header.entries:
            view = np.frombuffer(data, np.uint8, entry.n_bytes, entry.start)
            tensors[entry.name] = Tensor(entry.name, entry.shape, entry.type, view)
        from xxhash import xxh3_128_digest

        end = min((entry.start for entry in header.entries), default=len(data))
        with memoryview(data) as whole, whole[:end] as head:
            return cls(path, (path,), len(data), header.metadata, tensors, (identity,), xxh3_128_digest(head))

    @cached_property
    def digest(self) -> str:
        """A hash of headers and of some bytes of some tensors, which tells files of other weights apart, wherever they lie."""
        from xxhash import xxh3_128

        found = xxh3_128(self.head)
        tensors = list(self.tensors.values())
        for tensor in tensors[:: max(len(tensors) // _N_SAMPLED, 1)]:
            middle = max(tensor.n_bytes - _SAMPLE, 0) // 2
            found.update(tensor.data[middle : middle + _SAMPLE].tobytes())
        return found.hexdigest()

    @property
    def architecture(self) -> str:
        """The name of the model's architecture (`general.architecture`)."""
        return self.get("general.architecture", str)

    @overload
    def get(self, key: str, kind: type[Value]) -> Value: ...
    @overload
    def get(self, key: str, kind: type[Value], default: Default) -> Value | Default: ...
    def get(self, key: str, kind: type[Value], default: object = NOTHING) -> object:
        """Look up a metadata value of a known kind. Raises ModelFileError: it is missing and required, or is something else.

        Args:
            key: The metadata key.
            kind: `int`, `float`, `bool`, `str`, a list of one of these, or `np.ndarray` for an array of numbers as the
                file stores it. Integers are also taken where floats are asked for; nothing else is converted.
            default: The result if the key is missing; without it the key is required.
        """
        value = self.metadata.get(key, NOTHING)
        if value is NOTHING:
            if default is not NOTHING:
                return default
            raise ModelFileError(f"{self.path}: metadata key {key!r} is missing, expected {_KINDS[kind]}")
        if (found := _as_kind(value, kind)) is None:
            raise ModelFileError(f"{self.path}: metadata key {key!r} is {_described(value)}, expected {_KINDS[kind]}")
        return found

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """Look up a tensor of this shape, if one is given. Raises ModelFileError: it is missing or has another shape.

        Files leave out a shape's first axes of size 1, or do not: the given shape decides.
        """
        if name.startswith(BORROWED):
            return self._borrowed(name.removeprefix(BORROWED), shape)
        tensor = self.tensors.get(name)
        if tensor is None:
            expected = "" if shape is None else f" of shape {shape}"
            raise ModelFileError(f"{self.path}: tensor {name!r} is missing, expected one{expected}")
        if shape is None or tensor.shape == shape:
            return tensor
        if _without_ones(tensor.shape) != _without_ones(shape):
            raise ModelFileError(f"{self.path}: tensor {name!r} has shape {tensor.shape}, expected {shape}")
        return evolve(tensor, shape=shape)

    def borrow_from(self, target: ModelFile) -> None:
        """Let a draft model's file have the tensors of its target's."""
        if target is not self:
            self.target = target

    def owner(self, name: str) -> tuple[ModelFile, str]:
        """The file that a tensor lies in, this one or the target's, and its name there."""
        if name.startswith(BORROWED) and self.target is not None:
            return self.target, name.removeprefix(BORROWED)
        return self, name

    def _borrowed(self, name: str, shape: tuple[int, ...] | None) -> Tensor:
        """A tensor of the target's file, under the name by which this one's plan knows it."""
        if self.target is None:
            raise ModelFileError(
                f"{self.path}: tensor {name!r} is missing, as in draft models that borrow it of their target; "
                "give the file as the draft model (-md) of the model that it was made for"
            )
        return evolve(self.target.tensor(name, shape), name=f"{BORROWED}{name}")

    def integers(self, name: str, shape: tuple[int, ...], n: int) -> np.ndarray:
        """The whole numbers of a tensor, from 0 to n - 1, int32 in its shape, a view of the file where it has these.

        Raises ModelFileError: the tensor is missing, has another shape or type, or holds others.
        """
        tensor = self.tensor(name, shape)
        if (kind := tensor.type.integers) is None:
            raise ModelFileError(f"{self.path}: tensor {name!r} is stored as {tensor.type.name}, expected I32 or I64")
        values = tensor.data.view(kind).reshape(shape)
        if (least := values.min()) < 0 or values.max() >= n:
            found = least if least < 0 else values.max()
            raise ModelFileError(f"{self.path}: tensor {name!r} holds {found}, expected numbers from 0 to {n - 1}")
        return values.astype(np.int32, copy=False)

    def close(self) -> None:
        """Let go of the tensors; the file is unmapped once nobody else holds one."""
        self.tensors = MappingProxyType({})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ModelFile({str(self.path)!r}, {len(self.metadata)} metadata entries, {len(self.tensors)} tensors)"


def mapped(path: Path, kind: str = "a GGUF file") -> tuple[mmap.mmap, tuple[int, ...]]:
    """Map a whole file of some kind read-only, and say which it is (`ModelFile.identity`).

    Raises ModelFileError: it is no file, empty, or cannot be read.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # before opening: a pipe would wait for a writer
            found = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            inside = ", ".join(sorted(each.name for each in path.glob("*.gguf"))[:3])  # of a directory
            hint = f"; name a file in it, such as {inside}" if inside else ""
            if not inside and (path / "config.json").exists():
                hint = "; llama.cpp's convert_hf_to_gguf.py makes one of it, see Models in docs/guide.md"
            raise ModelFileError(f"{path}: is {found}, expected {kind}{hint}")
        if status.st_size == 0:
            raise ModelFileError(f"{path}: is empty, expected {kind}")
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), identity
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        if (lack := lack_of_memory(error)) is not None:
            raise lack from error
        raise ModelFileError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _part_paths(path: Path, count: int) -> tuple[Path, ...]:
    match = _PART_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise ModelFileError(
            f"{path}: the metadata says this is one of {count} parts, so the file name was expected to end in "
            f"-00001-of-{count:05}.gguf (or another number); give the parts their names back"
        )
    paths = tuple(path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1))
    if path not in paths:
        raise ModelFileError(f"{path}: the file name says part {match['number']} of {count}, expected 00001 to {count:05}")
    if missing := [part.name for part in paths if not part.exists()]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ModelFileError(f"{path}: {len(missing)} of {count} parts are missing beside it: {', '.join(missing[:3])}{more}")
    return paths


def _as_kind(value: object, kind: object) -> object:
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in _DTYPE_KINDS.get(kind, ""):
            return None
        return value if kind is np.ndarray else value.astype(float if kind == list[float] else value.dtype).tolist()
    if kind == list[str]:
        return value if isinstance(value, list) and set(map(type, value)) <= {str} else None
    if kind is float and type(value) is int:
        return float(value)
    return value if type(value) is kind else None


def _described(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.size} {value.dtype}"
    if isinstance(value, list):
        kinds = "strings" if all(isinstance(item, str) for item in value) else "arrays"
        return f"an array of {len(value)} {kinds}"
    return f"the {type(value).__name__} {value!r:.80}"


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape from its first axis on that has more than one element."""
    first = next((axis for axis, size in enumerate(shape) if size != 1), len(shape))
    return shape[first:]
