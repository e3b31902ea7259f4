"""The libraries that a server needs, which augury itself does without."""

from __future__ import annotations

from importlib.util import find_spec

from augury.errors import UnsupportedError
from augury.extras import install_command

_LIBRARIES = ("fastapi", "uvicorn", "prometheus_client")


def check_libraries(what: str) -> None:
    """Raises UnsupportedError where one is not installed; `what` begins the message, as in "the server needs"."""
    if missing := [name for name in _LIBRARIES if find_spec(name) is None]:
        advice = f"install the extra: {install_command('server')}"
        raise UnsupportedError(f"{what} {' and '.join(missing)}, not installed here; {advice}")
