"""Tiny two-layer models with random weights, and what llama.cpp computes with them.

`NAMES` are models, one of each weight type that has kernels of its own; `tiny_model(NAME)` is the path of its GGUF file,
written once per test run, and `expected(NAME)` tokens and logits. `tiny_file(NAME)` opens it, `altered` and `with_layers` make
`ModelFile`s that differ from it without writing anything.

`ORACLES` are the float32 models of all architectures; `FAMILIES` are those that other tests go through, too,
and `RECURRENT` those that tests of states per sequence do.

The data: `NAME.head` is the size of a GGUF file (8 bytes, little-endian) and its header; the weights are derived from the
names of model and tensor. `NAME.npz` has tokens (T,) int32 and logits (T, V) float32 of every position, float32 KV cache,
token by token. `NAME-TYPE`, as `llama-dense-q4_0`, has the weights of `NAME` in another type; the K-quants and IQ4, which the
`gguf` package cannot write, are stored as files, and of the other types that it cannot write the blocks are random.
"""

from __future__ import annotations

import functools
import hashlib
import math
import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import attrs
import gguf
import numpy as np
from gguf.quants import quantize
from oracles import weights

from augury.files.gguf import ModelFile, Tensor
from augury.files.gguf_writer import gguf_file
from augury.files.header import read_header
from augury.files.tensor_type import TensorType

DATA = Path(__file__).parent.parent / "data" / "models"
FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")
WRITTEN_TYPES = ("f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "tq1_0", "tq2_0", "mxfp4")
RANDOM_TYPES = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "nvfp4")
STORED_TYPES = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs")
FLOAT_NAMES = tuple(f"{family}-dense" for family in FAMILIES)
QUANTISED_NAMES = (
    *(f"llama-dense-{kind}" for kind in WRITTEN_TYPES + STORED_TYPES + RANDOM_TYPES if kind != "nvfp4"),
    "qwen3-dense-nvfp4",  # llama.cpp has no biases in feed-forwards of this type
)
_SHARING_KERNELS = ("tq1_0", "iq1_s", "iq2_xxs", "iq2_xs")  # with tq2_0, iq1_m, iq2_s
NAMES = FLOAT_NAMES + tuple(name for name in QUANTISED_NAMES if not name.endswith(_SHARING_KERNELS))
# models with each kind of state per sequence
RECURRENT = (
    "lfm2-dense",
    "qwen35-dense",
    "falcon-h1-dense",
    "jamba-dense",
    "plamo2-dense",
    "minimax-01-moe",
    "kimi-linear-moe",
)
ORACLES = tuple(sorted(path.stem for path in DATA.glob("*.head")))


@functools.cache
def tiny_model(name: str) -> Path:
    """The GGUF file of a tiny model."""
    if name.endswith(STORED_TYPES):
        return DATA / f"{name}.gguf"
    if name in ORACLES:
        return written(name, functools.partial(write_from_head, DATA / f"{name}.head"))
    source, _, kind = name.rpartition("-")
    return written(name, functools.partial(_write_quantised, tiny_model(source), gguf.GGMLQuantizationType[kind.upper()]))


def tiny_file(name: str) -> ModelFile:
    """A tiny model, opened."""
    return ModelFile.open(tiny_model(name))


def architecture_of(name: str, data: Path = DATA) -> str:
    """What the header of a model of `ORACLES` says, or of one of other data, without writing its file."""
    key = b"general.architecture"
    _, _, rest = (data / f"{name}.head").read_bytes().partition(key)
    return rest[12 : 12 + int.from_bytes(rest[4:12], "little")].decode()  # a type of four bytes, a length of eight


@functools.cache
def file_for_plans(name: str) -> ModelFile:
    """A model of `ORACLES` whose matrices hold zeros, which takes no time to write: plans depend on metadata and shapes."""
    return ModelFile.open(written(f"{name}.plan", functools.partial(write_from_head, DATA / f"{name}.head", most=4096)))


