"""A folder of `config.json` and tensors: safetensors, or where it has none, PyTorch's. Each has to be asked for."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from attrs import frozen

from augury.errors import ModelFileError, UnsupportedError
from augury.files.gguf import Tensor, mapped
from augury.files.tensor_type import TensorType
from augury.plugins.published_heads.pickled import pickled
from augury.types import read_only

if TYPE_CHECKING:
    import mmap

_TYPES = {
    "F32": TensorType.F32,
    "F16": TensorType.F16,
    "BF16": TensorType.BF16,
    "I64": TensorType.I64,
    "I32": TensorType.I32,
}
_SCALED, _EXPONENTS = {"F8_E4M3": 1, "I8": 2}, "F8_E8M0"  # weights in a byte: of 8 bits, and two of 4
_SECTIONS = ("transformer_layer_config", "text_config", "dflash_config")
_OUTSIDE = ("architectures", "model_type")  # of the head, not of the layers in it
_NOT_READ = ("__metadata__", "t2d", "verifier_lm_head.weight", "verifier_norm.weight")  # what d2t says, too; the target's own
_ALIGNMENT = 8  # that `Tensor` promises, and that files of some writers lack
_LIMIT, _TOKENIZER_LIMIT = 1 << 24, 1 << 28  # bytes of a JSON file
_MOST_TOKENS = 1 << 22
_TOKENIZERS = ("tokenizer.json", "vocab.json", "tokenizer.model")
_SETTINGS, _TENSORS = "config.json", ("*.safetensors", "pytorch_model*.bin")


def files_of(path: Path) -> list[Path]:
    """The files with tensors of a folder that is one; empty of others."""
    found = (sorted(path.glob(pattern)) for pattern in _TENSORS if (path / _SETTINGS).is_file())
    return next(filter(None, found), [])


@frozen(eq=False)
class _Stored:
    """The place of a tensor."""

    data: mmap.mmap  # its file
    start: int  # where tensors begin there
    entry: dict[str, Any]  # what the file's header says of it

    @property
    def dtype(self) -> str:
        """Its type, in safetensors' words."""
        return str(self.entry["dtype"])

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.entry["shape"])

    def bytes(self) -> np.ndarray:
        """(n_bytes,) uint8, read-only."""
        begin, end = self.entry["data_offsets"]
        view = np.frombuffer(self.data, np.uint8, end - begin, self.start + begin)
        return read_only(view.copy()) if (self.start + begin) % _ALIGNMENT else view


def as_tensor(name: str, values: np.ndarray) -> Tensor:
    """A tensor of float32, or of int64."""
    kind = TensorType.F32 if values.dtype.kind == "f" else TensorType.I64
    stored = np.ascontiguousarray(values, np.float32 if kind is TensorType.F32 else np.int64)
    return Tensor(name, values.shape, kind, read_only(stored.reshape(-1).view(np.uint8)))


