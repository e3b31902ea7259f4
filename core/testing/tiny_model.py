"""Writes a tiny llama model as a GGUF file: a real model for every backend, of a size that costs nothing.

Its weights are random, but for one thing: the output head expects each token to be followed by the next one of a short circle.
So its text repeats itself as real text does, with surprises where the layers outvote the head.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gguf import GGUFWriter

__all__ = ["N_CTX_TRAIN", "N_VOCAB", "PERIOD", "write_tiny_model"]

_N_LAYERS, _N_EMBD, _N_HEADS, _N_KV_HEADS, _HEAD_DIM, _N_FF = 3, 64, 2, 1, 32, 96
_MERGES = ("t h", "th e", "i n", "a n", "e r", "o n", "r e")
_TOKENS_BESIDE_BYTES = len(_MERGES) + 1
N_VOCAB = 256 + _TOKENS_BESIDE_BYTES
N_CTX_TRAIN = 4096
PERIOD = 12  # length of a circle of tokens
_STUBBORNNESS = 3.2  # of the head against the layers: one token in seven or so leaves its circle


def write_tiny_model(
    path: Path,
    *,
    seed: int = 0,
    errors: float = 0.0,
    weight_type: str = "F32",
    architecture: str = "llama",
    output_norm: float = 1.0,
) -> None:
    """Write a model with a byte-level vocabulary.

    Args:
        path: Where to.
        seed: Of the layers. Models that differ in it alone are often, but not always of the same mind, as a draft model is
            of its target's.
        errors: What the toy backend does instead: see `ToyModel`.
        weight_type: Of the matrices: F32, F16, Q8_0, or what else the package `gguf` can write.
        architecture: What the file says that it is.
        output_norm: The weights of the last norm; with NaN the model computes nothing else.
    """
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    writer = GGUFWriter(path, architecture)
    _describe(writer)
    writer.add_float32("augury.toy.errors", errors)
    kind = GGMLQuantizationType[weight_type]
    for name, values in (_weights(seed) | {"output_norm.weight": np.full(_N_EMBD, output_norm, np.float32)}).items():
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: GGUFWriter) -> None:
    writer.add_block_count(_N_LAYERS)
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(_N_EMBD)
    writer.add_feed_forward_length(_N_FF)
    writer.add_head_count(_N_HEADS)
    writer.add_head_count_kv(_N_KV_HEADS)
    writer.add_key_length(_HEAD_DIM)
    writer.add_value_length(_HEAD_DIM)
    writer.add_rope_dimension_count(_HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*_alphabet(), *(merge.replace(" ", "") for merge in _MERGES), "<|endoftext|>"])
    writer.add_token_types([1] * (N_VOCAB - 1) + [3])
    writer.add_token_merges(list(_MERGES))
    writer.add_eos_token_id(N_VOCAB - 1)


def _alphabet() -> list[str]:
    """The characters that stand for the 256 bytes in byte-level vocabularies.

    Source: Radford et al. 2019 (GPT-2): printable bytes stand for themselves, the others for characters from U+0100 on.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _weights(seed: int) -> dict[str, np.ndarray]:
    shared, own = np.random.default_rng(7), np.random.default_rng([7, seed])

    def matrix(n_out: int, n_in: int, rng: np.random.Generator = own) -> np.ndarray:
        return (rng.standard_normal((n_out, n_in)) / n_in**0.5).astype(np.float32)

    embedding = matrix(N_VOCAB, _N_EMBD, shared) * np.float32(_N_EMBD**0.5)
    token = np.arange(N_VOCAB)
    successor = token - token % PERIOD + (token + 1) % PERIOD  # the vocabulary is a multiple of the period
    head = matrix(N_VOCAB, _N_EMBD, shared) * np.float32(2)
    head[successor] += np.float32(_STUBBORNNESS) * embedding / np.float32(_N_EMBD**0.5)
    weights = {"token_embd.weight": embedding, "output.weight": head}
    n_queries, n_keys = _N_HEADS * _HEAD_DIM, _N_KV_HEADS * _HEAD_DIM
    for layer in range(_N_LAYERS):
        weights |= {
            f"blk.{layer}.attn_norm.weight": np.ones(_N_EMBD, np.float32),
            f"blk.{layer}.attn_q.weight": matrix(n_queries, _N_EMBD),
            f"blk.{layer}.attn_k.weight": matrix(n_keys, _N_EMBD),
            f"blk.{layer}.attn_v.weight": matrix(n_keys, _N_EMBD),
            f"blk.{layer}.attn_output.weight": matrix(_N_EMBD, n_queries),
            f"blk.{layer}.ffn_norm.weight": np.ones(_N_EMBD, np.float32),
            f"blk.{layer}.ffn_gate.weight": matrix(_N_FF, _N_EMBD),
            f"blk.{layer}.ffn_up.weight": matrix(_N_FF, _N_EMBD),
            f"blk.{layer}.ffn_down.weight": matrix(_N_EMBD, _N_FF),
        }
    return weights
