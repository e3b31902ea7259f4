"""`augury inspect`: the contents of a model file."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from augury.cli.model_flags import add_override_flag, overrides_of
from augury.cli.progress import ProgressDisplay
from augury.cli.report import align_rows, print_json, print_lines
from augury.errors import ModelFileError
from augury.files.cache import cache_folder
from augury.files.models import open_model, source_of
from augury.registry import Registry

if TYPE_CHECKING:
    from augury.files.gguf import ModelFile

_TEMPLATE = "tokenizer.chat_template"
_N_SHOWN = 8  # of a long array's items
_N_LETTERS = 100  # of a long text
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def add_parser(subparsers: Any, registry: Registry) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "inspect",
        aliases=["show"],
        help="show what is in a model file",
        description="Show metadata, types and sizes of the tensors, and the chat template of a GGUF file.",
    )
    parser.add_argument("model", metavar="MODEL", help="a path (of any part of a split model), or the name of one that is here")
    add_override_flag(parser)
    parser.flag("--tensors", "list every tensor")
    parser.flag("--json", "print one JSON object, with all tensors")
    parser.set_defaults(run=_run, registry=registry)


def _run(args: argparse.Namespace) -> int:
    source = source_of(args.model, args.registry)
    if source.is_public and source.find(args.model, cache_folder("models")) is None:
        raise ModelFileError(f"{args.model} is not on this machine; augury pull {args.model} downloads it")
    with ProgressDisplay() as progress:
        file = open_model(args.model, args.registry, progress, overrides_of(args))
    with file:
        if args.json:
            print_json(_as_json(file))
        else:
            print_lines(_lines(file, lists_tensors=args.tensors))
    return 0


def _lines(file: ModelFile, *, lists_tensors: bool) -> Iterable[str]:
    for path in file.paths:
        yield _printable(str(path))
    yield f"{file.n_bytes:,} bytes ({size_text(file.n_bytes)})"
    yield ""
    yield from align_rows([["key", "value"], *([_printable(key), _short(value)] for key, value in file.metadata.items())])
    yield ""
    yield from align_rows([["type", "tensors", "parameters", "size"], *_totals(file)])
    if lists_tensors:
        yield ""
        rows = [
            [_printable(tensor.name), tensor.type.name, " x ".join(map(str, tensor.shape)), f"{tensor.n_bytes:,}"]
            for tensor in file.tensors.values()
        ]
        yield from align_rows([["tensor", "type", "shape", "bytes"], *rows])
    if isinstance(template := file.metadata.get(_TEMPLATE), str):
        yield ""
        yield "chat template:"
        yield from (f"    {_printable(line)}" for line in template.split("\n"))


def by_type(file: ModelFile) -> dict[str, dict[str, int]]:
    """Count tensors, parameters and bytes by tensor type, most bytes first."""
    totals: dict[str, Counter[str]] = {}
    for tensor in file.tensors.values():
        of_type = totals.setdefault(tensor.type.name, Counter())
        of_type.update({"n_tensors": 1, "n_parameters": math.prod(tensor.shape), "n_bytes": tensor.n_bytes})
    return {name: dict(totals[name]) for name in sorted(totals, key=lambda name: -totals[name]["n_bytes"])}


def _totals(file: ModelFile) -> list[list[str]]:
    types = by_type(file)
    total = {key: sum(each[key] for each in types.values()) for key in ("n_tensors", "n_parameters", "n_bytes")}
    return [
        [name, f"{each['n_tensors']:,}", f"{each['n_parameters']:,}", size_text(each["n_bytes"])]
        for name, each in [*types.items(), ("all", total)]
    ]


def _as_json(file: ModelFile) -> dict[str, Any]:
    template = file.metadata.get(_TEMPLATE)
    return {
        "files": [str(path) for path in file.paths],
        "n_bytes": file.n_bytes,
        "metadata": {key: _plain(value) for key, value in file.metadata.items()},
        "n_parameters": sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
        "types": by_type(file),
        "tensors": [
            {"name": tensor.name, "type": tensor.type.name, "shape": list(tensor.shape), "n_bytes": tensor.n_bytes}
            for tensor in file.tensors.values()
        ],
        "chat_template": template if isinstance(template, str) else None,
    }


def _plain(value: object) -> Any:
    """A metadata value for JSON: long arrays as count and first items, NaN and infinities as text."""
    if (array := _array(value)) is not None:
        n, first = array
        items = [_plain(item) for item in first]
        return items if n == len(items) else {"n": n, "first": items}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _short(value: object) -> str:
    """A metadata value on one line."""
    if (array := _array(value)) is not None:
        n, first = array
        items = ", ".join(_short(item) for item in first)
        return f"[{items}]" if n == len(first) else f"[{items}, ...] ({n:,} items)"
    if isinstance(value, str):
        return repr(value) if len(value) <= _N_LETTERS else f"{value[:_N_LETTERS]!r}... ({len(value):,} characters)"
    return str(value)


def _array(value: object) -> tuple[int, list[Any]] | None:
    """The length and the first items of an array, None for anything else."""
    import numpy as np

    if isinstance(value, np.ndarray):
        return value.size, value[:_N_SHOWN].tolist()
    return (len(value), value[:_N_SHOWN]) if isinstance(value, list) else None


def _printable(text: str) -> str:
    """Text with control characters escaped, which a terminal would obey."""
    return "".join(letter if letter.isprintable() or letter == "\t" else ascii(letter)[1:-1] for letter in text)


def size_text(n_bytes: int) -> str:
    """A number of bytes in the unit that suits it."""
    size, unit = float(n_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{n_bytes} bytes"
