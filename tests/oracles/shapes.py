"""Models of real shapes with random weights of 4 bits, to time: what a pass takes does not depend on what the weights are.

`python tests/oracles/shapes.py FOLDER` writes them all, as augury and llama.cpp read them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np

N_VOCAB = 32768  # a quarter of the least that the real ones have: their output would hide what layers take
_QUANT = gguf.GGMLQuantizationType.Q4_0
_BLOCK, _BLOCK_BYTES = 32, 18


def write_qwen35(path: Path, *, n_layers: int = 24) -> None:
    """Layers of Qwen3.5-0.8B: three gated delta nets, then gated attention."""
    n_embd, n_ff, n_heads, n_kv_heads, size = 1024, 3584, 8, 2, 256
    n_keys, n_state = 16, 128
    numbers = {
        "full_attention_interval": 4,
        "attention.head_count": n_heads,
        "attention.head_count_kv": n_kv_heads,
        "attention.key_length": size,
        "attention.value_length": size,
        "rope.dimension_count": 64,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": n_keys * n_state,
        "ssm.state_size": n_state,
        "ssm.time_step_rank": n_keys,
        "ssm.group_count": n_keys,
    }
    writer = _Writer(path, "qwen35", n_layers, n_embd, n_ff, numbers)
    writer.out.add_array("qwen35.rope.dimension_sections", [11, 11, 10, 0])
    n_conv, n_inner = 3 * n_keys * n_state, n_keys * n_state
    for layer in range(n_layers):
        writer.feed_forward(layer, n_embd, n_ff, norm="post_attention_norm")
        if layer % 4 == 3:
            writer.attention(layer, n_embd, 2 * n_heads * size, n_kv_heads * size, n_heads * size, size)
            continue
        writer.matrices(layer, attn_qkv=(n_conv, n_embd), attn_gate=(n_inner, n_embd), ssm_out=(n_embd, n_inner))
        writer.matrices(layer, ssm_alpha=(n_keys, n_embd), ssm_beta=(n_keys, n_embd))
        writer.vectors(layer, **{"attn_norm.weight": n_embd, "ssm_norm.weight": n_state, "ssm_dt.bias": n_keys})
        writer.out.add_tensor(f"blk.{layer}.ssm_a", np.full(n_keys, -0.5, np.float32))
        writer.out.add_tensor(f"blk.{layer}.ssm_conv1d.weight", writer.floats((n_conv, 4)))
    writer.close("output_norm")


def write_lfm2(path: Path, *, n_layers: int = 16) -> None:
    """Layers of LFM2-1.2B: gated short convolutions, every third attention."""
    n_embd, n_ff, n_heads, n_kv_heads, size = 2048, 8192, 32, 8, 64
    is_attention = [layer in {2, 5, 8, 10, 12, 14} for layer in range(n_layers)]
    writer = _Writer(path, "lfm2", n_layers, n_embd, n_ff, {"attention.head_count": n_heads, "shortconv.l_cache": 3})
    writer.out.add_array("lfm2.attention.head_count_kv", [n_kv_heads * each for each in is_attention])
    for layer in range(n_layers):
        writer.feed_forward(layer, n_embd, n_ff, norm="ffn_norm")
        if is_attention[layer]:
            writer.attention(layer, n_embd, n_embd, n_kv_heads * size, n_embd, size)
            continue
        writer.matrices(layer, **{"shortconv.in_proj": (3 * n_embd, n_embd), "shortconv.out_proj": (n_embd, n_embd)})
        writer.vectors(layer, **{"attn_norm.weight": n_embd})
        writer.out.add_tensor(f"blk.{layer}.shortconv.conv.weight", writer.floats((n_embd, 3)))
    writer.close("token_embd_norm")


def write_qwen3moe(path: Path, *, n_layers: int = 16) -> None:
    """A mixture of 0.9 billion weights of which a token uses 0.28: 8 of 32 experts of 512 hidden values."""
    n_embd, n_ff, n_experts, n_used = 1024, 512, 32, 8
    numbers = {"expert_count": n_experts, "expert_used_count": n_used, "expert_feed_forward_length": n_ff}
    writer = _qwen3(path, "qwen3moe", n_layers, n_embd, n_used * n_ff, numbers)
    for layer in range(n_layers):
        writer.vectors(layer, **{"ffn_norm.weight": n_embd})
        writer.out.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", writer.floats((n_experts, n_embd)))
        writer.matrices(layer, ffn_gate_exps=(n_experts, n_ff, n_embd), ffn_up_exps=(n_experts, n_ff, n_embd))
        writer.matrices(layer, ffn_down_exps=(n_experts, n_embd, n_ff))
    writer.close("output_norm")


def write_qwen3(path: Path, *, n_layers: int = 16) -> None:
    """A dense model with as many weights as a token of `write_qwen3moe` uses."""
    n_embd, n_ff = 1024, 4096
    writer = _qwen3(path, "qwen3", n_layers, n_embd, n_ff, {})
    for layer in range(n_layers):
        writer.feed_forward(layer, n_embd, n_ff, norm="ffn_norm")
    writer.close("output_norm")


def _qwen3(path: Path, name: str, n_layers: int, n_embd: int, n_ff: int, numbers: dict[str, int]) -> _Writer:
    n_heads, n_kv_heads, size = 16, 4, 64
    heads = {"attention.head_count": n_heads, "attention.head_count_kv": n_kv_heads}
    sizes = {"attention.key_length": size, "attention.value_length": size}
    writer = _Writer(path, name, n_layers, n_embd, n_ff, numbers | heads | sizes)
    for layer in range(n_layers):
        writer.attention(layer, n_embd, n_heads * size, n_kv_heads * size, n_heads * size, size)
    return writer


class _Writer:
    def __init__(self, path: Path, name: str, n_layers: int, n_embd: int, n_ff: int, numbers: dict[str, int]) -> None:
        self.out = gguf.GGUFWriter(path, name)
        self._rng = np.random.default_rng(1)
        self._n_embd = n_embd
        sizes = {"block_count": n_layers, "context_length": 4096, "embedding_length": n_embd, "feed_forward_length": n_ff}
        for key, value in (sizes | numbers).items():
            self.out.add_uint32(f"{name}.{key}", value)
        self.out.add_float32(f"{name}.attention.layer_norm_rms_epsilon", 1e-6)
        self.out.add_tokenizer_model("gpt2")  # one character a token: llama.cpp loads no file without a vocabulary
        self.out.add_token_list([chr(ord("!") + i) for i in range(N_VOCAB)])
        self.out.add_token_merges(["! !"])
        self._matrix("token_embd.weight", (N_VOCAB, n_embd))

    def attention(self, layer: int, n_embd: int, n_q: int, n_kv: int, n_mixed: int, size: int) -> None:
        self.matrices(layer, attn_q=(n_q, n_embd), attn_k=(n_kv, n_embd), attn_v=(n_kv, n_embd), attn_output=(n_embd, n_mixed))
        self.vectors(layer, **{"attn_norm.weight": n_embd, "attn_q_norm.weight": size, "attn_k_norm.weight": size})

    def feed_forward(self, layer: int, n_embd: int, n_ff: int, *, norm: str) -> None:
        self.matrices(layer, ffn_gate=(n_ff, n_embd), ffn_up=(n_ff, n_embd), ffn_down=(n_embd, n_ff))
        self.vectors(layer, **{f"{norm}.weight": n_embd})

    def matrices(self, layer: int, **shapes: tuple[int, ...]) -> None:
        for name, shape in shapes.items():
            self._matrix(f"blk.{layer}.{name}.weight", shape)

    def vectors(self, layer: int, **sizes: int) -> None:
        for name, size in sizes.items():
            self.out.add_tensor(f"blk.{layer}.{name}", np.ones(size, np.float32))

    def floats(self, shape: tuple[int, ...]) -> np.ndarray:
        return self._rng.standard_normal(shape, np.float32) * np.float32(0.5)

    def close(self, output_norm: str) -> None:
        self.out.add_tensor(f"{output_norm}.weight", np.ones(self._n_embd, np.float32))
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_tensors_to_file()
        self.out.close()

    def _matrix(self, name: str, shape: tuple[int, ...]) -> None:
        """Codes at random, scales that keep the size of what goes through."""
        *n_out, n_in = shape
        blocks = self._rng.integers(0, 256, (*n_out, n_in // _BLOCK, _BLOCK_BYTES), np.uint8)
        scale = np.float16(1.0 / (4.6 * n_in**0.5))  # 4.6: the deviation of codes from -8 to 7
        blocks[..., :2] = np.frombuffer(scale.tobytes(), np.uint8)
        self.out.add_tensor(name, blocks.reshape(*n_out, -1), raw_dtype=_QUANT)


SHAPES = {"qwen35-0.8b": write_qwen35, "lfm2-1.2b": write_lfm2, "mixture-1b": write_qwen3moe, "dense-0.3b": write_qwen3}

if __name__ == "__main__":
    for name, write in SHAPES.items():
        write(Path(sys.argv[1]) / f"{name}.gguf")
