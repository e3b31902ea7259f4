"""Writes and checks receipts of texts.

Augury's bits depend on neither drafts, batch, threads nor passes. So a text can be computed once more in a few large passes:
the drafts are its own tokens, which the model confirms, or it says another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from augury.engine.generation import Generation
from augury.errors import ModelFileError, OptionError, UnsupportedError
from augury.receipt import Receipt, Verification
from augury.registry import Registry

_VERSIONS = ("augury", "numba", "llvmlite")  # which kernels are compiled from and by
SETTINGS = ("n_ctx", "cache_type_k", "cache_type_v", "override_kv", "placement")
"""Arguments of `Engine.load`, and so of `Engine.config`, that bits depend on."""
_OF_NO_ACCOUNT = {  # parameters that no token depends on
    *("cache_prompt", "echo", "id", "logprobs", "on_prompt", "prediction", "receipt", "slot", "speculative")
}


def drafting_to_verify(registry: Registry) -> dict[str, Any]:
    """The arguments of `Engine.load` by which `verify` is fast: a receipt's own tokens are drafted, a tile's worth at once."""
    serving = (name for name, drafter in registry.drafters.items() if drafter.traits.serves == "prediction")
    return {"spec_type": next(serving, "none"), "spec_fixed": True, "draft_max": 63}  # and the token before them: 64


class Receipts(Generation):
    """An engine's methods for receipts."""

    _files: tuple[Sequence[Path], Sequence[tuple[int, ...]]]
    """The model's files, and which they were when it was loaded, see `ModelFile.identity`."""

    def verify(self, receipt: Receipt | Mapping[str, Any]) -> Verification:
        """Compute a receipt's text once more, and say whether it is the same to the bit.

        An engine loaded with `drafting_to_verify` takes 64 tokens at once. Raises UnsupportedError: the model's file, a
        setting, the backend, the instruction set or a version is another one. AuguryError: it is no receipt, or names an
        unknown parameter.
        """
        receipt = receipt if isinstance(receipt, Receipt) else Receipt.from_json(receipt)
        self._check_same(receipt)
        params = {name: value for name, value in receipt.params.items() if name not in _OF_NO_ACCOUNT}
        if receipt.finish_reason == "cancelled":
            params["max_tokens"] = len(receipt.tokens)
        again = self.generate(list(receipt.prompt), prediction=list(receipt.tokens), logprobs=0, **params)
        pairs = enumerate(zip(again.tokens, receipt.tokens, strict=False))
        n_shorter = min(len(again.tokens), len(receipt.tokens))
        n_equal = next((i for i, (found, expected) in pairs if found != expected), n_shorter)
        found, expected = (each[n_equal] if n_equal < len(each) else None for each in (again.tokens, receipt.tokens))
        if (found, expected) != (None, None):
            return Verification(False, n_equal, expected, found, f"token {n_equal} is {_said(found)}, not {_said(expected)}")
        if receipt.finish_reason not in (again.finish_reason, "cancelled"):
            reason = f"the text ends by {again.finish_reason}, not by {receipt.finish_reason}"
        elif receipt.digest != receipt.digest_with([piece.logprob for piece in again.pieces]):
            reason = "the tokens are the same, but not all log-probabilities, or a field of the receipt was changed"
        else:
            reason = ""
        return Verification(not reason, n_equal, reason=reason)

    def _with_receipt(self, params: dict[str, Any]) -> dict[str, Any]:
        """A request's parameters; where a receipt is asked for, with all of it that is known before the request has run."""
        if (wanted := params.get("receipt", False)) is not True:
            if wanted is not False:
                raise OptionError(f"receipt is {wanted!r}, expected true or false")
            return {key: value for key, value in params.items() if key != "receipt"}
        if params.get("logits_processors"):
            raise OptionError("a receipt cannot hold logits_processors, which are code; leave one of the two out")
        kept = {key: value for key, value in params.items() if key not in _OF_NO_ACCOUNT and value is not None}
        if self.adapters.loaded:
            params["lora"] = kept["lora"] = self.adapters.listed(self.adapters.choose(params.get("lora")))
        return {**params, "receipt": {**self._facts, "params": _as_json(kept)}}

    def _check_same(self, receipt: Receipt) -> None:
        here = self._facts
        if receipt.model.get("sha256") != here["model"]["sha256"]:
            there, name = receipt.model.get("name"), here["model"]["name"]
            raise UnsupportedError(f"the receipt is of {there} with other weights than {name}, so it cannot be checked with it")
        for of, what in ((receipt.made_with, "made_with"), (receipt.settings, "settings")):
            for key in dict.fromkeys([*here[what], *of]):
                if (there := of.get(key)) != (value := here[what].get(key)):
                    way = "" if key != "isa" else f"; AUGURY_CPU_ISA={there} chooses it where the CPU has it"
                    raise UnsupportedError(
                        f"the receipt was written with {key} {there}, not {value}: it cannot be checked so{way}"
                    )

    @cached_property
    def _facts(self) -> dict[str, dict[str, Any]]:
        paths, identity = self._files
        digests = []
        for path, known in zip(paths, identity, strict=True):
            try:
                with path.open("rb") as file:
                    digests.append(hashlib.file_digest(file, "sha256").hexdigest())
                status = path.stat()
            except OSError as error:
                raise ModelFileError(f"{path}: {error.strerror}; a receipt names the model's file by its digest") from None
            if known != (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns):
                raise ModelFileError(f"{path}: was changed since it was loaded; load it again to write or check receipts")
        config, digests_of_adapters = self.config, [each.digest for each in self.adapters.loaded]
        adapters = {"lora": digests_of_adapters} if digests_of_adapters else {}
        return {
            "made_with": {
                **{name: str(config[name]) for name in ("backend", "isa")},
                **{name: metadata.version(name) for name in _VERSIONS},
            },
            "model": {"name": str(config["model"]), "sha256": digests},
            "settings": _as_json({name: config[name] for name in SETTINGS} | adapters),
        }


def _as_json(value: Any) -> Any:
    """The same as it comes back from JSON."""
    return json.loads(json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise OptionError(f"a receipt cannot hold {value!r:.60}, which JSON has no form for; leave it or the receipt out")


def _said(token: int | None) -> str:
    return "the end" if token is None else str(token)
