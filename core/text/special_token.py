"""The roles of a vocabulary's special tokens, by key where the file has one, otherwise by text.

Keys and texts are those of llama.cpp (src/llama-vocab.cpp), because files are converted with it in mind.
"""

# ruff: noqa: RUF001 -- DeepSeek's vertical line is not the ASCII one

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np
from attrs import frozen


class TokenType(IntEnum):
    """The type of a token, as in `tokenizer.ggml.token_type` (the GGUF specification's numbers)."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@frozen
class _Role:
    """A token for filling in the middle: its name, the keys and texts that tell it, and whether it ends a generation."""

    name: str
    keys: tuple[str, ...]  # the last one present counts
    texts: str  # separated by spaces
    ends: bool


_ROLES = (
    _Role(
        "pre",
        ("fim_pre_token_id", "prefix_token_id"),
        "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>",
        ends=False,
    ),
    _Role(
        "suf",
        ("fim_suf_token_id", "suffix_token_id"),
        "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>",
        ends=False,
    ),
    _Role(
        "mid",
        ("fim_mid_token_id", "middle_token_id"),
        "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>",
        ends=False,
    ),
    _Role("pad", ("fim_pad_token_id",), "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]", ends=True),
    _Role("rep", ("fim_rep_token_id",), "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>", ends=True),
    _Role("sep", ("fim_sep_token_id",), "<|file_sep|>", ends=True),
)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
ROLE_KEYS = (*_END_KEYS, *(key for role in _ROLES for key in role.keys))
"""The keys that `assign_roles` reads, without `tokenizer.ggml.`."""

_ENDS = (  # separated by spaces
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|> <EOT> "
    "_<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> [e~["
)
# Formats in which <|end|> closes one message of an answer that goes on.
_END_GOES_ON = [{other, call} for other in ("<|return|>", "<|flush|>") for call in ("<|call|>", "<|calls|>")]
# Vocabularies with one of these, where it ends a generation, hold </s> as text.
_TEXT_WITH_S = ("<|tool_response>", "<|plamo:eos|>")
_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


def assign_roles(ids: Mapping[str, int], types: np.ndarray, named: Mapping[str, int]) -> tuple[frozenset[int], dict[str, int]]:
    """Find special tokens, and put right the types of tokens whose text says more than their type.

    Args:
        ids: token text → id.
        types: (V,) int32, TokenType; mutated.
        named: id by those of `ROLE_KEYS` that the file has.

    Returns:
        The tokens after which nothing more is generated, and those for filling in the middle: "pre", "suf", "mid", "pad",
        "rep" (repository) and "sep" (file), as far as there are any.
    """
    ends = {named[key] for key in _END_KEYS if key in named}
    fim: dict[str, int] = {}
    for role in _ROLES:
        token = next((named[key] for key in reversed(role.keys) if key in named), None)
        if token is None and (found := [ids[text] for text in role.texts.split() if text in ids]):
            token = min(found)
            types[token] = TokenType.CONTROL
        if token is not None:
            fim[role.name] = token
            ends |= {token} if role.ends else set()
    looks = {text: ids[text] for text in _ENDS.split() if text in ids}
    types[list(looks.values())] = TokenType.CONTROL
    ends.update(looks.values())
    types[[ids[text] for text in _SHOWN if text in ids]] = TokenType.USER_DEFINED
    if "<|end|>" in looks and any(others <= looks.keys() for others in _END_GOES_ON):
        ends.discard(looks["<|end|>"])
        types[looks["<|end|>"]] = TokenType.USER_DEFINED
    if "</s>" in looks and any(ids.get(text) in ends for text in _TEXT_WITH_S):
        ends.discard(looks["</s>"])
        types[looks["</s>"]] = TokenType.NORMAL
    return frozenset(ends), fim
