"""Measuring speed: drafters against plain decoding, passes, another program in turns with augury, and starts.

Drafters: `paired_runs` and their `pair_stats`, shown as a table and by `page`; `commands.tune` chooses among them. Passes:
`timing` of a model or a `server_runner`, alone or in turns. All of them: `workload` and `machine`. The commands are in
`commands`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from augury import Registry
from augury.hookspecs import hookimpl


@hookimpl
def augury_commands(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add both commands."""
    # here: a library's user waits for no command line
    from augury.plugins.bench.commands import drafters, passes, roofline, servers, tune

    parser = subparsers.add_parser(
        "bench",
        help="measure drafters, passes, servers and starts",
        description="Measure drafters against plain decoding, or this engine against others, in turns.",
        epilog="To begin: augury bench drafters -f FILE compares drafting with plain decoding on your text.",
    )
    measured = parser.add_subparsers(metavar="drafters|passes|servers|startup|roofline", dest="measured", required=True)
    if not argv or argv[0] in ("bench", "completion"):  # their flags take a fifth of the time in which others start
        drafters.add_parser(measured, registry, argv)
        passes.add_parser(measured, registry, argv)
        servers.add_parser(measured, registry, argv)
        servers.add_startup_parser(measured, registry, argv)
        roofline.add_parser(measured, registry, argv)
    tune.add_parser(subparsers, registry, argv)
