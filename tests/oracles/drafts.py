"""Tiny models that draft for others, with random weights, and what llama.cpp drafts with them, round by round.

`DRAFTS` are their names, `MTP` those of models that draft for themselves, one of them with an assistant; `draft_file(NAME)`
is the path of its GGUF file, written once per test run, `target_of(NAME)` the name of the model of `models.ORACLES` that it
drafts for, and `runs(NAME)` what llama.cpp did. `mtp_file(NAME)` opens one of `MTP`.

The data is in `tests/data/drafts`, whose README says what it means.
"""

from __future__ import annotations

import functools
import math
import mmap
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import numpy as np
from gguf import GGUFValueType
from oracles import models
from support.more_toys import HIDDEN, write_tiny_block_head, write_tiny_head

from augury import Registry
from augury.files.gguf import ModelFile
from augury.files.gguf_writer import gguf_file
from augury.files.header import read_header
from augury.files.mtp_file import n_mtp_of, with_mtp
from augury.loader import plan_of

DATA = Path(__file__).parent.parent / "data" / "drafts"
MTP = tuple(sorted(path.stem for path in DATA.glob("mtp-*.head")))
QUIET = {  # what layers add to the residual stream, by the ends of its tensors' names, and how much of it is left
    "attn_output.bias": 0.1,
    "attn_output.weight": 0.1,
    "attn_output_b.weight": 0.1,
    "ffn_down.bias": 0.1,
    "ffn_down.weight": 0.1,
    "ffn_down_exps.weight": 0.1,
    "ffn_down_shexp.weight": 0.05,
    "ffn_latent_up.weight": 0.03,
    "ple_value.weight": 0.1,
    "post_attention_norm": 0.1,
    "post_ffw_norm": 0.1,
    "shortconv.out_proj.weight": 0.00003,  # of a product of three
    "ssm_out.weight": 0.1,
}
_COPIED = {  # what a layer for further tokens takes over of the model, by parts of its tensors' names
    "nextn.shared_head_norm.": "output_norm.weight",
    "layer_output_norm.": "output_norm.weight",
    "nextn.embed_tokens.": "token_embd.weight",
    "nextn.shared_head_head.": "output.weight",
    "nextn.hc_head_": "output_hc_",
}
_TALK = 26.0  # how much more such layers say
_SURENESS = 4.0  # factor of the logits: of a token that is drawn the likeliest one is often right
_FITTED = {  # what makes others right as often: of the hidden state in place of HIDDEN, and the sureness
    "mtp-deepseek32": (0.15, 4.0),
    "mtp-glm-dsa": (0.225, 4.0),
    "mtp-hy_v3": (0.525, 6.0),
    "mtp-mimo2": (0.075, 4.0),
    "mtp-qwen35moe": (0.375, 4.0),
}
HEADS = ("draft-eagle3", "draft-dflash", "draft-dspark")  # kinds of drafters
DRAFTS = tuple(sorted({path.stem for path in DATA.glob("*.head")} - set(MTP)))


@attrs.frozen(eq=False)
class Run:
    """A text that was drafted for round by round, k tokens each."""

    text: np.ndarray  # (T,) int32
    n_prompt: int
    k: int
    last: np.ndarray  # (R,): a round drafts while the last token is text[last]
    drafts: np.ndarray  # (R, k) int32
    logits: np.ndarray | None  # (R, V) float32, of the last drafted token of a chain


def draft_file(name: str) -> Path:
    """The GGUF file of a tiny model that drafts."""
    return models.written(name, functools.partial(models.write_from_head, DATA / f"{name}.head"))


def mtp_file(name: str) -> ModelFile:
    """A model of `MTP`, opened: the target of an assistant with that, or the file itself."""
    file, target = ModelFile.open(draft_file(name)), target_of(name)
    return file if target == name else with_mtp(models.tiny_file(target), file)


def error(name: str, logits: Sequence[np.ndarray], right: np.ndarray) -> float:
    """The NMSE of the worst of rows of logits; of all rows where llama.cpp's GELU is a table of half precision.

    There an input's last place may decide on the output's last bit of eleven, so that a row now and then differs by 1e-8.
    """
    rows = [models.nmse(*each) for each in zip(logits, right, strict=True)]
    return models.nmse(np.stack(logits), right) if name.startswith("mtp-gemma") else max(rows)


