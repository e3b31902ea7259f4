"""Layers of models in safetensors that predict further tokens: of a whole model's folder, of its shard, or by themselves.

They are read as llama.cpp's converter writes them with `--mtp`, for a GGUF file of the same model that lacks them.

Source: llama.cpp's converter; `mtp.*` is how Qwen names them, `mtp.layers.N.*` how MiMo does, `mtp_layers.*` speculators,
`mtp.N.*` DeepSeek V4, `layers.N.*` after the model's own N DeepSeek V3, GLM and Step; ERNIE's and EXAONE's, which it writes
otherwise or not at all, are defined by FastDeploy's `Ernie4_5_MTPModel` and vLLM's `exaone_moe_mtp` and `exaone4_5_mtp`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import evolve

from augury.files.mtp_file import stored_mtp
from augury.plugins.published_heads.folder import as_tensor
from augury.plugins.published_heads.layers import Written

if TYPE_CHECKING:
    from augury.plugins.published_heads.folder import Folder

_ARCHITECTURES = {  # by `model_type`
    "qwen3_next": "qwen3next",
    "qwen3_5": "qwen35",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "qwen3_5_moe_text": "qwen35moe",
    "glm4_moe": "glm4moe",
    "glm4_moe_lite": "deepseek2",
    "deepseek_v3": "deepseek2",
    "deepseek_v4": "deepseek4",
    "mimo_v2_flash": "mimo2",
    "mimo_v2": "mimo2",
    "step3p5": "step35",
    "ernie4_5_moe": "ernie4_5-moe",
    "exaone_moe": "exaone-moe",
    "exaone4_5": "exaone4",
    "exaone4_5_text": "exaone4",
}
_SHIFTED = ("qwen3next", "qwen35", "qwen35moe", "step35")  # their norms are stored without the 1
_EXPERT = re.compile(r"((?:mlp|ffn)\.experts\.)(\d+)\.(\w+\.weight)")
_NEXTN = {  # of llama.cpp's names those of Qwen and EXAONE, speculators, DeepSeek and GLM, and ERNIE
    "eh_proj": ("fc", "input_proj", "eh_proj", "mtp_linear_proj"),
    "enorm": ("pre_fc_norm_embedding", "token_layernorm", "enorm", "mtp_emb_norm"),
    "hnorm": ("pre_fc_norm_hidden", "hidden_layernorm", "hnorm", "mtp_hidden_norm"),
    "shared_head_norm": ("norm", "final_layernorm", "shared_head.norm", "transformer.shared_head.norm"),
    "shared_head_head": ("shared_head.head", "transformer.shared_head.output"),
    "embed_tokens": ("embed_tokens",),
    **{f"hc_head_{each}": (f"hc_head_{each}",) for each in ("fn", "base", "scale")},
}
_DEEPSEEK4 = {  # its own names
    **{each: each for each in ("attn_norm", "ffn_norm")},
    **{f"hc_{part}_{each}": f"hc_{part}_{each}" for part in ("attn", "ffn") for each in ("fn", "base", "scale")},
    "attn.attn_sink": "attn_sinks",
    "attn.wq_a": "attn_q_a",
    "attn.q_norm": "attn_q_a_norm",
    "attn.wq_b": "attn_q_b",
    "attn.wkv": "attn_kv",
    "attn.kv_norm": "attn_kv_a_norm",
    "attn.wo_a": "attn_output_a",
    "attn.wo_b": "attn_output_b",
    "ffn.gate": "ffn_gate_inp",
    **{
        f"ffn.{theirs}.{number}": f"ffn_{each}_{ours}"
        for theirs, ours in (("experts", "exps"), ("shared_experts", "shexp"))
        for number, each in (("w1", "gate"), ("w2", "down"), ("w3", "up"))
    },
}
_RENAMED = {  # of tensors, before llama.cpp's table has them
    "mlp.gate.e_score_correction_bias": "mlp.gate.e_score_correction.bias",
    "moe.router_bias": "moe.router_bias.bias",
}
_HALVES = ("e_proj.weight", "h_proj.weight")
_BY_STEM = {stem: name for name, stems in _NEXTN.items() for stem in stems}


def mtp_names(folder: Folder) -> dict[str, tuple[int, str]]:
    """The tensors of such layers by name: the number of each layer, from 0, and the rest of the name."""
    n = folder.config.get("num_hidden_layers")
    found = {name: stored_mtp(name, n if type(n) is int else None) for name in folder.names}
    return {name: each for name, each in found.items() if each is not None}


def mtp(folder: Folder) -> Written:
    """The layers in GGUF's words, and nothing else of the model.

    Raises:
        ModelFileError: Something is missing, or makes no sense.
        UnsupportedError: Something is not understood.
    """
    names, n = mtp_names(folder), folder.count("num_hidden_layers")
    kind = next(
        (each for key in ("transformer_layer_config", "text_config") if (each := folder.section(key).get("model_type"))), None
    )
    kind = kind or folder.config.get("model_type")
    if (architecture := _ARCHITECTURES.get(str(kind))) is None:
        folder.fail(
            f"layers that predict further tokens of {kind!r} are not read from safetensors, only those of "
            f"{', '.join(_ARCHITECTURES)}; llama.cpp's convert_hf_to_gguf.py makes a GGUF file of others (--mtp)"
        )
    if not names:
        folder.fail("it has no layers that predict further tokens, expected tensors such as mtp.fc.weight")
    folder.keep(names)
    head, n_mtp = Written(folder, architecture), 1 + max(number for number, _ in names.values())
    head.set(block_count=n + n_mtp, nextn_predict_layers=n_mtp)
    if (stated := _STATED.get(architecture)) is not None:
        head.set(**{key: np.array(values) for key, values in stated(folder, n + n_mtp).items()})
    head.describe(f"{n_mtp} layers that predict further tokens, for a {architecture} model of {n} layers")
    written, experts = _namer(architecture, n, n_mtp), dict[str, dict[int, str]]()
    projections: dict[int, list[str]] = {}
    for name, (number, rest) in names.items():
        match = _EXPERT.fullmatch(rest)
        if rest in _HALVES:
            projections.setdefault(number, []).append(name)
        elif (made := written(number, rest if match is None else match[1] + match[3])) is None:
            continue  # which `Folder.check_all_taken` tells
        elif match is not None:
            experts.setdefault(made, {})[int(match[2])] = name
        else:
            _take(head, name, made, is_shifted=architecture in _SHIFTED and made.endswith("norm.weight"))
    for number, halves in projections.items():
        _take_halves(head, f"blk.{n + number}.nextn.eh_proj.weight", sorted(halves))
    for made, parts in experts.items():
        _take_experts(head, made, parts)
    return head


def _namer(architecture: str, n: int, n_mtp: int) -> Callable[[int, str], str | None]:
    """The name in a GGUF file of a tensor, by the number of its layer, from 0, and the rest of its name."""
    import gguf

    own = {name: each for each, name in gguf.MODEL_ARCH_NAMES.items()}.get(architecture)
    table = None if own is None else gguf.get_tensor_name_map(own, n + n_mtp)

    def written(number: int, rest: str) -> str | None:
        rest = _RENAMED.get(rest, rest)
        rest = rest if rest.endswith((".weight", ".bias")) else f"{rest}.weight"  # of several experts in one
        at, (stem, _, end) = f"blk.{n + number}", rest.rpartition(".")
        if stem in _BY_STEM:
            return f"{at}.nextn.{_BY_STEM[stem]}.{end}"
        if table is None:
            stem = "exp_probs_b" if rest == "ffn.gate.bias" else _DEEPSEEK4.get(stem, "")
            return f"{at}.{stem}.{end}" if stem else None
        found: str | None = table.get_name(f"model.layers.{n + number}.{rest}", try_suffixes=(".weight", ".bias"))
        return found

    return written


def _of_mimo2(folder: Folder, n_all: int) -> dict[str, list[Any]]:
    """Layers for further tokens are as those with a window."""
    return {
        "attention__head_count_kv": [folder.count("swa_num_key_value_heads")] * n_all,
        "attention__sliding_window_pattern": [1] * n_all,
    }


def _of_step35(folder: Folder, n_all: int) -> dict[str, list[Any]]:
    """Settings have a value for each layer, or end before those for further tokens; heads are more where there is a window."""
    kinds = [*(folder.config.get("layer_types") or ()), *["full_attention"] * n_all][:n_all]
    windowed, other = [kind == "sliding_attention" for kind in kinds], folder.section("attention_other_setting")
    found: dict[str, list[Any]] = {"attention__sliding_window_pattern": windowed}
    for key, theirs in (("head_count", "num_attention_heads"), ("head_count_kv", "num_attention_groups")):
        n_whole = folder.count(theirs)
        found[f"attention__{key}"] = [other.get(theirs, n_whole) if each else n_whole for each in windowed]
    for key, theirs in (("swiglu_clamp_exp", "swiglu_limits"), ("swiglu_clamp_shexp", "swiglu_limits_shared")):
        found[key] = [float(each or 0.0) for each in [*(folder.config.get(theirs) or ()), *[0.0] * n_all][:n_all]]
    return found


def _of_deepseek4(folder: Folder, n_all: int) -> dict[str, list[Any]]:
    """What layers pool is stated for each."""
    ratios = folder.config.get("compress_ratios")
    if not isinstance(ratios, list) or len(ratios) < n_all:
        folder.fail(f"config.json sets compress_ratios to {ratios!r:.60}, expected {n_all} of them")
    limits = [folder.number("swiglu_limit", 0.0)] * n_all
    return {"attention__compress_ratios": ratios[:n_all], "swiglu_clamp_exp": limits, "swiglu_clamp_shexp": limits}


def _of_exaone_moe(folder: Folder, n_all: int) -> dict[str, list[Any]]:  # noqa: ARG001 - as the others
    """Layers for further tokens see everything, as those of the GGUF file do."""
    if {*(kinds := folder.config.get("mtp_layer_types") or ["full_attention"])} != {"full_attention"}:
        folder.fail(f"config.json sets mtp_layer_types to {kinds!r:.60}, expected full_attention for each")
    return {}


_STATED = {"mimo2": _of_mimo2, "step35": _of_step35, "deepseek4": _of_deepseek4, "exaone-moe": _of_exaone_moe}
"""What a file states of each layer by itself, by architecture, of the folder and the number of all layers."""


def _take_halves(head: Written, written: str, names: list[str]) -> None:
    """Take two matrices, of the embedding and of the hidden state, as one that is given both."""
    if len(names) != len(_HALVES):
        head.folder.fail(f"{written} is made of {', '.join(names)}, expected {' and '.join(_HALVES)}")
    head.tensors[written] = as_tensor(written, np.concatenate([head.folder.take(name).floats() for name in names], axis=1))


def _take(head: Written, name: str, written: str, *, is_shifted: bool) -> None:
    """Take a tensor; a matrix of one row is a vector."""
    tensor = head.take(name, written)
    if is_shifted or (len(tensor.shape) == 2 and tensor.shape[0] == 1):
        head.tensors[written] = as_tensor(written, tensor.floats().reshape(-1) + np.float32(is_shifted))


def _take_experts(head: Written, written: str, parts: dict[int, str]) -> None:
    """Take the matrices of all experts as one tensor."""
    n = head.folder.count("n_routed_experts" if "n_routed_experts" in head.folder.config else "num_experts")
    if sorted(parts) != list(range(n)):
        head.folder.fail(f"{written} is made of {len(parts)} experts, expected {n}")
    taken = [head.folder.take(parts[i]) for i in range(n)]
    if len({(each.shape, each.type) for each in taken}) > 1:
        head.folder.fail(f"the experts of {written} differ in shape or type")
    data = np.concatenate([each.data for each in taken])
    data.flags.writeable = False
    head.tensors[written] = evolve(taken[0], name=written, shape=(n, *taken[0].shape), data=data)
