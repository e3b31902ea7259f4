"""The header of one GGUF file: metadata and tensor table, read without trusting a single length in it.

    magic "GGUF", version, number of tensors, number of metadata entries
    metadata entries: key, value type, value
    tensor entries:   name, number of dimensions, dimensions (fastest first), type, offset into the data
    padding to the alignment, then the data

Strings are a length and bytes. Text that is not valid UTF-8, which vocabularies have, keeps its bytes as surrogate
escapes: `text.encode("utf-8", "surrogateescape")` gives them back.

Source: docs/gguf.md of ggml.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from attrs import frozen

from augury.errors import ModelFileError, UnsupportedError
from augury.files.tensor_type import TensorType, type_name

if TYPE_CHECKING:
    import mmap

# Ten times the largest known header. Reading stops there, so a huge file of zeros cannot become millions of objects.
MAX_HEADER_BYTES = 128 << 20
MAX_KEY_BYTES = 0xFFFF  # the format's own limit
MAX_NAME_BYTES = 1024  # ggml itself keeps 64
MAX_DIMS = 4
MAX_NESTING = 4  # arrays in arrays in arrays: the format allows any depth, models use none
MIN_KV_BYTES = 8 + 1 + 4 + 1  # key of one letter, value type, one byte of value
MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # name of one letter, one dimension
DEFAULT_ALIGNMENT = 32
MIN_ALIGNMENT = 8
MAX_ALIGNMENT = 1 << 30

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS: dict[int, np.dtype[Any]] = {  # GGUF value type → numpy type
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}


@frozen
class Entry:
    """A row of the tensor table, checked: `shape` in numpy's order, `start` and `n_bytes` are positions in the file."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    start: int
    n_bytes: int


@frozen
class Header:
    """The part of a file before the tensor data."""

    metadata: dict[str, object]
    entries: tuple[Entry, ...]


def read_header(path: Path, data: mmap.mmap) -> Header:
    """The header of a mapped GGUF file.

    Raises ModelFileError: it is damaged, or states something impossible. UnsupportedError: augury does not read a tensor's
    type.
    """
    return _Reader(path, data).header()


def quoted(name: str) -> str:
    """Quote a name for a message: on one line and of bounded length, even from a damaged file."""
    return repr(name if len(name) <= 80 else name[:77] + "...")


