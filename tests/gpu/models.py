"""Models of real shapes with random weights, made in memory: what a pass takes does not depend on what the weights are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from attrs import frozen
from oracles.weights import HALVES

from augury.files.gguf import ModelFile, Tensor
from augury.files.tensor_type import TensorType
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.plugins.learn.head import HeadSizes, Sample, TargetTensors, write_head
from augury.registry import Registry
from augury.types import ModelOptions

_CHUNK = 1 << 24  # random bytes, which weights repeat


@frozen
class Shape:
    """Of a llama model."""

    name: str
    n_embd: int
    n_ff: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_vocab: int
    n_experts: int = 0  # of a mixture, whose feed-forwards have n_ff values each
    n_used: int = 0


TINY = Shape("tiny", 256, 512, 4, 4, 2, 64, 512)
SMALL = Shape("135M", 576, 1536, 30, 9, 3, 64, 49152)
MIDDLE = Shape("1.5B", 1536, 8960, 28, 12, 2, 128, 151936)
TINY_MIXTURE = Shape("tiny mixture", 256, 256, 2, 4, 2, 64, 512, 8, 2)
MIXTURE = Shape("mixture", 2048, 1024, 16, 16, 4, 128, 128256, 32, 4)
LARGE = Shape("8B", 4096, 14336, 32, 32, 8, 128, 128256)


def random_model(shape: Shape, kinds: dict[str, TensorType], seed: int = 1, *, is_hollow: bool = False) -> ModelFile:
    """A model whose matrices are of the types `kinds` names by the ends of tensors' names; "" is for the others.

    A hollow one's have no weights.

    Its head expects each token to be followed by the next but for what the layers say, so that drafts are right now and then.
    """
    rng = np.random.default_rng(seed)
    chunk = rng.integers(0, 256, _CHUNK, np.uint8)
    tensors: dict[str, Tensor] = {}

    def matrix(name: str, n_out: int, n_in: int, n: int = 0) -> None:
        kind = next((kinds[end] for end in sorted(kinds, key=len, reverse=True) if end and end in name), kinds[""])
        if n_in % kind.block_size:
            kind = TensorType.Q8_0
        n_blocks = 0 if is_hollow else max(1, n) * n_out * n_in // kind.block_size
        start = int(rng.integers(0, 1 << 20)) * 8
        data = np.resize(np.roll(chunk, -start), n_blocks * kind.block_bytes).reshape(n_blocks, kind.block_bytes)
        for place in HALVES.get(kind, ()):  # factors of ordinary size, on average as large as real ones
            data[:, place + 1] = 0x10 if kind.name.endswith("K") else 0x14
        if kind is TensorType.MXFP4:
            data[:, 0] = 122
        tensors[name] = Tensor(name, (n, n_out, n_in) if n else (n_out, n_in), kind, data.reshape(-1))

    def vector(name: str, *shape: int) -> None:
        values = (1 + 0.1 * rng.standard_normal(shape)).astype(np.float32)
        tensors[name] = Tensor(name, shape, TensorType.F32, values.view(np.uint8).reshape(-1))

    n_q, n_kv = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    matrix("token_embd.weight", shape.n_vocab, shape.n_embd)
    matrix("output.weight", shape.n_vocab, shape.n_embd)
    vector("output_norm.weight", shape.n_embd)
    for i in range(shape.n_layers):
        for name, n_out, n_in in (
            ("attn_q", n_q, shape.n_embd),
            ("attn_k", n_kv, shape.n_embd),
            ("attn_v", n_kv, shape.n_embd),
            ("attn_output", shape.n_embd, n_q),
        ):
            matrix(f"blk.{i}.{name}.weight", n_out, n_in)
        end = "_exps" if shape.n_experts else ""
        for name, n_out, n_in in (
            ("ffn_gate", shape.n_ff, shape.n_embd),
            ("ffn_up", shape.n_ff, shape.n_embd),
            ("ffn_down", shape.n_embd, shape.n_ff),
        ):
            matrix(f"blk.{i}.{name}{end}.weight", n_out, n_in, shape.n_experts)
        if shape.n_experts:
            vector(f"blk.{i}.ffn_gate_inp.weight", shape.n_experts, shape.n_embd)
        vector(f"blk.{i}.attn_norm.weight", shape.n_embd)
        vector(f"blk.{i}.ffn_norm.weight", shape.n_embd)
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": shape.n_layers,
        "llama.context_length": 8192,
        "llama.embedding_length": shape.n_embd,
        "llama.feed_forward_length": shape.n_ff,
        "llama.attention.head_count": shape.n_heads,
        "llama.attention.head_count_kv": shape.n_kv_heads,
        "llama.attention.key_length": shape.head_dim,
        "llama.attention.value_length": shape.head_dim,
        "llama.rope.dimension_count": shape.head_dim,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": shape.n_vocab,
        **({"llama.expert_count": shape.n_experts, "llama.expert_used_count": shape.n_used} if shape.n_experts else {}),
    }
    path = Path(f"{shape.name}.gguf")
    return ModelFile(path, (path,), sum(each.n_bytes for each in tensors.values()), metadata, tensors)


def random_head(target: ModelFile, path: Path) -> ModelFile:
    """An EAGLE-3 head for a model, as `augury learn` begins with it, written as a file."""
    plan = plan_of(target, Registry.discover())
    sizes, own = HeadSizes.for_target(target, plan, target.path.name, 8192), TargetTensors(target, plan)
    tokens = np.arange(sizes.n_drafted, dtype=np.int32)
    sample = Sample(np.ones((1, len(sizes.layers) * sizes.n_embd), np.float32), np.zeros(1, np.int32))
    weights = sizes.first_weights(own, sample, seed=1)
    write_head(path, sizes, target, tokens, weights, own.output(tokens))
    return ModelFile.open(path)


def write(file: ModelFile, path: Path) -> Path:
    """Write a random model as a file that llama.cpp reads, without a vocabulary."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    for key, value in file.metadata.items():
        if not isinstance(value, str):
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    for name, tensor in file.tensors.items():
        if tensor.type is TensorType.F32:
            writer.add_tensor(name, tensor.data.view(np.float32))
        else:
            data = tensor.data.reshape(tensor.shape[0], -1)
            writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[tensor.type.name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


Q4_K_M = {"": TensorType.Q4_K, "ffn_down": TensorType.Q6_K, "attn_v": TensorType.Q6_K, "output.weight": TensorType.Q6_K}
"""The mixture of llama.cpp's Q4_K_M, roughly."""


def load(
    file: ModelFile,
    backend: str = "numba-cuda",
    n_ctx: int = 4608,
    n_slots: int = 1,
    types: tuple[str, str] = ("f16", "f16"),
    threads: int | None = None,
    **given: object,
):
    """Load a model on a backend, with caches of some types."""
    registry = Registry.discover()
    kind = registry.find("backend", backend)
    options = ModelOptions(n_ctx=n_ctx, n_slots=n_slots, cache_type_k=types[0], cache_type_v=types[1], threads=threads)
    return kind(kind.options_class(**given)).load(file, plan_of(file, registry), options, Progress())
