"""Adapters (LoRA): small files of matrices that are added to products with a model's own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

import numpy as np
from attrs import field, frozen

from augury.errors import ModelFileError, UnsupportedError
from augury.files.gguf import ModelFile
from augury.log import get_logger

_SIDES = ("lora_a", "lora_b")


@frozen(eq=False)
class Adapter:
    """An adapter: of each adapted tensor, by name, matrices A (R, n_in) and alpha / R * B (n_out, R), float32."""

    path: Path
    architecture: str
    digest: str  # of its numbers
    matrices: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(repr=False)
    task_name: str = ""
    prompt_prefix: str = ""

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read what llama.cpp's `convert_lora_to_gguf.py` writes.

        Raises ModelFileError: it is none, or damaged. UnsupportedError: it is one that begins to count at certain tokens
        (aLoRA).
        """
        file = ModelFile.open(path)
        try:
            return cls._of(file)
        finally:
            file.close()

    @classmethod
    def _of(cls, file: ModelFile) -> Self:
        from xxhash import xxh3_128

        kind = "/".join(str(file.metadata.get(key, "no kind")) for key in ("general.type", "adapter.type"))
        if kind != "adapter/lora":
            raise ModelFileError(
                f"{file.path}: general.type and adapter.type are {kind}, expected adapter/lora; make an adapter with "
                "llama.cpp's convert_lora_to_gguf.py"
            )
        if "adapter.alora.invocation_tokens" in file.metadata:
            raise UnsupportedError(f"{file.path}: an aLoRA, which counts from certain tokens on; take one that always counts")
        alpha, made, found = file.get("adapter.lora.alpha", float, 0.0), xxh3_128(), cls._pairs(file)
        matrices = {}
        for name, (down, up) in sorted(found.items()):
            with np.errstate(over="ignore", invalid="ignore"):
                matrices[name] = down, up * np.float32(alpha / len(down) if alpha else 1.0)
            if not all(np.isfinite(array).all() for array in matrices[name]):
                raise ModelFileError(
                    f"{file.path}: lora_a or lora_b of {name!r} at alpha {alpha:g} hold infinities or NaN, expected numbers "
                    "alone; their training has failed, take an earlier checkpoint"
                )
            made.update(b"".join([name.encode(), *(array.tobytes() for array in matrices[name])]))
        words = [file.get(f"adapter.lora.{key}", str, "") for key in ("task_name", "prompt_prefix")]
        return cls(file.path, file.architecture, made.hexdigest(), matrices, *words)

    @staticmethod
    def _pairs(file: ModelFile) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        found = defaultdict[str, dict[str, np.ndarray]](dict)
        for name, tensor in file.tensors.items():
            of, _, side = name.rpartition(".")
            if side in _SIDES:
                found[of][side] = np.array(tensor.floats())
            elif name.endswith("_norm.weight"):  # llama.cpp leaves them out as well
                get_logger("augury.files").warning("an adapter's norm has no effect", adapter=str(file.path), tensor=name)
            else:
                raise ModelFileError(f"{file.path}: tensor {name!r}, expected names that end in .lora_a or .lora_b")
        for of, pair in found.items():
            shapes = [pair[side].shape if side in pair else "missing" for side in _SIDES]
            is_flipped = of == "token_embd.weight"  # there A is (V, R)
            if len(pair) < len(_SIDES) or not (is_flipped or shapes[0][-2:-1] == shapes[1][-1:]):
                raise ModelFileError(
                    f"{file.path}: lora_a of {of!r} is {shapes[0]} and lora_b {shapes[1]}, expected (R, n_in) and (n_out, R)"
                )
        if not found:
            raise ModelFileError(f"{file.path}: holds no matrices, expected pairs that end in .lora_a and .lora_b")
        return {of: (pair["lora_a"], pair["lora_b"]) for of, pair in found.items()}


def check_architecture(adapters: Iterable[Adapter], architecture: str) -> None:
    """Refuse adapters of models of another architecture. Raises ModelFileError: there is one."""
    for each in adapters:
        if each.architecture != architecture:
            raise ModelFileError(
                f"{each.path}: an adapter of a model of architecture {each.architecture!r}, this one's is {architecture!r}; "
                "take one that was made for this model"
            )