class Folder:
    """The settings and tensors of a head; `paths`, `identity`, `head` and `n_bytes` are as those of `ModelFile`.

    Settings of sections that some publishers have (`_SECTIONS`) stand among the others in `config`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = stated = _json(path / _SETTINGS)
        for name in _SECTIONS:
            self.config = self.config | {key: each for key, each in self.section(name).items() if key not in _OUTSIDE}
        self.paths = tuple(files_of(path))
        self.identity: tuple[tuple[int, ...], ...] = ()
        self.head = json.dumps(stated, sort_keys=True).encode()
        self.n_bytes = 0
        self._left: dict[str, _Stored] = {}
        for file in self.paths:
            self._read(file)
        self._scales = self._scales_of_weights()

    def _read(self, path: Path) -> None:
        data, identity = mapped(path, "a file of tensors")
        header, start = (pickled(path, data), 0) if path.suffix == ".bin" else _header(path, data)
        self.identity += (identity,)
        self.head += json.dumps(header).encode()
        self.n_bytes += len(data)
        for stored, entry in header.items():
            name = stored.removeprefix("model.")  # as some write them
            if name not in _NOT_READ:
                self._left[name] = _Stored(data, start, entry)

    def _scales_of_weights(self) -> dict[str, _Stored]:
        """The scales of weights of 8 and 4 bits, by the names of these; those of activations are not read."""
        found = {}
        for name in [name for name, each in self._left.items() if each.dtype in _SCALED and name.endswith("weight")]:
            stem = name.removesuffix("weight")
            self._left.pop(f"{stem}input_scale", None)
            if (scale := next(filter(self._left.__contains__, (f"{stem}{each}" for each in SCALES)), None)) is not None:
                found[name] = self._left.pop(scale)
        return found

    def _tensor(self, name: str, stored: _Stored) -> Tensor:
        if stored.dtype in _SCALED and name in self._scales:
            return self._scaled(name, stored, self._scales[name])
        if (kind := _TYPES.get(stored.dtype)) is None:
            without = " without scales" if stored.dtype in _SCALED else ""
            self.fail(f"tensor {name!r} is stored as {stored.dtype}{without}, expected one of {', '.join(_TYPES)}")
        return Tensor(name, stored.shape, kind, stored.bytes())

    def _scaled(self, name: str, stored: _Stored, scale: _Stored) -> Tensor:
        """Weights of 8 bits as float32, those of 4 bits as they are."""
        values, exponents = (each.bytes().reshape(*each.shape, -1)[..., 0] for each in (stored, scale))
        made: np.ndarray | None = None
        if _SCALED[stored.dtype] == 1:
            is_e8m0 = scale.dtype == _EXPONENTS
            powers = exponents.astype(np.float32) - 127
            scales = np.exp2(powers) if is_e8m0 else self._tensor(f"{name}_scale", scale).floats()
            block = self.section("quantization_config").get("weight_block_size")
            made = fp8(values, scales, tuple(block) if block else None)
        elif scale.dtype == _EXPONENTS and len(stored.shape) == 2:
            made = mxfp4(values, exponents)
        if made is None:
            found = f"{stored.dtype} of shape {stored.shape} has scales in {scale.dtype} of shape {scale.shape}"
            self.fail(f"tensor {name!r} in {found}, which are not understood")
        if made.dtype == np.float32:
            return as_tensor(name, made)
        return Tensor(name, (stored.shape[0], 2 * stored.shape[1]), TensorType.MXFP4, read_only(made.reshape(-1)))

    def tokens(self) -> list[str]:
        """The texts of tokens by id, without added ones; empty where no file has them (`_TOKENIZERS`)."""
        path = next(filter(Path.is_file, (self.path / name for name in _TOKENIZERS)), None)
        if path is None:
            return []
        if path.suffix == ".model":
            return _pieces(path)
        found = _json(path, _TOKENIZER_LIMIT)
        vocab = found["model"].get("vocab") if isinstance(found.get("model"), dict) else found
        ids = {each[0]: i for i, each in enumerate(vocab)} if isinstance(vocab, list) else vocab
        if not isinstance(ids, dict) or not all(type(each) is int and 0 <= each < _MOST_TOKENS for each in ids.values()):
            raise ModelFileError(f"{path}: it has no tokens by id; remove it, and they are not compared with the target's")
        texts = [""] * (1 + max(ids.values(), default=-1))
        for text, token in ids.items():
            texts[token] = str(text)
        return texts

    def fail(self, message: str) -> NoReturn:
        """Say what is not understood here."""
        raise UnsupportedError(f"{self.path}: {message}")

    @property
    def names(self) -> Collection[str]:
        """Those of the tensors that have not been taken yet."""
        return self._left.keys()

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str) -> Tensor:
        """A tensor that has not been taken yet. Raises ModelFileError: there is none of this name."""
        if (stored := self._left.pop(name, None)) is None:
            raise ModelFileError(f"{self.path}: tensor {name!r} is missing; is it a head of another kind?")
        return self._tensor(name, stored)

    def keep(self, names: Collection[str]) -> None:
        """Leave out all tensors but these."""
        self._left = {name: self._left[name] for name in names}

    def check_all_taken(self) -> None:
        """Refuse tensors that nobody asked for: a head without them would draft badly, and nobody would know why.

        Raises:
            UnsupportedError: There are some.
        """
        if left := sorted(self._left):
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            self.fail(f"tensors {', '.join(left[:3])}{more} are not understood in a head of this kind")

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A setting that is a whole number from `least` on; null is as if it were absent."""
        value = default if (stated := self.config.get(key)) is None else stated
        if type(value) is not int or value < least:
            raise self._wrong(key, value, f"a whole number of at least {least}")
        return value

    def number(self, key: str, default: float) -> float:
        """A setting that is a number."""
        value = default if (stated := self.config.get(key)) is None else stated
        if type(value) not in (int, float):
            raise self._wrong(key, value, "a number")
        return float(value)

    def section(self, key: str) -> dict[str, Any]:
        """Settings that stand together under a key."""
        value = self.config.get(key) or {}
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return value

    def layer_ids(self, found: Any) -> list[int]:
        """A setting that names layers of the target."""
        if not isinstance(found, list) or not found or not all(type(each) is int and each >= -1 for each in found):
            raise self._wrong("layers of the target", found, "a list of their numbers")
        return found

    def _wrong(self, key: str, value: object, expected: str) -> ModelFileError:
        return ModelFileError(f"{self.path / _SETTINGS}: {key} is {value!r:.60}, expected {expected}")

    def refuse(self, keys: Iterable[str]) -> None:
        """Refuse settings that change what is computed, where they are set."""
        for key in keys:
            if self.config.get(key):
                self.fail(f"config.json sets {key} to {self.config[key]!r:.60}, which is not supported")


