"""The vocabularies in tests/data/tokenizer, as metadata of model files."""

import json
import lzma
from functools import cache
from pathlib import Path

from augury.text.tokenizer import load_tokenizer

DATA = Path(__file__).parents[1] / "data" / "tokenizer"
ORACLES = ("gpt-2", "llama-bpe", "llama-spm", "qwen2")
KINDS = ("gemma4", "plamo2", "hybriddna")
NAMES = (*ORACLES, "smollm", "user-defined", *KINDS)


def read(name):
    return json.loads(lzma.decompress((DATA / f"{name}.json.xz").read_bytes()))


@cache
def metadata(name):
    """Do not change what this returns: all tests share it."""
    if name == "no-bytes":  # a vocabulary that cannot spell every text
        found = metadata("llama-spm")
        return changed(found, token_type=[1 if kind == 6 else kind for kind in found["tokenizer.ggml.token_type"]])
    found = read(name)
    if "merge_heads" in found:
        tokens, token, merges = found["tokenizer.ggml.tokens"], 0, []
        for head, step in zip(found.pop("merge_heads"), found.pop("merge_steps"), strict=True):
            token += step
            merges.append(f"{tokens[token][:head]} {tokens[token][head:]}")
        found["tokenizer.ggml.merges"] = merges
    return found


@cache
def tokenizer(name):
    return load_tokenizer(metadata(name))


def changed(found, **changes):
    """Metadata with other values, by keys without their prefix; None takes a key away."""
    changes = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in (found | changes).items() if value is not None}


@cache
def pairs():
    """A byte-level vocabulary whose merges are a quarter of all pairs of bytes: a cut at another place nearly always shows."""
    letters = [chr(code) for code in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100), *range(0x100, 0x144))]
    chosen = sorted(
        (193 * a + 389 * b) % 65521 * 65536 + 256 * a + b for a in range(256) for b in range(256) if (7 * a + b) % 4 == 0
    )
    merges = [f"{letters[number >> 8 & 255]} {letters[number & 255]}" for number in chosen]
    words = ["Hello", "ĠHello", "Ġthe", "the", "123", "Ġ123", "HelloWorld", "ĠĠĠ", "ĊĊĊ", "...", "ACB"]  # no merges make these
    tokens = [*letters, *(merge.replace(" ", "") for merge in merges), *words]
    return changed({}, model="gpt2", tokens=tokens, merges=merges, bos_token_id=0, eos_token_id=0)


def tiny(**changes):
    """A byte-level vocabulary of a few tokens; None takes a key away."""
    found = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": ["a", "b", "ab", "<|im_end|>", "<s>", "Ġ"],
        "token_type": [1, 1, 1, 3, 3, 1],
        "merges": ["a b"],
        "bos_token_id": 4,
        "eos_token_id": 3,
    }
    return changed({}, **(found | changes))
