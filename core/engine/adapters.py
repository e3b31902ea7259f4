"""The adapters (LoRA) of an engine, and how much each counts: by default, in a request, and in each slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from augury.errors import OptionError
from augury.files.adapter import Adapter, check_architecture

Scales = tuple[float, ...]
_LARGEST = float(np.finfo(np.float32).max)


class Adapters:
    """Adapters, which requests name by their places, and how much each counts unless a request says otherwise."""

    def __init__(self, loaded: Sequence[Adapter] = (), scales: Scales = (), n_slots: int = 1) -> None:
        self.loaded, self.scales = tuple(loaded), scales
        # how much each counts in a slot, see `Batch.scales`
        self.of_slots = np.zeros((n_slots, len(loaded)), np.float32) if loaded else None

    @classmethod
    def open(cls, lora: Any, n_slots: int, architecture: str) -> Adapters:
        """The adapters of `Engine.load`'s argument; errors are those of `Adapter.open`.

        Raises OptionError: it has another form. ModelFileError: an adapter is of a model of another architecture.
        """
        pairs = list(lora.items()) if isinstance(lora, Mapping) else [lora] if isinstance(lora, str | Path) else [*(lora or ())]
        pairs = [(each, 1.0) if isinstance(each, str | Path) else each for each in pairs]
        for each in pairs:
            if not (isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str | Path) and _is_number(each[1])):
                raise OptionError(f"lora has {each!r}, expected the path of an adapter, or a pair of path and finite scale")
        loaded = [Adapter.open(path) for path, _ in pairs]
        check_architecture(loaded, architecture)
        return cls(loaded, tuple(float(scale) for _, scale in pairs), n_slots)

    def choose(self, lora: Any) -> Scales:
        """The scales of a list of `{"id": 0, "scale": 1.0}`, in which others count nothing; of None the default ones.

        Raises OptionError: it is no such list, or there is no such adapter.
        """
        if lora is None:
            return self.scales
        scales = [0.0] * len(self.loaded)
        for each in lora if isinstance(lora, list | tuple) else [lora]:
            known = isinstance(each, Mapping) and each.keys() == {"id", "scale"} and _is_number(each["scale"])
            if not known or not isinstance(each["id"], int):
                raise OptionError(f'lora has {each!r:.80}, expected a list of objects such as {{"id": 0, "scale": 1.0}}')
            if not 0 <= each["id"] < len(scales):
                there = f"0 to {len(scales) - 1}" if scales else "none; load some with --lora, or lora="
                raise OptionError(f"lora names adapter {each['id']}, there are {there}")
            scales[each["id"]] = float(each["scale"])
        return tuple(scales)

    @staticmethod
    def listed(scales: Scales) -> list[dict[str, Any]]:
        """Scales as `choose` takes them."""
        return [{"id": i, "scale": scale} for i, scale in enumerate(scales)]

    def variant(self, scales: Scales) -> str:
        """A name for the states that a text has with some scales; empty where no adapter counts."""
        numbers = np.array(scales, np.float32).tolist()
        return " ".join(f"{each.digest}*{scale}" for each, scale in zip(self.loaded, numbers, strict=True) if scale)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
