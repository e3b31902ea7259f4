"""`Receipt`: what a text was computed from, so that anyone who has the model's file can check that it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

import attrs
import numpy as np
from attrs import field, frozen

from augury.errors import OptionError

_FORMAT = 1


@frozen
class Receipt:
    """What a text was computed from, and a digest over all of that and the log-probabilities of its tokens."""

    made_with: Mapping[str, str]  # the backend, its instruction set, versions of what compiles kernels
    model: Mapping[str, Any]  # its name, and the SHA-256 of each of its files
    settings: Mapping[str, Any]  # of the engine
    prompt: Sequence[int]
    params: Mapping[str, Any]  # of the request, with the seed in force
    tokens: Sequence[int]
    finish_reason: str
    digest: str = field(default="", kw_only=True)

    def digest_with(self, logprobs: Sequence[float | None]) -> str:
        """The SHA-256 of all fields and of the tokens' log-probabilities, as float64 in little-endian order."""
        found = hashlib.sha256(json.dumps(self.as_json() | {"digest": None}, sort_keys=True).encode())
        found.update(np.array(logprobs, "<f8").tobytes())
        return found.hexdigest()

    def as_json(self) -> dict[str, Any]:
        """The receipt as an object for JSON."""
        return {"augury_receipt": _FORMAT, **attrs.asdict(self)}

    @classmethod
    def from_json(cls, found: Any) -> Self:
        """A receipt from such an object. Raises OptionError: it is none, or of another version."""
        kind = found.get("augury_receipt") if isinstance(found, Mapping) else None
        if kind is None:
            raise OptionError('this is no receipt, expected an object with "augury_receipt", as augury run --receipt writes it')
        if kind != _FORMAT:
            raise OptionError(
                f"this receipt is of version {kind!r}, expected {_FORMAT}; check it with the augury that wrote it"
            )
        fields = {name: found.get(name) for name in attrs.fields_dict(cls)}
        kinds = {"prompt": list, "tokens": list, "finish_reason": str, "digest": str}
        for name, value in fields.items():
            if not isinstance(value, expected := kinds.get(name, dict)):
                raise OptionError(f"{name} of this receipt is {value!r:.60}, expected a value of type {expected.__name__}")
        return cls(**fields)


@frozen
class Verification:
    """The outcome of computing a receipt's text once more."""

    is_equal: bool
    n_equal: int  # tokens of the text before the first that differs
    expected: int | None = None  # the token there, by the receipt; None: its text ends
    found: int | None = None  # and by the model
    reason: str = ""  # what differs, for people; empty if nothing does
