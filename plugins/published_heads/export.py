"""Writes an EAGLE-3 head as the folder that speculators saves and vLLM reads: the way back from `eagle3`.

Source: vllm-project/speculators, `models/eagle3` (settings and tensors) and `models/llama` of `transformers` (the layer).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from augury.errors import ModelFileError, OptionError, UnsupportedError
from augury.files.atomic_file import write_atomically
from augury.plugins.published_heads.layers import NAMES

if TYPE_CHECKING:
    from augury.files.gguf import ModelFile

_OUTSIDE = {
    "fc.weight": "fc.weight",
    "enc.output_norm.weight": "input_norm.weight",
    "blk.0.attn_norm_2.weight": "layers.0.hidden_norm.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
    "token_embd.weight": "embed_tokens.weight",
}
_LAYER = {
    f"blk.0.{written}": f"layers.0.{name}"
    for name, written in NAMES.items()
    if name.endswith(("proj.weight", "layernorm.weight"))
}
_SIZES = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "context_length": "max_position_embeddings",
}
_N_DRAFTED = 3  # that speculators' converters write, too


def check_folder(path: Path) -> None:
    """See that a head may be written to a folder: a new or empty one, or in place of another head of speculators'.

    Raises:
        OptionError: It has other files.
    """
    if path.is_dir() and not any(path.iterdir()):
        return
    try:
        is_head = "speculators_model_type" in json.loads((path / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        is_head = not path.exists() and path.parent.is_dir()
    if not is_head:
        raise OptionError(f"{path} is no new folder, empty folder or folder of a head of speculators'; name another one")


def write_folder(path: Path, head: ModelFile, values: Mapping[str, np.ndarray] | None = None) -> None:
    """Write a head of one layer as `config.json` and `model.safetensors`, float32. The folder is made if there is none.

    `values` are tensors by the file's names that are written in place of those of the file, which may be coarser.

    Raises:
        UnsupportedError: The head has something that the file of llama.cpp's converter or of `augury learn` has not.
    """
    from safetensors.numpy import save

    config, tensors = _config(head), dict[str, np.ndarray]()
    for name, tensor in head.tensors.items():
        if name == "d2t":
            continue
        if (written := _OUTSIDE.get(name) or _LAYER.get(name)) is None:
            raise UnsupportedError(f"{head.path}: tensor {name!r} has no place in a folder of speculators' Llama heads")
        given = (values or {}).get(name)
        kept = np.asarray(tensor.floats() if given is None else given, np.float32)
        turned = written.endswith(("q_proj.weight", "k_proj.weight"))
        tensors[written] = np.ascontiguousarray(_halves(kept, head.get("eagle3.attention.key_length", int)) if turned else kept)
    n_vocab = config["transformer_layer_config"]["vocab_size"]
    if config["draft_vocab_size"] < n_vocab:
        tokens = head.integers("d2t", (config["draft_vocab_size"],), n_vocab).astype(np.int64)
        tensors["d2t"] = tokens - np.arange(len(tokens))
        tensors["t2d"] = np.isin(np.arange(n_vocab), tokens)
    path.mkdir(exist_ok=True)
    write_atomically(path / "model.safetensors", save(tensors, {"format": "pt"}))
    write_atomically(path / "config.json", f"{json.dumps(config, indent=2)}\n")


def _config(head: ModelFile) -> dict[str, Any]:
    if head.architecture != "eagle3":
        raise ModelFileError(f"{head.path}: its architecture is {head.architecture!r}, expected 'eagle3'")
    if (n := head.get("eagle3.block_count", int)) != 1 or "eagle3.rope.scaling.type" in head.metadata:
        raise UnsupportedError(f"{head.path}: {n} layers, or scaled positions; only heads of one layer without are written")
    theta, tokens = head.get("eagle3.rope.freq_base", float, 10000.0), head.get("tokenizer.ggml.tokens", list[str], [])
    n_vocab = head.get("eagle3.vocab_size", int, len(tokens))
    layer: dict[str, Any] = {
        "model_type": "llama",
        **{name: head.get(f"eagle3.{key}", int) for key, name in _SIZES.items()},
        "vocab_size": n_vocab,
        "rms_norm_eps": head.get("eagle3.attention.layer_norm_rms_epsilon", float),
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},  # the same for `transformers` 5
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }
    if window := head.get("eagle3.attention.sliding_window", int, 0):
        layer |= {"sliding_window": window, "layer_types": ["sliding_attention"]}
    proposal = {"proposal_type": "greedy", "speculative_tokens": _N_DRAFTED, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": head.tensor("d2t").shape[0] if "d2t" in head.tensors else n_vocab,
        "target_hidden_size": head.get("eagle3.target_hidden_size", int),
        "eagle_aux_hidden_state_layer_ids": head.get("eagle3.target_layers", list[int]),
        **{key: head.get(f"eagle3.{key}", bool, default=False) for key in ("norm_before_residual", "norm_before_fc")},
        "fc_norm": False,
        "norm_output": False,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "dtype": "float32",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": None, "architectures": []},  # no GGUF file says where its model's floats are
        },
        "transformer_layer_config": layer,
    }


def _halves(values: np.ndarray, head_dim: int) -> np.ndarray:
    """The rows of heads in the order of `transformers`: neighbours, which rope turns together, come to be half a head apart."""
    return values.reshape(-1, head_dim // 2, 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
