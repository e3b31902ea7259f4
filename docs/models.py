# ruff: noqa: INP001 - a script, not a module
"""Writes docs/models.md from what architectures make of the tiny models of the tests: python docs/models.py."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from textwrap import fill

import attrs

from augury.blocks import Block, LatentAttention, ModelPlan, NormKind
from augury.errors import UnsupportedError
from augury.plugins.compressed_attention.deepseek4 import CompressedAttention
from augury.registry import Registry
from augury.types import ModelOptions

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import cuda_simulator.installed  # noqa: F401 - kernels for GPUs are asked for no more than their sizes
from oracles.drafts import DATA as DRAFTS, MTP
from oracles.models import ORACLES, architecture_of, file_for_plans

PAGE = Path(__file__).with_suffix(".md")

HEAD = """\
# Models

The {n} values of `general.architecture` in a GGUF file that run. An architecture is a class of a plugin in `plugins/` that
reads the file's metadata and says which blocks the model consists of; backends compute blocks and never see its name. This page
is written by `make docs`, and a test compares it with what the architectures make of the tiny models in `tests/data/models`.

* **Blocks**: in brackets what they have beyond the plainest of their kind, by the names of their fields in `augury.model`.
  A feed-forward of two matrices is *without gate*. A plain embedding and output are not mentioned.
* **State**: what is kept of a text: keys and values or latent vectors of every position, or states of the sequence, which are
  updated in place.
* **Rejected drafts**: what becomes of them. What is kept per position is written over. A state of the sequence takes in a
  drafted token only once it is accepted; until then the token is kept aside. So every drafter works with every model, and the
  output is the same.
* **Checked**: with how many tiny models of random weights both CPU backends were compared with llama.cpp (build 11434), token
  by token with a float32 cache. The logits' normalised mean squared error is below 1e-10, or below 2e-9 where GELU is rounded
  to half precision, as ggml does, because there the last bit of an input may decide. llama.cpp does not know `deltanet`,
  which is compared with its definition in float64.

"""

ON_GPUS = """
## On a GPU

All backends compute all of these architectures: `numba-cpu`, `reference`, and `numba-cuda`{but}
"""
BUT = """, but for models that need a part of this table.

| what is missing | architectures |
|---|---|
{rows}"""

LEFT_OUT = """
## What is left out

Other architectures that llama.cpp knows, and what is missing here to run them. Models that llama.cpp does not generate text
with (encoders, diffusion, speech) are not listed, nor are `eagle3` and `dflash`, whose models
draft for others.

"""

_CACHED = {LatentAttention: "latent vectors", CompressedAttention: "rows of tokens and of blocks"}
LACKS = {
    "the recurrences of RWKV": ("rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"),
    "adapters that tokens switch on": ("graniteswitch",),
    "residual streams that predict each other, and sparse gates": ("gemma3n",),
    "an encoder, and attention to it": ("t5",),
    "norms after attention instead of before, and logits of images that are masked": ("chameleon",),
}


NOT_EXACTLY = """
Layers that predict further tokens are used by `draft-mtp`, on all backends, in files of these
architectures, token for token as llama.cpp does:
{mtp}.

