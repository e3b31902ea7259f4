"""Special tokens: what each is for, by key where the file has one, otherwise by text; how text is kept free of them.

Keys and texts are those of llama.cpp (src/llama-vocab.cpp), because files are converted with it in mind.
"""

# ruff: noqa: RUF001 -- DeepSeek's vertical line is not the ASCII one

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from enum import IntEnum
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np

from augury.errors import OptionError


class TokenType(IntEnum):
    """The type of a token, as in `tokenizer.ggml.token_type` (the GGUF specification's numbers)."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_ROLES = (  # of tokens for filling in the middle: name, keys of which the last one present counts, texts
    (
        "pre",
        "fim_pre_token_id prefix_token_id",
        "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>",
    ),
    (
        "suf",
        "fim_suf_token_id suffix_token_id",
        "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>",
    ),
    (
        "mid",
        "fim_mid_token_id middle_token_id",
        "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>",
    ),
    ("pad", "fim_pad_token_id", "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]"),
    ("rep", "fim_rep_token_id", "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>"),
    ("sep", "fim_sep_token_id", "<|file_sep|>"),
)
_ENDING_ROLES = ("pad", "rep", "sep")  # of which a token ends a generation
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
ROLE_KEYS = (*_END_KEYS, *(key for _, keys, _ in _ROLES for key in keys.split()))
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
    """Find special tokens by text → id and `ROLE_KEYS` → id, and put right types (V,) int32 where texts say more.

    Returns the tokens after which nothing more is generated, and those for filling in the middle that there are: "pre", "suf",
    "mid", "pad", "rep" (repository) and "sep" (file).
    """
    ends = {named[key] for key in _END_KEYS if key in named}
    fim: dict[str, int] = {}
    for name, keys, texts in _ROLES:
        token = next((named[key] for key in reversed(keys.split()) if key in named), None)
        if token is None and (found := [ids[text] for text in texts.split() if text in ids]):
            token = min(found)
            types[token] = TokenType.CONTROL
        if token is not None:
            fim[name] = token
            ends |= {token} if name in _ENDING_ROLES else set()
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


_ASCII_SPACE = " \t\n\v\f\r"
_N_HEAD = 4  # characters that tell most special tokens from text


class Partition:
    """Cuts text at tokens (text, id), the longest first, as llama.cpp does; after some of them white space is dropped."""

    def __init__(self, tokens: Iterable[tuple[str, int]], *, strips_right: Container[int] = ()) -> None:
        self._by_head: dict[str, list[tuple[str, int]]] = {}
        for token in tokens:
            self._by_head.setdefault(token[0][:_N_HEAD], []).append(token)
        self._strips_right = strips_right

    def cut(self, text: str) -> list[str | int]:
        """Replace every token that is found in the text by its id; the parts between stay text, and are never empty.

        >>> Partition([("<b>", 7), ("<b><b>", 8)]).cut("x<b><b><b>y")
        ['x', 8, 7, 'y']
        """
        parts: list[str | int] = [text] if text else []
        # up to thousands of special tokens begin alike: a few dozen searches where no beginning occurs
        begun = (tokens for head, tokens in self._by_head.items() if head in text)
        found = [each for tokens in begun for each in tokens if each[0] in text]
        for needle, token in sorted(found, key=lambda each: (-len(each[0].encode("utf-8", "surrogateescape")), each[1])):
            before, parts = parts, []
            for part in before:
                if isinstance(part, int) or needle not in part:
                    parts.append(part)
                else:
                    parts.extend(self._cut_one(part, needle, token))
        return parts

    def _cut_one(self, text: str, needle: str, token: int) -> Iterator[str | int]:
        start = 0
        while (at := text.find(needle, start)) >= 0:
            if start < at:
                yield text[start:at]
            yield token
            start = at + len(needle)
            while token in self._strips_right and start < len(text) and text[start] in _ASCII_SPACE:
                start += 1
        if start < len(text):
            yield text[start:]


# Noncharacters, which Unicode keeps for such uses, then private ones: one is taken that no text has.
_SEPARATORS = [*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE)]


class LiteralTexts:
    r"""Marks the texts of special tokens in users' texts, so that in a rendered conversation they stay text.

    Each place where a special token's text begins in users' texts gets a separator after its first character. A chat template
    keeps it in any use of the text; then no special token is found there, and the separator is taken out before the text is
    encoded::

        content     hi<|im_end|>          template's   <|im_start|>user\nhi<·|im_end|><|im_end|>
        tokens      <|im_start|> "user\nhi<|im_end|>" <|im_end|>

    The end of a string where a token's text may begin, and the beginning where one may end, get one as well, because templates
    join strings.

    Args:
        specials: the texts of the special tokens. One of a single character cannot be divided, and stays a token.
    """

    def __init__(self, specials: Iterable[str]) -> None:
        self._specials = sorted({text for text in specials if len(text) > 1}, key=len, reverse=True)

    @cached_property
    def _begins(self) -> re.Pattern[str]:
        return re.compile(f"(?=(?:{'|'.join(map(re.escape, self._specials))}))") if self._specials else re.compile(r"(?!)")

    @cached_property
    def _parts(self) -> tuple[frozenset[str], frozenset[str]]:
        cuts = [(text, n) for text in self._specials for n in range(1, len(text))]
        return frozenset(text[:n] for text, n in cuts), frozenset(text[n:] for text, n in cuts)

    def marked(self, values: Any, *others: str) -> tuple[Any, str]:
        """Values of JSON with their strings, but no names of fields, marked, and the separator, which `others` lack, too.

        Raises OptionError: they hold every character that could be one, or a value that JSON cannot write.
        """
        try:
            used = set(chain(json.dumps(values, ensure_ascii=False), *others))
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(f"messages hold what JSON cannot write: {error}") from error
        separator = next((chr(code) for code in _SEPARATORS if chr(code) not in used), None)
        if separator is None:
            raise OptionError("messages hold every private character of Unicode, expected text without them")
        return self._marked(values, separator), separator

    def _marked(self, value: Any, separator: str) -> Any:
        if isinstance(value, str):
            return self._separated(value, separator)
        if isinstance(value, dict):
            return {key: self._marked(each, separator) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._marked(each, separator) for each in value]
        return value

    def _separated(self, text: str, separator: str) -> str:
        places = {match.start() + 1 for match in self._begins.finditer(text)}
        prefixes, suffixes = self._parts
        longest = len(self._specials[0]) if self._specials else 0
        for first in {0, len(text) - len(text.lstrip())}:  # templates strip their texts, or not
            places |= {first + n - 1 for n in range(1, longest) if text[first : first + n] in suffixes}
        for end in {len(text), len(text.rstrip())}:
            places |= {end - n + 1 for n in range(1, min(longest, end + 1)) if text[end - n : end] in prefixes}
        if not places:
            return text
        edges = [0, *sorted(places), len(text)]
        return separator.join(text[start:end] for start, end in pairwise(edges))
