"""A Ray cluster: joined, or started here."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from augury import Registry
from augury.errors import AuguryError, UnsupportedError

LOCAL = "local"
_OBJECT_BYTES = 80 << 20  # of the memory for objects, of which prompts and tokens need next to nothing: Ray's least


def check_ray(what: str) -> None:
    """Raises UnsupportedError where Ray is not installed; `what` begins the message, as in "--ray needs"."""
    if find_spec("ray") is None:
        raise UnsupportedError(f"{what} ray, not installed here; install the extra: pip install 'augury[ray]'")


@contextmanager
def cluster(address: str) -> Iterator[None]:
    """Join a cluster, `local` for one that is started here and ends with this, and leave it at the end.

    Raises:
        AuguryError: There is none.
    """
    check_ray("--ray needs")
    for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}.items():
        os.environ.setdefault(name, value)
    import ray

    started: dict[str, Any] = {"include_dashboard": False, "object_store_memory": _OBJECT_BYTES} if address == LOCAL else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **started)
    except (ConnectionError, RuntimeError, ValueError) as error:
        message = str(error).split("\n", 1)[0]
        raise AuguryError(f"no Ray cluster at {address}: {message}; start one with ray start, or give --ray local") from None
    try:
        yield
    finally:
        ray.shutdown()


def sent(args: argparse.Namespace) -> dict[str, Any]:
    """The parsed flags of a command, for another process."""
    return {name: value for name, value in vars(args).items() if name not in ("registry", "run")}


def received(args: dict[str, Any]) -> argparse.Namespace:
    """The same flags there, with the plugins of that process."""
    return argparse.Namespace(**args, registry=Registry.discover())
