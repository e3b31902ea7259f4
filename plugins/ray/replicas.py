"""`augury serve --replicas`: replicas that Ray Serve keeps, as one engine.

An answer depends on its prompt, parameters and seed alone. So where a replica dies, another goes on with the prompt and what
was emitted, and nobody can tell from the text.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partialmethod
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from grpc.aio import AioRpcError
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from augury import Result, Running, Token
from augury.cli import load_texts
from augury.engine.adapters import Adapters
from augury.engine.channel import Channel
from augury.engine.params import PromptProgress
from augury.engine.stats import EngineStats
from augury.errors import AuguryError, CapacityError, OptionError, UnsupportedError
from augury.interfaces import Progress
from augury.plugins.ray import cluster, replica
from augury.plugins.server import server as served
from augury.text.chat_template import prompt_ids
from augury.types import Summary

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_N_TRIES = 25  # of a request whose replicas die: perhaps it kills them
_AGAIN_S = 0.05
_PATIENCE_S = 10.0  # for figures of all replicas


class Replicas:
    """The part of `Engine` that the server uses, and what it means of several.

    Attributes:
        info, config, load_s, adapters: Those of any replica.
        tokenizer, chat_template: Of the model; prompts are encoded here.
    """

    info: Any
    config: Any
    load_s: float
    adapters: Adapters

    def __init__(self, args: argparse.Namespace, template: str | None, progress: Progress) -> None:
        """Start the replicas, and wait until all are there.

        Raises:
            AuguryError: There is no cluster, or the model cannot be loaded.
        """
        self.tokenizer, self.chat_template = load_texts(args, template, progress)
        self._loop = asyncio.new_event_loop()
        # it never ends: the processes of a cluster that is started here end with the thread that started them
        threading.Thread(target=self._loop.run_forever, name="augury-replicas", daemon=True).start()
        self._wait(_join(args.ray))
        with ExitStack() as stack:
            self._handle = _own_handle() or _started(args, stack)
            for name, value in self._wait(self._ask("facts")).items():
                setattr(self, name, value)
            self._stack = stack.pop_all()

    def submit(self, prompt: Any = None, *, n: int, **params: Any) -> list[Running]:
        """See `Engine.submit`; a seed that is missing is drawn here, since an answer may have several replicas."""
        messages, tools, kwargs, on_prompt = (
            params.pop(name, None) for name in ("messages", "tools", "chat_template_kwargs", "on_prompt")
        )
        ids = prompt_ids(
            prompt, messages, self.tokenizer, self.chat_template, tools=tools, kwargs=kwargs, n_ctx=self.config["n_ctx"]
        )
        if params.get("slot") is not None:
            raise OptionError("slot is given, but replicas have slots of their own; leave it out")
        if params.get("lora") is None and self.adapters.loaded:
            params["lora"] = Adapters.listed(self.adapters.scales)
        seed = params.pop("seed", None)
        seed = secrets.randbits(63) if seed is None else seed
        tokens, text = np.asarray(ids, np.int32), prompt if isinstance(prompt, str) else None
        answers = list[_Answer]()
        for i in range(n):
            given = {**params, "seed": (seed + i) % 2**64}
            after = answers[0] if answers else None  # which has the prompt processed
            answers.append(_Answer(self, tokens, given, on_prompt=None if i else on_prompt, text=text, after=after))
        try:
            answers[0].accepted.result()
        except BaseException:
            for each in answers:
                each.cancel()
            raise
        return [each.running for each in answers]

    def scale_adapters(self, lora: Sequence[Mapping[str, Any]]) -> None:
        """See `Engine.scale_adapters`."""
        self.adapters.scales = self.adapters.choose(lora)

    async def _elsewhere(self, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.wrap_future(self.start(self._ask("call", *args, **kwargs)))

    aembed = partialmethod(_elsewhere, "aembed")
    arank = partialmethod(_elsewhere, "arank")
    ascore = partialmethod(_elsewhere, "ascore")

    def save_slot(self, *_: Any) -> Any:
        """Refuse: slots are those of replicas, which come and go. Raises UnsupportedError: always."""
        raise UnsupportedError("slots of replicas cannot be saved, loaded or erased; serve without --replicas for that")

    load_slot = erase_slot = save_slot

    def stats(self) -> EngineStats:
        """Those of all replicas, slots numbered on."""
        found = [stats for _, stats, _ in self._seen()]
        slots = [slot for stats in found for slot in stats.slots]
        counts = [attrs.asdict(stats.counts) for stats in found]
        return EngineStats(
            tuple(attrs.evolve(slot, slot=i) for i, slot in enumerate(slots)),
            sum(stats.n_waiting for stats in found),
            type(found[0].counts)(**{name: sum(each[name] for each in counts) for name in counts[0]}),
            found[0].plain_s,
        )

    def samples(self) -> Iterator[Metric]:
        """Figures for Prometheus, each with the name of its replica; see `Metrics.sample`."""
        for name, _, families in self._seen():
            for family in families:
                family.samples = [each._replace(labels={"replica": name, **each.labels}) for each in family.samples]
                yield family

    def close(self) -> None:
        """End the replicas."""
        self._stack.close()
        if self.chat_template is not None:
            self.chat_template.close()

    def start(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Begin something on the thread of the replicas."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, *args: Any, session: str, **how: Any) -> Any:
        """Begin an answer on the replica that suits its prompt."""
        # by gRPC straight from there: each token would take Ray's objects twice as long
        how_asked = {"method_name": "answer", "stream": True, "session_id": session, "_by_reference": False}
        return self._handle.options(**how_asked).remote(*args, **how)

    async def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Any replica's result of a method, by another where one dies."""
        for _ in range(_N_TRIES):
            try:
                return await getattr(self._handle, method).remote(*args, **kwargs)
            except (RayError, RayServeException) as error:
                if (cause := _cause(error)) is not None:
                    raise cause from None
                await asyncio.sleep(_AGAIN_S)
        raise AuguryError(f"{_N_TRIES} replicas died while they computed it")

    def _seen(self) -> list[Any]:
        async def ask() -> list[Any]:
            found: list[Any] = []
            with suppress(RayServeException, TimeoutError):  # there is none just now
                found = await self._handle.broadcast("seen").results_async(timeout_s=_PATIENCE_S, return_exceptions=True)
            return sorted((each for each in found if isinstance(each, tuple)), key=lambda each: str(each[0]))

        seen: list[Any] = self._wait(ask())
        if not seen:
            raise CapacityError("no replica is there; try again")
        return seen

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.start(work).result()


