"""What `make bench-gpu` found, in Markdown as docs/benchmarks.md and docs/cuda.md have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from gpu import probes
from gpu.models import LARGE, MIDDLE, SMALL

_MODELS = {"small": SMALL.name, "middle": MIDDLE.name, "large": LARGE.name}
_ROWS = {
    "decoding": "decoding, one token at a time",
    **{f"pass of {n}": f"pass of {n}" for n in (2, 4, 8, 16, 64)},
    **{f"prompt of {n}": f"prompt of {n}" for n in (512, 4096)},
}
Found = Mapping[str, Any]


def written(found: Found) -> str:
    """All tables that there are figures for, and what is missing."""
    parts = [
        _machine(found),
        _speeds(found),
        *_kernels(found),
        _halves(found),
        _contexts(found),
        _threads(found),
        _probes(found),
        _missing(found),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; numbers of thousands have commas."""
    lines = [head, ["---"] * len(head), *([_cell(each) for each in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


def _cell(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, float) and value >= 100 else "" if value is None else str(value)


def _machine(found: Found) -> str:
    versions = found.get("versions", {})
    return ", ".join(str(versions[name]) for name in ("nvidia-smi", "gpu", "machine") if versions.get(name))


def _speeds(found: Found) -> str:
    """Tokens per second of both engines; of augury, which has two turns, the mean."""
    head, columns, notes = [""], [], []
    for part, name in _MODELS.items():
        turns = found.get(part, {})
        ours, theirs = [turns[key] for key in ("augury", "augury again") if key in turns], turns.get("llama.cpp", {})
        if not ours:
            continue
        columns.append({row: _mean(ours, row) for row in _ROWS if row in ours[0]})
        head.append(f"{name}: augury")
        if any(row in theirs for row in _ROWS):
            columns.append(theirs)
            head.append("llama.cpp")
            notes.append(f"{name}: llama.cpp {theirs.get('build', '')}")
        if len(ours) > 1:
            apart = max(abs(ours[1][row] / ours[0][row] - 1) for row in _ROWS if row in ours[0])
            notes.append(f"augury's turns differ by up to {100 * apart:.0f} %")
    if not columns:
        return ""
    rows = [
        [told, *(column.get(row) for column in columns)] for row, told in _ROWS.items() if any(row in each for each in columns)
    ]
    note = f"\n\nIn turns, augury before and after llama.cpp. {'; '.join(notes)}." if notes else ""
    return f"Tokens per second; passes and decoding after 512 tokens:\n\n{table(head, rows)}{note}"


def _kernels(found: Found) -> Sequence[str]:
    """Microseconds of kernels, a table for each model."""
    made = []
    for name, figures in found.get("kernels", {}).items():
        if name not in _MODELS.values():
            continue
        sizes = sorted({int(key.split()[0]) for key in figures})
        kernels = dict.fromkeys(key.partition(", ")[2].partition(" (")[0] for key in figures)
        rows = []
        for kernel in kernels:
            by_size = [_of_kernel(figures, n, kernel) for n in sizes]
            rows.append([f"`{kernel}`", *by_size])
        sums = [
            round(sum(told["us"] * told["launches"] for key, told in figures.items() if int(key.split()[0]) == n))
            for n in sizes
        ]
        head = [f"{name}, µs of a launch", *(f"{n} token{'s' * (n > 1)}" for n in sizes)]
        made.append(table(head, [*rows, ["all launches of a pass", *map(float, sums)]]))
    return made


def _of_kernel(figures: Found, n: int, kernel: str) -> str:
    """The times of one kernel's launches, those of another grid beside them."""
    times = [told["us"] for key, told in figures.items() if key.startswith(f"{n} tokens, {kernel} (")]
    return ", ".join(map(str, times))


def _halves(found: Found) -> str:
    """Tokens per second by products of bytes, of which there are two turns, and of halves."""
    turns, columns = found.get("halves", {}), {}
    for name, kind in product(_MODELS.values(), ("bytes", "halves")):
        if given := [turns[key] for key in turns if key.startswith(f"{name}, {kind}")]:
            columns[f"{name}: {kind}"] = given
    if not columns:
        return ""
    rows = [[told, *(_mean(given, row) for given in columns.values())] for row, told in _ROWS.items()]
    return f"Tokens per second by kinds of products, in turns:\n\n{table(['', *columns], rows)}"


def _mean(turns: Sequence[Found], row: str) -> float | None:
    values = [turn[row] for turn in turns if row in turn]
    return round(sum(values) / len(values), 1) if values else None


def _contexts(found: Found) -> str:
    figures = {name: told for name, told in found.get("contexts", {}).items() if name in _MODELS.values()}
    if not figures:
        return ""
    rows = dict.fromkeys(row for told in figures.values() for row in told if not row.endswith("device") and "ms on" not in row)
    made = table(["", *figures], [[row, *(told.get(row) for told in figures.values())] for row in rows])
    return f"Tokens per second in a context opened with 32,768 positions:\n\n{made}"


def _threads(found: Found) -> str:
    """Tokens per second on the CPU, augury / llama.cpp."""
    names = [name for name in found.get("cpu_threads", {}) if name.startswith("threads: ")]
    turns = {n: found["cpu_threads"][f"threads: {n}"] for n in sorted(int(name.split()[1]) for name in names)}
    if not turns:
        return ""
    rows = []
    for row in ("decoding", "pass of 8", "prompt of 512"):
        cells = []
        for told in turns.values():
            ours = [told[key] for key in ("augury", "augury again") if key in told]
            theirs = told.get("llama.cpp", {}).get(row)
            cells.append(_cell(_mean(ours, row)) + ("" if theirs is None else f" / {_cell(theirs)}"))
        rows.append([row, *cells])
    head = ["1.5B on the CPU, threads:", *map(str, turns)]
    return f"Tokens per second by threads, augury / llama.cpp:\n\n{table(head, rows)}"


def _probes(found: Found) -> str:
    rows = []
    for part in probes.PARTS:
        figures = {name: told for name, told in found.get(part.__name__, {}).items() if name not in ("seconds", "failed")}
        numbers = "; ".join(f"{name}: {told}" for name, told in figures.items() if not isinstance(told, str))
        rules = "; ".join(f"{name}: {told}" for name, told in figures.items() if isinstance(told, str))
        if figures:
            rows.append([part.__name__, numbers, rules])
    return table(["probe", "found", "so"], rows) if rows else ""


def _missing(found: Found) -> str:
    """What failed or was left out, with the reason's last line."""
    lines = []
    for name, told in found.items():
        for what in ("failed", "left out"):
            reasons = [told.get(what), *(each.get(what) for each in told.values() if isinstance(each, dict))]
            lines += [f"* {name} {what}: {reason.strip().splitlines()[-1]}" for reason in reasons if reason]
    return "\n".join(lines)
