"""Finds the command, runs it, and turns what goes wrong into one line and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib import metadata
from typing import TYPE_CHECKING

from augury.cli import bench, chat, completion, inspect, new_drafter, plugins, pull, run, tune
from augury.cli.parser import Parser
from augury.errors import AuguryError
from augury.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main", "make_parser"]

_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def make_parser(registry: Registry, argv: Sequence[str] = ()) -> Parser:
    """The parser of all commands; its help shows the flags of the drafters that `argv` asks for."""
    parser = Parser(
        prog="augury",
        description="Speculative decoding for GGUF models: faster, and identical to the bit.",
        epilog="To begin: augury run -p 'The sea is' downloads a small model and continues a text with it. "
        "augury COMMAND --help tells of each command.",
    )
    parser.add_argument("--version", action="version", version=f"augury {metadata.version('augury')}")
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for command in (run, chat, bench, tune):
        command.add_parser(subparsers, registry, argv)
    plugins.add_parser(subparsers, registry)
    pull.add_parser(subparsers, registry)
    inspect.add_parser(subparsers, registry)
    new_drafter.add_parser(subparsers, registry)
    completion.add_parser(subparsers, parser)
    registry.add_commands(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The words behind `augury`; None for those of the process.

    Returns:
        The exit code: 0 success, 1 failure, 2 usage, 130 interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _leave_pipe()
        return 0
    except OSError as error:  # such as a disk that is full; files that are read have errors of their own
        _leave_pipe()
        sys.stderr.write(f"augury: {error}\n")
        return AuguryError.exit_code
    except MemoryError as error:
        sys.stderr.write(f"augury: memory does not suffice: {error}; ask for less context, fewer slots or shorter passes\n")
        return AuguryError.exit_code
    except AuguryError as error:
        sys.stderr.write(f"augury: {' '.join(str(error).split())}\n")
        return error.exit_code
    return code


def _run(words: list[str]) -> int:
    args = make_parser(Registry.discover(), words).parse_args(words)
    return int(args.run(args))


def _leave_pipe() -> None:
    """Nobody takes the output any more, as where `head` has left: nothing is to be said when Python flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
