"""The places of tensors in a file of PyTorch's, `pytorch_model.bin`, of which nothing is executed.

Such a file is a zip archive of a pickle and of the tensors' bytes, uncompressed. A pickle names functions that are called while
it is read. Here all names but those of a tensor's making are refused, and these stand for functions of this file.

Source: PyTorch, `torch.serialization` and `torch._utils._rebuild_tensor_v2`; `torch.load(weights_only=True)` allows more.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from augury.errors import ModelFileError

if TYPE_CHECKING:
    import mmap

_KINDS = {  # the types of safetensors, and the bytes of a value
    "FloatStorage": ("F32", 4),
    "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2),
    "LongStorage": ("I64", 8),
    "IntStorage": ("I32", 4),
    "BoolStorage": ("BOOL", 1),
}
_LIMIT = 1 << 24  # bytes of a pickle
_LOCAL = 30  # bytes of a member's own header before its name


def pickled(path: Path, data: mmap.mmap) -> dict[str, dict[str, Any]]:
    """Where each tensor's bytes are in a file, as safetensors' header says it, from the file's start on.

    Raises:
        ModelFileError: It is no such archive, or its pickle holds or calls anything but contiguous tensors.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {each.filename: each for each in archive.infolist()}
            name = next((each for each in members if each.endswith("/data.pkl")), None)
            if name is None or members[name].file_size > _LIMIT:
                raise ValueError("it has no data.pkl, or one of more than 16 MiB")  # noqa: TRY301 - told below
            root, pickle_bytes = name.removesuffix("data.pkl"), archive.read(name)
        found = _Tensors(path, data, root, members, pickle_bytes).load()
    except ModelFileError:
        raise
    except Exception as error:  # noqa: BLE001 - what a pickle can raise has no end
        raise ModelFileError(
            f"{path}: no usable file of tensors of PyTorch 1.6 or later ({error}); download it again, or use safetensors"
        ) from None
    if not isinstance(found, dict) or not all(isinstance(key, str) and isinstance(each, dict) for key, each in found.items()):
        raise ModelFileError(f"{path}: holds {type(found).__name__}, expected tensors by name")
    return dict(found)


class _Tensors(pickle.Unpickler):
    """Reads a pickle whose tensors become places in the file."""

    def __init__(
        self, path: Path, data: mmap.mmap, root: str, members: dict[str, zipfile.ZipInfo], pickle_bytes: bytes
    ) -> None:
        super().__init__(io.BytesIO(pickle_bytes))
        self._path, self._data, self._root, self._members = path, data, root, members

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a name in a pickle. Raises ModelFileError: it is not one of a tensor's making."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if module == "torch" and name in _KINDS:
            return name
        return self._fail(f"its pickle names {module}.{name}, which is not executed")

    def persistent_load(self, pid: Any) -> Any:
        """The bytes that tensors are made of: their type, where they begin, and how many values there are."""
        _, kind, key, _, n = pid
        member = self._members[f"{self._root}data/{key}"]
        if member.compress_type != zipfile.ZIP_STORED or n * _KINDS[kind][1] > member.file_size:
            self._fail(f"{member.filename} is compressed or cut off")
        at = member.header_offset
        n_name, n_extra = (int.from_bytes(self._data[at + i : at + i + 2], "little") for i in (26, 28))
        return kind, at + _LOCAL + n_name + n_extra, n

    def _tensor(self, storage: Any, first: int, shape: Any, strides: Any, *_: Any) -> dict[str, Any]:
        kind, start, n_stored = storage
        dtype, n_bytes = _KINDS[kind]
        n = math.prod(shape)
        if tuple(strides) != tuple(math.prod(shape[i + 1 :]) for i in range(len(shape))) or not 0 <= first <= n_stored - n:
            self._fail(f"a tensor of shape {tuple(shape)} is not contiguous, or not within its bytes")
        begin = start + first * n_bytes
        return {"dtype": dtype, "shape": list(shape), "data_offsets": (begin, begin + n * n_bytes)}

    def _fail(self, message: str) -> NoReturn:
        raise ModelFileError(f"{self._path}: {message}; use a folder with safetensors")
