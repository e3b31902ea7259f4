"""How to install what augury can do without: an extra comes from where augury itself came from, which may be no index."""

from __future__ import annotations

import json
from importlib import metadata
from importlib.util import find_spec
from urllib.parse import urlsplit
from urllib.request import url2pathname

from augury.errors import UnsupportedError


def install_command(extra: str) -> str:
    """The command that installs an extra. Source: PEP 610, "Recording the Direct URL Origin of installed distributions"."""
    try:
        origin = json.loads(metadata.distribution("augury").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    if (url := origin.get("url")) is None:
        return f"pip install 'augury[{extra}]'"
    if origin.get("dir_info", {}).get("editable"):
        return f"pip install -e '{url2pathname(urlsplit(url).path)}[{extra}]'"
    version_control = origin.get("vcs_info", {}).get("vcs")
    return f"pip install 'augury[{extra}] @ {f'{version_control}+' if version_control else ''}{url}'"


def require_libraries(what: str, extra: str, *modules: str) -> None:
    """Raise an UnsupportedError if some libraries of an extra are missing; `what` begins it, as in "the server needs"."""
    if missing := [name for name in modules if find_spec(name) is None]:
        advice = f"install the extra: {install_command(extra)}"
        raise UnsupportedError(f"{what} {' and '.join(missing)}, not installed here; {advice}")
