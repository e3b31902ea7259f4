"""The checksum of files that may be larger than the memory."""

from __future__ import annotations

from typing import BinaryIO

_CHUNK = 1 << 20


def checksum(file: BinaryIO, n_bytes: int, prefix: bytes = b"") -> bytes:
    """16 bytes, xxh3 of `prefix` and of the next `n_bytes` of a file, or of as many as it has."""
    from xxhash import xxh3_128

    made = xxh3_128(prefix)
    while n_bytes > 0 and (chunk := file.read(min(n_bytes, _CHUNK))):
        made.update(chunk)
        n_bytes -= len(chunk)
    return made.digest()
