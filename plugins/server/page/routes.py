"""The page at `/`: static files, with a policy that lets a browser run nothing else and talk to this server alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

_FOLDER = Path(__file__).resolve().parent / "static"  # in an editable installation this file is a link
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",  # with the next: no script may turn a text into HTML
    "trusted-types": "'none'",
}
_HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for again each time, and answered by 304 unless augury is another version
}


class _PageFiles(StaticFiles):
    """Files with the page's headers."""

    def file_response(self, full_path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(full_path, *args, **kwargs)
        response.headers.update(_HEADERS)
        return response


def add_page(app: FastAPI) -> None:
    """Serve the page at `/` and its files at `/static`. They need no API key: they hold nothing of the model or its users."""

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(_FOLDER / "index.html", headers=_HEADERS)

    app.mount("/static", _PageFiles(directory=_FOLDER))
