"""`augury bench`: compares drafters, or times passes, another program or starts, each in a module beside this one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from augury import Registry
from augury.cli import (
    FIRST_FLAGS,
    add_model_flags,
    add_prompt_flags,
    add_sampling_flags,
    check_writable,
    count,
    counts,
    warn_of_synthetic,
)
from augury.errors import OptionError
from augury.plugins.bench.commands.drafters import TURNS, run_drafters
from augury.plugins.bench.commands.passes import add_pass_flags, are_passes_wanted, pairs_of, run_passes
from augury.plugins.bench.commands.prompts import run_prompts
from augury.plugins.bench.commands.roofline import run_roofline
from augury.plugins.bench.commands.servers import CLIENTS, run_servers
from augury.plugins.bench.commands.startup import run_startup
from augury.plugins.bench.page import is_page
from augury.plugins.bench.workload import DEFAULT, add_workload_flag


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "bench",
        help="time the model, and compare drafters with plain decoding",
        description="Compare drafters with plain decoding, in turns, or time passes or starts. Without prompts it takes a "
        "small workload of its own; unless told otherwise it decodes greedily, 128 tokens.",
    )
    add_prompt_flags(parser, DEFAULT)
    add_model_flags(parser, registry, argv, n_slots=None)
    add_sampling_flags(parser, registry, has_short_stop=False)
    group = parser.add_argument_group("drafters compared")
    add_workload_flag(group)
    group.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="NAME[:K=V,...]",
        help="another drafter to compare, beside that of --spec-type (default: auto); repeats",
    )
    group.add_argument(
        *("-r", "--turns", "--repetitions"),
        type=count(least=1),
        metavar="N",
        help=f"runs of each prompt with and without each drafter (default: {TURNS}); or of each pass (default: 5 at least)",
    )
    group.add_argument("--warm", action="store_true", help="measure drafters also when they have seen the prompt before")
    group.add_argument("--html", type=Path, metavar="FILE", help="write a page that shows speeds, drafts and texts")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--compare", type=Path, metavar="OLD.json", help="show what changed since --json, or pytest-benchmark, saved this file"
    )
    parser.add_argument(
        "--startup",
        action="store_true",
        help=f"time a cold and --turns (default: {TURNS}) warm starts to the first token instead",
    )
    parser.add_argument(
        "--roofline", action="store_true", help="show the time of each kernel of a pass (--curve), against the machine's limits"
    )
    group = parser.add_argument_group("servers")
    group.add_argument(
        "--vs-server",
        metavar="URL",
        help="take turns with the server at this address, which has llama.cpp's /completion, under the load of several clients",
    )
    group.add_argument(
        "--clients",
        type=counts(least=1),
        metavar="N,N",
        help=f"how many clients ask at once (default: {','.join(map(str, CLIENTS))})",
    )
    add_pass_flags(parser)
    parser.show_first(f"-p -f {FIRST_FLAGS} -n --temp --against --turns --json --html --curve --vs", words=("model",))
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    is_about_passes = are_passes_wanted(args)
    pairs_of(args)  # which reports their errors
    if args.startup and (is_about_passes or args.vs or args.against or args.workload):
        raise OptionError("--startup times starts alone; measure passes, drafters and other programs with separate commands")
    if args.startup and args.compare is not None:
        raise OptionError("--compare compares drafters or passes; leave out --startup")
    if args.html is not None and (args.startup or is_about_passes or args.vs):
        raise OptionError("--html shows drafters; leave out what times passes, starts or another program")
    if args.html is not None:
        _check_page(args.html)
    if args.roofline and (args.startup or args.vs or args.html or args.compare or args.prompt or args.n_predict != -1):
        raise OptionError("--roofline profiles passes alone; give it --curve and -d, and measure the rest with another command")
    if args.vs_server and (args.startup or is_about_passes or args.vs or args.html):
        raise OptionError("--vs-server times answers of two servers alone; measure the rest with another command")
    if args.clients and not args.vs_server:
        raise OptionError("--clients is for --vs-server; leave it out")
    if args.roofline:
        return run_roofline(args)
    if args.startup:
        return run_startup(args)
    if is_about_passes:
        return run_passes(args)
    if args.n_predict == 0:
        raise OptionError("-n is 0, but prompts are answered here; -p 512 -n 0 times the processing of 512 tokens alone")
    warn_of_synthetic(args)
    if args.vs_server:
        return run_servers(args)
    return run_prompts(args) if args.vs else run_drafters(args)


def _check_page(path: Path) -> None:
    """See that the page takes the place of no other file, but perhaps of an earlier page."""
    check_writable(path, "--html")
    if path.exists() and path.stat().st_size and not is_page(path):
        raise OptionError(f"--html: {path} exists and is no page of augury bench; it is left as it is, name another file")
