"""Damage to files, for tests of what reads them, and a disk that is full, for tests of what writes them."""

import errno
import os
import random


def disk_is_full(*_, **__):
    """Stands in for what writes."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _flip_bits(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 16)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut_off(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def _splice(rng: random.Random, data: bytes) -> bytes:
    """Copy a stretch elsewhere, over what is there or into it."""
    start, n, target = rng.randrange(len(data)), rng.randint(1, 400), rng.randrange(len(data))
    return data[:target] + data[start : start + n] + data[target + rng.choice([0, n]) :]


def _overwrite(rng: random.Random, data: bytes) -> bytes:
    """Put extreme numbers where others stand, or a stretch of one byte."""
    n = rng.choice([1, 2, 4, 8, 4096])
    target = rng.randrange(len(data))
    return data[:target] + rng.choice([b"\0", b"\xff", b"\x7f", b"\x80"]) * n + data[target + n :]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A damaged copy of `data`, which never equals it: bits flipped, cut off, stretches copied or overwritten."""
    while True:
        damaged = rng.choice([_flip_bits, _flip_bits, _cut_off, _splice, _overwrite])(rng, data)
        if damaged != data:
            return damaged
