"""Heads: EAGLE-3's and P-EAGLE's; DFlash's, JetSpec's causal ones, DFlash2's, DSpark's and Domino's.

They say in different words which layers of the target they read. Here a number is that of the layer whose input it is, as in
GGUF files: so do settings of EAGLE-3 heads at the top (vLLM, speculators); `eagle_config` (SGLang, NeMo) and DeepSpec number
outputs.

Source: SafeAILab/EAGLE, z-lab/dflash, hao-ai-lab/JetSpec, sgl-project/SpecForge, vllm-project/speculators,
deepseek-ai/DeepSpec, jianuo-huang/Domino, NVIDIA-NeMo/Automodel: their models and settings; for P-EAGLE and DFlash2 vLLM's
proposer and model, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve

from augury.plugins.published_heads.folder import as_tensor
from augury.plugins.published_heads.layers import Written

if TYPE_CHECKING:
    from augury.plugins.published_heads.folder import Folder

_N_FEATURES = 3  # unless it is said otherwise
_KEYS = "eagle_aux_hidden_state_layer_ids"
_MASKS = ("mask_token_id", "pard_token", "ptd_token_id")  # speculators' and NeMo's name for it, and those of vLLM's settings
_DEPTHS = 8  # tokens that P-EAGLE drafts, unless it is said otherwise


def eagle3(folder: Folder) -> Written:
    """An EAGLE-3 head in GGUF's words.

    Raises:
        ModelFileError: Something is missing, or makes no sense.
        UnsupportedError: Something is not understood.
    """
    config = folder.config
    first = "midlayer." if "midlayer.input_layernorm.weight" in folder else "layers.0."
    architectures = config.get("architectures") or ()
    is_deepspec = "Qwen3Eagle3Model" in architectures
    feeds_back = "speculators_model_type" in config or "LlamaEagle3DraftModel" in architectures
    is_single = first == "midlayer." and "layers.1.input_layernorm.weight" not in folder
    n_layers = 1 if is_single else folder.count("num_hidden_layers", 1)
    head = Written(folder, "eagle3")
    head.sizes(n_layers, turns_pairs=True)
    for i in range(n_layers):
        prefix = first if i == 0 else f"layers.{i}."
        head.layer(i, prefix)
        if i == 0 or is_deepspec:  # whose layers all read the embedding
            head.take(f"{prefix}hidden_norm.weight", f"blk.{i}.attn_norm_2.weight")
    numbers = _layers_of_eagle3(folder)
    n_features = len(numbers) if numbers else _N_FEATURES
    fc = head.take("fc.weight", "fc.weight")
    n_seen = folder.count("target_hidden_size", fc.shape[-1] // n_features)
    if fc.shape[1:] != (n_features * n_seen,):
        folder.fail(f"fc.weight has shape {fc.shape}, expected rows of {n_features} hidden states of {n_seen} values")
    if numbers:
        head.set(target_layers=np.array(numbers, np.int32))
    head.set(target_hidden_size=n_seen)
    head.take_ends()
    _norms_before(head, n_features)
    head.set(
        norm_before_residual=bool(config.get("norm_before_residual")),
        # SpecForge's setting of this name says that the output is normed, as it always is; the others feed it back so, too
        norm_output=feeds_back and bool(config.get("norm_output")),
    )
    head.describe("EAGLE-3 head")
    _masks(head, n_features * n_seen)
    return head


def _layers_of_eagle3(folder: Folder) -> list[int] | None:
    """The layers whose inputs are read; None: the usual three."""
    config = folder.config
    if (found := config.get(_KEYS)) is not None:
        return folder.layer_ids(found)
    outputs = folder.section("eagle_config").get(_KEYS) or config.get("target_layer_ids")
    return None if outputs is None else [number + 1 for number in folder.layer_ids(outputs)]


def _norms_before(head: Written, n_features: int) -> None:
    """Norms before the product that makes one hidden state of several: of all, or of each."""
    folder, config = head.folder, head.folder.config
    head.set(norm_before_fc=bool(config.get("norm_before_fc")))
    if config.get("norm_before_fc"):
        head.take("input_norm.weight", "enc.output_norm.weight")
    if config.get("fc_norm"):
        norms = [folder.take(f"fc_norm.{i}.weight").floats() for i in range(n_features)]
        head.tensors["enc.fc_norm.weight"] = as_tensor("enc.fc_norm.weight", np.stack(norms))


def _masks(head: Written, n_in: int) -> None:
    """P-EAGLE's stand-ins for drafted tokens: a token, and one for the target's hidden states."""
    folder, config = head.folder, head.folder.config
    if not (config.get("parallel_drafting") or config.get("speculators_model_type") == "peagle" or "mask_hidden" in folder):
        return
    hidden = folder.take("mask_hidden").floats()
    if hidden.size != n_in:
        folder.fail(f"mask_hidden has {hidden.size} values, expected {n_in}, as a row of fc.weight has")
    head.tensors["mask_hidden.weight"] = as_tensor("mask_hidden.weight", hidden.reshape(1, n_in))
    methods = folder.section("speculators_config").get("proposal_methods") or [{}]
    stated = next((key for key in _MASKS if config.get(key) is not None), _MASKS[0])
    head.metadata["tokenizer.ggml.mask_token_id"] = folder.count(stated, least=0)
    head.set(block_size=folder.count("num_depths", methods[0].get("speculative_tokens") or _DEPTHS))
    head.describe("P-EAGLE head")


_MASK = "tokenizer.ggml.mask_token_id"
_CONVOLUTIONS = {"attention_conv": "attn_conv", "mlp_conv": "ffn_conv"}
_SIZES = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_OF_MASKS = "mask_embedding.pt"
_GATES = {"vanilla": None, "gated": "gate_proj", "rnn": "joint_proj"}
_SELECTOR = {
    "hidden_projection.weight": "selector_hidden.weight",
    "predecessor_codebook": "selector_predecessor.weight",
    "successor_codebook": "selector_successor.weight",
}


def dflash(folder: Folder) -> Written:
    """A DFlash, DFlash2, DSpark or Domino head in GGUF's words; errors are those of `eagle3`."""
    config = folder.config
    if (kind := config.get("projector_type")) not in (None, "dflash", "dspark", "domino"):
        folder.fail(f"config.json sets projector_type to {kind!r}; known are dflash, dspark and domino")
    if (folder.path / _OF_MASKS).exists():
        folder.fail(f"{_OF_MASKS} has an embedding of masks in place of the target's, which is not supported")
    folder.refuse(("fc_layernorm", *(() if kind == "domino" else ("pure_draft_prefix_len", "shift_label"))))
    n_layers = folder.count("num_hidden_layers")
    head = Written(folder, "dflash")
    head.sizes(n_layers, turns_pairs=False)
    for i in range(n_layers):
        head.layer(i, f"layers.{i}.")
        head.take_if_there(f"layers.{i}.self_attn.attention_sink_bias", f"blk.{i}.attn_sinks.weight")
    head.take("fc.weight", "fc.weight")
    head.take("hidden_norm.weight", "enc.output_norm.weight")
    head.take_ends()
    head.set(
        target_layers=np.array(_layers_of_dflash(folder, n_layers), np.int32),
        block_size=folder.count("block_size"),
        attention__causal=bool(_is_causal(folder)),
        has_target_scale="token_embd.weight" not in head.tensors,  # of the target's embedding, where its family has one
    )
    _causal_windows(head)
    head.metadata[_MASK] = folder.count("mask_token_id", least=0)
    head.describe("DFlash head")
    _convolutions(head, n_layers)
    _markov(head)
    if kind == "domino":
        _domino(head)
    return head


