"""`--compare OLD.json`: changes since results were saved.

Saved results are the JSON of `augury bench drafters` or `augury bench passes`, or that of pytest-benchmark with the comparisons
of `augury.plugins.bench`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import Factory, frozen

from augury.cli import Parser, align_rows, print_json, print_lines, read_text
from augury.errors import AuguryError, OptionError
from augury.plugins.bench.pair_stats import PairStats, drafter_label

_KINDS = ("curve", "prefill", "decode")
_PASSES = ["measure", "n", "depth"]  # the meaning of a row's key in passes
_DRAFTERS = ["drafter", "category"]
_ABSENT = "-"
_FORMS = {"acceptance": "{:.0%}", "speed-up": "{:.2f}x"}  # others are speeds

Key = tuple[str, ...]
"""The subject of a row: drafter and category, or kind of pass, tokens and depth."""


@frozen
class SavedResults:
    """Saved values by subject and name: "tok/s", and where drafters are compared "plain tok/s", "speed-up" and "acceptance"."""

    facts: Mapping[str, Any]  # about the machine and the model
    rows: Mapping[Key, Mapping[str, float]] = Factory(dict)

    @property
    def are_of_passes(self) -> bool:
        """Whether rows are about passes, not about drafters."""
        return any(key[0] in _KINDS and len(key) == len(_PASSES) for key in self.rows)

    @classmethod
    def read(cls, path: str | Path) -> SavedResults:
        """Read a file. Raises AuguryError: it cannot be read, or holds something else."""
        try:
            found = json.loads(read_text(path))
        except (ValueError, RecursionError) as error:
            raise AuguryError(f"{path}: not JSON: {error}") from None
        try:
            return cls.of(found)
        except (KeyError, TypeError, ValueError, AttributeError, OptionError) as error:
            raise AuguryError(
                f"{path}: not written by augury bench drafters|passes --json or pytest-benchmark: {error}"
            ) from None

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> SavedResults:
        """Read an object that `augury bench drafters|passes --json` prints or pytest-benchmark saves."""
        if "benchmarks" in found:
            return cls._of_benchmarks([each["extra_info"] for each in found["benchmarks"]])
        if "runs" in found:
            rows: dict[Key, Mapping[str, float]] = {
                (_label(run), category): _values(PairStats.from_json(stats))
                for run in found["runs"]
                for category, stats in run["categories"].items()
            }
            return cls(found["machine"], rows)
        if not any(kind in found for kind in _KINDS):
            raise OptionError("there are no figures in it")
        speeds: dict[Key, Mapping[str, float]] = {}
        for kind in _KINDS:
            speeds |= {(kind, str(row["n"]), str(row["depth"])): {"tok/s": float(row["tok_s"])} for row in found.get(kind, ())}
        return cls(found.get("machine", {}), speeds)

    @classmethod
    def _of_benchmarks(cls, infos: list[dict[str, Any]]) -> SavedResults:
        ours = [info for info in infos if "spec_type" in info]
        if not ours:
            raise OptionError("no benchmark in it compares drafters")
        parts: dict[Key, list[PairStats]] = {}
        for info in ours:
            parts.setdefault((_label(info), info["category"]), []).append(PairStats.from_json(info))
        return cls(ours[0]["machine"], {key: _values(PairStats.pool(found)) for key, found in parts.items()})


def changes(then: SavedResults, now: SavedResults) -> list[tuple[Key, str, float | None, float | None]]:
    """Row by row, in this run's order, and after them those that only `then` has: a figure's name and both values, if any."""
    found = []
    for key in dict.fromkeys((*now.rows, *then.rows)):
        old, new = then.rows.get(key, {}), now.rows.get(key, {})
        found += [(key, name, old.get(name), new.get(name)) for name in dict.fromkeys((*new, *old))]
    return found


def differences(then: SavedResults, now: SavedResults) -> list[str]:
    """The facts about machine and model that differ, as lines."""
    names = dict.fromkeys((*now.facts, *then.facts))
    both = ((name, then.facts.get(name, "not known"), now.facts.get(name, "not known")) for name in names)
    return [f"{name} was {old}, is {new}" for name, old, new in both if old != new]


def add_result_flags(parser: Parser) -> None:
    """Add the flags that print JSON, and compare with earlier JSON."""
    parser.flag("--json", "print one JSON object")
    parser.flag("--compare OLD.json", "show what changed since --json, or pytest-benchmark, saved this file", Path)


def check_saved(path: Path | None, *, of_passes: bool) -> None:
    """Check a file to compare with, before minutes of work.

    Raises:
        OptionError: It holds no figures, or those of drafters where passes are timed, or the other way round.
    """
    if path is not None and SavedResults.read(path).are_of_passes != of_passes:
        kinds = ("drafters", "passes")
        raise OptionError(
            f"{path} holds figures of {kinds[not of_passes]}, but {kinds[of_passes]} are timed here; choose another"
        )


def print_figures(found: dict[str, Any], lines: list[str], args: argparse.Namespace) -> None:
    """Print a run's figures, as JSON or as lines, and the changes since those of `--compare`."""
    if args.json:
        print_json(found | ({} if args.compare is None else {"changes": changes_as_json(args.compare, found)}))
    else:
        print_lines(lines + ([] if args.compare is None else change_lines(args.compare, found)))


def change_lines(path: Path, result: dict[str, Any]) -> list[str]:
    """A table of the changes from `path` to this run's JSON, and other differences between the runs."""
    then, now = SavedResults.read(path), SavedResults.of(result)
    rows: dict[Key, dict[str, str]] = {}
    for key, name, *values in changes(then, now):
        form = _FORMS.get(name, "{:.1f}")
        cell = " -> ".join(_ABSENT if value is None else form.format(value) for value in values)
        if name == "tok/s" and values[0] and values[1] is not None:
            cell += f" ({100 * (values[1] / values[0] - 1):+.1f} %)"
        rows.setdefault(key, {})[name] = cell
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    cells = [[*key, *(row.get(name, _ABSENT) for name in names)] for key, row in rows.items()]
    lines = [f"against {path}:", *align_rows([[*(_PASSES if now.are_of_passes else _DRAFTERS), *names], *cells])]
    if found := differences(then, now):
        lines.append("these runs differ in more than the code, so the change may be theirs: " + "; ".join(found))
    return lines


def changes_as_json(path: Path, result: dict[str, Any]) -> dict[str, Any]:
    """The same as JSON."""
    then, now = SavedResults.read(path), SavedResults.of(result)
    rows = [{"of": list(key), "figure": name, "then": old, "now": new} for key, name, old, new in changes(then, now)]
    return {"against": str(path), "rows": rows, "differences": differences(then, now)}


def _label(found: Mapping[str, Any]) -> str:
    return drafter_label(found["spec_type"], found["state"], is_synthetic=bool(found.get("synthetic")))


def _values(stats: PairStats) -> dict[str, float]:
    return {
        "plain tok/s": stats.plain_per_second,
        "tok/s": stats.per_second,
        "speed-up": stats.speedup,
        "acceptance": stats.acceptance_rate,
    }
