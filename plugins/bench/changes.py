"""What changed between figures that were saved and those of this run.

Saved figures are the JSON of `augury bench --json`, of drafters or of passes, or that of pytest-benchmark with the comparisons
of `augury.plugins.bench`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import Factory, frozen

from augury.errors import AuguryError
from augury.plugins.bench.figures import Figures
from augury.plugins.bench.outcome import label_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Change", "Saved", "changes"]

_KINDS = ("curve", "prefill", "decode")
_N_MEASURE = 3  # parts of what a row of passes is about: kind, tokens, depth

Key = tuple[str, ...]
"""What a row is about: drafter and category, or measure, tokens and depth."""


@frozen
class Saved:
    """Rows of figures by what they are about, and the machine that they were measured on.

    Attributes:
        facts: The machine and what was loaded.
        rows: Values by name: "tok/s", and where drafters are compared "plain tok/s", "speed-up" and "acceptance".
    """

    facts: Mapping[str, Any]
    rows: Mapping[Key, Mapping[str, float]] = Factory(dict)

    @property
    def are_of_passes(self) -> bool:
        """Whether rows are about passes, not about drafters."""
        return any(key[0] in _KINDS and len(key) == _N_MEASURE for key in self.rows)

    @classmethod
    def read(cls, path: str | Path) -> Saved:
        """Those of a file.

        Raises:
            AuguryError: It cannot be read, or holds something else.
        """
        try:
            told = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise AuguryError(f"{path}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise AuguryError(f"{path}: not JSON: {error}") from None
        try:
            return cls.of(told)
        except (AuguryError, KeyError, TypeError, AttributeError) as error:
            raise AuguryError(f"{path}: neither of augury bench --json nor of pytest-benchmark: {error}") from None

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Saved:
        """Those of an object that `augury bench --json` prints or pytest-benchmark saves."""
        if "benchmarks" in told:
            return cls._of_benchmarks([each["extra_info"] for each in told["benchmarks"]])
        if "runs" in told:
            rows: dict[Key, Mapping[str, float]] = {
                (_label(run), category): _values(Figures.from_told(figures))
                for run in told["runs"]
                for category, figures in run["categories"].items()
            }
            return cls(told["machine"], rows)
        if not any(kind in told for kind in _KINDS):
            raise AuguryError("there are no figures in it")
        return cls(
            told.get("machine", {}),
            {
                (kind, str(row["n"]), str(row["depth"])): {"tok/s": float(row["tok_s"])}
                for kind in _KINDS
                for row in told.get(kind, ())
            },
        )

    @classmethod
    def _of_benchmarks(cls, infos: list[dict[str, Any]]) -> Saved:
        ours = [info for info in infos if "spec_type" in info]
        if not ours:
            raise AuguryError("no benchmark in it compares drafters")
        parts: dict[Key, list[Figures]] = {}
        for info in ours:
            parts.setdefault((_label(info), info["category"]), []).append(Figures.from_told(info))
        return cls(ours[0]["machine"], {key: _values(Figures.pool(found)) for key, found in parts.items()})


@frozen
class Change:
    """One value, then and now; None where there is none."""

    key: Key
    name: str
    then: float | None
    now: float | None

    @property
    def ratio(self) -> float | None:
        """Now over then."""
        return self.now / self.then if self.now is not None and self.then else None


def changes(then: Saved, now: Saved) -> tuple[list[Change], list[str]]:
    """Row by row, in this run's order; behind them the rows that only `then` has.

    Returns:
        The changes, and the facts about the machine that differ, as lines.
    """
    found = []
    for key in dict.fromkeys((*now.rows, *then.rows)):
        old, new = then.rows.get(key, {}), now.rows.get(key, {})
        found += [Change(key, name, old.get(name), new.get(name)) for name in dict.fromkeys((*new, *old))]
    return found, list(_differences(then.facts, now.facts))


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys((*now, *then)):
        old, new = then.get(name, "not known"), now.get(name, "not known")
        if old != new:
            yield f"{name} was {old}, is {new}"


def _label(told: Mapping[str, Any]) -> str:
    return label_of(told["spec_type"], told["state"], is_synthetic=bool(told.get("synthetic")))


def _values(figures: Figures) -> dict[str, float]:
    return {
        "plain tok/s": figures.plain_per_second,
        "tok/s": figures.per_second,
        "speed-up": figures.speedup,
        "acceptance": figures.acceptance_rate,
    }
