"""What a model's file tells that the engine need not know."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import Factory, frozen

from augury.files.gguf import ModelFile

_EPOCH = datetime.fromtimestamp(0, UTC)


@frozen
class FileFacts:
    """What a model's file tells."""

    n_bytes: int = 0
    digest: str = ""
    architecture: str = "unknown"
    n_parameters: int = 0
    quant: str = "unknown"  # the type of most of its bytes
    modified_at: datetime = _EPOCH
    metadata: Mapping[str, Any] = Factory(dict)  # for JSON: lists are left out, which have a value for each token

    @classmethod
    def of(cls, path: Path, override_kv: Mapping[str, Any] | None) -> FileFacts:
        """The facts of a file.

        Raises:
            ModelFileError: It cannot be read.
        """
        with ModelFile.open(path, override_kv) as file:
            n_bytes = Counter[str]()
            for tensor in file.tensors.values():
                n_bytes[tensor.type.name] += tensor.n_bytes
            return cls(
                n_bytes=file.n_bytes,
                digest=file.digest,
                architecture=file.architecture,
                n_parameters=sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
                quant=n_bytes.most_common(1)[0][0] if n_bytes else "unknown",
                modified_at=datetime.fromtimestamp(max(each.stat().st_mtime for each in file.paths), UTC),
                metadata={key: value for key, value in file.metadata.items() if _is_single(value)},
            )


def _is_single(value: object) -> bool:
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
