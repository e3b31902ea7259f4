"""The app: routes, and the rules for all of them: keys, limits, origins, the form of errors."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib import metadata
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, get_origin
from urllib.parse import urlsplit

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from augury.errors import AuguryError
from augury.options import similar
from augury.plugins.server import anthropic, embeddings, resumable
from augury.plugins.server.downloads import Downloads
from augury.plugins.server.errors import RequestError, as_request_error, error_body
from augury.plugins.server.fields import Fields
from augury.plugins.server.foreign_fields import FOREIGN_NAMES, shown
from augury.plugins.server.llama_cpp import completion, status, tokenize
from augury.plugins.server.models import Models
from augury.plugins.server.ollama import chat as ollama_chat, models as ollama_models
from augury.plugins.server.openai import chat, completions, models, responses
from augury.plugins.server.page.routes import add_docs, add_page
from augury.plugins.server.server import ServerOptions, session
from augury.plugins.server.vertex import add_vertex

_ROUTERS = tuple(
    module.router
    for module in (
        *(anthropic, embeddings, resumable, models, chat, completions, responses, tokenize),
        *(completion, status, ollama_chat, ollama_models),
    )
)
_OPEN = ("/health", "/v1/health", "/")  # without a key, and while the model loads, like the files below /static/
_MAX_HEAD = 64 << 10  # bytes; h11 limits one that comes in parts
_ERROR: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
_ERRORS: dict[int | str, str] = {"4XX": "What is wrong with the request.", "5XX": "Why there is no answer."}
_EXPECTED = "Input should be "  # with which pydantic begins
_WORDS = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "a text",
    "a valid list": "a list",
    "None": "null",
    "False": "false",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
_OBJECT = re.compile(r"a valid dictionary( or (object to extract fields from|instance of \w+))?")
_MEDIA = re.compile("(input_)?(image|audio|video|file|document)(_url)?")  # types of parts of messages
_N_SHOWN = 100  # characters of a path
_LOCAL = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"


def make_app(models: Models) -> FastAPI:
    """The app of a server, which loads its first model when the app starts and closes all when that ends."""
    options = models.options

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        models.start()
        yield
        app.state.downloads.close()
        await models.close()

    app = FastAPI(
        title="augury",
        version=metadata.version("augury"),
        lifespan=lifespan,
        docs_url=None,  # see `add_docs`
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            **dict.fromkeys((AuguryError, HTTPException, Exception), _on_error),
            RequestValidationError: _on_invalid,
        },
        responses={status: {"description": text, "content": _ERROR} for status, text in _ERRORS.items()},
    )
    app.state.models, app.state.downloads, app.state.answers = models, Downloads(models), resumable.Answers()
    for each in _ROUTERS:
        app.include_router(each)
    add_docs(app)
    if options.has_page:
        add_page(app)
    else:
        app.add_api_route("/", _home, methods=["GET", "HEAD"], include_in_schema=False)  # by which Ollama's clients look for it
    if options.vertex is not None:
        add_vertex(app, options.vertex, [route for each in _ROUTERS for route in each.routes if isinstance(route, APIRoute)])
    app.add_middleware(resumable.Resumable, answers=app.state.answers)
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=options.max_body_bytes)
    app.add_middleware(_Gate, options=options)
    app.add_middleware(  # it also answers a preflight, which never has a key, where no page is welcome
        _Cors,
        allow_origins=[origin for origin in options.cors_origins if origin != "localhost"],
        allow_origin_regex=_LOCAL if "localhost" in options.cors_origins else None,
        allow_methods=["GET", "POST", "DELETE", "OPTIONS"],
        allow_headers=["*"],
    )
    return app


class _Cors(CORSMiddleware):
    """Answers preflights as llama.cpp's server does, in the names of headers, too, which some clients compare exactly."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to a preflight. Of an origin that is not named it allows nothing, and so browsers do not either."""
        answer = super().preflight_response(request_headers)
        if "access-control-allow-origin" not in answer.headers:
            answer = Response(headers={"Vary": "Origin"})
        answer.raw_headers = [(name.title(), value) for name, value in answer.raw_headers]
        return answer


async def _home(request: Request) -> PlainTextResponse:
    if request.method == "GET":
        raise RequestError(404, "there is no page here; the server was started without one")
    return PlainTextResponse("augury is running")