def _header(path: Path, data: mmap.mmap) -> tuple[dict[str, Any], int]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np"):  # which checks the header: each tensor's place, and that all are in the file
            pass
    except SafetensorError as error:
        raise ModelFileError(f"{path}: no usable safetensors file ({error}); download it again") from None
    start = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:start]), start


def _pieces(path: Path) -> list[str]:
    from sentencepiece import SentencePieceProcessor

    try:
        found = SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        message = f"{path}: it has no tokens by id ({error}); remove it, and they are not compared with the target's"
        raise ModelFileError(message) from None
    texts: list[str] = found.id_to_piece([*range(found.vocab_size())])
    return texts


def _json(path: Path, limit: int = _LIMIT) -> dict[str, Any]:
    try:
        if path.stat().st_size > limit:
            raise ModelFileError(f"{path}: {path.stat().st_size} bytes, expected {limit} at most")
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: not JSON ({error}); download it again") from None
    if not isinstance(found, dict):
        raise ModelFileError(f"{path}: holds {type(found).__name__}, expected an object")
    return found


SCALES = ("weight_scale_inv", "weight_scale", "scale")
"""What stands in place of `weight` in the names of scales; weights are multiplied by each of them, whatever its name."""
_BLOCK = 32  # weights of MXFP4 with one scale


def _e4m3() -> np.ndarray:
    """(256,) float32, the values of E4M3, which has no infinity."""
    bits = np.arange(256)
    exponent, fraction = (bits >> 3) & 15, (bits & 7) / 8
    values = np.where(exponent == 0, fraction * 2.0**-6, (1 + fraction) * 2.0 ** (exponent - 7.0))
    values[[0x7F, 0xFF]] = np.nan
    return np.where(bits & 0x80, -values, values).astype(np.float32)


def fp8(stored: np.ndarray, scales: np.ndarray, block: tuple[int, int] | None) -> np.ndarray | None:
    """Weights (n_out, n_in) of E4M3 (uint8), times their scales, float32; None where the scales are of another shape.

    Args:
        stored: (n_out, n_in) or (n,) uint8.
        scales: Of the matrix, of each row, or of each block.
        block: The rows and columns of a block; None: there are none.
    """
    values = _e4m3()[stored]
    if scales.size == 1:
        return np.asarray(values * scales.reshape(()))
    n_out, n_in = stored.shape
    if block is not None and scales.shape == (-(-n_out // block[0]), -(-n_in // block[1])):
        rows = np.repeat(scales, block[0], axis=0)[:n_out]
        return np.asarray(values * np.repeat(rows, block[1], axis=1)[:, :n_in])
    return np.asarray(values * scales.reshape(-1, 1)) if scales.size == n_out and scales.shape[0] == n_out else None


def mxfp4(stored: np.ndarray, scales: np.ndarray) -> np.ndarray | None:
    """Weights of MXFP4 in GGUF's order, (n_out, n_in / 32 * 17) uint8; None where the scales are of another shape.

    Args:
        stored: (n_out, n_in / 2) uint8, weights 2 i and 2 i + 1 in the low and the high half of byte i.
        scales: (n_out, n_in / 32) uint8, exponents.
    """
    n_out, n_blocks = stored.shape[0], 2 * stored.shape[1] // _BLOCK
    if scales.shape != (n_out, n_blocks) or n_blocks * _BLOCK != 2 * stored.shape[1]:
        return None
    codes = np.stack([stored & 15, stored >> 4], axis=-1).reshape(n_out, n_blocks, 2, _BLOCK // 2)
    blocks = np.concatenate([scales[..., None], codes[:, :, 0] | codes[:, :, 1] << 4], axis=-1)
    return np.asarray(blocks.reshape(n_out, -1))
