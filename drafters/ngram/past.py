"""Followers of n-grams in past generations, kept between requests and, in a file, between processes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from augury.drafters.ngram.counts import Followers, NgramCounts
from augury.drafters.ngram.lookup_file import MAX_NGRAM, read_lookup, write_lookup
from augury.errors import OptionError
from augury.log import get_logger

_N_MAX = 1_000_000  # n-grams: about 150 MB, and 300,000 generated tokens or more


class NgramPast:
    """Counts that all slots add to. Beyond a million n-grams the half that was seen least is forgotten."""

    def __init__(self, path: Path | None, n_vocab: int) -> None:
        """Start with the contents of the file at `path`, if there is one; it is written when the engine closes.

        Raises:
            ModelFileError: The file is damaged, or of another vocabulary.
            OptionError: There is no folder to write it to, or the folder is not writable.
        """
        self.counts = NgramCounts(MAX_NGRAM)
        self._path = path
        self._is_changed = False
        if path is None:
            return
        if not path.parent.is_dir():
            raise OptionError(f"{path}: there is no folder {path.parent} for the lookup file; make it, or choose another")
        if not os.access(path.parent, os.W_OK):
            raise OptionError(f"{path}: {path.parent} is not writable, so the lookup file could not be saved; choose another")
        if path.exists():
            self._load(path, n_vocab)

    def learn(self, text: np.ndarray, n_prompt: int) -> None:
        """Count the generated tokens, which are `text` (t,) int32 after the prompt."""
        if len(text) <= n_prompt:
            return
        self.counts.extend(text, n_prompt)
        self._is_changed = True
        if len(self.counts) > _N_MAX:
            self.counts.forget(_N_MAX // 2)

    def close(self) -> None:
        """Save the counts."""
        if self._path is None or not self._is_changed:
            return
        self._is_changed = False
        try:
            write_lookup(self._path, self.counts.items())
        except OSError as error:
            get_logger("augury.drafters.ngram_cache").error(
                "the lookup file could not be saved", path=str(self._path), reason=str(error)
            )

    def _load(self, path: Path, n_vocab: int) -> None:
        table = read_lookup(path, n_vocab)
        data = table.values.tobytes()
        for start, size in zip(table.starts.tolist(), table.sizes.tolist(), strict=True):
            ngram = data[4 * start : 4 * (start + size)]
            if self.counts.get(ngram) is None:
                self.counts.put(ngram, Followers.of(table.counts(start)))
        if len(self.counts) > _N_MAX:
            self.counts.forget(_N_MAX // 2)
