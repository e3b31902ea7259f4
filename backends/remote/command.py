"""`augury node`: computes layers of models, or draft models, for engines on other machines."""

from __future__ import annotations

import argparse
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from augury.backends.remote.connection import KEY_FILE, secret_key
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
    parser.flag("--listen HOST:PORT", "where (default: %(default)s)", default="127.0.0.1:7070")
    parser.flag("--backend NAME", "what computes: see augury plugins (default: auto)", default="auto")
    parser.flag("-t --threads N", "threads (default: one per physical core)", count(least=1))
    parser.flag(
        "--key FILE",
        f"a file with the key that engines must have, made where there is none; they name their copy in {KEY_FILE} "
        "(default: everyone who reaches the address may connect)",
        Path,
    )
    parser.flag(
        "--delay-ms N",
        "answer so many milliseconds later, to try how a longer way would do (default: %(default)s)",
        count(least=0),
        default=0,
    )
    parser.flag("-v --verbose", "say more about what is done", action="count", default=0)
    parser.set_defaults(run=_run, registry=registry)


def _run(args: argparse.Namespace) -> int:
    from augury.backends.remote.node import Node

    configure_logging(verbosity=args.verbose)
    key = None if args.key is None else secret_key(args.key, may_make=True)
    how = {"backend": args.backend, "threads": args.threads, "delay_s": args.delay_ms / 1000, "key": key}
    node = Node(args.listen, registry=args.registry, **how)
    host = node.address.rpartition(":")[0].strip("[]")
    if key is None and not ip_address(host).is_loopback:
        say(f"everyone who reaches {node.address} may use this machine; --key FILE lets only those who have the key")
    say(f"listening on {node.address}; engines name it as --device CPU,node:{node.address},CPU")
    node.run()
    return 0
