"""DFlash heads (z-lab, SpecForge, speculators), JetSpec's causal ones, DFlash2, and DSpark (SpecForge, speculators, DeepSpec).

Source: z-lab/dflash, hao-ai-lab/JetSpec, sgl-project/SpecForge, vllm-project/speculators, deepseek-ai/DeepSpec: their models
and settings; for DFlash2 vLLM's model of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve

from augury.plugins.published_heads.layers import Written

if TYPE_CHECKING:
    from augury.plugins.published_heads.folder import Folder

_MASK = "tokenizer.ggml.mask_token_id"
_CONVOLUTIONS = {"attention_conv": "attn_conv", "mlp_conv": "ffn_conv"}
_SIZES = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_GATES = {"vanilla": None, "gated": "gate_proj", "rnn": "joint_proj"}
_SELECTOR = {
    "hidden_projection.weight": "selector_hidden.weight",
    "predecessor_codebook": "selector_predecessor.weight",
    "successor_codebook": "selector_successor.weight",
}


def dflash(folder: Folder) -> Written:
    """A head in GGUF's words.

    Raises:
        ModelFileError: Something is missing, or makes no sense.
        UnsupportedError: Something is not understood.
    """
    config = folder.config
    if (kind := config.get("projector_type")) not in (None, "dflash", "dspark"):
        folder.fail(f"config.json sets projector_type to {kind!r}; known are dflash and dspark")
    folder.refuse(("fc_layernorm", "pure_draft_prefix_len", "shift_label"))
    n_layers = folder.count("num_hidden_layers")
    head = Written(folder, "dflash")
    head.sizes(n_layers, turns_pairs=False)
    for i in range(n_layers):
        head.layer(i, f"layers.{i}.")
    head.take("fc.weight", "fc.weight")
    head.take("hidden_norm.weight", "enc.output_norm.weight")
    head.take("norm.weight", "output_norm.weight")
    head.take_if_there("lm_head.weight", "output.weight")
    head.take_if_there("embed_tokens.weight", "token_embd.weight")
    head.set(
        target_layers=np.array(_layers_of_target(folder, n_layers), np.int32),
        block_size=folder.count("block_size"),
        attention__causal=bool(config.get("causal_head") or config.get("is_causal")),
        has_target_scale="token_embd.weight" not in head.tensors,  # of the target's embedding, where its family has one
    )
    _causal_windows(head)
    head.metadata[_MASK] = folder.count("mask_token_id", least=0)
    head.take_tokens()
    head.describe("DFlash head")
    _convolutions(head, n_layers)
    _markov(head)
    return head


def _layers_of_target(folder: Folder, n_layers: int) -> list[int]:
    """The layers whose inputs are read: speculators number these, all others outputs."""
    if (inputs := folder.config.get("aux_hidden_state_layer_ids")) is not None:
        return folder.layer_ids(inputs)
    if (outputs := folder.config.get("target_layer_ids")) is None:
        n = folder.count("num_target_layers")
        outputs = [n // 2] if n_layers == 1 else [round(1 + i * (n - 4) / (n_layers - 1)) for i in range(n_layers)]
    return [number + 1 for number in folder.layer_ids(outputs)]


def _causal_windows(head: Written) -> None:
    """Of speculators' heads, layers with a window see no later token of the block, unless it is said that they do."""
    config, pattern = head.folder.config, head.metadata.get("dflash.attention.sliding_window_pattern")
    is_causal = "speculators_model_type" in config and not config.get("sliding_window_non_causal")
    if is_causal and isinstance(pattern, np.ndarray):
        head.set(attention__causal=pattern)


def _convolutions(head: Written, n_layers: int) -> None:
    """DFlash2's convolutions around the blocks, and its selector."""
    folder = head.folder
    if "candidate_selector.hidden_projection.weight" not in folder:
        return
    head.describe("DFlash2 head")
    head.set(**{key: folder.count(key) for key in _SIZES})
    for name, written in _SELECTOR.items():
        at = f"candidate_selector.{name}"
        head.take(at if at in folder else f"{at}.weight", written)
    for i in range(n_layers):
        for name, written in _CONVOLUTIONS.items():
            base = folder.take(f"layers.{i}.{name}.base_kernel")
            head.tensors[f"blk.{i}.{written}_base"] = evolve(base, name=f"blk.{i}.{written}_base")
            head.take(f"layers.{i}.{name}.kernel_projection.weight", f"blk.{i}.{written}_proj.weight")


def _markov(head: Written) -> None:
    """DSpark's logits by the token before, and its confidence."""
    folder, config = head.folder, head.folder.config
    if not config.get("markov_rank"):
        return
    if (kind := config.get("markov_head_type") or "vanilla") not in _GATES:
        folder.fail(f"config.json sets markov_head_type to {kind!r}; known are {', '.join(_GATES)}")
    head.set(markov_head_type=kind)
    if (gate := _GATES[kind]) is not None:
        head.take(f"markov_head.{gate}.weight", "markov_gate.weight")
        head.take(f"markov_head.{gate}.bias", "markov_gate.bias")
    head.take("markov_head.markov_w1.weight", "markov_w1.weight")
    head.take("markov_head.markov_w2.weight", "markov_w2.weight")
    head.describe("DSpark head" if kind == "vanilla" else f"DSpark head, {kind}")
    # DeepSpec's blocks draft from the first place on; SpecForge's never do, speculators' where they say so
    is_deepspec = "Qwen3DSparkModel" in (config.get("architectures") or ())
    head.set(sample_from_anchor=bool(config.get("sample_from_anchor", is_deepspec)))
    has_confidence = "confidence_head.proj.weight" in folder
    if has_confidence and not config.get("confidence_head_with_markov", "speculators_model_type" in config):
        folder.fail("its confidence does not depend on the token before, which is not supported")
    head.set(has_confidence_head=has_confidence)
    if has_confidence:
        head.take("confidence_head.proj.weight", "conf_proj.weight")
        head.take("confidence_head.proj.bias", "conf_proj.bias")