Those of `ernie4_5-moe`, `exaone-moe` and `exaone4` are used as well. llama.cpp computes none of them, so they are compared with
the definitions of those who published the models; for ERNIE its converter leaves them out
([what to give as `-md`](guide.md#heads)).

`gemma4-assistant` is a small model of its own, given by `-md` beside a Gemma 4. It attends to the keys and values of that model
and keeps none, so it takes no time for a prompt and no memory for a context.

Files of `dots3note` and `glm5-next` may have such layers, too, but llama.cpp loads them without using them. They run here like
files without.

One architecture runs in part: `qwen3tts`, without a vocabulary of its own for speech. A file that asks
for something that its architecture does not know is refused, and the error names the metadata key: attention to later tokens
(`attention.causal`), `glm5-next` without the last block's tokens (`attention.indexer.kpool_select_tail`), `bailingmoe3` without
a floor of decays (`kda.safe_gate`).

`deepseek4` keeps of every position what its blocks are pooled from, where llama.cpp keeps that of the last block and of a
window alone. So a slot can be cut back to any position without a checkpoint, at 12.5 KiB per position and layer of blocks of
four (heads of 512 values, an indexer of 128, a cache in F16).
"""


def page(registry: Registry) -> str:
    """The whole page."""
    names: dict[str, list[str]] = {}
    for name in ORACLES:
        names.setdefault(architecture_of(name), []).append(name)
    rows = ["| architecture | blocks | state | rejected drafts | checked |", "|---|---|---|---|---|"]
    unknown: dict[str, dict[str, None]] = {}
    for architecture in sorted(names.keys() & registry.architectures):
        files = [file_for_plans(name) for name in names[architecture]]
        plans = [registry.architectures[architecture].plans(file)["main"] for file in files]
        has_states = any(block.states() for plan in plans for block in plan.blocks())
        fate = "kept aside, dropped" if has_states else "written over"
        for plan in plans:
            if (what := _missing_on_gpus(plan, registry)) is not None:
                unknown.setdefault(what, {})[f"`{architecture}`"] = None
        rows.append(f"| `{architecture}` | {_blocks(plans)} | {_state(plans)} | {fate} | {len(files)} |")
    lacking = ["| what is missing | architectures |", "|---|---|"]
    for what, others in LACKS.items():
        if left := [f"`{name}`" for name in others if name not in registry.architectures]:
            lacking.append(f"| {what} | {', '.join(left)} |")
    refused = "\n".join(f"| {what} | {', '.join(others)} |" for what, others in sorted(unknown.items()))
    on_gpus = ON_GPUS.format(but=BUT.format(rows=refused) if unknown else ".")
    head = HEAD.format(n=len(rows) - 2)
    tables = (head, rows), (on_gpus + LEFT_OUT, lacking)
    mtp = sorted({architecture_of(name, DRAFTS) for name in MTP})
    note = NOT_EXACTLY.format(mtp=fill(", ".join(f"`{name}`" for name in mtp), 128))
    return "".join(head + "\n".join(lines) + "\n" for head, lines in tables) + note


def _missing_on_gpus(plan: ModelPlan, registry: Registry) -> str | None:
    """The part of a plan that numba-cuda does not compute, in the words of its error."""
    backend = registry.backends["numba-cuda"]
    try:
        backend(backend.options_class()).state_spec(plan, ModelOptions(n_ctx=plan.n_ctx_train))
    except UnsupportedError as error:
        return re.split("[,;]", str(error))[0]
    return None


def _blocks(plans: Sequence[ModelPlan]) -> str:
    """The blocks of some plans, and what is special about each."""
    found: dict[str, dict[str, None]] = {}
    for plan in plans:
        for block in plan.blocks():
            found.setdefault(type(block).__name__, {}).update(dict.fromkeys(_special(block)))
        for layer in plan.layers:
            marks = [each.name for each in attrs.fields(type(layer))[2:] if getattr(layer, each.name) != each.default]
            found.setdefault("Layer", {}).update(dict.fromkeys(marks))
        for connection in plan.connections:
            found.setdefault(type(connection).__name__, {}).update(dict.fromkeys(_special(connection)))
    parts = [part for plan in plans for part in plan.tensors()]
    marks = ["layer norms"] * any(getattr(part, "kind", None) is NormKind.LAYER for part in parts)
    marks += ["fused matrices"] * any(getattr(part, "rows", None) is not None for part in parts)
    texts = [f"{name} ({', '.join(special)})" if special else name for name, special in found.items()]
    return ", ".join([text for text in texts if text not in ("Embedding", "Output", "Layer")] + marks)


def _special(block: Block) -> Iterable[str]:
    for each in attrs.fields(type(block)):
        value = getattr(block, each.name)
        if each.default is attrs.NOTHING:
            if value is None:
                yield f"without {each.name}"
            if isinstance(value, Enum) and value.name != "SILU":
                yield value.name
        elif value is not None and value != each.default and each.name != "connection":
            yield each.name


def _state(plans: Sequence[ModelPlan]) -> str:
    blocks = [block for plan in plans for block in plan.blocks()]
    cached = [_CACHED.get(type(block), "keys and values") for block in blocks if block.cached()] + [
        "keys of an indexer" for block in blocks if getattr(block, "indexer", None) is not None
    ]
    return " and ".join(
        [*dict.fromkeys(cached), *dict.fromkeys(f"state of {type(block).__name__}" for block in blocks if block.states())]
    )


if __name__ == "__main__":
    PAGE.write_text(page(Registry.discover()))
