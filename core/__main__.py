"""The process of `augury` and of `python -m augury`: its signals and closed streams.

Importing the command line takes longer than some commands run, so signals are taken care of before anything else is imported.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # typing's own would be imported for this alone
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from augury.errors import CapacityError

_START_BYTES = 192 << 20  # measured: 102 MiB for the imports of all commands


def main() -> int:
    """Run the command that this process was started for; see `augury.cli.command_line.main`."""
    _open_streams()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # texts are encoded one by one, which has no use for threads
    if (lack := _lack_of_address_space()) is not None:
        sys.stderr.write(f"augury: {lack}\n")
        return lack.exit_code
    from augury.cli.command_line import main as run

    _on_signals(_unwind)
    try:
        return run()
    finally:
        _on_signals(_leave)


def _lack_of_address_space() -> CapacityError | None:
    """The message for a `ulimit -v` under which no command can run; numpy's libraries would crash."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return None

    from augury.errors import CapacityError
    from augury.memory_limit import require_address_space

    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each reserves some 40 MiB, one for each core
    try:
        require_address_space(_START_BYTES, "augury")
    except CapacityError as error:
        return error
    return None


def _leave(number: int, _frame: FrameType | None) -> None:
    """End at once: before a command begins and after it has ended nothing is held."""
    os._exit(128 + number)


def _unwind(number: int, _frame: FrameType | None) -> None:
    """End by an exception, so that resources are released on the way."""
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def _on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGINT)):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as after `nohup`
            signal.signal(number, handler)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Leave without a traceback where Ctrl-C struck between two lines that would have caught it."""
    if issubclass(kind, KeyboardInterrupt):
        os._exit(128 + signal.SIGINT)
    sys.__excepthook__(kind, error, trace)


def _unraisable(raised: sys.UnraisableHookArgs) -> None:
    """Leave where a signal struck in a finalizer or a callback, out of which Python lets no exception go."""
    if isinstance(raised.exc_value, KeyboardInterrupt):
        os._exit(128 + signal.SIGINT)
    if isinstance(raised.exc_value, SystemExit):
        os._exit(int(raised.exc_value.code or 0))
    sys.__unraisablehook__(raised)


def _open_streams() -> None:
    """Replace standard streams that are closed, whose numbers the next file would get, and settle encodings.

    Input is UTF-8, as files are, on any terminal; output replaces characters that the terminal lacks.
    """
    # in the order of their numbers, as a file that is opened gets the lowest that is free
    if sys.stdin is None:
        sys.stdin = open(os.open(os.devnull, os.O_RDONLY), encoding="utf-8")  # noqa: PTH123, SIM115
    if sys.stdout is None:  # opened for reading, so that writing to it fails as it does for other programs
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if sys.stderr is None:
        sys.stderr = open(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")  # noqa: PTH123, SIM115
    sys.stdin.reconfigure(encoding="utf-8", errors="strict")  # type: ignore[union-attr]
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]


_on_signals(_leave)
sys.excepthook, sys.unraisablehook = _uncaught, _unraisable

if __name__ == "__main__":
    raise SystemExit(main())
