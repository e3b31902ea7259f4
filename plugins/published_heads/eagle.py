"""EAGLE-3 heads: the original's, SpecForge's, AngelSlim's and NeMo's, DeepSpec's, those of speculators, and P-EAGLE heads.

They say in different words which layers of the target they read. Here a number is that of the layer whose input it is, as in
GGUF files: so do settings at the top (vLLM, speculators); `eagle_config` (SGLang, NeMo) and DeepSpec number outputs.

Source: SafeAILab/EAGLE, sgl-project/SpecForge, vllm-project/speculators, deepseek-ai/DeepSpec, NVIDIA-NeMo/Automodel:
their models and settings; for P-EAGLE vLLM's proposer, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.plugins.published_heads.folder import as_tensor
from augury.plugins.published_heads.layers import Written

if TYPE_CHECKING:
    from augury.plugins.published_heads.folder import Folder

_N_FEATURES = 3  # unless it is said otherwise
_KEYS = "eagle_aux_hidden_state_layer_ids"
_MASKS = ("mask_token_id", "pard_token", "ptd_token_id")  # speculators' and NeMo's name for it, and those of vLLM's settings
_DEPTHS = 8  # tokens that P-EAGLE drafts, unless it is said otherwise


def eagle3(folder: Folder) -> Written:
    """A head in GGUF's words.

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
    head.sizes(n_layers, turns_pairs=config.get("model_type") not in ("llama4", "llama4_text"))  # which turns neighbours
    for i in range(n_layers):
        prefix = first if i == 0 else f"layers.{i}."
        head.layer(i, prefix)
        if i == 0 or is_deepspec:  # whose layers all read the embedding
            head.take(f"{prefix}hidden_norm.weight", f"blk.{i}.attn_norm_2.weight")
    numbers = _layers_of_target(folder)
    n_features = len(numbers) if numbers else _N_FEATURES
    fc = head.take("fc.weight", "fc.weight")
    n_seen = folder.count("target_hidden_size", fc.shape[-1] // n_features)
    if fc.shape[1:] != (n_features * n_seen,):
        folder.fail(f"fc.weight has shape {fc.shape}, expected rows of {n_features} hidden states of {n_seen} values")
    if numbers:
        head.set(target_layers=np.array(numbers, np.int32))
    head.set(target_hidden_size=n_seen)
    head.take("norm.weight", "output_norm.weight")
    head.take_if_there("lm_head.weight", "output.weight")
    head.take_if_there("embed_tokens.weight", "token_embd.weight")
    _norms_before(head, n_features)
    head.set(
        norm_before_residual=bool(config.get("norm_before_residual")),
        # SpecForge's setting of this name says that the output is normed, as it always is; the others feed it back so, too
        norm_output=feeds_back and bool(config.get("norm_output")),
    )
    head.take_tokens()
    head.describe("EAGLE-3 head")
    _masks(head, n_features * n_seen)
    return head


def _layers_of_target(folder: Folder) -> list[int] | None:
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
