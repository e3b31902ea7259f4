"""Files as Ollama's converter writes them, in llama.cpp's words: the same models under other names, with values left out.

A name is replaced only where the file lacks the other one, so files of llama.cpp's converter stay as they are.

Source: llama/compat/llama-ollama-compat.cpp of ollama/ollama, which does so for llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from attrs import evolve, frozen

from augury.files.tensor_type import TensorType

Tensors = Mapping[str, Any]  # those of `augury.files.gguf`, which imports this module
_LAYER = re.compile(r"blk\.\d+\.")
_MTP = re.compile(r"mtp\.(?:layers\.(\d+)\.)?(.+)")
_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")
_OF_HEAD = {
    "fc.weight": "eh_proj", "pre_fc_norm_embedding.weight": "enorm", "pre_fc_norm_hidden.weight": "hnorm",
    "norm.weight": "shared_head_norm", "embed_tokens.weight": "embed_tokens",
    "shared_head.head.weight": "shared_head_head", "shared_head.norm.weight": "shared_head_norm",
}  # fmt: skip
_LONG = 131072  # positions for which the larger Gemmas 3 stretch their rope


def _of_gemma3(keys: Mapping[str, Any], _tensors: Tensors) -> Mapping[str, object]:
    if (eps := "attention.layer_norm_rms_epsilon") in keys:
        return {}
    n_ctx = keys.get("context_length")
    is_long = isinstance(n_ctx, int) and n_ctx >= _LONG
    scaling = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0} if is_long else {}
    return {eps: 1e-6, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, **scaling}


def _of_latents(_keys: Mapping[str, Any], tensors: Tensors) -> Mapping[str, object]:
    shapes = [tensor.shape for name, tensor in tensors.items() if name.endswith(".ffn_latent_down.weight")]
    return {"moe_latent_size": shapes[0][0]} if shapes else {}


def _with_head(own: dict[str, Any], tensors: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys and tensors of a file of Qwen 3.5 whose head for drafts is not one of its layers yet, and whose norms lack the 1."""
    found = {name: match for name in tensors if (match := _MTP.fullmatch(name))}
    n_layers = own.get("block_count")
    if not found or not isinstance(n_layers, int) or any(".nextn." in name for name in tensors):
        return own, tensors
    n_heads = 1 + max(int(match[1] or 0) for match in found.values())
    named = {name: tensor for name, tensor in tensors.items() if name not in found}
    experts: dict[str, dict[int, Any]] = {}
    for name, match in found.items():
        layer, rest = f"blk.{n_layers + int(match[1] or 0)}.", match[2]
        if expert := _EXPERT.fullmatch(rest):
            experts.setdefault(f"{layer}ffn_{expert[2]}_exps.weight", {})[int(expert[1])] = tensors[name]
        elif match[1] or (rest in _OF_HEAD and n_heads == 1):
            new = layer + (rest if match[1] else f"nextn.{_OF_HEAD[rest]}.weight")
            shifts = new.endswith("norm.weight") and not new.endswith(".ssm_norm.weight")
            changed = {"type": TensorType.F32, "data": (tensors[name].floats() + 1).view(np.uint8)} if shifts else {}
            named[new] = evolve(tensors[name], name=new, **changed)
    for new, parts in experts.items():
        first, data = parts[0], np.concatenate([parts[i].data for i in range(len(parts))])
        named[new] = evolve(first, name=new, shape=(len(parts), *first.shape), data=data)
    return {**own, "block_count": n_layers + n_heads, "nextn_predict_layers": n_heads}, named


@frozen
class _Dialect:
    architecture: str | None = None  # its name in llama.cpp; None: the same
    keys: Mapping[str, str] = {}  # llama.cpp's names by Ollama's, without the architecture's
    tensors: Mapping[str, str] = {}  # the same, of tensors without their layer; names that end in a dot are beginnings
    # the values that its files leave out, of the others and the tensors in llama.cpp's words
    left_out: Callable[[Mapping[str, Any], Tensors], Mapping[str, object]] = lambda _keys, _tensors: {}
    pre: tuple[str, str] | None = None  # `tokenizer.ggml.pre`, and the value that stands for it beside none and "default"
    kind: tuple[str, str] | None = None  # `tokenizer.ggml.model`, and the value that stands for it


