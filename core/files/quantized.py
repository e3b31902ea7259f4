"""Quantised copies of models whose matrices are floats, kept in the cache: to make one of a billion weights takes a minute."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from augury.errors import ModelFileError, OptionError
from augury.files.cache import cache_folder
from augury.files.gguf import ModelFile, Tensor
from augury.files.gguf_writer import add_value, gguf_file
from augury.files.tensor_type import TensorType
from augury.interfaces import Progress

if TYPE_CHECKING:
    from gguf import GGUFWriter

QUANTS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
"""What matrices can be quantised to."""
NO_QUANT = "none"
_FLOATS = (TensorType.F32, TensorType.F16, TensorType.BF16)
_FLOATS_ALWAYS = ("norm", "gate_inp", "hc_")  # the latter choose experts, and mix streams
_FEW_BYTES, _FLOAT_BYTES = 0.8, 2.0  # a weight


def quant_like(file: ModelFile) -> str:
    """What suits a draft model of a model: as many bits, of 4 and 8, or none where that has floats itself.

    Beside a small model one of 8 bits would take twice as much of the time.
    """
    tensors = file.tensors.values()
    bytes_of_weight = sum(each.n_bytes for each in tensors) / max(sum(math.prod(each.shape) for each in tensors), 1)
    if bytes_of_weight >= _FLOAT_BYTES:
        return NO_QUANT
    return "q4_0" if bytes_of_weight < _FEW_BYTES else "q8_0"


def quantized(file: ModelFile, quant: str, progress: Progress) -> ModelFile:
    """A model with its matrices of floats in another type, as far as their rows have whole blocks.

    Raises OptionError: there is no such type. ModelFileError: there is no room for the copy.
    """
    if quant not in (*QUANTS, NO_QUANT):
        raise OptionError(f"quant is {quant!r}, expected {', '.join(QUANTS)} or {NO_QUANT}")
    if quant == NO_QUANT or not any(_is_for(each, TensorType[quant.upper()]) for each in file.tensors.values()):
        return file
    path = cache_folder("quantized") / f"{file.path.resolve().name}-{quant}-{file.digest}.gguf"
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with gguf_file(path, file.architecture) as writer:
                _write(writer, file, TensorType[quant.upper()], progress)
        except OSError as error:
            reason = f"a copy of it in {quant} cannot be kept in {path.parent}: {error.strerror or error}"
            raise ModelFileError(
                f"{file.path}: {reason}; make room there, or use it as it is (--spec-draft-quant none)"
            ) from error
    made = ModelFile.open(path)
    made.reference, made.quant = file.reference, quant
    return made


def _write(writer: GGUFWriter, file: ModelFile, kind: TensorType, progress: Progress) -> None:
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    for key, value in file.metadata.items():
        if key != "general.architecture":
            add_value(writer, key, value)
    tensors, task = list(file.tensors.values()), f"quantise {file.path.name}"
    for i, tensor in enumerate(tensors):
        progress(task, i, len(tensors))
        if _is_for(tensor, kind):
            stored = GGMLQuantizationType[kind.name]
            writer.add_tensor(tensor.name, quantize(tensor.floats(), stored), raw_dtype=stored)
        else:
            rows = tensor.data.reshape(*tensor.shape[:-1], -1)
            writer.add_tensor(tensor.name, rows, raw_dtype=GGMLQuantizationType[tensor.type.name])
    progress(task, len(tensors), len(tensors))


def _is_for(tensor: Tensor, kind: TensorType) -> bool:
    is_matrix = len(tensor.shape) == 2 and tensor.shape[0] > 1 and not any(part in tensor.name for part in _FLOATS_ALWAYS)
    is_matrix = is_matrix or tensor.name.endswith("_exps.weight")
    return is_matrix and tensor.type in _FLOATS and tensor.shape[-1] % kind.block_size == 0