@functools.cache
def predictable(name: str) -> Path:
    """A model of `models.ORACLES` whose layers say little: heads of `copying_head` are often right, and often not."""
    return _changed(models.tiny_model(name), _predictable, "predictable")


def copying_head(name: str, kind: str = "draft-eagle3") -> Path | None:
    """A head for a model of `models.ORACLES`, or for `predictable` of it; None where its hidden states are not told."""
    file = models.file_for_plans(name)
    plan = plan_of(file, Registry.discover())
    if "layer.0" not in plan.features:
        return None
    n_embd = plan.embedding.n_embd
    head_dim = min(n_embd, 64)
    if kind == "draft-eagle3":
        sizes = {"n_embd": n_embd, "head_dim": head_dim, "n_layers": len(plan.layers)}
        return models.written(f"{name}-head", functools.partial(write_tiny_head, **sizes))

    def write(path: Path) -> None:
        target = models.tiny_file(name)
        embedding, output = (
            tensor.data.view(np.float32).reshape(tensor.shape)
            for tensor in (target.tensor(each) for each in (plan.embedding.weight, plan.output.weight.weight))
        )
        write_tiny_block_head(path, embedding, output=output, head_dim=head_dim, kind=kind)

    return models.written(f"{name}-{kind}", write)


@functools.cache
def agreeing(name: str, target: str = "") -> Path:
    """A model of `MTP` whose layers say little, and whose layer for further tokens is often right, often wrong.

    With `target` it is another model for the same assistant.
    """
    target = target or target_of(name)
    if target != name:
        return _changed(models.tiny_model(target), _talking)
    hidden, sureness = _FITTED.get(name, (HIDDEN, _SURENESS))

    def change(each: str, shape: tuple[int, ...], values: Callable[[str], np.ndarray]) -> np.ndarray | None:
        if each.endswith("nextn.eh_proj.weight"):
            return _mixed(shape, hidden)
        if each == "output.weight":
            return np.float32(sureness) * values(each)
        return _agreeing(each, shape, values)

    return _changed(draft_file(name), change)


@functools.cache
def assistance(name: str, target: str = "") -> dict[str, object]:
    """The arguments of `Engine.load` beside `agreeing(...)`, where it has an assistant: that, and logits that differ more."""
    if (target := target or target_of(name)) == name:
        return {}
    own = {each.name: each.data.view(np.float32).reshape(each.shape) for each in models.tiny_file(target).tensors.values()}

    def change(each: str, shape: tuple[int, ...], values: Callable[[str], np.ndarray]) -> np.ndarray | None:
        if each in ("token_embd.weight", "output_norm.weight"):
            return own[each][..., : shape[-1]]  # the first values of what the model has
        if each == "nextn.pre_projection.weight":
            return _mixed(shape, HIDDEN * math.sqrt(shape[1] / 2))  # embeddings are multiplied by as much
        return _agreeing(each, shape, values)

    return {
        "draft_model": _changed(draft_file(name), change, f"of-{target}"),
        "override_kv": {f"{models.architecture_of(target)}.final_logit_softcapping": 24.0},
    }


def _agreeing(each: str, shape: tuple[int, ...], values: Callable[[str], np.ndarray]) -> np.ndarray | None:
    """What a tensor becomes in a model whose layer for further tokens predicts as it does; None: it stays."""
    if each.endswith("nextn.eh_proj.weight"):
        return _mixed(shape)
    if each.endswith(("nextn.enorm.weight", "nextn.hnorm.weight")):
        return np.full(shape, shape[0] ** -0.5 if len(shape) > 1 else 1, np.float32)  # of each residual stream a part
    if (copied := next((name for end, name in _COPIED.items() if end in each), None)) is not None:
        return values(f"{copied}{each.partition('hc_head_')[2]}").copy()
    return _predictable(each, shape, values)


def _talking(each: str, shape: tuple[int, ...], values: Callable[[str], np.ndarray]) -> np.ndarray | None:
    """What a tensor becomes where the embedding is the output as well: it would repeat its last token if layers said little."""
    if each.endswith(("post_attention_norm.weight", "post_ffw_norm.weight")):
        return np.float32(_TALK) * values(each)
    return _agreeing(each, shape, values)


