"""What an engine answers to the lines of a batch: one row for each, be it an error."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from datetime import timedelta
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from attrs import Factory, define, frozen
from xxhash import xxh3_64_intdigest

from augury.cli import as_json, prompt_of_line, say
from augury.errors import AuguryError, OptionError
from augury.extras import require_libraries
from augury.plugins.server.config import LIBRARIES

if TYPE_CHECKING:
    from httpx2 import AsyncClient

    from augury import Engine
    from augury.plugins.server.batch.rows import Line, RowFile

_KEPT = ("text", "tokens", "finish_reason", "prompt_tokens", "logprobs", "prompt", "prompt_text")
_URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/rerank", "/v1/score")
_SEEDED = _URLS[:2]
_SAY_EVERY_S = 10.0


@frozen
class Row:
    """The answer to a line."""

    id: str | int
    fields: Mapping[str, Any]
    n_tokens: int  # that were written
    is_error: bool
    worker: str = ""  # who computed it, where there are several


def failed(line: Line, message: str) -> Row:
    """The row of a line that has no answer."""
    if line.request is None:
        return Row(line.id, {"id": line.id, "error": message}, 0, is_error=True)
    failure = {"code": "invalid_request", "message": message}
    return Row(line.id, {"id": _id_of(line), "custom_id": line.id, "response": None, "error": failure}, 0, is_error=True)


def _id_of(line: Line) -> str:
    return f"batch_req_{xxh3_64_intdigest(str(line.id).encode()):016x}"


def seed_of(id_: str | int) -> int:
    """The seed of a line that names none: whoever answers it draws the same."""
    return xxh3_64_intdigest(str(id_).encode()) >> 1


class Answers:
    """An engine that answers lines."""

    def __init__(self, engine: Engine, params: Mapping[str, Any], kwargs: Mapping[str, Any] | None = None) -> None:
        """Take a loaded engine, and for lines that say nothing else the arguments of `submit` and variables of templates."""
        self._engine, self._params, self._kwargs = engine, params, kwargs or {}
        self._client: AsyncClient | None = None  # made for the first request in OpenAI's form

    async def answer(self, line: Line) -> Row:
        """The row of a line."""
        try:
            line.text.encode()
        except UnicodeEncodeError:
            return failed(line, f"{line.where}: not text in UTF-8")
        return await (self._to_prompt(line) if line.request is None else self._to_request(line, line.request))

    async def _to_prompt(self, line: Line) -> Row:
        try:
            try:
                prompt = prompt_of_line(line.text, line.where).with_kwargs(self._kwargs)
                given = {"seed": seed_of(line.id), **self._params, **prompt.arguments()}
            except AuguryError as error:
                raise OptionError(str(error)) from error
            result = await self._engine.submit(**given)
        except AuguryError as error:
            if type(error) is AuguryError:  # the engine's own end, which is no fact about this line
                raise
            return failed(line, str(error))
        found = as_json(self._engine, result)
        fields = {"id": line.id, "seed": given["seed"], **{name: found[name] for name in _KEPT if name in found}}
        if result.receipt is not None:
            fields["receipt"] = result.receipt.as_json()
        return Row(line.id, fields, len(result.tokens), is_error=False)

    async def _to_request(self, line: Line, request: Mapping[str, Any]) -> Row:
        try:
            url, body = _checked(request, line.where)
        except OptionError as error:
            return failed(line, str(error))
        fields = {"id": _id_of(line), "custom_id": line.id}
        seed = {"seed": seed_of(line.id)} if url in _SEEDED else {}
        status, answer = await self._ask(url, {**seed, **body})
        if status == 500:  # the engine's own end likewise; a lack of memory or time is one request's
            raise AuguryError(f"{line.where}: {answer.get('error', answer)}")
        response = {"status_code": status, "request_id": answer.get("id", fields["id"]), "body": answer}
        usage = answer.get("usage") or {}
        n_tokens = usage.get("completion_tokens", usage.get("output_tokens", 0))
        return Row(line.id, {**fields, "response": response, "error": None}, n_tokens, is_error=status >= 400)

    async def _ask(self, url: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """The status and body of the server's answer, from its app in this process."""
        if self._client is None:
            self._client = _client_of(self._engine, self._params, self._kwargs)
        text = json.dumps(body)  # with NaN where a line has it, of which the app tells
        answer = await self._client.post(url, content=text, headers={"Content-Type": "application/json"})
        return answer.status_code, answer.json()