@functools.cache
def expected(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The tokens (T,) and llama.cpp's logits (T, V) of a tiny model."""
    with np.load(DATA / f"{name}.npz") as data:
        return data["tokens"], data["logits"]


def nmse(logits: np.ndarray, right: np.ndarray) -> float:
    """Mean squared error, as a share of the mean square of what is right."""
    difference = logits.astype(np.float64) - right
    return float(np.mean(difference**2) / np.mean(right.astype(np.float64) ** 2))


def altered(file: ModelFile, *, metadata=None, without=(), arrays=None) -> ModelFile:
    """A model like `file`, with other metadata values, without some keys or tensors, with other tensors, int32 or float32."""
    tensors = dict(file.tensors)
    for name, values in (arrays or {}).items():
        is_integer = np.asarray(values).dtype == np.int32
        array = np.ascontiguousarray(values, np.int32 if is_integer else np.float32)
        kind = TensorType.I32 if is_integer else TensorType.F32
        tensors[name] = Tensor(name, array.shape, kind, array.reshape(-1).view(np.uint8))
    return ModelFile(
        file.path,
        file.paths,
        file.n_bytes,
        {key: value for key, value in {**file.metadata, **(metadata or {})}.items() if key not in without},
        {name: tensor for name, tensor in tensors.items() if name not in without},
    )


def with_layers(file: ModelFile, n_layers: int) -> ModelFile:
    """A model like `file` with as many layers, which repeat those that it has."""
    n_there = file.metadata[f"{file.architecture}.block_count"]
    tensors = {name: tensor for name, tensor in file.tensors.items() if not name.startswith("blk.")}
    for name, tensor in file.tensors.items():
        if name.startswith("blk."):
            _, index, rest = name.split(".", 2)
            for layer in range(int(index), n_layers, n_there):
                renamed = f"blk.{layer}.{rest}"
                tensors[renamed] = attrs.evolve(tensor, name=renamed)
    metadata = {
        key: np.resize(value, n_layers) if isinstance(value, np.ndarray) and len(value) == n_there else value
        for key, value in file.metadata.items()
    }
    metadata[f"{file.architecture}.block_count"] = n_layers
    return ModelFile(file.path, file.paths, file.n_bytes, metadata, tensors)


def folder() -> Path:
    """A folder that all processes of a test run share (see conftest.py), or else one that is removed with the process."""
    return Path(os.environ.get("TINY_MODELS") or _own_folder().name)


@functools.cache
def _own_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="augury-models-", ignore_cleanup_errors=True)


def written(name: str, write: Callable[[Path], None]) -> Path:
    """A GGUF file, written unless another process has; two may do so at once, each a whole one."""
    path = folder() / f"{name}.gguf"
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}")
        write(part)
        part.replace(path)
    return path


def write_from_head(head: Path, path: Path, *, most: int | None = None) -> None:
    """Write a file, with the weights of all tensors, or of those alone that have at most so many."""
    data = head.read_bytes()
    with path.open("w+b") as out:
        out.write(data[8:])
        out.truncate(int.from_bytes(data[:8], "little"))
        with mmap.mmap(out.fileno(), 0) as mapped:
            header = read_header(path, mapped)
        for entry in header.entries:
            if most is None or math.prod(entry.shape) <= most:
                out.seek(entry.start)
                if entry.name == "d2t":  # which of the target's tokens a draft model knows
                    n_vocab = len(header.metadata["tokenizer.ggml.tokens"])
                    tokens = np.argsort(_raw(f"{head.stem}/d2t", n_vocab), kind="stable")
                    out.write(np.sort(tokens[: math.prod(entry.shape)]).tobytes())
                else:
                    out.write(weights_of(entry.name, entry.shape, head.stem).tobytes())


