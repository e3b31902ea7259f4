"""Errors of requests, in the form of each family of clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException

from augury.errors import AuguryError, CapacityError, OptionError, PromptTooLongError, QueueFullError, UnsupportedError

_RETRY_S = 1
_KINDS = {  # by status, as OpenAI's, llama.cpp's and Anthropic's servers call them
    400: ("invalid_request_error", "invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error", "authentication_error"),
    403: ("permission_error", "permission_error", "permission_error"),
    404: ("not_found_error", "not_found_error", "not_found_error"),
    408: ("timeout_error", "invalid_request_error", "timeout_error"),
    431: ("invalid_request_error", "invalid_request_error", "request_too_large"),
    413: ("invalid_request_error", "invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "unavailable_error", "rate_limit_error"),
    500: ("server_error", "server_error", "api_error"),
    501: ("not_supported_error", "not_supported_error", "invalid_request_error"),
    503: ("service_unavailable_error", "unavailable_error", "overloaded_error"),
    504: ("timeout_error", "server_error", "timeout_error"),
}


class RequestError(HTTPException):
    """A request that is not answered.

    Args:
        status: The HTTP status.
        message: For people.
        param: The field that is wrong.
        code: For programs, such as `context_length_exceeded`.
        retry_after: Seconds after which the client may try again.
        closes: Whether the connection ends with the answer; always true of 408.
        more: Further fields of the body.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        closes: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        # a client that tries again by itself would only repeat a request that cannot succeed, or takes too long
        headers = {"x-should-retry": "false"} if retry_after is None else {"Retry-After": str(retry_after)}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if status == 415:
            headers["Accept-Encoding"] = "identity"
        if closes or status == 408:
            headers["Connection"] = "close"
        super().__init__(status, message, headers)
        self.param, self.code, self.more = param, code, dict(more or {})


def as_request_error(error: Exception) -> RequestError:
    """An error of the engine, of the web framework, or a fault, as a client sees it."""
    match error:
        case HTTPException():
            return error if isinstance(error, RequestError) else RequestError(error.status_code, str(error.detail))
        case PromptTooLongError():
            more = {"n_prompt_tokens": error.n_prompt, "n_ctx": error.n_ctx}
            return RequestError(400, str(error), code="context_length_exceeded", more=more)
        case QueueFullError():
            return RequestError(429, str(error), code="rate_limit_exceeded", retry_after=_RETRY_S)
        case CapacityError():
            return RequestError(503, str(error), retry_after=_RETRY_S)
        case AuguryError():
            return RequestError(400 if isinstance(error, OptionError | UnsupportedError) else 500, str(error))
        case _:
            return RequestError(500, f"the server failed: {type(error).__name__}")


def error_body(error: RequestError, path: str) -> dict[str, Any]:
    """The JSON of an error, in the form of the family that the path belongs to."""
    status = error.status_code
    known = status if status in _KINDS else 400 if status < 500 else 500
    openai, llama_cpp, anthropic = _KINDS[known]
    message = str(error.detail)
    if path.startswith("/api/"):
        return {"error": message, **error.more}
    if path.startswith("/v1/messages"):
        return {"type": "error", "error": {"type": anthropic, "message": message}}
    if path.startswith("/v1/"):
        return {"error": {"message": message, "type": openai, "param": error.param, "code": error.code, **error.more}}
    if error.code == "context_length_exceeded":
        llama_cpp = "exceed_context_size_error"
    return {"error": {"code": status, "message": message, "type": llama_cpp, **error.more}}
