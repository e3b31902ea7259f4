"""The one way from a checked request to the engine, and back: answers as a whole or token by token.

A client that leaves, and the time limit, cancel answers within a round.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
from anyio import to_thread
from starlette.requests import Request

from augury.engine.params import PromptProgress
from augury.engine.stats import PromptToken
from augury.plugins.server.errors import RequestError
from augury.plugins.server.server import Server
from augury.types import Result, Token

if TYPE_CHECKING:
    from augury import Running
    from augury.plugins.learn import hidden_states
    from augury.plugins.server.collection import Collection

_N_TEXTS = 2048  # of one request, as OpenAI's server takes them for embeddings

T = TypeVar("T")
Pieces = AsyncIterator[tuple[int, Token | PromptProgress | Result]]
Until = Callable[[int, Token], int | None]
"""Whether an answer, named by its number, ends with a token of it: how long that token's text is then, or None."""


async def do_nothing() -> None:
    """Do nothing before `Generation.pieces` waits, which is the default."""


@attrs.define(eq=False, repr=False)
class Generation:
    """The answers to one request. When it is garbage-collected, they are cancelled."""

    _server: Server
    _runnings: Sequence[Running]
    _found: asyncio.Queue[Any] | None  # where prompts report; None: they do not
    _collection: Collection | None  # keeps whole answers; None: they are not kept
    _states: Mapping[int, hidden_states.HiddenStates]  # by answer, where they are kept as well
    before_wait: Callable[[], Awaitable[None]] = do_nothing  # awaited by `pieces` whenever there is none to give yet
    _deadline: float = attrs.field(init=False)
    _loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.get_running_loop)
    _read: dict[int, list[Token]] = attrs.field(factory=partial(defaultdict, list))  # by answer, where tokens may end it
    _ended: set[int] = attrs.field(factory=set)  # answers that a token ended

    def __attrs_post_init__(self) -> None:
        self._deadline = self._loop.time() + self._server.options.timeout_s

    @classmethod
    async def begin(cls, server: Server, asked: Sequence[Mapping[str, Any]], *, has_progress: bool = False) -> Generation:
        """Submit the answers that a request asks for.

        Args:
            server: Whose engine is to answer.
            asked: Arguments of `Engine.submit`, with `n` for several answers; omitted ones follow the server's flags.
                `store` is False where none of the answers may be collected.
            has_progress: Whether there are pieces that tell how far prompts are processed, each of its first answer.

        Raises:
            AuguryError: As `Engine.submit` does; then none of them runs.
        """
        params = [{**server.params, **each} for each in asked]
        may_store = all([each.pop("store", True) for each in params])  # noqa: C419 - of all
        collection = server.collection if may_store else None
        found, n = asyncio.Queue[Any](), 0
        states: dict[int, hidden_states.HiddenStates] = {}
        for each in params:
            if has_progress:
                each["on_prompt"] = partial(_report, asyncio.get_running_loop(), found, n)
            if collection is not None:
                each["echo"] = True  # tells the prompt's tokens
                if (made := collection.states_of(server.engine, each)) is not None:
                    states[n] = made
                    each.update(made.asked)
            n += each.get("n", 1)
        # encoding a long prompt, and rendering a template, take too long for the event loop
        runnings = await to_thread.run_sync(partial(_submit, server.engine.submit, params))
        return cls(server, runnings, found if has_progress else None, collection, states)

    async def results(self, http: Request, until: Until | None = None) -> list[Result]:
        """Wait for all of them, or for the tokens with which they are to end.

        Raises:
            AuguryError: One of them failed.
            RequestError: The time is up, or the server ends.
        """
        watching = asyncio.create_task(disconnect(http))
        watching.add_done_callback(lambda _: self.cancel())
        try:
            if until is None:
                with self._limited():
                    return [self._whole(i, await self._in_time(running)) for i, running in enumerate(self._runnings)]
            found = {i: piece async for i, piece in self.pieces(until) if isinstance(piece, Result)}
            return [found[i] for i in range(len(found))]
        finally:
            watching.cancel()

    async def pieces(self, until: Until | None = None) -> Pieces:
        """Tokens as they come, each with the number of its answer, and at the end of each answer its result."""
        with self._limited():
            if len(self._runnings) == 1 and self._found is None:
                tokens = aiter(self._runnings[0])
                while (token := await self._in_time(anext(tokens, None), is_there=tokens.has_token)) is not None:
                    if (kept := self._kept(until, 0, token)) is not None:
                        yield 0, kept
                    if not tokens.has_token:
                        await self.before_wait()
                yield 0, self._whole(0, self._runnings[0].result())
                return
            found: asyncio.Queue[Any] = self._found or asyncio.Queue()
            tasks = [asyncio.create_task(_forward(i, running, found)) for i, running in enumerate(self._runnings)]
            try:
                n_left = len(tasks)
                while n_left:
                    if found.empty():
                        await self.before_wait()
                    i, piece = await self._in_time(found.get(), is_there=not found.empty())
                    if isinstance(piece, BaseException):
                        raise piece
                    if isinstance(piece, Result):
                        n_left -= 1
                        yield i, self._whole(i, piece)
                    elif isinstance(piece, PromptProgress):
                        yield i, piece
                    elif (kept := self._kept(until, i, piece)) is not None:
                        yield i, kept
            finally:
                for task in tasks:
                    task.cancel()

    def _kept(self, until: Until | None, i: int, token: Token) -> Token | None:
        """The part of its next token that belongs to an answer, which it may end; None of those after that."""
        if until is None:
            return token
        if i in self._ended:
            return None
        if (n := until(i, token)) is not None:
            token = attrs.evolve(token, text=token.text[:n])
            self._ended.add(i)
            self._runnings[i].cancel()
        self._read[i].append(token)
        return token

    def cancel(self) -> None:
        """End all answers after the round in progress; no effect on answers that have ended."""
        for running in self._runnings:
            running.cancel()

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Cancel running answers when the time is up, and whenever this is left."""
        timer = self._loop.call_at(self._deadline, self.cancel)
        try:
            yield
        finally:
            timer.cancel()
            self.cancel()

    async def _in_time(self, coming: Awaitable[T], *, is_there: bool = False) -> T:
        """Wait while there is time, unless it is there: an engine that a plugin's call holds up ends no answer."""
        if is_there:  # as tokens often are; a limit takes 4 us
            return await coming
        try:
            async with asyncio.timeout_at(self._deadline) as limit:
                return await coming
        except TimeoutError:
            if limit.expired():
                raise _too_long(self._server.options.timeout_s) from None
            raise

    def _whole(self, i: int, result: Result) -> Result:
        if i in self._ended:
            pieces, text = tuple(self._read[i]), "".join(token.text for token in self._read[i])
            tokens = tuple(token.token for token in pieces)
            result = attrs.evolve(result, pieces=pieces, tokens=tokens, text=text, finish_reason="cancelled")
        elif result.finish_reason == "cancelled" and self._loop.time() >= self._deadline:
            raise _too_long(self._server.options.timeout_s)
        elif result.finish_reason == "cancelled":
            raise RequestError(503, "the server ends, and with it the answer")  # or the client has gone, and nobody reads this
        if self._server.metrics is not None:
            self._server.metrics.observe(self._server.name, result.stats)
        if self._collection is not None:
            whole = [*(result.prompt or ()), *result.tokens]
            self._loop.run_in_executor(None, self._collection.add, whole, self._states.get(i))
        return result


