"""Layers of models in safetensors that predict further tokens: of a whole model's folder, of its shard, or by themselves.

They are read as llama.cpp's converter writes them with `--mtp`, for a GGUF file of the same model that lacks them.

Source: llama.cpp's converter; `mtp.*` is how Qwen names them, `mtp_layers.*` how speculators do, `layers.N.*` after the model's
own N how DeepSeek and GLM do.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve

from augury.plugins.published_heads.layers import Written, as_tensor

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
}
_SHIFTED = ("qwen3next", "qwen35", "qwen35moe")  # their norms are stored without the 1
_LAYER = re.compile(r"(mtp\.layers|mtp_layers|layers)\.(\d+)\.(.+)")
_EXPERT = re.compile(r"(mlp\.experts\.)(\d+)\.(\w+\.weight)")
_NEXTN = {  # of llama.cpp's names those of Qwen, speculators, and DeepSeek and GLM
    "eh_proj": ("fc", "input_proj", "eh_proj"),
    "enorm": ("pre_fc_norm_embedding", "token_layernorm", "enorm"),
    "hnorm": ("pre_fc_norm_hidden", "hidden_layernorm", "hnorm"),
    "shared_head_norm": ("norm", "final_layernorm", "shared_head.norm"),
    "shared_head_head": ("shared_head.head",),
    "embed_tokens": ("embed_tokens",),
}
_BY_STEM = {stem: name for name, stems in _NEXTN.items() for stem in stems}


def mtp_names(folder: Folder) -> dict[str, tuple[int, str]]:
    """The tensors of such layers by name: the number of each layer, from 0, and the rest of the name."""
    n = folder.config.get("num_hidden_layers")
    found = {}
    for name in folder.names:
        if (match := _LAYER.fullmatch(name)) is None:
            if name.startswith("mtp."):
                found[name] = (0, name.removeprefix("mtp."))
        elif match[1] != "layers":
            found[name] = (int(match[2]), match[3])
        elif type(n) is int and int(match[2]) >= n:
            found[name] = (int(match[2]) - n, match[3])
    return found


def mtp(folder: Folder) -> Written:
    """The layers in GGUF's words, and nothing else of the model.

    Raises:
        ModelFileError: Something is missing, or makes no sense.
        UnsupportedError: Something is not understood.
    """
    import gguf

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
    folder.refuse(("quantization_config",))
    folder.keep(names)
    head, n_mtp = Written(folder, architecture), 1 + max(number for number, _ in names.values())
    head.set(block_count=n + n_mtp, nextn_predict_layers=n_mtp)
    head.describe(f"{n_mtp} layers that predict further tokens, for a {architecture} model of {n} layers")
    table = gguf.get_tensor_name_map({name: each for each, name in gguf.MODEL_ARCH_NAMES.items()}[architecture], n + n_mtp)

    def written(number: int, rest: str) -> str | None:
        stem, _, end = rest.rpartition(".")
        if stem in _BY_STEM:
            return f"blk.{n + number}.nextn.{_BY_STEM[stem]}.{end}"
        rest = rest.replace("e_score_correction_bias", "e_score_correction.bias")
        rest = rest if rest.endswith((".weight", ".bias")) else f"{rest}.weight"  # of several experts in one
        found: str | None = table.get_name(f"model.layers.{n + number}.{rest}", try_suffixes=(".weight", ".bias"))
        return found

    experts: dict[str, dict[int, str]] = {}
    for name, (number, rest) in names.items():
        match = _EXPERT.fullmatch(rest)
        if (made := written(number, rest if match is None else match[1] + match[3])) is None:
            continue  # which `Folder.check_all_taken` tells
        if match is not None:
            experts.setdefault(made, {})[int(match[2])] = name
        else:
            _take(head, name, made, is_shifted=architecture in _SHIFTED and made.endswith("norm.weight"))
    for made, parts in experts.items():
        _take_experts(head, made, parts)
    return head


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
