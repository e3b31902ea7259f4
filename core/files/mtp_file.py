"""Files that hold the layers of a model that predict further tokens, apart from the model's others.

An assistant is such a file, too: a small model for models of one architecture, with an embedding and a width of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np
from attrs import evolve

from augury.errors import ModelFileError, UnsupportedError
from augury.files.gguf import ModelFile, Tensor

_STORED = re.compile(r"(?:model\.)?(?:(mtp\.layers|mtp_layers|mtp_block|mtp|layers)|(mtp_\w+))\.(\d+)\.(.+)")
_OF_A_LAYER = re.compile(r"blk\.(\d+)\.")


def stored_mtp(name: str, n: int | None) -> tuple[int, str] | None:
    """Which layer for further tokens a tensor of safetensors is of, from 0, and the rest of its name; None: of none.

    The model has n layers without these, as its settings say.

    >>> stored_mtp("mtp.fc.weight", 48), stored_mtp("model.layers.61.enorm.weight", 61), stored_mtp("model.layers.60.x", 61)
    ((0, 'fc.weight'), (0, 'enorm.weight'), None)
    >>> stored_mtp("model.mtp_emb_norm.0.weight", 28)
    (0, 'mtp_emb_norm.weight')
    """
    if (match := _STORED.fullmatch(name)) is None:
        at, _, rest = name.removeprefix("model.").partition(".")
        return (0, rest) if at == "mtp" else None
    place, beside, stated, rest = match.groups()
    number = int(stated) - (0 if place != "layers" else n if n is not None else 1 + int(stated))
    return (number, f"{beside}.{rest}" if beside else rest) if number >= 0 else None


def n_mtp_of(file: ModelFile) -> tuple[int, int]:
    """How many layers a file states, without those that predict further tokens, and how many of these."""
    n_stored, n_mtp = (file.get(f"{file.architecture}.{key}", int, 0) for key in ("block_count", "nextn_predict_layers"))
    return n_stored - n_mtp, n_mtp


def missing_mtp(file: ModelFile) -> str:
    """What keeps a file from having layers that predict further tokens; empty where it has some."""
    n, n_mtp = n_mtp_of(file)
    if (name := f"blk.{n}.nextn.eh_proj.weight") in file.tensors:
        return ""
    stated = f"nextn_predict_layers is {n_mtp}, but tensor {name!r} is missing"
    return stated if n_mtp else "it has no layers that predict further tokens"


def is_mtp_alone(file: ModelFile) -> bool:
    """Whether a file has the model's layers for further tokens alone, as llama.cpp's converter writes it with `--mtp`."""
    first, n_mtp = n_mtp_of(file)
    return n_mtp > 0 and all(number >= first for number in _numbers(file.tensors))


def with_mtp(file: ModelFile, more: ModelFile) -> ModelFile:
    """A model with the layers that predict further tokens of a file that has them alone, in place of its own.

    They share the model's embedding and output, whose copies in the file are not read. An assistant brings its own: in the
    model its tensors have the name of its architecture and a slash before theirs. Raises ModelFileError: they are of another
    model.
    """
    (n, _), (first, n_mtp) = n_mtp_of(file), n_mtp_of(more)
    if (kind := more.architecture) == _assistant_of(file.architecture):
        own = {key: value for key, value in more.metadata.items() if key.startswith(f"{kind}.")}
        own[f"{kind}.nextn_predict_layers"] = 0  # as a model of its own
        named = {f"{kind}/{name}": evolve(tensor, name=f"{kind}/{name}") for name, tensor in more.tensors.items()}
        return _joined(file, more, own, file.tensors, named)
    if (more.architecture, first) != (file.architecture, n):
        raise ModelFileError(
            f"{more.path}: its layers predict further tokens for {first} layers of architecture {more.architecture!r}, but "
            f"{file.path} has {n} of {file.architecture!r}; give the file that was made of the same model"
            if first
            else f"{more.path}: a file of architecture {kind!r} drafts for another model than {file.path}, which is of "
            f"{file.architecture!r}, expected that or {_assistant_of(file.architecture)!r}; give a file that was made for it"
        )
    of_model = {name: tensor for name, tensor in file.tensors.items() if max(_numbers([name]), default=0) < n}
    added = {name: tensor for name, tensor in _of_layers(more).items() if _numbers([name])}
    keys = {f"{file.architecture}.block_count": n + n_mtp, f"{file.architecture}.nextn_predict_layers": n_mtp}
    return _joined(file, more, {**_by_layer(file, more, n, n + n_mtp), **keys}, of_model, added)


def _of_layers(file: ModelFile) -> Mapping[str, Tensor]:
    """A file's tensors; llama.cpp's converter calls the layer's hyper-connection the output's, where a file has no others."""
    if not is_mtp_alone(file):
        return file.tensors
    own = f"blk.{n_mtp_of(file)[0]}.nextn.hc_head_"
    named = {name: name.replace("output_hc_", own) if name.startswith("output_hc_") else name for name in file.tensors}
    return {named[name]: evolve(tensor, name=named[name]) for name, tensor in file.tensors.items()}


def _assistant_of(architecture: str) -> str:
    """The architecture of assistants for models of an architecture, as llama.cpp calls it."""
    return f"{architecture}-assistant"


def _joined(
    file: ModelFile, more: ModelFile, metadata: Mapping[str, object], tensors: Mapping[str, Tensor], added: Mapping[str, Tensor]
) -> ModelFile:
    return ModelFile(
        file.path,
        (*file.paths, *more.paths),
        file.n_bytes + sum(tensor.n_bytes for tensor in added.values()),
        {**file.metadata, **metadata},
        {**tensors, **added},
        (*file.identity, *more.identity),
        file.head + more.head,
    )


def _numbers(names: Iterable[str]) -> list[int]:
    return [int(found[1]) for found in map(_OF_A_LAYER.match, names) if found is not None]


def _by_layer(file: ModelFile, more: ModelFile, n: int, n_stored: int) -> dict[str, np.ndarray]:
    """The values that `more` states layer by layer, with the model's own values for its layers."""
    stated = {}
    for key, values in more.metadata.items():
        own = file.metadata.get(key)
        if not (isinstance(values, np.ndarray) and values.shape == (n_stored,)) or own is None or isinstance(own, str | list):
            continue
        stated[key] = np.append(own[:n] if isinstance(own, np.ndarray) else np.full(n, own), values[n:])
    return stated


TOKENS = "tokenizer.ggml.tokens"
_TYPES = "tokenizer.ggml.token_type"
_COMPARED = (1, 6)  # types of tokens: normal ones, and bytes; relatives of one family name others differently


def check_tokens(target: ModelFile, head: ModelFile) -> None:
    """Raise an UnsupportedError if a head's token means another text to its target; a head may name some tokens, or none."""
    mine, theirs = (file.get(TOKENS, list[str], []) for file in (target, head))
    n = min(len(mine), len(theirs))
    if mine[:n] == theirs[:n]:
        return
    types = target.metadata.get(_TYPES)
    is_compared = np.isin(types[:n], _COMPARED) if isinstance(types, np.ndarray) and len(types) >= n else np.ones(n, bool)
    for token in np.flatnonzero(is_compared).tolist():
        if theirs[token] and mine[token] != theirs[token]:
            verifier = head.metadata.get("general.base_model.0.name")
            trained = f" (it was trained for {verifier})" if verifier else ""
            raise UnsupportedError(
                f"{head.path}: token {token} is {mine[token]!r} to {target.path} and {theirs[token]!r} to the head{trained}; "
                "use a head that was trained for this model"
            )