class _Gate:
    """Lets nobody in without a key where keys are asked for."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app = app
        self._options = options
        self._keys = [key.encode() for key in options.api_keys]
        self._open = {*_OPEN, None if options.vertex is None else options.vertex.health}
        self._hosts = {urlsplit(origin).hostname for origin in options.cors_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := self._refusal(Request(scope))) is not None:
            await _answer(error, scope["path"])(scope, receive, send)
            return
        session.set(Headers(scope=scope).get("x-session-id", "") if scope["type"] == "http" else "")
        await self._app(scope, self._patient(receive), send)

    def _patient(self, receive: Receive) -> Receive:
        """Receive a body as long as it comes on, and until it has taken too long."""
        is_whole, options, time = False, self._options, asyncio.get_running_loop().time
        deadline = time() + options.body_s

        async def patient() -> Message:
            nonlocal is_whole
            if is_whole:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), min(options.patience_s, max(deadline - time(), 0.0)))
            except TimeoutError:
                late = (
                    f"after {options.body_s:g} s"
                    if time() >= deadline
                    else f"and nothing has arrived for {options.patience_s:g} s"
                )
                raise RequestError(408, f"the body is not complete {late}") from None
            is_whole = not message.get("more_body", False)
            return message

        return patient

    def _refusal(self, request: Request) -> RequestError | None:
        path = request.url.path
        if (error := _head_refusal(request)) is not None:
            return error
        if path in self._open or path.startswith("/static/"):
            return None
        if (error := self._client_refusal(request)) is not None:
            return error
        limit, length = self._options.max_body_bytes, request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > limit:  # one that does not say it is counted as it comes
            return RequestError(413, f"the body has {length} bytes, this server takes {limit} (--max-body-size)")
        return None

    def _client_refusal(self, request: Request) -> RequestError | None:
        """Why a client without a key, or a web page, may not ask this."""
        if self._keys and not self._is_known(request):
            message = "the API key is missing or unknown; send it as Authorization: Bearer KEY, or as x-api-key: KEY"
            return RequestError(401, message, code="invalid_api_key")
        if not (self._keys or self._names_this_machine(request)):
            message = f"the request is for host {request.headers['host']!r}, which is not known as a name of this machine"
            more = "use localhost or an address, or start the server with an API key, or with --cors-origins http://HOST"
            return RequestError(403, f"{message}; {more}", code="host_not_allowed")
        if not self._is_welcome(request):
            message = "a web page of another origin asks for a change, and --cors-origins does not name that origin"
            return RequestError(403, message, code="origin_not_allowed")
        return None

    def _names_this_machine(self, request: Request) -> bool:
        """Whether a request over the loopback asks for this machine, and not for a page's name that was made to mean it."""
        own = _address((request.scope.get("server") or ("",))[0])
        if own is None or not own.is_loopback or "*" in self._options.cors_origins:
            return True
        try:
            name = (urlsplit(f"//{request.headers.get('host', '')}").hostname or "").rstrip(".")
        except ValueError:
            return False
        # of addresses, and of names without a dot or with these ends, no page can make other ones
        return (
            "." not in name or name.endswith((".localhost", ".internal")) or name in self._hosts or _address(name) is not None
        )

    def _is_welcome(self, request: Request) -> bool:
        """Whether a page that asks for more than to read is the server's own or named; none asks where nothing is told."""
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
        if request.method in ("GET", "HEAD", "OPTIONS") or (origin is None and site is None):
            return True
        known = self._options.cors_origins
        if "*" in known or origin in known or ("localhost" in known and re.fullmatch(_LOCAL, origin or "")):
            return True
        # a browser's statement about the site also holds if a proxy has another name than the server
        is_own = (origin or "").partition("://")[2] == request.headers.get("host")
        return is_own if site is None else site in ("same-origin", "none")

    def _is_known(self, request: Request) -> bool:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token.strip(" ") if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        # every key is compared whole, so that the time tells nothing
        return any([hmac.compare_digest(given.encode("latin-1"), key) for key in self._keys])  # noqa: C419


def _head_refusal(request: Request) -> RequestError | None:
    """Why the head of a request is read no further."""
    if (n_bytes := len(request.url.path) + sum(len(name) + len(value) for name, value in request.headers.raw)) > _MAX_HEAD:
        message = f"the head of the request has {n_bytes} bytes, expected {_MAX_HEAD} at most"
        return RequestError(431, message, closes=True)
    if "content-length" in request.headers and "transfer-encoding" in request.headers:
        # programs in between may take either for the body's end, and the rest for a request (RFC 9112, 6.1)
        message = "the request has both Content-Length and Transfer-Encoding, expected one of them"
        return RequestError(400, message, closes=True)
    if (coding := request.headers.get("content-encoding", "")).lower() not in ("", "identity"):
        return RequestError(415, f"the body is compressed (Content-Encoding: {shown(coding)}); send it as it is")
    return None