def _checked(request: Mapping[str, Any], where: str) -> tuple[str, Mapping[str, Any]]:
    """The path and body of a request in OpenAI's form. Raises OptionError: it has none that a batch can answer."""
    method, url, body = (request.get(name) for name in ("method", "url", "body"))
    if method != "POST":
        raise OptionError(f'{where}: method is {method!r}, expected "POST"')
    if url not in _URLS:
        raise OptionError(f"{where}: url is {url!r}, expected one of {', '.join(_URLS)}")
    if not isinstance(body, dict):
        raise OptionError(f"{where}: body is {body!r:.80}, expected an object")
    if body.get("stream"):
        raise OptionError(f"{where}: stream is {body['stream']!r}, but a row has the whole answer; leave stream out")
    return url, body


def _client_of(engine: Engine, params: Mapping[str, Any], kwargs: Mapping[str, Any]) -> AsyncClient:
    """A client of a server in this process."""
    require_libraries("requests in OpenAI's form need", "server", *LIBRARIES)
    from httpx2 import ASGITransport, AsyncClient

    from augury.plugins.server.app import make_app
    from augury.plugins.server.models import Models
    from augury.plugins.server.server import Server, ServerOptions

    options = ServerOptions(names=(str(engine.config["model"]),), params=params, chat_template_kwargs=kwargs, has_page=False)
    app = make_app(Models([Server(options, load=lambda _: engine, engine=engine)], is_lazy=True))
    return AsyncClient(transport=ASGITransport(app, raise_app_exceptions=False), base_url="http://localhost", timeout=None)


@define
class Tally:
    """Counts what is done, and says so now and then."""

    n_before: int  # answers of earlier runs
    n_lines: int
    n_done: int = 0
    n_errors: int = 0
    n_tokens: int = 0
    n_by_worker: Counter[str] = Factory(Counter)
    started_at: float = Factory(monotonic)
    said_at: float = Factory(monotonic)

    def count(self, row: Row) -> None:
        """Take an answer in."""
        self.n_done += 1
        self.n_errors += row.is_error
        self.n_tokens += row.n_tokens
        self.n_by_worker[row.worker] += 1
        if monotonic() - self.said_at >= _SAY_EVERY_S:
            self.show()

    def show(self) -> None:
        """Say how far it is, how quick, and how long the rest will take."""
        self.said_at = monotonic()
        seconds = self.said_at - self.started_at
        n_left = self.n_lines - self.n_before - self.n_done
        parts = [f"{self.n_before + self.n_done} of {self.n_lines} lines", f"{self.n_tokens / seconds:.1f} tok/s"]
        parts += [f"{self.n_errors} error{'s' * (self.n_errors > 1)}"] if self.n_errors else []
        if n_left and self.n_done:
            parts.append(f"{timedelta(seconds=round(seconds / self.n_done * n_left))} left")
        if any(self.n_by_worker):
            shares = (f"{name} {n / self.n_done:.0%}" for name, n in sorted(self.n_by_worker.items()))
            parts.append(", ".join(shares))
        say(" | ".join(parts))


class Answering(Protocol):
    """What answers lines: an engine here, or workers elsewhere."""

    async def answer(self, line: Line) -> Row:
        """The row of a line."""


def answer_all(
    lines: Iterator[Line], answers: Answering, rows: RowFile, tally: Tally, *, n_ahead: int, is_ordered: bool
) -> None:
    """Add a row for each line, as it is ready or in the order of the lines.

    Args:
        lines: Read as they are needed.
        answers: See `Answers`, and `Workers` of `augury.plugins.ray`.
        rows: Where they are added.
        tally: Counts them.
        n_ahead: So many lines run, or wait in the engine.
        is_ordered: Whether rows have the order of the lines.

    Raises:
        AuguryError: The engine has ended, or a row could not be written; the rows before it are there.
    """

    async def add() -> None:
        async with aclosing(_answered(lines, answers, n_ahead, is_ordered=is_ordered)) as answered:
            async for row in answered:
                rows.add(row.id, row.fields)
                tally.count(row)

    asyncio.run(add())


async def _answered(lines: Iterator[Line], answers: Answering, n_ahead: int, *, is_ordered: bool) -> AsyncGenerator[Row]:
    pending = list[asyncio.Task[Row]]()
    try:
        while True:
            pending += [asyncio.create_task(answers.answer(line)) for line in islice(lines, n_ahead - len(pending))]
            if not pending:
                return
            done, _ = await asyncio.wait(pending[: 1 if is_ordered else n_ahead], return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in pending if task in done]:
                pending.remove(task)
                yield task.result()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
