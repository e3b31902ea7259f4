"""`augury perplexity`: how well a model predicts a text."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import attrs

from augury.cli.model_flags import add_model_flags, load_engine
from augury.cli.parser import count
from augury.cli.progress import ProgressDisplay
from augury.cli.report import check_page, print_json, print_lines, say, write_page
from augury.cli.text_file import read_text
from augury.engine.perplexity import WINDOW, Perplexity
from augury.notebook import table
from augury.registry import Registry


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "perplexity",
        help="measure how well a model predicts a text",
        description="Measure how well a model predicts a text. Windows are those of llama-perplexity, so that figures compare: "
        "in the second half of each, every token is predicted after all before it.",
    )
    parser.flag("-f --file FILE", "the text, in UTF-8", Path, required=True)
    parser.flag("--chunks N", "take the first N windows (default: all)", count(least=1))
    parser.flag("--json", "print a JSON object")
    parser.flag("--html FILE", "write a page with the perplexity after each window", Path)
    add_model_flags(parser, registry, argv, n_slots=1, has_drafters=False)
    parser.set_defaults(ctx_size=WINDOW, run=_run)
    parser.show_first("-f --chunks --json --html -m -c -t -ngl", words=("model",))


def _run(args: argparse.Namespace) -> int:
    text, after = read_text(args.file), list[tuple[int, Perplexity]]()
    if args.html is not None:
        check_page(args.html)

    def tell(done: int, n: int, so_far: Perplexity) -> None:
        progress("windows", done, n)
        after.append((done, so_far))

    with load_engine(args, (), None) as engine, ProgressDisplay() as progress:
        start, window = perf_counter(), engine.config["n_ctx"]
        found = engine.perplexity(text, window=window, n_windows=args.chunks, progress=tell)
        seconds, n_read = perf_counter() - start, found.n_windows * window
        name = engine.config["model"]
    if args.json:
        error = found.error if math.isfinite(found.error) else None  # of a single token, which has none
        print_json({"model": name, "window": window, **attrs.asdict(found), "error": error, "seconds": seconds})
    else:
        print_lines([f"perplexity {_value(found)}"])
        say(_line(found, window, n_read / seconds))
    if args.html is not None:
        facts = [("perplexity", _value(found)), ("text", args.file), ("", _line(found, window, n_read / seconds))]
        so_far = table("after each window", ("windows", "perplexity"), [(n, _value(each)) for n, each in after])
        write_page(args.html, f"perplexity: {name}", table("", (), facts), so_far)
    return 0


def _value(found: Perplexity) -> str:
    return f"{found.value:.4f} ± {found.error:.4f}"


def _line(found: Perplexity, window: int, speed: float) -> str:
    windows = "1 window" if found.n_windows == 1 else f"{found.n_windows} windows"
    return f"{windows} of {window} tokens, {found.n_tokens} tokens predicted | {speed:.1f} tok/s"
