"""The followers of pairs of tokens in a corpus that was counted beforehand."""

from __future__ import annotations

from bisect import bisect_left
from struct import unpack
from typing import TYPE_CHECKING

import numpy as np

from augury.drafters.ngram.counts import Followers

if TYPE_CHECKING:
    from augury.drafters.ngram.lookup_file import LookupTable

_SIZE = 2  # llama.cpp's LLAMA_NGRAM_STATIC: its corpora are counted by pairs


class NgramCorpus:
    """The pairs of a lookup file. They stay as the file has them until they are asked for: a corpus has millions."""

    def __init__(self, table: LookupTable) -> None:
        self._table = table
        starts = table.starts[table.sizes == _SIZE]
        firsts, seconds = (table.values[starts + i].astype(np.uint64) for i in range(_SIZE))
        keys = firsts << np.uint64(32) | seconds
        order = np.argsort(keys, kind="stable")  # of pairs that occur twice the first counts, as in llama.cpp
        self._starts = starts[order]
        self._keys = keys[order].data  # bisect reads single numbers of it faster than of the array
        self._found: dict[bytes, Followers] = {}  # no more than there are pairs

    def get(self, pair: bytes) -> Followers | None:
        """The followers of `pair`, two int32 as bytes, or None."""
        if (found := self._found.get(pair)) is None and (found := self._read(*unpack("=ii", pair))) is not None:
            self._found[pair] = found
        return found

    def _read(self, first: int, second: int) -> Followers | None:
        key = first << 32 | second
        at = bisect_left(self._keys, key)
        if at == len(self._keys) or self._keys[at] != key:
            return None
        return Followers.of(self._table.counts(int(self._starts[at])))
