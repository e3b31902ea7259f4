"""A Ray cluster: joined, or started here."""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import threading
from collections.abc import Mapping
from typing import Any

from augury import Registry
from augury.errors import AuguryError
from augury.extras import require_libraries

LOCAL = "local"
_ENVIRONMENT = {  # of Ray, where the user says nothing else
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # which hides GPUs from actors that ask for none
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",  # each token would go through a thread more
}
_QUIET = {  # likewise, of a cluster that is started here: figures that nobody reads, and looks at what seldom changes
    "RAY_enable_metrics_collection": "0",
    "RAY_event_stats": "0",
    "RAY_gcs_pull_resource_loads_period_milliseconds": "5000",
    "RAY_io_context_monitor_probe_interval_ms": "10000",
    "RAY_raylet_report_resources_period_milliseconds": "1000",
    "RAY_task_events_report_interval_ms": "0",  # never
    "RAY_worker_niceness": "0",  # replicas are what computes here, as in a server without them; Ray's own is 15
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "1",  # until a replica that has died is started again
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "5000",
}
_OBJECT_BYTES = 80 << 20  # of the memory for objects, of which prompts and tokens need next to nothing: Ray's least
_ACTION_BYTES = 1024  # more than any system's struct sigaction


def check_ray(what: str) -> None:
    """Raises UnsupportedError where Ray is not installed; `what` begins the message, as in "--ray needs"."""
    require_libraries(what, "ray", "ray")
    _set(_ENVIRONMENT)


def join(address: str) -> None:
    """Join a cluster until this process ends, `local` for one that is started here and ends with it.

    Raises:
        AuguryError: There is none.
    """
    import ray

    if ray.is_initialized():
        return
    started: dict[str, Any] = {}
    if address == LOCAL:
        started = {"include_dashboard": False, "object_store_memory": _OBJECT_BYTES}
        _set(_QUIET)
    before = _SignalAction(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **started)
    except (ConnectionError, RuntimeError, ValueError) as error:
        message = str(error).split("\n", 1)[0]
        raise AuguryError(
            f"no Ray cluster at {address}: {message}; start one with ray start, or name one by --ray or RAY_ADDRESS"
        ) from None
    finally:
        before.restore()


class _SignalAction:
    """What a signal does, which Ray takes for the whole process when it is joined; Python sets it on its main thread alone."""

    def __init__(self, number: int) -> None:
        self._number, self._handler = number, signal.getsignal(number)
        self._libc, self._action = ctypes.CDLL(None), ctypes.create_string_buffer(_ACTION_BYTES)
        self._libc.sigaction(number, None, self._action)

    def restore(self) -> None:
        """Have it do the same again."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(self._number, self._handler)
        self._libc.sigaction(self._number, self._action, None)


def _set(environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        os.environ.setdefault(name, value)


def sent(args: argparse.Namespace) -> dict[str, Any]:
    """The parsed flags of a command, for another process."""
    return {name: value for name, value in vars(args).items() if name not in ("registry", "run")}


def received(args: dict[str, Any]) -> argparse.Namespace:
    """The same flags there, with the plugins of that process."""
    return argparse.Namespace(**args, registry=Registry.discover())