def weights_of(name: str, shape: tuple[int, ...], model: str) -> np.ndarray:
    """The weights that the oracle's logits were computed with, in the range that trained models have.

    Nearly normal numbers: sums of four 16-bit parts of Philox's raw output, by integers alone, hence the same bits everywhere.
    """
    raw = _raw(f"{model}/{name}", math.prod(shape))
    even = np.uint64(0x0000FFFF0000FFFF)
    pairs = ((raw & even) + (raw >> np.uint64(16) & even)).view(np.int32)  # `sum` over so short an axis takes far longer
    x = ((pairs[::2] + pairs[1::2] - 131070).astype(np.float32) / np.float32(37837.0)).reshape(shape)
    if name.endswith("ffn_gate_tid2eid.weight"):
        return (raw % 8).astype(np.int32).reshape(shape)  # of eight experts
    if name.endswith("ssm_a"):
        return -np.square(np.float32(0.8) + np.float32(0.3) * x)
    mean, deviation = np.float32(0), np.float32(1.2 / float(shape[-1]) ** 0.5 if len(shape) > 1 else 0.1)
    if ("norm" in name and name.endswith("weight")) or "dt_b_c" in name:
        mean, deviation = np.float32(1), np.float32(0.2)
    elif name.endswith(("ssm_d", "layer_output_scale.weight")):
        mean, deviation = np.float32(1), np.float32(0.3)
    elif "ssm_dt.bias" in name:
        mean, deviation = np.float32(-1), np.float32(1)
    elif "conv" in name:
        deviation = np.float32(0.5)
    elif "sinks" in name or name.startswith("token_embd"):
        deviation = np.float32(1)
    return mean + deviation * x


def _raw(label: str, n: int) -> np.ndarray:
    """Random bits, (n,) uint64."""
    key = int.from_bytes(hashlib.sha256(label.encode()).digest()[:16], "little")
    return np.random.Philox(key=key).random_raw(n)


def _random_rows(label: str, like: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Random blocks of a type for a matrix whose numbers deviate about as much as those of another; its bytes by rows."""
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    n_bytes = like.size // block_size * block_bytes
    blocks = _raw(label, -(-n_bytes // 8)).view(np.uint8)[:n_bytes].reshape(-1, block_bytes)
    weights.set_scales(TensorType(kind), blocks, 1)
    numbers = weights.dequantised(TensorType(kind), blocks, len(like))
    weights.set_scales(TensorType(kind), blocks, np.std(like, dtype=np.float64) / np.std(numbers, dtype=np.float64))
    return blocks.reshape(len(like), -1)


def _write_quantised(source: Path, kind: gguf.GGMLQuantizationType, path: Path) -> None:
    """Copy a float32 model with its matrices, but for those that choose experts, in another type."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    with gguf_file(path, architecture) as writer:  # which writes the architecture itself
        for field in reader.fields.values():
            if not field.name.startswith("GGUF.") and field.name != "general.architecture" and field.contents() != []:
                item_type = field.types[-1] if len(field.types) > 1 else None
                writer.add_key_value(field.name, field.contents(), field.types[0], item_type)
        for tensor in reader.tensors:
            is_float = tensor.tensor_type == gguf.GGMLQuantizationType.F32
            if is_float and len(tensor.shape) > 1 and "gate_inp" not in tensor.name:
                own = kind if tensor.shape[0] % gguf.GGML_QUANT_SIZES[kind][0] == 0 else gguf.GGMLQuantizationType.Q8_0
                is_random, matrix = own.name.lower() in RANDOM_TYPES, tensor.data.reshape(-1, tensor.data.shape[-1])
                rows = _random_rows(f"{path.stem}/{tensor.name}", matrix, own) if is_random else quantize(matrix, own)
                writer.add_tensor(tensor.name, rows.reshape(*tensor.data.shape[:-1], -1), raw_dtype=own)
            else:
                writer.add_tensor(tensor.name, np.array(tensor.data))
