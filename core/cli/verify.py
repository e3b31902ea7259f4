"""`augury verify`: computes the texts of receipts once more, and says whether they are the same."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import attrs

from augury.cli.log_output import configure_logging
from augury.cli.parser import count
from augury.cli.progress import ProgressDisplay
from augury.cli.report import print_json, print_lines
from augury.cli.text_file import numbered_lines, read_text
from augury.devices import Placement
from augury.engine.receipts import SETTINGS, drafting_to_verify
from augury.errors import AuguryError
from augury.receipt import Receipt
from augury.registry import Registry

if TYPE_CHECKING:
    from augury.engine.engine import Engine


def add_parser(subparsers: Any, registry: Registry, _: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "verify",
        description="Check the receipts of texts: compute these once more, in large passes, and say if they are equal. "
        "Backend and settings are those of the receipt, which augury run --receipt writes.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a receipt in each line")
    parser.flag("-m --model MODEL", "the model's file (default: by the name in the receipt)")
    parser.flag("-t --threads N", "threads (default: one per physical core)", count(least=1))
    parser.flag("--json", "print a JSON object for each receipt")
    parser.set_defaults(run=_run, registry=registry)


def _run(args: argparse.Namespace) -> int:
    configure_logging(verbosity=0)
    receipts = _receipts_in(args.file)
    n_equal, loaded = 0, tuple[Any, ...]()
    with ExitStack() as stack:
        for number, receipt in receipts.items():
            if (needed := (receipt.model, receipt.made_with, receipt.settings)) != loaded:
                stack.close()
                loaded = needed
                engine = stack.enter_context(_load(receipt, args))
            start = perf_counter()
            found = engine.verify(receipt)
            seconds = perf_counter() - start
            n_equal += found.is_equal
            if args.json:
                print_json({"line": number, **attrs.asdict(found), "seconds": seconds})
            else:
                told = "equal" if found.is_equal else f"not equal: {found.reason}"
                extent = f"{found.n_equal} of {len(receipt.tokens)} tokens, {seconds:.2f} s"
                print_lines([f"{args.file}:{number}: {told} ({extent})"])
    return 0 if n_equal == len(receipts) else AuguryError.exit_code


def _receipts_in(path: Path) -> dict[int, Receipt]:
    found = dict[int, Receipt]()
    for number, line in numbered_lines(read_text(path)):
        try:
            found[number] = Receipt.from_json(json.loads(line))
        except (ValueError, RecursionError):
            raise AuguryError(f"{path}:{number}: not JSON, expected a receipt in each line") from None
        except AuguryError as error:
            raise AuguryError(f"{path}:{number}: {error}") from None
    if not found:
        raise AuguryError(f"{path}: empty, expected a receipt in each line, as augury run --receipt writes them")
    return found


def _load(receipt: Receipt, args: argparse.Namespace) -> Engine:
    from augury.engine.engine import Engine

    settings = {name: value for name, value in receipt.settings.items() if name in SETTINGS}  # `verify` names others
    try:
        settings["placement"] = Placement(**settings.get("placement", {}))
    except TypeError:
        raise AuguryError(f"placement of this receipt is {settings['placement']!r:.60}, expected devices and shares") from None
    with ProgressDisplay() as progress:
        return Engine.load(
            args.model or receipt.model.get("name", ""),
            backend=receipt.made_with.get("backend", "auto"),
            threads=args.threads,
            registry=args.registry,
            progress=progress,
            **drafting_to_verify(args.registry),
            **settings,
        )