class _Reader:
    """A position in a mapped file that never passes the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.end = min(len(data), MAX_HEADER_BYTES)
        self.at = 0

    def fail(self, message: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: {message}")

    def take(self, n_bytes: int, what: str) -> int:
        """Step over bytes that are known to be there afterwards; return where they start."""
        start = self.at
        if n_bytes > self.end - start:
            lack = self.lack(n_bytes, f"but the file ends at {self.end}")
            self.fail(f"{what} needs {n_bytes} bytes at {start}, {lack}")
        self.at = start + n_bytes
        return start

    def lack(self, n_bytes: int, found: str) -> str:
        """Why bytes that were asked for are not there: too many for any header, or not in this file."""
        if self.at + n_bytes > MAX_HEADER_BYTES:
            return f"beyond the {MAX_HEADER_BYTES} that a header may take; the number is wrong, download the file again"
        return f"{found}; is it truncated?"

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.data, self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self.data, self.take(8, what))[0])

    def raw_string(self, what: str) -> bytes:
        n_bytes = self.u64(f"the length of {what}")
        start = self.take(n_bytes, what)
        return self.data[start : start + n_bytes]

    def name(self, what: str, limit: int) -> str:
        raw = self.raw_string(what)
        if not 0 < len(raw) <= limit:
            self.fail(f"{what} has {len(raw)} bytes, expected 1 to {limit}")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelFileError(f"{self.path}: {what} is not valid UTF-8: {raw[:80]!r}") from error

    def header(self) -> Header:
        magic = self.data[:4]
        if magic != b"GGUF":
            advice = "download it again, or convert it with llama.cpp's convert_hf_to_gguf.py, see Models in docs/guide.md"
            self.fail(f"not a GGUF file: it starts with {magic!r}, expected b'GGUF'; {advice}")
        self.at = 4
        self.check_version()
        n_tensors = self.u64("the number of tensors")
        n_kv = self.u64("the number of metadata entries")
        if (least := n_kv * MIN_KV_BYTES + n_tensors * MIN_TENSOR_BYTES) > self.end - self.at:
            lack = self.lack(least, f"but {self.end - self.at} are left")
            self.fail(
                f"{n_kv} metadata entries and {n_tensors} tensors are announced, which take {least} bytes or more, {lack}"
            )
        metadata = self.metadata(n_kv)
        alignment = self.alignment(metadata)
        rows = self.table(n_tensors)
        data_start = -(-self.at // alignment) * alignment
        entries = tuple(self.entry(*row, data_start, alignment) for row in rows)
        self.check_overlap(entries)
        return Header(metadata, entries)

    def check_version(self) -> None:
        version = self.u32("the version")
        if version not in (2, 3):
            if version and version & 0xFFFF == 0:
                self.fail("the file is big-endian, expected little-endian; convert the model again for this machine")
            if version == 1:
                self.fail("GGUF version 1 is no longer used, expected 2 or 3; convert the model again")
            self.fail(f"GGUF version {version} is unknown, expected 2 or 3")

    def metadata(self, n_kv: int) -> dict[str, object]:
        metadata: dict[str, object] = {}
        for i in range(n_kv):
            key = self.name(f"metadata key {i}", MAX_KEY_BYTES)
            if key in metadata:
                self.fail(f"metadata key {quoted(key)} appears twice")
            what = f"the value of {quoted(key)}"
            metadata[key] = self.value(self.u32(f"the type of {quoted(key)}"), what)
        return metadata

    def value(self, value_type: int, what: str) -> object:
        if value_type == _STRING:
            return str(self.raw_string(what), "utf-8", "surrogateescape")
        if value_type == _ARRAY:
            return self.array(what, 1)
        number = self.numbers(value_type, 1, what)[0]
        return bool(number) if value_type == _BOOL else number.item()

    def numbers(self, value_type: int, n: int, what: str) -> np.ndarray:
        """Read numbers of one type: a read-only array (n,) of a copy, as the file does not align them."""
        dtype = _NUMBERS.get(value_type)
        if dtype is None:
            self.fail(f"{what} has value type {value_type}, expected 0 to 12")
        start = self.take(n * dtype.itemsize, what)
        values = np.frombuffer(self.data, dtype, n, start).copy() if n else np.empty(0, dtype)
        if value_type == _BOOL:
            if n and (worst := int(values.max())) > 1:
                self.fail(f"{what} holds the byte {worst} as a truth value, expected 0 or 1")
            values = values.astype(np.bool_)
        values.flags.writeable = False
        return values

    def array(self, what: str, depth: int) -> object:
        if depth > MAX_NESTING:
            self.fail(f"{what} nests arrays more than {MAX_NESTING} deep")
        item_type = self.u32(f"the item type of {what}")
        n = self.u64(f"the array length of {what}")
        if item_type == _STRING:
            return self.strings(n, what)
        if item_type == _ARRAY:
            self.check_room(n, 12, what)  # an inner array is at least its item type and length
            return [self.array(what, depth + 1) for _ in range(n)]
        return self.numbers(item_type, n, what)

    def strings(self, n: int, what: str) -> list[str]:
        """Read an array of strings: the one loop whose length is that of a vocabulary, hence its local names."""
        self.check_room(n, 8, what)
        data, at, end, length_at = self.data, self.at, self.end, _U64.unpack_from
        texts: list[str] = []
        append = texts.append
        for _ in range(n):
            start = at + 8
            if start > end:
                self.at = at
                self.take(8, f"{what}, string {len(texts)} of {n},")
            at = start + length_at(data, at)[0]
            if at > end:
                self.at = start
                self.take(at - start, f"{what}, string {len(texts)} of {n},")
            append(str(data[start:at], "utf-8", "surrogateescape"))
        self.at = at
        return texts

    def check_room(self, n: int, item_bytes: int, what: str) -> None:
        if n * item_bytes > self.end - self.at:
            lack = self.lack(n * item_bytes, f"but {self.end - self.at} bytes are left")
            self.fail(f"{what} announces {n} items of {item_bytes} bytes or more, {lack}")

    def alignment(self, metadata: dict[str, object]) -> int:
        value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(value) is not int or value < MIN_ALIGNMENT or value & (value - 1) or value > MAX_ALIGNMENT:
            shown = f"{value!r:.80}"
            self.fail(f"general.alignment is {shown}, expected a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}")
        return value

    def table(self, n_tensors: int) -> list[tuple[str, tuple[int, ...], int, int]]:
        """The table as the file states it: name, shape, number of the type, and offset of each tensor."""
        rows: list[tuple[str, tuple[int, ...], int, int]] = []
        names: set[str] = set()
        for i in range(n_tensors):
            name = self.name(f"the name of tensor {i}", MAX_NAME_BYTES)
            what = f"tensor {quoted(name)}"
            if name in names:
                self.fail(f"{what} appears twice")
            names.add(name)
            n_dims = self.u32(f"the number of dimensions of {what}")
            if not 1 <= n_dims <= MAX_DIMS:
                self.fail(f"{what} has {n_dims} dimensions, expected 1 to {MAX_DIMS}")
            dims = [self.u64(f"dimension {axis} of {what}") for axis in range(n_dims)]
            type_id = self.u32(f"the type of {what}")
            rows.append((name, tuple(reversed(dims)), type_id, self.u64(f"the offset of {what}")))
        return rows

    def entry(self, name: str, shape: tuple[int, ...], type_id: int, offset: int, data_start: int, alignment: int) -> Entry:
        what = f"tensor {quoted(name)}"
        try:
            kind = TensorType(type_id)
        except ValueError:
            stored, known = type_name(type_id), ", ".join(kind.name for kind in TensorType)
            raise UnsupportedError(
                f"{self.path}: {what} is stored as {stored}, which augury does not read; it reads {known}"
            ) from None
        if 0 in shape:
            self.fail(f"{what} has shape {shape}: every dimension must be at least 1")
        if (n := shape[-1]) % kind.block_size:
            self.fail(f"{what} has rows of {n} weights, expected a multiple of {kind.block_size} for {kind.name}")
        if offset % alignment:
            self.fail(f"{what} starts at offset {offset}, expected a multiple of the alignment {alignment}")
        n_bytes = math.prod(shape) // kind.block_size * kind.block_bytes
        start = data_start + offset
        if start + n_bytes > len(self.data):
            self.fail(
                f"{what} (shape {shape}, {kind.name}) takes the bytes {start} to {start + n_bytes}, "
                f"but the file ends at {len(self.data)}; is it truncated?"
            )
        return Entry(name, shape, kind, start, n_bytes)

    def check_overlap(self, entries: tuple[Entry, ...]) -> None:
        """Refuse tensors that share bytes: no writer makes them, a damaged offset does."""
        end, before = 0, ""
        for entry in sorted(entries, key=lambda entry: entry.start):
            if entry.start < end:
                self.fail(f"tensors {quoted(before)} and {quoted(entry.name)} overlap at byte {entry.start}")
            end, before = entry.start + entry.n_bytes, entry.name
