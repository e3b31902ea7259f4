"""Flags of llama.cpp and ik_llama.cpp that augury does not have: ignored ones, and replacements of the others.

Command lines get pasted, so all flags of `llama-cli`, `llama-completion`, `llama-server`, `llama-speculative-simple` and of
ik_llama.cpp's programs are known. Flags that augury has under another name are declared with its own flags; the rest is in
foreign_flags.toml. A flag is ignored where leaving it out changes no output but, at most, how fast it comes; the others are
refused.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from attrs import evolve, frozen

_SWITCHED = ("on", "off", "auto", "0", "1", "true", "false", "enabled", "disabled", "none")


@frozen
class ForeignFlag:
    """A flag of another program, and its meaning here."""

    name: str
    kind: Literal["ignored", "refused", "same as"]
    text: str  # why it is ignored, its replacement, or augury's flag with {} for its value
    n_values: int = 0
    is_value_optional: bool = False  # it is one of `on`, `off` and the like, or missing
    off: str | None = None  # a refused flag's value that switches it off: then it is ignored

    def takes(self, word: str) -> bool:
        """Whether a word is this flag's optional value."""
        return self.is_value_optional and word.lower() in _SWITCHED

    def given(self, values: Sequence[str]) -> ForeignFlag:
        """The flag with these values."""
        if self.off is None or len(values) != 1:
            return self
        try:
            is_off = float(values[0]) == float(self.off)
        except ValueError:
            is_off = values[0] == self.off
        return evolve(self, kind="ignored", text="that is off anyway") if is_off else self


def ignored(names: Sequence[str], why: str, n_values: int) -> dict[str, ForeignFlag]:
    """Flags that change nothing, by name."""
    return {name: ForeignFlag(name, "ignored", why, n_values) for name in names}


def _listed(tables: Mapping[str, Any]) -> dict[str, ForeignFlag]:
    """The flags of a file's tables `ignored`, `refused` and `same as`, which lists them by their text."""
    found: dict[str, ForeignFlag] = {}
    for kind in ("ignored", "refused", "same as"):
        for text, flags in tables.get(kind, {}).items():
            for word in flags.split():
                if word.startswith("-"):
                    name = word
                    found[name] = ForeignFlag(name, kind, text)
                elif word == "[N]":
                    found[name] = evolve(found[name], is_value_optional=True)
                else:
                    found[name] = evolve(found[name], n_values=found[name].n_values + 1, off=word[2:] or None)
    return found


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

FOREIGN_FLAGS = _listed(_TABLES)
"""By name."""

FOREIGN_FLAGS_IN_CHAT = FOREIGN_FLAGS | _listed(_TABLES["chat"])
"""The same for `augury chat`, where a few mean something else."""

FOREIGN_FLAGS_IN_SERVE = FOREIGN_FLAGS | _listed(_TABLES["serve"])
"""And for `augury serve`."""
