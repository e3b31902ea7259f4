"""Times starts: from a new process to the first token that it writes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from time import perf_counter
from typing import TYPE_CHECKING

from attrs import frozen

from augury.errors import AuguryError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Startup", "measure_startup"]


@frozen
class Startup:
    """Seconds to the first token."""

    cold_s: float  # with nothing compiled
    warm_s: tuple[float, ...]  # of each later start


def measure_startup(words: Sequence[str], n_warm: int) -> Startup:
    """Start `augury` with `words` once with an empty cache folder, and `n_warm` times with what that start left there.

    The model's file is in the system's file cache in the later starts, and whether it is in the first is not touched.

    Raises:
        AuguryError: A process failed.
    """
    with tempfile.TemporaryDirectory(prefix="augury-startup-") as folder:
        env = os.environ | {"XDG_CACHE_HOME": folder}
        cold_s, *warm_s = (_first_output_s(words, env) for _ in range(1 + n_warm))
    return Startup(cold_s, tuple(warm_s))


def _first_output_s(words: Sequence[str], env: Mapping[str, str]) -> float:
    # -P: a folder named augury where the user stands is not what is timed
    command = [sys.executable, "-P", "-m", "augury", *words]
    with tempfile.TemporaryFile() as log:
        start = perf_counter()
        with subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log) as process:  # noqa: S603
            assert process.stdout is not None
            has_output = bool(process.stdout.read(1))
            seconds = perf_counter() - start
            process.stdout.read()
        if process.returncode or not has_output:
            log.seek(0)
            last = log.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise AuguryError(f"a start ended with code {process.returncode} before its first token: {last}")
    return seconds
