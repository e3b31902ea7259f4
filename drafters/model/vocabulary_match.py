"""Whether a draft model's vocabulary is the target's, so that its token ids mean the same, and the first difference.

Source: llama.cpp, `common/speculative.cpp`, whose rule this is: the same kind of tokenizer; the same first and last token,
where texts get one; the same text of every token from id 5 on; sizes that differ by padding only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from augury.text.tokenizer import Tokenizer

MAX_PADDING = 128
FIRST_COMPARED = 5  # before it are control tokens, which relatives of one family name differently


def size_difference(n_target: int, n_draft: int) -> str | None:
    """The difference of the numbers of tokens, in words; None if they differ by padding at most."""
    if abs(n_target - n_draft) > MAX_PADDING:
        return f"the target has {n_target} tokens and the draft model {n_draft}, which is more than {MAX_PADDING} of padding"
    return None


def tokenizer_difference(target: Tokenizer, draft: Tokenizer) -> str | None:
    """The first difference of kind, special tokens and texts; None where ids mean the same."""
    if target.kind != draft.kind:
        return f"the target's tokenizer is of kind {target.kind!r}, the draft model's {draft.kind!r}"
    if (difference := size_difference(target.n_vocab, draft.n_vocab)) is not None:
        return difference
    for role in ("bos", "eos"):
        mine, other = _added(target, role), _added(draft, role)
        if mine != other:
            return f"the target's {role} token is {_named(target, mine)}, the draft model's {_named(draft, other)}"
    for token in range(FIRST_COMPARED, min(target.n_vocab, draft.n_vocab)):
        if target.text(token) != draft.text(token):
            return f"token {token} is {target.text(token)!r} to the target and {draft.text(token)!r} to the draft model"
    return None


def _added(tokenizer: Tokenizer, role: str) -> int | None:
    """The token that texts get in this role, or None: one that is never added may differ."""
    token: int | None = getattr(tokenizer, role) if getattr(tokenizer, f"add_{role}") else None
    return token


def _named(tokenizer: Tokenizer, token: int | None) -> str:
    return "none" if token is None else f"{token} ({tokenizer.text(token)!r})"
