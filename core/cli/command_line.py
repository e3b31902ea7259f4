"""Finds the command, runs it, and turns an error into one line and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from augury.cli import chat, evaluate, models, plugins, run, verify
from augury.cli.parser import Parser
from augury.errors import AuguryError, OptionError
from augury.log import LINE
from augury.memory_limit import lack_of_memory
from augury.registry import Registry

_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_READER_LEFT = 141  # 128 + SIGPIPE, likewise
_OF_WRITING = (errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC)  # named unless it is a standard stream's


def make_parser(registry: Registry, argv: Sequence[str] = ()) -> Parser:
    """The parser of all commands; its help shows the flags of the drafters that `argv` asks for."""
    parser = Parser(
        prog="augury",
        description="Speculative decoding for GGUF models: faster, and identical to the bit.",
        epilog="To begin: augury run -p 'The sea is' downloads a small model and continues a text with it. "
        "augury COMMAND --help describes a command.",
    )
    parser.add_argument("--version", action="version", version=f"augury {metadata.version('augury')}")
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    run.add_parser(subparsers, registry, argv)
    chat.add_parser(subparsers, registry, argv)
    evaluate.add_parsers(subparsers, registry, argv)
    verify.add_parser(subparsers, registry, argv)
    plugins.add_parser(subparsers, registry)
    models.add_parsers(subparsers, registry)
    told = 'Print a script that lets a shell complete commands and flags: eval "$(augury completion bash)".'
    completion = subparsers.add_parser("completion", description=told)
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    completion.set_defaults(run=_complete, root=parser)
    registry.add_commands(subparsers, argv)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command of `argv`, the words after `augury`, or of the process; returns the exit code, see docs/guide.md."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return _run(words)
        except Exception as error:
            if (lack := lack_of_memory(error)) is not None:
                raise lack from error
            raise
        finally:
            sys.stdout.flush()  # here, where it can still be said that this fails
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return _READER_LEFT
    except OSError as error:  # such as a disk that is full; files that are read have errors of their own
        _discard_output()
        place = error.filename or ("standard output" if error.errno in _OF_WRITING else None)
        return _fail(f"{place}: {error.strerror}" if place else str(error))
    except AuguryError as error:
        return _fail(" ".join(str(error).split()), error.exit_code)


def _run(words: list[str]) -> int:
    if logging.lastResort is not None:  # of plugins that cannot be used, before a command's flags set the logging
        logging.lastResort.setFormatter(logging.Formatter(LINE))
    parser = make_parser(Registry.discover(), words)
    if not words:
        parser.print_help(sys.stderr)
        return OptionError.exit_code
    args = parser.parse_args(words)
    return int(args.run(args))


def _complete(args: argparse.Namespace) -> int:
    import shtab

    sys.stdout.write(shtab.complete(args.root, shell=args.shell) + "\n")
    return 0


def _fail(message: str, code: int = AuguryError.exit_code) -> int:
    sys.stderr.write(f"augury: {message}\n")
    return code


def _discard_output() -> None:
    """Discard buffered output, so that Python does not complain when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