class _Answer:
    """An answer, whoever computes it. It stands for the worker of its `Running`, too.

    Attributes:
        accepted: Done when a replica has accepted the request, or refused it.
        running: What its reader has.
    """

    def __init__(
        self,
        replicas: Replicas,
        tokens: np.ndarray,
        params: Mapping[str, Any],
        *,
        on_prompt: Callable[[PromptProgress], object] | None,
        text: str | None,
        after: _Answer | None,
    ) -> None:
        self._replicas, self._tokens, self._params, self._on_prompt = replicas, tokens, params, on_prompt
        self._text, self._after, self._session = text, after, served.session.get()
        self.channel = Channel()
        self._emitted = self.channel.tokens
        self._begun = asyncio.Event()
        self._is_cancelled = False
        # of these the answer cannot be gone on with: they depend on what is known of earlier tokens
        self._is_repeated = bool(params.get("receipt") or params.get("mirostat"))
        self.accepted: Future[None] = Future()
        self.channel.cancels = _Cancels(self.cancel)
        self.running = Running(self.channel, _Waiting(), params.get("id") or "")  # type: ignore[arg-type] # for its waits alone
        self._task = replicas.start(self._run())

    def cancel(self) -> None:
        """End it; no effect on one that has ended."""
        self._is_cancelled = True
        self._task.cancel()

    async def _run(self) -> None:
        outcome: Any = AuguryError(f"{_N_TRIES} replicas died while they answered it")
        try:
            if self._after is not None:
                await self._after._begun.wait()  # noqa: SLF001 - another answer to the same request
            for n_before in range(_N_TRIES):
                try:
                    outcome = await self._read()
                    break
                except (RayError, RayServeException, AuguryError, AioRpcError) as error:
                    if (cause := _cause(error)) is not None:
                        outcome = cause
                        break
                except asyncio.CancelledError:  # Serve's, too, where a replica dies before it has the request
                    if self._is_cancelled:
                        raise
                if n_before:  # at once the first time: the router knows who has died
                    await asyncio.sleep(_AGAIN_S)
        except asyncio.CancelledError:
            outcome = self._whole(Result((), "", "cancelled", Summary()))
        except Exception as error:  # noqa: BLE001 - its reader's
            outcome = error
        self._finish(outcome)

    def _finish(self, outcome: Any) -> None:
        self._begun.set()
        if not self.accepted.done():
            if isinstance(outcome, Exception):
                self.accepted.set_exception(outcome)
            else:
                self.accepted.set_result(None)
        self.channel.finish(outcome)

    async def _read(self) -> Result:
        """Read what a replica emits; what is known of the answer by then is skipped."""
        n_known = len(self._emitted)
        params = dict(self._params)
        if n_known > 1 and not self._is_repeated:  # but the last, with which the answer may end
            params["emitted"] = [token.token for token in self._emitted[:-1]]
        n_skipped = n_known - len(params.get("emitted", ()))
        call = self._replicas.call(self._tokens, params, session=self._session, has_progress=self._on_prompt is not None)
        try:
            async for pieces in call:
                if not self.accepted.done():
                    self.accepted.set_result(None)
                for piece in pieces:
                    if isinstance(piece, PromptProgress) and self._on_prompt is not None and not n_known:
                        self._on_prompt(piece)
                tokens = [piece for piece in pieces if isinstance(piece, Token)]
                if new := tokens[n_skipped:]:
                    self._emitted += new
                    self._begun.set()
                    self.channel.wake_readers()
                n_skipped = max(n_skipped - len(tokens), 0)
                if pieces and isinstance(pieces[-1], Result):
                    return self._whole(pieces[-1])
        except asyncio.CancelledError:
            call.cancel()
            raise
        raise RayServeException("the replica ended the stream without a result")

    def _whole(self, last: Result) -> Result:
        """The result of all replicas, of which the last has given its part."""
        tokens, stats = self._emitted, last.stats
        if len(tokens) != len(last.tokens):
            stats = attrs.evolve(stats, n_prompt=len(self._tokens), n_emitted=len(tokens))
            n_missing = len(tokens) - stats.n_rounds - stats.n_accepted
            stats = attrs.evolve(stats, n_rounds=stats.n_rounds + n_missing)
        text = "".join(token.text for token in tokens)
        ids = tuple(token.token for token in tokens)
        prompt_text = last.prompt_text if self._text is None or last.prompt_text is None else self._text
        return attrs.evolve(last, tokens=ids, text=text, pieces=tuple(tokens), stats=stats, prompt_text=prompt_text)


