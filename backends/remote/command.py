"""`augury node`: computes layers of models, or draft models, for engines on other machines."""

from __future__ import annotations

import argparse
from typing import Any

from augury.cli import configure_logging, count, say
from augury.registry import Registry


def add_parser(subparsers: Any, registry: Registry) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "node",
        help="compute layers of models for other machines",
        description="Compute layers of models, or draft models, for engines on other machines, which name this one in --device "
        "or -devd as node:HOST:PORT. Both have a copy of the model and the same version of augury.",
    )
    parser.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:7070", help="where (default: %(default)s)")
    parser.add_argument("--backend", default="auto", metavar="NAME", help="what computes: see augury plugins (default: auto)")
    parser.add_argument("-t", "--threads", type=count(least=1), metavar="N", help="threads (default: one per physical core)")
    parser.add_argument(
        "--delay-ms",
        type=count(least=0),
        default=0,
        metavar="N",
        help="answer so many milliseconds later, to try how a longer way would do (default: %(default)s)",
    )
    parser.add_argument("-v", "--verbose", action="count", default=0, help="say more about what is done")
    parser.set_defaults(run=_run, registry=registry)


def _run(args: argparse.Namespace) -> int:
    from augury.backends.remote.node import Node

    configure_logging(verbosity=args.verbose)
    how = {"backend": args.backend, "threads": args.threads, "delay_s": args.delay_ms / 1000}
    node = Node(args.listen, registry=args.registry, **how)
    say(f"listening on {node.address}; engines name it as --device CPU,node:{node.address},CPU")
    node.run()
    return 0
