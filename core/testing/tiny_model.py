"""Writes a tiny llama model as a GGUF file: a real model for every backend, of a size that costs nothing.

Its weights are random, with one exception: the output head expects each token to be followed by the next one of a short circle.
So its text repeats itself as real text does, with surprises where the layers outvote the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve

from augury.files.gguf_writer import LlamaSizes, add_weights, gguf_file
from augury.text.bpe import byte_characters

if TYPE_CHECKING:
    from gguf import GGUFWriter

_MERGES = ("t h", "th e", "i n", "a n", "e r", "o n", "r e")
_TOKENS_BESIDE_BYTES = len(_MERGES) + 1
N_VOCAB = 256 + _TOKENS_BESIDE_BYTES
N_CTX_TRAIN = 4096
N_EMBD = 64
N_LAYERS = 3
MTP = f"blk.{N_LAYERS}.nextn"  # the start of the names of a layer that predicts further tokens
PERIOD = 12  # length of a circle of tokens
_STUBBORNNESS = 3.2  # of the head against the layers: one token in seven or so leaves its circle


_SIZES = LlamaSizes(
    n_vocab=N_VOCAB,
    n_embd=N_EMBD,
    n_ff=96,
    n_heads=2,
    n_kv_heads=1,
    head_dim=32,
    n_rot=32,
    n_layers=N_LAYERS,
    n_ctx=N_CTX_TRAIN,
)


def write_tiny_model(
    path: Path,
    *,
    seed: int = 0,
    errors: float = 0.0,
    weight_type: str = "F32",
    architecture: str = "llama",
    output_norm: float = 1.0,
    tensors: Mapping[str, np.ndarray] = MappingProxyType({}),
    keys: Mapping[str, int] = MappingProxyType({}),
    has_mtp: bool = False,
) -> None:
    """Write a model with a byte-level vocabulary.

    Args:
        path: The file.
        seed: Of the layers. Models that differ in it alone are often, but not always of the same mind, as a draft model is
            of its target's.
        errors: Faults of the toy backend: see `ToyModel`.
        weight_type: The weight type of the matrices: F32, F16, Q8_0, or another that the package `gguf` can write.
        architecture: The file's `general.architecture`.
        output_norm: The weights of the last norm; with NaN the model computes nothing else.
        tensors: Others, or in place of those of their names; float32 is stored.
        keys: Further metadata.
        has_mtp: Whether a layer more predicts further tokens. It is often right, because the output is the model's.
    """
    with gguf_file(path, architecture) as writer:
        sizes = evolve(_SIZES, n_layers=_SIZES.n_layers + has_mtp)
        sizes.describe(writer)
        if has_mtp:
            writer.add_nextn_predict_layers(1)
        write_tiny_tokenizer(writer)
        writer.add_float32("augury.toy.errors", errors)
        for key, value in keys.items():
            writer.add_uint32(key, value)
        norm = {"output_norm.weight": np.full(N_EMBD, output_norm, np.float32)}
        others = {name: values.astype(np.float32) for name, values in tensors.items()}
        mtp = _mtp() if has_mtp else {}
        add_weights(writer, _weights(seed, sizes) | norm | mtp | others, weight_type)


def write_tiny_tokenizer(writer: GGUFWriter) -> None:
    """Write the vocabulary of the tiny models as metadata."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*byte_characters(), *(merge.replace(" ", "") for merge in _MERGES), "<|endoftext|>"])
    writer.add_token_types([1] * (N_VOCAB - 1) + [3])
    writer.add_token_merges(list(_MERGES))
    writer.add_eos_token_id(N_VOCAB - 1)


def _mtp() -> dict[str, np.ndarray]:
    """The parts that make a layer predict further tokens: it sees the token alone, not its hidden state."""
    norms = {f"{MTP}.{name}.weight": np.ones(N_EMBD, np.float32) for name in ("enorm", "hnorm", "shared_head_norm")}
    return norms | {f"{MTP}.eh_proj.weight": np.eye(N_EMBD, 2 * N_EMBD, dtype=np.float32)}


def _weights(seed: int, sizes: LlamaSizes) -> dict[str, np.ndarray]:
    shared, own = np.random.default_rng(7), np.random.default_rng([7, seed])

    def matrix(shape: tuple[int, ...], rng: np.random.Generator = own) -> np.ndarray:
        return (rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)

    n_embd = N_EMBD
    embedding = matrix((N_VOCAB, n_embd), shared) * np.float32(n_embd**0.5)
    token = np.arange(N_VOCAB)
    successor = token - token % PERIOD + (token + 1) % PERIOD  # the vocabulary is a multiple of the period
    head = matrix((N_VOCAB, n_embd), shared) * np.float32(2)
    head[successor] += np.float32(_STUBBORNNESS) * embedding / np.float32(n_embd**0.5)
    layers = {name: shape for name, shape in sizes.shapes.items() if name.startswith("blk.")}
    return {"token_embd.weight": embedding, "output.weight": head} | {
        name: np.ones(shape, np.float32) if len(shape) == 1 else matrix(shape) for name, shape in layers.items()
    }
