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

if TYPE_CHECKING:
    from gguf import GGUFWriter

_MERGES = ("t h", "th e", "i n", "a n", "e r", "o n", "r e")
_TOKENS_BESIDE_BYTES = len(_MERGES) + 1
N_VOCAB = 256 + _TOKENS_BESIDE_BYTES
N_CTX_TRAIN = 4096
N_EMBD = 64
N_LAYERS = 3
PERIOD = 12  # length of a circle of tokens
_FOCUS = 3.0  # of a head's attention on the token itself
_BLOCK_SIZE = 6  # tokens that a block head sees at once
_LOUDNESS = 1e4  # of a block head's attention output, beside the masks that it adds to
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
    has_nextn: bool = False,
) -> None:
    """Write a model with a byte-level vocabulary.

    Args:
        path: Where to.
        seed: Of the layers. Models that differ in it alone are often, but not always of the same mind, as a draft model is
            of its target's.
        errors: Faults of the toy backend: see `ToyModel`.
        weight_type: The weight type of the matrices: F32, F16, Q8_0, or another that the package `gguf` can write.
        architecture: The file's `general.architecture`.
        output_norm: The weights of the last norm; with NaN the model computes nothing else.
        tensors: Others, or in place of those of their names; float32 is stored.
        keys: Further metadata.
        has_nextn: Whether a layer more predicts further tokens. It is often right, because the output is the model's.
    """
    with gguf_file(path, architecture) as writer:
        sizes = evolve(_SIZES, n_layers=_SIZES.n_layers + has_nextn)
        sizes.describe(writer)
        if has_nextn:
            writer.add_nextn_predict_layers(1)
        write_tiny_tokenizer(writer)
        writer.add_float32("augury.toy.errors", errors)
        for key, value in keys.items():
            writer.add_uint32(key, value)
        norm = {"output_norm.weight": np.full(N_EMBD, output_norm, np.float32)}
        others = {name: values.astype(np.float32) for name, values in tensors.items()}
        nextn = _nextn(f"blk.{_SIZES.n_layers}.nextn") if has_nextn else {}
        add_weights(writer, _weights(seed, sizes) | norm | nextn | others, weight_type)


def write_tiny_head(path: Path, *, n_embd: int = _SIZES.n_embd, head_dim: int = _SIZES.head_dim, n_layers: int = 1) -> None:
    """Write an EAGLE-3 head that borrows its target's embedding and output: it predicts by a token's embedding alone.

    Its attention looks at the token itself, whose embedding it passes on; hidden states of the target change nothing.

    Args:
        path: Where to.
        n_embd: E of the target.
        head_dim: D, of which E is a multiple.
        n_layers: Of the target, of which the first three, or the last one more than once, tell hidden states.
    """
    n_heads = n_embd // head_dim
    heads = {"head_dim": head_dim, "n_rot": head_dim, "n_heads": n_heads, "n_kv_heads": n_heads}
    sizes = evolve(_SIZES, n_embd=n_embd, n_layers=1, **heads)
    own, nothing = np.eye(n_embd, dtype=np.float32), np.zeros((n_embd, n_embd), np.float32)
    looking = np.float32(_FOCUS / head_dim**0.25) * own
    with gguf_file(path, "eagle3") as writer:
        sizes.describe(writer)
        writer.add_array("eagle3.target_layers", [min(i, n_layers) for i in (1, 2, 3)])
        writer.add_uint32("eagle3.target_hidden_size", n_embd)
        writer.add_bool("eagle3.norm_before_residual", val=True)
        weights = _empty_layer(sizes) | {"fc.weight": np.hstack([own, own, own]), "blk.0.attn_output.weight": own}
        weights["blk.0.attn_norm_2.weight"] = np.zeros(n_embd, np.float32)
        for name, values in {"attn_q": looking, "attn_k": looking, "attn_v": own}.items():
            weights[f"blk.0.{name}.weight"] = np.hstack([values, nothing])
        add_weights(writer, weights)


def write_tiny_block_head(
    path: Path, embedding: np.ndarray, *, output: np.ndarray | None = None, head_dim: int = _SIZES.head_dim
) -> None:
    """Write a DFlash head that borrows its target's embedding and output: it predicts by the last token's embedding alone.

    It predicts in every place the successor of that token, and so is right in the first, and seldom in others. Its attention
    sees all of a block alike, of which it passes on all but the masks; hidden states of the target change nothing.

    Args:
        path: Where to.
        embedding: The embedding of the target, (V, E) float32; its last token is the mask.
        output: Of the target, (V, E): the head is then one of DSpark, and predicts in each place the successor of the token
            before.
        head_dim: D, of which E is a multiple.
    """
    n_vocab, n_embd = embedding.shape
    n_heads = n_embd // head_dim
    heads = {"head_dim": head_dim, "n_rot": head_dim, "n_heads": n_heads, "n_kv_heads": n_heads}
    sizes = evolve(_SIZES, n_embd=n_embd, n_layers=1, **heads)
    own, mask = np.eye(n_embd, dtype=np.float32), embedding[-1] / np.linalg.norm(embedding[-1])
    with gguf_file(path, "dflash") as writer:
        sizes.describe(writer)
        writer.add_array("dflash.target_layers", [1])
        writer.add_uint32("dflash.block_size", _BLOCK_SIZE)
        writer.add_mask_token_id(n_vocab - 1)
        weights = _empty_layer(sizes) | {"fc.weight": 0 * own, "enc.output_norm.weight": np.ones(n_embd)}
        weights |= {f"blk.0.attn_{name}_norm.weight": np.ones(head_dim) for name in "qk"}
        weights |= {"blk.0.attn_k.weight": own, "blk.0.attn_v.weight": own - np.outer(mask, mask)}
        weights["blk.0.attn_output.weight"] = _LOUDNESS * own
        if output is not None:
            lengths = np.sqrt(np.mean(embedding**2, axis=1, keepdims=True))
            weights |= {"markov_w1.weight": embedding / lengths, "markov_w2.weight": 2 * output}
            weights |= {"conf_proj.weight": np.zeros((1, 2 * n_embd)), "conf_proj.bias": np.ones(1)}
        add_weights(writer, {name: values.astype(np.float32) for name, values in weights.items()})


def write_tiny_tokenizer(writer: GGUFWriter) -> None:
    """Write the vocabulary of the tiny models as metadata."""
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


def _empty_layer(sizes: LlamaSizes) -> dict[str, np.ndarray]:
    """Tensors of a head of one layer, of which only norms let anything through; it lacks an embedding."""
    shapes = {name: shape for name, shape in sizes.shapes.items() if name != "token_embd.weight"}
    return {name: np.full(shape, len(shape) == 1, np.float32) for name, shape in shapes.items()}


def _nextn(at: str) -> dict[str, np.ndarray]:
    """The parts that make a layer predict further tokens: it sees the token alone, not its hidden state."""
    norms = {f"{at}.{name}.weight": np.ones(N_EMBD, np.float32) for name in ("enorm", "hnorm", "shared_head_norm")}
    return norms | {f"{at}.eh_proj.weight": np.eye(N_EMBD, 2 * N_EMBD, dtype=np.float32)}


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