def _layers_of_dflash(folder: Folder, n_layers: int) -> list[int]:
    """The layers whose inputs are read: speculators number these, all others outputs."""
    if (inputs := folder.config.get("aux_hidden_state_layer_ids")) is not None:
        return folder.layer_ids(inputs)
    if (outputs := folder.config.get("target_layer_ids")) is None:
        n = folder.count("num_target_layers")
        outputs = [n // 2] if n_layers == 1 else [round(1 + i * (n - 4) / (n_layers - 1)) for i in range(n_layers)]
    return [number + 1 for number in folder.layer_ids(outputs)]


def _is_causal(folder: Folder) -> bool | None:
    """Whether tokens of the block see no later ones; None: nothing says it. JetSpec's name for it is the last one."""
    return next(
        (config for key in ("is_causal", "causal", "causal_head") if (config := folder.config.get(key)) is not None), None
    )


def _causal_windows(head: Written) -> None:
    """Of speculators' heads, layers with a window see no later token of the block, unless it is said that they do."""
    config, pattern = head.folder.config, head.metadata.get("dflash.attention.sliding_window_pattern")
    is_causal = "speculators_model_type" in config and not config.get("sliding_window_non_causal")
    if is_causal and _is_causal(head.folder) is None and isinstance(pattern, np.ndarray):
        head.set(attention__causal=pattern)


def _convolutions(head: Written, n_layers: int) -> None:
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
    # DeepSpec's and Liquid's blocks draft from the first place on; SpecForge's never do, speculators' where they say so
    begins = not {"Qwen3DSparkModel", "Lfm2DSparkDraftModel"}.isdisjoint(config.get("architectures") or ())
    head.set(sample_from_anchor=bool(config.get("sample_from_anchor", begins)))
    has_confidence = "confidence_head.proj.weight" in folder
    head.set(has_confidence_head=has_confidence)
    if has_confidence:
        if head.take("confidence_head.proj.weight", "conf_proj.weight").shape[-1] == folder.count("hidden_size"):
            folder.fail("its confidence does not depend on the token before, which is not supported")
        head.take("confidence_head.proj.bias", "conf_proj.bias")


def _domino(head: Written) -> None:
    """Domino's logits by all tokens before, which its first places do without; the products of its unit become one."""
    folder = head.folder
    of_token, of_state = (np.split(folder.take(f"prefix_gru.weight_{each}_l0").floats(), 3) for each in ("ih", "hh"))
    joined = [np.hstack(each) for each in zip(of_token[:2], of_state[:2], strict=True)]
    apart = [np.hstack([of_token[2], 0 * of_state[2]]), np.hstack([0 * of_token[2], of_state[2]])]
    head.tensors["prefix_gru.weight"] = as_tensor("prefix_gru.weight", np.concatenate([*joined, *apart]))
    head.take("embed_proj.0.weight", "correction_down.weight")
    head.take("embed_proj.2.weight", "correction_up.weight")
    head.describe("Domino head")
    head.set(
        markov_head_type="domino",
        n_uncorrected=folder.count("pure_draft_prefix_len", 0, least=0),
        sample_from_anchor=bool(folder.config.get("shift_label")),
    )