async def disconnect(http: Request) -> None:
    """Wait until the client has gone."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _report(loop: asyncio.AbstractEventLoop, found: asyncio.Queue[Any], i: int, progress: PromptProgress) -> None:
    """Put how far a prompt is where its tokens will be read; called by the engine's thread."""
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(found.put_nowait, (i, progress))


def _submit(submit: Callable[..., list[Running]], asked: Sequence[Mapping[str, Any]]) -> list[Running]:
    runnings: list[Running] = []
    try:
        for each in asked:
            runnings += submit(**{"n": 1, **each})
    except BaseException:
        for running in runnings:
            running.cancel()
        raise
    return runnings


async def _forward(i: int, running: Running, found: asyncio.Queue[Any]) -> None:
    """Put the pieces of one answer where those of all are read."""
    try:
        async for token in running:
            found.put_nowait((i, token))
        found.put_nowait((i, running.result()))
    except Exception as error:  # noqa: BLE001 - raised again by the reader
        found.put_nowait((i, error))


async def generate(
    server: Server, http: Request, asked: Sequence[Mapping[str, Any]], until: Until | None = None
) -> list[Result]:
    """Answer as a whole; see `Generation`."""
    return await (await Generation.begin(server, asked)).results(http, until)


def check_texts(texts: Sequence[Any]) -> None:
    """Refuse more than one request may have, before anything is done for each. Raises RequestError: there are more."""
    if len(texts) > _N_TEXTS:
        raise RequestError(400, f"there are {len(texts)} texts, expected at most {_N_TEXTS}")


async def score(server: Server, http: Request, texts: Sequence[Any], n_top: int) -> list[list[PromptToken]]:
    """Log-probabilities of texts' own tokens, as `Engine.score` computes them.

    Raises:
        AuguryError: As `Engine.score` does.
        RequestError: The time is up.
    """
    return list(await unless_left(server.options.timeout_s, http, server.engine.ascore(list(texts), logprobs=n_top)))


async def unless_left(timeout_s: float, http: Request, work: Awaitable[Any]) -> Any:
    """The result of work; it is cancelled if the client leaves or the time is up, of which an error tells."""
    working, leaving = asyncio.ensure_future(work), asyncio.create_task(disconnect(http))
    try:
        await asyncio.wait((working, leaving), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise _too_long(timeout_s)  # or nobody reads this
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()


def _too_long(timeout_s: float) -> RequestError:
    """Why a request ends whose time is up."""
    message = f"the request took longer than the {timeout_s:g} s that the server allows (--timeout)"
    return RequestError(504, message, code="timeout")
