"""Damage to files, for tests of what reads them, and a disk that is full, for tests of what writes them."""

import errno
import os
import random
import struct

EXTREMES = [0, 1, *(2**n - below for n in (16, 31, 32, 40, 60, 61, 62, 63) for below in (0, 1)), 2**64 - 32, 2**64 - 1]


def disk_is_full(*_, **__):
    """Stands in for what writes."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def flip_bits(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 16)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut_off(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def splice(rng: random.Random, data: bytes) -> bytes:
    """Copy a stretch elsewhere, over what is there or into it."""
    start, n, target = rng.randrange(len(data)), rng.randint(1, 400), rng.randrange(len(data))
    return data[:target] + data[start : start + n] + data[target + rng.choice([0, n]) :]


def overwrite(rng: random.Random, data: bytes) -> bytes:
    """Put extreme numbers where others stand, or a stretch of one byte."""
    n = rng.choice([1, 2, 4, 8, 4096])
    target = rng.randrange(len(data))
    return data[:target] + rng.choice([b"\0", b"\xff", b"\x7f", b"\x80"]) * n + data[target + n :]


def replace_length(rng: random.Random, data: bytes, n_file: int) -> bytes:
    """Put an extreme value where a length, a count or a small number stands, in the header of a file of `n_file` bytes."""
    width, code = rng.choice([(8, "<Q"), (8, "<Q"), (4, "<I")])
    while True:
        at = rng.randrange(4, len(data) - width)
        if 0 < struct.unpack_from(code, data, at)[0] < 2**20:
            break
    value = rng.choice([*EXTREMES, n_file, n_file - at, len(data) - at - width]) % 2 ** (8 * width)
    return data[:at] + struct.pack(code, value) + data[at + width :]


def mutate_header(data: bytes, rng: random.Random, n_file: int) -> bytes:
    """A damaged copy of the header of a file of `n_file` bytes: as by `mutate`, or with wrong lengths and counts."""
    return replace_length(rng, data, n_file) if rng.random() < 0.4 else mutate(data, rng)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A damaged copy of `data`, which never equals it: bits flipped, cut off, stretches copied or overwritten."""
    while True:
        damaged = rng.choice([flip_bits, flip_bits, cut_off, splice, overwrite])(rng, data)
        if damaged != data:
            return damaged