class _Cancels(list[object]):
    """The wishes to cancel, of which the answer hears at once."""

    def __init__(self, told: Callable[[], object]) -> None:
        super().__init__()
        self._told = told

    def append(self, wish: object) -> None:
        super().append(wish)
        with suppress(RuntimeError):  # the loop has ended
            self._told()


class _Waiting:
    """Waits for an answer, as an engine's worker does."""

    def check_may_wait(self) -> None:
        """Any thread may."""

    def wait(self, channel: Channel, _timeout: float | None = None) -> Any:
        """See `Worker.wait`."""
        while channel.outcome is None:
            channel.block(channel.waiters)
        if isinstance(channel.outcome, BaseException):
            raise channel.outcome
        return channel.outcome

    async def wait_async(self, channel: Channel) -> Any:
        """See `Worker.wait_async`."""
        while channel.outcome is None:
            await channel.sleep(channel.waiters)
        return self.wait(channel)


def _cause(error: Exception) -> Exception | None:
    """The error of the request itself, None where its replica is to blame, which has died or ends."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, AuguryError):
        return None if type(cause) is AuguryError else cause
    return AuguryError(f"{type(cause).__name__}: {cause}") if isinstance(error, RayTaskError) else None


async def _join(address: str) -> None:
    cluster.join(address)


def _own_handle() -> Any:
    """The replicas of the Serve application that this process is a part of, see `app`; None where it is none."""
    with suppress(RayServeException):
        return serve.get_deployment_handle(replica.REPLICA, serve.get_replica_context().app_name)


def _started(args: argparse.Namespace, stack: ExitStack) -> Any:
    """Replicas that are started here, and end with the stack."""
    logging.getLogger("ray.serve").addFilter(lambda record: record.levelno >= logging.WARNING)
    serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING", "enable_access_log": False})
    name = f"augury-{secrets.token_hex(4)}"
    try:
        handle = serve.run(replica.replicas_of(args), name=name, route_prefix=None)
    except RuntimeError as error:
        raise AuguryError(f"the replicas do not start: {error}") from None
    stack.callback(serve.delete, name)
    return handle
