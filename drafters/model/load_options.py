"""Options that several drafters with a model have: how it is loaded, and where its drafts end."""

from __future__ import annotations

from typing import Any

import attrs
from attrs import frozen

from augury.devices import Placement
from augury.options import option
from augury.types import ModelOptions


def p_min_option(text: str, default: float = 0.0) -> Any:
    """The least probability of a drafted token, an option that a request may bring; `text` is its help."""
    return option(default, help=text, ge=0.0, le=1.0, aliases=("draft-p-min", "spec-draft-p-min"), per_request=True)


def vocab_option(where: str = "") -> Any:
    """The size of a `DraftVocabulary`; `where` says in which mode it counts."""
    return option(
        None,
        help=f"{where}drafts are chosen among so many first tokens, and the tokens of the text; 0: all; unless given a "
        "quarter, 16384 at least",
        ge=0,
        aliases=("draft-vocab",),
    )


def quant_option() -> Any:
    """The type that a draft model, or layers from a folder, are quantised to."""
    return option(
        None,
        help="what its matrices of floats are quantised to: q4_0, q4_1, q5_0, q5_1, q8_0 or none; unless given as the target's "
        "where it is a folder of safetensors, else none",
        aliases=("spec-draft-quant",),
    )


@frozen
class LoadOptions:
    """Options of a draft model; options that are not given are the target's."""

    model: str | None = option(None, help="the draft model: a name or a path", aliases=("md", "model-draft"))
    threads: int | None = option(
        None,
        help="its threads, as many as the target's unless given",
        ge=1,
        aliases=("td", "threads-draft", "spec-draft-threads"),
    )
    cache_type_k: str | None = option(
        None,
        help="type of the keys in its KV cache, the target's unless given",
        aliases=("ctkd", "cache-type-k-draft", "spec-draft-type-k"),
    )
    cache_type_v: str | None = option(
        None, help="type of the values, the target's unless given", aliases=("ctvd", "cache-type-v-draft", "spec-draft-type-v")
    )
    quant: str | None = quant_option()
    backend: str | None = option(None, help="what computes it, the target's backend unless given", aliases=("backend-draft",))
    device: str | None = option(
        None,
        help="the GPUs for it, such as CUDA1, or none, as --device for the target; the target's unless given",
        aliases=("devd", "device-draft", "spec-draft-device"),
    )
    gpu_layers: str | None = option(
        None,
        help="how many of its layers they compute: a number, all or auto, as -ngl for the target; unless given auto where -ngl "
        "or --device is given for the target",
        aliases=("ngld", "gpu-layers-draft", "n-gpu-layers-draft", "spec-draft-ngl"),
    )
    p_min: float = p_min_option(
        "a draft ends where its best token is less probable than this; of a head, among its ten best or by its confidence"
    )

    def of_target(self, target: ModelOptions, **others: Any) -> ModelOptions:
        """How the model is loaded beside a target; `others` are further fields that are not None."""
        own = {name: getattr(self, name) for name in ("threads", "cache_type_k", "cache_type_v", "quant")} | others
        placement = target.placement if self.backend is None else Placement()
        if self.device is not None or self.gpu_layers is not None:
            placement = Placement(placement.devices if self.device is None else self.device, self.gpu_layers)
        return attrs.evolve(target, placement=placement, **{name: each for name, each in own.items() if each is not None})


@frozen
class HeadOptions(LoadOptions):
    """Options of a head; omitted ones are as the target's, or as its file says."""

    window: int | None = option(
        None,
        help="its attention sees so many last tokens of the text; 0: all; unless given as its file says",
        ge=0,
        aliases=("spec-draft-window",),
    )
