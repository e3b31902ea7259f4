"""Whether a head's tokens are its target's: ids mean the same texts, by the lists of both files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from augury.files.gguf import ModelFile

TOKENS = "tokenizer.ggml.tokens"
_TYPES = "tokenizer.ggml.token_type"
_COMPARED = (1, 6)  # types of tokens: normal ones, and bytes; relatives of one family name others differently


def check_tokens(target: ModelFile, head: ModelFile) -> None:
    """See that a head's tokens are its target's. One that names no tokens, or some not, may have any there.

    Raises:
        UnsupportedError: One means another text to it.
    """
    mine, theirs = (file.get(TOKENS, list[str], []) for file in (target, head))
    n = min(len(mine), len(theirs))
    if mine[:n] == theirs[:n]:
        return
    types = target.metadata.get(_TYPES)
    is_compared = np.isin(types[:n], _COMPARED) if isinstance(types, np.ndarray) and len(types) >= n else np.ones(n, bool)
    for token in np.flatnonzero(is_compared).tolist():
        if theirs[token] and mine[token] != theirs[token]:
            verifier = head.metadata.get("general.base_model.0.name")
            trained = f" (it was trained for {verifier})" if verifier else ""
            raise UnsupportedError(
                f"{head.path}: token {token} is {mine[token]!r} to {target.path} and {theirs[token]!r} to the head{trained}; "
                "use a head that was trained for this model"
            )
