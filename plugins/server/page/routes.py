"""The page at `/`, and `/docs`, with a policy that lets a browser run no other scripts and talk to this server alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.responses import FileResponse, HTMLResponse, Response
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


def add_docs(app: FastAPI) -> None:
    """Serve the list of paths and fields at `/docs`: FastAPI's own pages load their scripts from elsewhere."""

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse("\n".join(_listed(app.openapi())), headers=_HEADERS)


def _listed(found: Mapping[str, Any]) -> Iterator[str]:
    """OpenAPI's description of the server, as HTML."""
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{found["info"]["title"]}</title>'
    yield f"<h1>{found['info']['title']} {found['info']['version']}</h1>"
    yield '<p>The same for programs: <a href="openapi.json">openapi.json</a></p>'
    for path, methods in found["paths"].items():
        for method, each in methods.items():
            yield f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(each.get('description', ''))}</p>"
            schema = each.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            form = found["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2], {})
            yield from _fields(form)


def _fields(form: Mapping[str, Any]) -> Iterator[str]:
    """The fields of a form, as a list that is folded."""
    if fields := form.get("properties"):
        yield "<details><summary>Fields</summary><dl>"
        for name, field in fields.items():
            kinds = [each.get("$ref", "").rpartition("/")[2] or each.get("type", "any") for each in field.get("anyOf", [field])]
            told = " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))
            needed = ", required" if name in form.get("required", ()) else ""
            yield f"<dt><code>{escape(name)}</code>: {told}{needed}</dt><dd>{escape(field.get('description', ''))}</dd>"
        yield "</dl></details>"
