"""How to install what augury can do without: an extra comes from where augury itself came from, which may be no index."""

from __future__ import annotations

import json
from importlib import metadata
from urllib.parse import urlsplit
from urllib.request import url2pathname


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