def _address(name: str) -> IPv4Address | IPv6Address | None:
    """The address that a name is; None of another name."""
    try:
        return ip_address(name)
    except ValueError:
        return None


def _answer(error: RequestError, path: str) -> JSONResponse:
    return JSONResponse(error_body(error, path), error.status_code, error.headers)


async def _on_error(request: Request, error: Any) -> Response:
    found, path = as_request_error(error), request.url.path
    if error.__class__ is HTTPException and found.status_code in (404, 405):  # of the router
        what = f"no path {path[:_N_SHOWN]!r}" if found.status_code == 404 else f"no {request.method} of {path[:_N_SHOWN]!r}"
        found = RequestError(found.status_code, f"there is {what}; /docs lists what there is")
    return _answer(found, path)


async def _on_invalid(request: Request, error: Any) -> Response:
    """Report the error of a body, by the name of its field.

    Of the several forms that a field may have, the one was meant that fails deepest, or by its contents rather than its type.
    """
    first, *others = sorted(error.errors(), key=lambda each: (-len(each["loc"]), each["type"].endswith("_type")))
    param = _param(first, error.body)
    form: Any = field.field_info.annotation if (field := request.scope["route"].body_field) else None
    if first["type"] == "extra_forbidden":
        is_top = len(first["loc"]) == 2 and isinstance(form, type) and issubclass(form, Fields)
        meant = _meant(param, form) if is_top else None
        message = f"there is no field {param!r} here; {'leave it out' if meant is None else f'did you mean {meant}?'}"
    elif first["type"] == "json_invalid":
        param, message = "", f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}"
    elif first["type"] == "value_error":  # of a check of our own
        message = str(first["ctx"]["error"])
    elif not param:
        kind = "a JSON list" if get_origin(form) is list else "a JSON object"
        message = f"the body is not {kind}; send one, with Content-Type: application/json"
    elif first["type"] == "missing":
        message = f"{param} is missing"
    elif first["type"] == "union_tag_not_found":  # of an object whose type says its form
        message = f"{param}.type is missing"
    elif first["type"] == "union_tag_invalid":
        message = f"{param}.type is {first['ctx']['tag']!r}, expected one of {first['ctx']['expected_tags']}"
    elif first["msg"].startswith(_EXPECTED):
        alike = [each["msg"] for each in (first, *others) if _param(each, error.body) == param]
        expected = " or ".join(dict.fromkeys(msg.removeprefix(_EXPECTED) for msg in alike if msg.startswith(_EXPECTED)))
        for theirs, ours in _WORDS.items():
            expected = expected.replace(theirs, ours)
        message = f"{param} is {shown(first['input'])}, expected {_OBJECT.sub('an object', expected)}"
    elif first["type"].endswith(("too_short", "too_long")):  # of a list or a text
        limits, what = first["ctx"], "characters" if isinstance(first["input"], str) else "items"
        most = limits.get("max_length")
        expected = f"at least {limits['min_length']}" if most is None else f"at most {most}" if most else "none"
        message = f"{param} has {len(first['input'])} {what}, expected {expected}"
    else:
        message = f"{param}: {first['msg']}"
    said = first.get("ctx", {}).get("tag", first["input"])
    if param.rpartition(".")[2] == "images" or (isinstance(said, str) and _MEDIA.fullmatch(said)):
        message += "; models here read text alone"
    return _answer(RequestError(400, message, param=param or None), request.url.path)


def _meant(name: str, form: type[Fields]) -> str | None:
    """The field that an unknown name was probably meant to be, quoted."""
    close = similar(name, form.known())
    return FOREIGN_NAMES.get(name, None if close is None else repr(close))


def _param(error: Mapping[str, Any], body: Any) -> str:
    """The path of the field that an error concerns, without the forms of which pydantic tells where it has tried several."""
    if error["loc"][0] != "body":
        return ".".join(map(str, error["loc"]))
    *parts, last = error["loc"][1:] or ("",)
    path = []
    for part in parts if error["type"] == "missing" else [*parts, last]:  # a field that is null is missing too
        if isinstance(body, dict | list) and (part in body if isinstance(body, dict) else isinstance(part, int)):
            body = body[part]
            path.append(str(part))
    return ".".join([*path, last] if error["type"] == "missing" and last else path)
