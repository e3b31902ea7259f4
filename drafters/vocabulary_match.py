"""Whether a draft model's vocabulary is the target's, so that its token ids mean the same.

Source: llama.cpp, `common/speculative.cpp`, whose rule this is: the same kind of tokenizer; the same first and last token,
where texts get one; the same text of every token from id 5 on; sizes that differ by padding only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from augury.tokenizer import Tokenizer

__all__ = ["check_sizes", "check_tokenizers"]

MAX_PADDING = 128
FIRST_COMPARED = 5  # what lies before are control tokens, which relatives of one family name differently

_ADVICE = "choose a draft model of the same family"


def check_sizes(n_target: int, n_draft: int) -> None:
    """Check the numbers of tokens.

    Raises:
        UnsupportedError: They differ by more than padding.
    """
    if abs(n_target - n_draft) > MAX_PADDING:
        raise UnsupportedError(
            f"the target has {n_target} tokens and the draft model {n_draft}, "
            f"expected at most {MAX_PADDING} of difference; {_ADVICE}"
        )


def check_tokenizers(target: Tokenizer | None, draft: Tokenizer | None) -> None:
    """Check kind, special tokens and texts; nothing where a model has no tokenizer.

    Raises:
        UnsupportedError: Something differs; the message names the first difference.
    """
    if target is None or draft is None:
        return
    if target.kind != draft.kind:
        raise UnsupportedError(
            f"the target's tokenizer is of kind {target.kind!r}, the draft model's {draft.kind!r}, expected the same; {_ADVICE}"
        )
    check_sizes(target.n_vocab, draft.n_vocab)
    for role in ("bos", "eos"):
        mine, other = _added(target, role), _added(draft, role)
        if mine != other:
            raise UnsupportedError(
                f"the target's {role} token is {_named(target, mine)}, the draft model's {_named(draft, other)}, "
                f"expected the same; {_ADVICE}"
            )
    for token in range(FIRST_COMPARED, min(target.n_vocab, draft.n_vocab)):
        if target.text(token) != draft.text(token):
            raise UnsupportedError(
                f"token {token} is {target.text(token)!r} to the target and {draft.text(token)!r} to the draft model, "
                f"expected the same; {_ADVICE}"
            )


def _added(tokenizer: Tokenizer, role: str) -> int | None:
    """The token that texts get in this role, or None: one that is never added may differ."""
    token: int | None = getattr(tokenizer, role) if getattr(tokenizer, f"add_{role}") else None
    return token


def _named(tokenizer: Tokenizer, token: int | None) -> str:
    return "none" if token is None else f"{token} ({tokenizer.text(token)!r})"
