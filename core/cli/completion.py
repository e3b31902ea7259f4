"""`augury completion`: prints a script that lets a shell complete commands and flags."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def add_parser(subparsers: Any, root: argparse.ArgumentParser) -> None:
    """Add the command, which completes for `root`."""
    parser = subparsers.add_parser(
        "completion",
        help="print a script that lets a shell complete commands and flags",
        description='Print a completion script: eval "$(augury completion bash)".',
    )
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    parser.set_defaults(run=_run, root=root)


def _run(args: argparse.Namespace) -> int:
    import shtab

    sys.stdout.write(shtab.complete(args.root, shell=args.shell) + "\n")
    return 0
