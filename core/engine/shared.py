"""What the drafters of one engine share: second models among others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

from augury.guard import guarded


class Shared:
    """Objects that the sessions of one engine share, made once and closed with the engine."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self._lock = threading.RLock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value under `key`, made by the first that asks."""
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    def close(self) -> None:
        """Close all closable objects, last made first, even if closing one fails."""
        with self._lock:
            made = list(self._made.values())
        for value in reversed(made):
            if callable(close := getattr(value, "close", None)):
                guarded(close)
        self._made.clear()

    def drop(self, reference: str) -> list[Any]:
        """Close the objects that are second models of that reference, or of them, last made first; returns them."""
        with self._lock:
            keys = [key for key in self._made if isinstance(key, tuple) and reference in key and key[:2] != ("model", "target")]
            dropped = [self._made.pop(key) for key in reversed(keys)]
        for value in dropped:
            if callable(close := getattr(value, "close", None)):
                guarded(close)
        return dropped
