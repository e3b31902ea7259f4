"""The vocabularies in tests/data/tokenizer, as metadata of model files."""

import json
import lzma
from functools import cache
from pathlib import Path

from augury.text.tokenizer import load_tokenizer

DATA = Path(__file__).parent / "data" / "tokenizer"
ORACLES = ("gpt-2", "llama-bpe", "llama-spm", "qwen2")
NAMES = (*ORACLES, "smollm", "user-defined")


def read(name):
    return json.loads(lzma.decompress((DATA / f"{name}.json.xz").read_bytes()))


@cache
def metadata(name):
    """Do not change what this returns: all tests share it."""
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
    } | changes
    return {f"tokenizer.ggml.{key}": value for key, value in found.items() if value is not None}
