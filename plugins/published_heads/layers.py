"""Decoder layers as `transformers` names and shapes them, in the words of llama.cpp's converter."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import evolve

from augury.plugins.published_heads.folder import as_tensor

if TYPE_CHECKING:
    from augury.files.gguf import Tensor
    from augury.plugins.published_heads.folder import Folder

NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.o_proj.bias": "attn_output.bias",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.k_proj.bias": "attn_k.bias",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_OPTIONAL = (".bias", "q_norm.weight", "k_norm.weight")
_TURNED = {"attn_q.weight", "attn_q.bias", "attn_k.weight", "attn_k.bias", "attn_q_norm.weight", "attn_k_norm.weight"}
_REFUSED = (  # what changes the numbers, and has a setting that models of some families make
    *("partial_rotary_factor", "attn_logit_softcapping", "attention_multiplier", "residual_multiplier", "logits_scaling"),
    *("num_local_experts", "num_experts", "q_lora_rank", "kv_lora_rank"),
)
_WINDOWED, _WHOLE = "sliding_attention", "full_attention"


class Written:
    """A GGUF file's metadata and tensors in the making, of an architecture."""

    def __init__(self, folder: Folder, architecture: str) -> None:
        self.folder = folder
        self.architecture = architecture
        name = folder.config.get("_name_or_path") or folder.path.resolve().name
        self.metadata: dict[str, object] = {"general.architecture": architecture, "general.name": str(name)}
        self.tensors: dict[str, Tensor] = {}
        # of heads whose rows are to be reordered: (2, D / 2) if those that rope turns together are half a head apart,
        # (D / 2, 2) if they are neighbours
        self._pairs: tuple[int, int] | None = None
        verifier = (folder.section("speculators_config").get("verifier") or {}).get("name_or_path")
        if target := verifier or folder.config.get("target_model_name_or_path"):
            self.metadata["general.base_model.0.name"] = str(target)

    def set(self, **values: object) -> None:
        """Set keys of the architecture; underlines stand for dots where two follow each other."""
        self.metadata |= {f"{self.architecture}.{key.replace('__', '.')}": value for key, value in values.items()}

    def describe(self, text: str) -> None:
        """Say what it is, for `augury inspect`."""
        self.metadata["general.description"] = text

    def take(self, name: str, written: str) -> Tensor:
        """Give a tensor another name; vectors become float32, as converters store them."""
        tensor = evolve(self.folder.take(name), name=written)
        if len(tensor.shape) == 1 and tensor.type.integers is None:
            tensor = as_tensor(written, tensor.floats())
        self.tensors[written] = tensor
        return tensor

    def take_if_there(self, name: str, written: str) -> None:
        """The same, where the folder has the tensor."""
        if name in self.folder:
            self.take(name, written)

    def take_ends(self) -> None:
        """Take norm and output, and an embedding of its own if there is one.

        Which tokens the output is of is said unless it is of all; the folder has the distance of each to its place.
        """
        self.take("norm.weight", "output_norm.weight")
        self.take_if_there("lm_head.weight", "output.weight")
        self.take_if_there("embed_tokens.weight", "token_embd.weight")
        if "d2t" not in self.folder:
            return
        distances = self.folder.take("d2t")
        n = distances.shape[0]
        if distances.type.integers is None:
            self.folder.fail(f"tensor 'd2t' is stored as {distances.type.name}, expected whole numbers")
        if n < self.folder.count("vocab_size"):
            tokens = distances.data.view(distances.type.integers).astype(np.int64) + np.arange(n)
            self.tensors["d2t"] = as_tensor("d2t", tokens)

    def sizes(self, n_layers: int, *, turns_pairs: bool) -> None:
        """Set the sizes of the layers, and their positions.

        If `turns_pairs`, neighbours of a head are to be turned together, as llama's converted files have it.
        """
        folder = self.folder
        folder.refuse(_REFUSED)
        if (act := folder.config.get("hidden_act") or "silu") != "silu":
            folder.fail(f"config.json sets hidden_act to {act!r}, expected 'silu'")
        n_heads, n_embd = folder.count("num_attention_heads"), folder.count("hidden_size")
        n_kv_heads, head_dim = folder.count("num_key_value_heads", n_heads), folder.count("head_dim", n_embd // n_heads)
        self.set(
            block_count=n_layers,
            context_length=folder.count("max_position_embeddings", 2048),
            embedding_length=n_embd,
            feed_forward_length=folder.count("intermediate_size"),
            attention__head_count=n_heads,
            attention__head_count_kv=n_kv_heads,
            attention__key_length=head_dim,
            attention__value_length=head_dim,
            attention__layer_norm_rms_epsilon=folder.number("rms_norm_eps", 1e-6),
            vocab_size=folder.count("vocab_size"),
            rope__dimension_count=head_dim,
        )
        config = folder.config
        are_neighbours = bool(config.get("rope_interleaved")) or config.get("rope_is_neox_style") is False
        are_neighbours |= config.get("model_type") in ("llama4", "llama4_text")
        if turns_pairs is not are_neighbours:
            self._pairs = (head_dim // 2, 2) if are_neighbours else (2, head_dim // 2)
        self._windows(n_layers)
        self._rope(head_dim)

    def _windows(self, n_layers: int) -> None:
        """Set the layers that see a window only: those named, or all where one is in use and none are named."""
        config = self.folder.config
        kinds, window, key = config.get("layer_types"), config.get("sliding_window"), "sliding_window"
        if config.get("use_sliding_window") is False and not kinds:
            window = None
        if window is None and config.get("swa_window_size"):  # where `transformers` clears the other
            key = "swa_window_size"
            window = config[key] if config.get("use_swa") else None
        kinds = kinds or [_WHOLE if window is None else _WINDOWED] * n_layers
        if len(kinds) < n_layers or not {*kinds[:n_layers]} <= {_WINDOWED, _WHOLE}:
            self.folder.fail(f"config.json sets layer_types to {kinds!r:.80}, expected {_WHOLE} or {_WINDOWED} for each layer")
        is_windowed = np.array([kind == _WINDOWED for kind in kinds[:n_layers]])
        if is_windowed.any():
            self.set(
                attention__sliding_window=self.folder.count(key),
                attention__sliding_window_pattern=is_windowed,
            )

    def _rope(self, head_dim: int) -> None:
        """Set the frequencies of positions, and how they are scaled; two generations of settings say it differently.

        `mrope` deals pairs out to the axes of an image, which are all alike in a text.
        """
        folder = self.folder
        stated = folder.section("rope_parameters") or folder.section("rope_scaling")
        stated = stated.get(_WINDOWED) or stated.get(_WHOLE) or stated
        base = float(stated.get("rope_theta") or folder.number("rope_theta", 10000.0))
        self.set(rope__freq_base=base)
        kind, factor = stated.get("rope_type") or stated.get("type") or "default", float(stated.get("factor") or 1.0)
        if kind == "llama3":
            self.tensors["rope_freqs.weight"] = as_tensor("rope_freqs.weight", _llama3_divisors(head_dim, base, stated))
        elif kind == "yarn":
            n_ctx = int(stated.get("original_max_position_embeddings") or folder.count("max_position_embeddings", 2048))
            self.tensors["rope_freqs.weight"] = as_tensor("rope_freqs.weight", _yarn_divisors(head_dim, base, n_ctx, stated))
            self.set(rope__scaling__attn_factor=_yarn_magnitude(factor, stated))
        elif kind == "linear":
            self.set(rope__scaling__type=kind, rope__scaling__factor=factor)
        elif kind not in ("default", "mrope"):
            folder.fail(f"config.json sets positions of type {kind!r}; known are default, linear, llama3, mrope and yarn")

    def layer(self, i: int, prefix: str) -> None:
        """Take the tensors of a layer, whose names begin with `prefix` in the folder."""
        for name, written in NAMES.items():
            at = f"blk.{i}.{written}"
            if written.endswith(_OPTIONAL):
                self.take_if_there(f"{prefix}{name}", at)
            else:
                self.take(f"{prefix}{name}", at)
            if written in _TURNED and self._pairs is not None and at in self.tensors:
                self.tensors[at] = _reordered(self.tensors[at], self._pairs)


def _reordered(tensor: Tensor, pairs: tuple[int, int]) -> Tensor:
    """The rows of a head in another order: the two that rope turns together become neighbours, or come to be half a head apart.

    Source: llama.cpp's converter, in whose files they are neighbours in some architectures.
    """
    n_rows = tensor.shape[0]
    n_bytes = tensor.data.size // n_rows
    rows = tensor.data.reshape(-1, *pairs, n_bytes).swapaxes(1, 2)
    data = np.ascontiguousarray(rows).reshape(-1)
    data.flags.writeable = False
    return evolve(tensor, data=data)


def _llama3_divisors(head_dim: int, base: float, stated: dict[str, Any]) -> np.ndarray:
    """Llama 3.1's divisors of frequencies, (D / 2,) float32: slow pairs by `factor`, fast ones by 1, those between smoothly.

    Source: `transformers`, modeling_rope_utils, `llama3`.
    """
    factor, n_ctx = float(stated.get("factor", 8.0)), float(stated.get("original_max_position_embeddings", 8192))
    low, high = (float(stated.get(f"{name}_freq_factor", default)) for name, default in (("low", 1.0), ("high", 4.0)))
    turns = n_ctx / (2.0 * math.pi) * base ** (-np.arange(0, head_dim, 2) / head_dim)  # within the original context
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - share) / factor + share)).astype(np.float32)