_SECTIONS = {"rope.mrope_section": "rope.dimension_sections"}
_DELTA_NET = _Dialect(tensors={"ssm_dt": "ssm_dt.bias"})
_LATENT = {"ffn_latent_in.": "ffn_latent_down.", "ffn_latent_out.": "ffn_latent_up."}
_DIALECTS = {
    "deepseekocr": _Dialect("deepseek2-ocr", left_out=lambda _keys, _tensors: {"attention.layer_norm_rms_epsilon": 1e-6}),
    "gemma3": _Dialect(
        keys={"rope.global.freq_base": "rope.freq_base", "rope.local.freq_base": "rope.freq_base_swa"}, left_out=_of_gemma3
    ),
    "gemma4": _Dialect(tensors={"ffn_gate_inp.per_expert_scale": "ffn_down_exps.scale"}, kind=("gemma4", "llama")),
    "glm4moelite": _Dialect(  # its own `_mla` sizes are those of latents, and the others those of heads
        "deepseek2",
        keys={"attention.key_length": "attention.key_length_mla", "attention.value_length": "attention.value_length_mla"},
        pre=("glm4", ""),
    ),
    "glmocr": _Dialect(
        "glm4",
        keys=_SECTIONS,
        tensors={"attn_out.": "attn_output.", "post_attn_norm.": "post_attention_norm.", "post_ffn_norm.": "post_ffw_norm."},
        pre=("chatglm-bpe", "llama-bpe"),
    ),
    "gptoss": _Dialect(
        "gpt-oss",
        tensors={"attn_out.": "attn_output.", "attn_sinks": "attn_sinks.weight", "ffn_norm.": "post_attention_norm."},
        left_out=lambda _keys, _tensors: {"rope.scaling.type": "yarn"},
        pre=("gpt-4o", ""),
    ),
    "laguna": _Dialect(
        keys={"rope.swa.dimension_count": "rope.dimension_count_swa", "rope.swa.freq_base": "rope.freq_base_swa"},
        tensors={"attn_g.": "attn_gate."},
    ),
    "lfm2": _Dialect(tensors={"output_norm.weight": "token_embd_norm.weight"}, pre=("lfm2", "")),
    "mistral3": _Dialect(
        keys={
            "rope.scaling.beta_fast": "rope.scaling.yarn_beta_fast",
            "rope.scaling.beta_slow": "rope.scaling.yarn_beta_slow",
            "rope.scaling.mscale_all_dim": "rope.scaling.yarn_log_multiplier",
            "rope.scaling_beta": "attention.temperature_scale",
        },
        pre=("tekken", ""),
    ),
    "nemotron_h_moe": _Dialect(tensors=_LATENT, left_out=_of_latents),
    "nemotron_h_omni": _Dialect("nemotron_h_moe", tensors=_LATENT, left_out=_of_latents),
    "olmo3": _Dialect("olmo2"),
    "qwen25vl": _Dialect("qwen2vl", keys=_SECTIONS),
    "qwen35": _DELTA_NET,
    "qwen35moe": _DELTA_NET,
    "qwen3next": _DELTA_NET,
}

_EMBEDDING_GEMMA = _Dialect(
    "gemma-embedding",
    tensors={"dense.0.weight": "dense_2.weight", "dense.1.weight": "dense_3.weight", "norm.weight": "output_norm.weight"},
)


def in_llama_cpp_words(metadata: Mapping[str, object], tensors: Tensors) -> tuple[Mapping[str, object], Tensors]:
    """The metadata and tensors of a file by the names that llama.cpp's converter gives them."""
    name = metadata.get("general.architecture")
    dialect = _DIALECTS.get(name) if isinstance(name, str) else None
    if name == "gemma3" and "dense.0.weight" in tensors:
        dialect = _EMBEDDING_GEMMA
    if dialect is None:
        return metadata, tensors
    named = _renamed(tensors, dialect.tensors)
    own = {key.removeprefix(f"{name}."): value for key, value in metadata.items() if key.startswith(f"{name}.")}
    is_theirs = dialect.architecture is not None  # a name that llama.cpp does not use
    own |= {new: own[old] for old, new in dialect.keys.items() if old in own and (is_theirs or new not in own)}
    own = {**dialect.left_out(own, named), **own}
    if name in ("qwen35", "qwen35moe"):
        own, named = _with_head(own, named)
    others = {key: value for key, value in metadata.items() if not key.startswith(f"{name}.")}
    for key, change in (("tokenizer.ggml.pre", dialect.pre), ("tokenizer.ggml.model", dialect.kind)):
        if change is not None and others.get(key, "") in (change[1], "default"):
            others[key] = change[0]
    architecture = dialect.architecture or name
    return {**others, "general.architecture": architecture, **{f"{architecture}.{key}": own[key] for key in own}}, named


def _renamed(tensors: Tensors, names: Mapping[str, str]) -> dict[str, Any]:
    renamed = {}
    for name, tensor in tensors.items():
        n = len(found[0]) if (found := _LAYER.match(name)) else 0
        layer, rest = name[:n], name[n:]
        old = next((old for old in names if rest == old or (old.endswith(".") and rest.startswith(old))), None)
        new = name if old is None else f"{layer}{names[old]}{rest.removeprefix(old)}"
        new = name if new in tensors else new
        renamed[new] = tensor if new == name else evolve(tensor, name=new)
    return renamed
