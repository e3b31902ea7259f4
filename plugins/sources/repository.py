"""Which of the files of a repository are one model."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from attrs import frozen

from augury.errors import ModelFileError
from augury.files.mtp_file import stored_mtp


@frozen
class KnownFile:
    """The checksum and the size of a file."""

    sha256: str
    n_bytes: int

    def is_at(self, path: Path) -> bool:
        """Whether a file was fetched before: only checked files get their names, and the size shows truncated copies."""
        return path.is_file() and path.stat().st_size == self.n_bytes

    def check(self, place: str, sha256: str) -> None:
        """Raises ModelFileError where a place has another file."""
        if sha256 != self.sha256:
            raise ModelFileError(f"{place}: the file there has sha256 {sha256}, expected {self.sha256}")


_PART = re.compile(r"-\d{5}-of-(?P<count>\d{5})$")
_QUANT = re.compile(r"(?:^|[-._/])((?:I?Q\d|TQ\d|BF16|F16|F32|MXFP4|NVFP4)\w*)$", re.IGNORECASE)
SETTINGS, _SAFETENSORS, _PICKLED = "config.json", ".safetensors", re.compile(r"pytorch_model.*\.bin")
INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "vocab.json", "tokenizer.model")
MTP = "mtp"
"""In place of a quant: the layers that predict further tokens, of a repository in safetensors."""
_DEFAULT_QUANT = "Q4_K_M"


def choose(files: Iterable[str], reference: str, quant: str | None) -> list[str]:
    """Choose among the files of a repository those of one model, in the order of its parts.

    Raises:
        ModelFileError: No model fits, or more than one.

    >>> choose(["README.md", "m-Q4_0.gguf", "m-Q8_0.gguf"], "hf:o/m:q8_0", "q8_0")
    ['m-Q8_0.gguf']
    """
    files = list(files)
    if not (models := _by_stem(files)):
        further = (
            f", or draft with its layers for further tokens, if it has some: -md {reference}:{MTP}" if INDEX in files else ""
        )
        raise ModelFileError(f"{reference}: the repository has no .gguf files; look for one whose name ends in -GGUF{further}")
    found = [stem for stem in models if quant is None or _fits(stem, quant)]
    if quant is None and len(found) > 1:
        found = [stem for stem in found if _fits(stem, _DEFAULT_QUANT)] or found
    if len(found) != 1:
        offered = "; ".join(_quant_of(stem) for stem in models)
        problem = "nothing fits" if not found else f"{len(found)} models fit ({', '.join(found)})"
        raise ModelFileError(f"{reference}: {problem}, expected one; add :QUANT, of which there are: {offered}")
    parts = models[found[0]]
    if (split := _PART.search(parts[0].removesuffix(".gguf"))) and len(parts) != int(split["count"]):
        raise ModelFileError(f"{reference}: the repository has {len(parts)} of the {int(split['count'])} parts of {found[0]}")
    return parts


def head_of(files: Collection[str]) -> list[str]:
    """The files of a whole model in safetensors, or else of PyTorch's, its settings first; empty where there is none.

    Of files with a tokenizer the first comes along, whose tokens are compared with the target's.

    >>> head_of(["README.md", "model.safetensors", "config.json"])
    ['config.json', 'model.safetensors']
    >>> head_of(["model-00001-of-00002.safetensors", "config.json"])
    []
    >>> head_of(["pytorch_model.bin", "config.json"])
    ['config.json', 'pytorch_model.bin']
    """
    names = sorted(name for name in files if name.endswith(_SAFETENSORS) and "/" not in name)
    names = names or sorted(filter(_PICKLED.fullmatch, files))
    split = _PART.search(names[0].rpartition(".")[0]) if names else None
    is_whole = split is None or len(names) == int(split["count"])
    return [SETTINGS, *names, *_tokenizer(files)] if names and SETTINGS in files and is_whole else []


def mtp_of(files: Collection[str], settings: str, index: str) -> list[str]:
    """The files that have the layers for further tokens of a model in safetensors, its settings first; empty where none has.

    `settings` and `index` are what is in the files `SETTINGS` and `INDEX`.

    >>> tensors = {"model.layers.0.x.weight": "model-00001.safetensors", "mtp.fc.weight": "model-00002.safetensors"}
    >>> mtp_of(["config.json", *tensors.values()], "{}", json.dumps({"weight_map": tensors}))
    ['config.json', 'model-00002.safetensors']
    """
    try:
        config, shards = json.loads(settings), json.loads(index)["weight_map"]
        n = config.get("num_hidden_layers", (config.get("text_config") or {}).get("num_hidden_layers"))
        names = {shards[name] for name in shards if stored_mtp(name, n if type(n) is int else None)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return [SETTINGS, *sorted(names), *_tokenizer(files)] if names and {SETTINGS, *names} <= {*files} else []


def _tokenizer(files: Collection[str]) -> list[str]:
    return [next(name for name in _TOKENIZERS if name in files)] if {*_TOKENIZERS} & {*files} else []


def models_of(files: Iterable[str]) -> Mapping[str, list[str]]:
    """The files of each whole model, by what `choose` takes as its quant.

    >>> models_of(["m-Q4_0.gguf", "m-BF16-00001-of-00002.gguf"])
    {'Q4_0': ['m-Q4_0.gguf']}
    """
    models = _by_stem(files)
    n_alike, n_named = Counter(map(_quant_of, models)), Counter(map(_name_of, models))
    found = {}
    for stem, names in models.items():
        split = _PART.search(names[0].removesuffix(".gguf"))
        if split is None or len(names) == int(split["count"]):
            quant, name = _quant_of(stem), _name_of(stem)
            found[quant if n_alike[quant] == 1 else name if n_named[name] == 1 else stem] = names
    return found


def _by_stem(files: Iterable[str]) -> Mapping[str, list[str]]:
    models: dict[str, list[str]] = {}
    for name in sorted(files):
        stem = name.removesuffix(".gguf")
        if stem != name and "mmproj" not in name.rsplit("/", 1)[-1]:  # an encoder of images is no language model
            models.setdefault(_PART.sub("", stem), []).append(name)
    return models


def _fits(stem: str, quant: str) -> bool:
    """Whether a file's name, without its end, says that it is of this quant; capitals do not matter."""
    return re.search(rf"(?:^|[-./]){re.escape(quant)}$", stem, re.IGNORECASE) is not None or (
        _quant_of(stem).lower() == quant.lower()
    )


def _quant_of(stem: str) -> str:
    return match[1].upper() if (match := _QUANT.search(stem)) else _name_of(stem)


def _name_of(stem: str) -> str:
    return stem.rpartition("/")[2]