def _yarn_divisors(head_dim: int, base: float, n_ctx: int, stated: dict[str, Any]) -> np.ndarray:
    """YaRN's divisors of frequencies, (D / 2,) float32: as Llama 3.1's, by the pair, with its own ends of what is between.

    Source: `transformers`, modeling_rope_utils, `yarn`.
    """
    factor, pairs = float(stated.get("factor") or 1.0), np.arange(head_dim // 2)
    turns = (float(stated.get(f"beta_{name}") or default) for name, default in (("fast", 32.0), ("slow", 1.0)))
    low, high = (head_dim * math.log(n_ctx / (2.0 * math.pi * each)) / (2.0 * math.log(base)) for each in turns)
    if stated.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, head_dim - 1.0)
    share = np.clip((pairs - low) / max(high - low, 0.001), 0.0, 1.0)
    return (1.0 / (1.0 - share + share / factor)).astype(np.float32)


def _yarn_magnitude(factor: float, stated: dict[str, Any]) -> float:
    """The factor of YaRN's cosines and sines."""

    def sharpness(multiplier: float) -> float:
        return 1.0 + 0.1 * multiplier * math.log(factor) if factor > 1.0 else 1.0

    if (own := stated.get("attention_factor")) is not None:
        return float(own)
    return sharpness(float(stated.get("mscale") or 1.0)) / sharpness(float(stated.get("mscale_all_dim") or 0.0))