def _mixed(shape: tuple[int, ...], much: float = HIDDEN) -> np.ndarray:
    """What is given of the token, with so much of the hidden state, (n, 2 E): a wrong one changes drafts."""
    return np.eye(*shape, dtype=np.float32) + np.float32(much) * np.eye(*shape, k=shape[1] // 2, dtype=np.float32)


def _predictable(each: str, shape: tuple[int, ...], values: Callable[[str], np.ndarray]) -> np.ndarray | None:
    """What a tensor becomes in a model whose layers say little; None: it stays."""
    if each == "output.weight":
        return np.float32(_SURENESS) * values(each)
    if each == "output_hc_norm.weight":  # which gates halve
        return np.float32(2) * values(each)
    if each.endswith("norm.weight"):  # also of residual streams that are normed in every layer
        return np.float32(0.75) + np.float32(0.25) * values(each)
    end = next((end for end in QUIET if each.endswith(end)), None)
    return None if end is None else np.float32(QUIET[end]) * values(each)


def _changed(source: Path, change: Callable[..., np.ndarray | None], how: str = "agreeing") -> Path:
    """A copy of a model of float32, with other tensors in place of some."""
    path = models.folder() / f"{source.stem}-{how}.gguf"
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}")
        shutil.copyfile(source, part)
        with part.open("r+b") as out, mmap.mmap(out.fileno(), 0) as mapped:
            entries = {entry.name: entry for entry in read_header(part, mapped).entries}

            def values(name: str) -> np.ndarray:
                entry = entries[name]
                return np.frombuffer(mapped, np.float32, math.prod(entry.shape), entry.start).reshape(entry.shape)

            for each, entry in entries.items():
                if (changed := change(each, entry.shape, values)) is not None:
                    mapped[entry.start : entry.start + changed.nbytes] = changed.tobytes()
        part.replace(path)
    return path


@functools.cache
def parted(path: Path) -> tuple[Path, Path]:
    """Two files of a model of `MTP`: without its layers that predict further tokens, and of these alone."""
    with ModelFile.open(path) as file:
        n, n_mtp = n_mtp_of(file)
        numbers = {name: int(name.split(".")[1]) if name.startswith("blk.") else None for name in file.tensors}
        of_model = {name for name, number in numbers.items() if number is None or number < n}
        alone = {name for name, number in numbers.items() if number is None or number >= n}
        own = {"block_count": n, "nextn_predict_layers": 0}
        own |= {key: value[:n] for key, value in file.metadata.items() if np.shape(value) == (n + n_mtp,)}
        own = {key if "." in key else f"{file.architecture}.{key}": value for key, value in own.items()}
        return tuple(
            models.written(f"{path.stem}-{kind}", functools.partial(write_tensors, file, names, changes))
            for kind, names, changes in (("model", of_model, own), ("mtp", alone, {}))
        )


def write_tensors(file: ModelFile, names: set[str], changes: dict[str, object], path: Path) -> None:
    """Write some tensors, float32, of a file, and its metadata with changes."""
    with gguf_file(path, file.architecture) as writer:
        for key, value in {**file.metadata, **changes}.items():
            if key != "general.architecture" and np.size(value):
                writer.add_key_value(key, *_typed(value))
        for name in names:
            tensor = file.tensors[name]
            writer.add_tensor(name, tensor.data.view(np.float32).reshape(tensor.shape))


def _typed(value: object) -> tuple[object, ...]:
    """A value as a writer takes it, with its type."""
    kinds = {bool: "BOOL", int: "INT64", float: "FLOAT32", str: "STRING"}
    if isinstance(value, list | np.ndarray):
        items = [*value] if isinstance(value, list) else value.tolist()
        return items, GGUFValueType.ARRAY, GGUFValueType[kinds[type(items[0])]]
    return value, GGUFValueType[kinds[type(value)]]


@functools.cache
def target_of(name: str) -> str:
    """The model that it drafts for."""
    with np.load(DATA / f"{name}.npz") as data:
        return str(data["target"])


@functools.cache
def runs(name: str) -> tuple[Run, ...]:
    """What llama.cpp drafted: one token a round, then several; or the latter alone, without logits."""
    with np.load(DATA / f"{name}.npz") as data:
        text, n_prompt = data["text"].astype(np.int32), int(data["n_prompt"])
        return tuple(
            Run(text, n_prompt, int(data[f"{of}_k"]), *(data.get(f"{of}_{what}") for what in ("last", "drafts", "logits")))
            for of in ("first", "last", "tokens")
            if f"{of}_k" in data
        )
