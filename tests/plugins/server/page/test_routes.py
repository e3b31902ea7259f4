"""What the page's files are sent with."""

import asyncio
import re
from functools import cache
from pathlib import Path

import httpx
import pytest

from augury.plugins.server.app import make_app
from augury.plugins.server.models import Models
from augury.plugins.server.page import routes
from augury.plugins.server.server import Server, ServerOptions

STATIC = Path(routes.__file__).resolve().parent / "static"
FILES = sorted(path.name for path in STATIC.iterdir())


@cache  # FastAPI takes longer to look through the routes of an app than the app takes to answer a test
def app_of(**options):
    return make_app(Models([Server(ServerOptions(**options), lambda _: None)]))


def get(*paths, **options):
    async def ask():
        app = httpx.ASGITransport(app_of(**{"api_keys": ("key",), **options}))
        async with httpx.AsyncClient(transport=app, base_url="http://server") as client:
            return [await client.get(path) for path in paths]

    return asyncio.run(ask())


@pytest.mark.parametrize("has_page", [True, False])
def test_the_docs_list_every_path_and_its_fields_without_a_script(has_page):
    docs, found = get("/docs", "/openapi.json", has_page=has_page, api_keys=())
    assert docs.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "<script" not in docs.text
    for path, methods in found.json()["paths"].items():
        for method in methods:
            assert f"<h2>{method.upper()} {path}</h2>" in docs.text
    assert "<dt><code>messages</code>: array, required</dt>" in docs.text
    assert "<dt><code>min_p</code>: number</dt>" in docs.text


@pytest.mark.parametrize("path", ["/", *(f"/static/{name}" for name in FILES)])
def test_the_page_needs_no_key_and_no_model_and_may_load_nothing_else(path):
    (answer,) = get(path)
    assert answer.status_code == 200
    policy = dict(each.split(" ", 1) for each in answer.headers["Content-Security-Policy"].split("; "))
    forbidden = ("default-src", "base-uri", "form-action", "frame-ancestors")
    assert {policy[name] for name in forbidden} == {"'none'"}
    assert {policy[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert policy["require-trusted-types-for"] == "'script'"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_nothing_but_the_pages_files_is_sent():
    paths = ["/static/", "/static/missing.js", "/static/%2e%2e/routes.py", "/static/..%2froutes.py"]
    assert [answer.status_code for answer in get(*paths)] == [404] * len(paths)


def test_without_a_page_there_is_none():
    assert [answer.status_code for answer in get("/", "/static/app.js", has_page=False)] == [404, 404]


def test_the_page_names_only_files_that_it_has():
    for path in STATIC.iterdir():
        named = re.findall(r'(?:"/static/|from "\./)([\w.]+)"', path.read_text())
        assert set(named) <= set(FILES), path.name
