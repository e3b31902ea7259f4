"""Writes models as GGUF files, by the library `gguf`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from augury.files.atomic_file import AtomicFile

if TYPE_CHECKING:
    from gguf import GGUFWriter

EPSILON = 1e-5  # of the norms of the models that `LlamaSizes` describes


@frozen
class LlamaSizes:
    """The sizes of a llama model that is to be written."""

    n_vocab: int
    n_embd: int
    n_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_rot: int
    n_layers: int
    n_ctx: int

    def describe(self, writer: GGUFWriter) -> None:
        """Write them as metadata."""
        writer.add_block_count(self.n_layers)
        writer.add_context_length(self.n_ctx)
        writer.add_embedding_length(self.n_embd)
        writer.add_feed_forward_length(self.n_ff)
        writer.add_head_count(self.n_heads)
        writer.add_head_count_kv(self.n_kv_heads)
        writer.add_key_length(self.head_dim)
        writer.add_value_length(self.head_dim)
        writer.add_rope_dimension_count(self.n_rot)
        writer.add_layer_norm_rms_eps(EPSILON)
        writer.add_vocab_size(self.n_vocab)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of its tensors; the embedding is the output, too."""
        n_queries, n_keys = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        of_layer = {
            "attn_norm": (self.n_embd,),
            "attn_q": (n_queries, self.n_embd),
            "attn_k": (n_keys, self.n_embd),
            "attn_v": (n_keys, self.n_embd),
            "attn_output": (self.n_embd, n_queries),
            "ffn_norm": (self.n_embd,),
            "ffn_gate": (self.n_ff, self.n_embd),
            "ffn_up": (self.n_ff, self.n_embd),
            "ffn_down": (self.n_embd, self.n_ff),
        }
        layers = {f"blk.{i}.{name}.weight": shape for i in range(self.n_layers) for name, shape in of_layer.items()}
        return {"token_embd.weight": (self.n_vocab, self.n_embd), "output_norm.weight": (self.n_embd,)} | layers


@contextmanager
def gguf_file(path: Path, architecture: str = "llama", *, is_durable: bool = False) -> Iterator[GGUFWriter]:
    """A writer of a model file, which appears, whole, when the block ends. See `AtomicFile.publish` for `is_durable`."""
    from gguf import GGUFWriter

    with AtomicFile(path.resolve()) as out:
        writer = GGUFWriter(out.part, architecture)
        yield writer
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        out.publish(is_durable=is_durable)


def add_weights(writer: GGUFWriter, weights: Mapping[str, np.ndarray], kind: str = "F32") -> None:
    """Add float32 tensors: vectors as F32, matrices (n_out, n_in) in a type of GGUF, or as F16 where its blocks fill no row."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import quantize

    for name, values in weights.items():
        stored = GGMLQuantizationType[kind if values.ndim > 1 else "F32"]
        if values.shape[-1] % GGML_QUANT_SIZES[stored][0]:
            stored = GGMLQuantizationType.F16
        writer.add_tensor(name, quantize(values, stored), raw_dtype=stored)


def add_value(writer: GGUFWriter, key: str, value: object) -> None:
    """Add a metadata value as `ModelFile` reads it; an empty array has no type, and is left out."""
    from gguf import GGUFValueType

    if isinstance(value, np.ndarray):
        if len(value):
            writer.add_key_value(key, value.tolist(), GGUFValueType.ARRAY, GGUFValueType[value.dtype.name.upper()])
    elif isinstance(value, list):
        if value:
            writer.add_array(key, [each.encode("utf-8", "surrogateescape") for each in value])
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)
