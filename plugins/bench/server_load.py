"""Load on an HTTP server that has llama.cpp's `/completion`: clients that ask at once, and how long each waits."""

from __future__ import annotations

import json
import statistics
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from time import perf_counter
from typing import Any

from attrs import frozen

from augury.errors import AuguryError

_ANSWER_S = 900.0


@frozen
class TimedRequest:
    """One request, as its client saw it."""

    text: str
    n_tokens: int
    first_s: float  # to the first token
    token_s: float  # mean, of the tokens after the first; 0 where there are none


@frozen
class Load:
    """The answers that some clients got together."""

    seconds: float
    requests: tuple[TimedRequest, ...]  # in the order in which they were to be asked

    @property
    def requests_per_second(self) -> float:
        """Answers per second."""
        return len(self.requests) / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second, of all clients."""
        return sum(each.n_tokens for each in self.requests) / self.seconds

    def quantile(self, name: str, q: float) -> float:
        """The q-quantile of `first_s` or `token_s` over the requests."""
        values = sorted(getattr(each, name) for each in self.requests)
        return values[min(int(q * len(values)), len(values) - 1)]


def run_load(url: str, bodies: Sequence[Mapping[str, Any]], n_clients: int) -> Load:
    """Let clients ask for all bodies, each client for the next one as soon as it has its answer.

    Raises:
        AuguryError: The server refused a request, or went away.
    """
    left = deque(enumerate(bodies))
    found: dict[int, TimedRequest] = {}
    errors: list[Exception] = []

    def client() -> None:
        try:
            while left and not errors:
                number, body = left.popleft()
                found[number] = ask(url, body)
        except IndexError:  # another client was faster
            pass
        except Exception as error:  # noqa: BLE001 - raised by the waiting thread
            errors.append(error)

    clients = [threading.Thread(target=client, daemon=True) for _ in range(n_clients)]
    start = perf_counter()
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    seconds = perf_counter() - start
    if errors:
        raise errors[0]
    return Load(seconds, tuple(found[number] for number in sorted(found)))


def ask(url: str, body: Mapping[str, Any]) -> TimedRequest:
    """Ask for one completion, streamed.

    Raises:
        AuguryError: It was refused, or the server went away, or the answer is none of `/completion`.
    """
    data = json.dumps({**body, "stream": True}).encode()
    request = urllib.request.Request(f"{url}/completion", data, {"Content-Type": "application/json"})  # noqa: S310 - as named
    times: list[float] = []
    text, n_tokens = "", 0
    start = perf_counter()
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:  # noqa: S310
            for line in answer:
                if line.startswith(b"data: {"):
                    piece = json.loads(line[6:])
                    if "content" not in piece:
                        raise AuguryError(f"{url} answers with {str(piece)[:200]}")
                    if piece.get("tokens") or piece["content"]:
                        times.append(perf_counter())
                        n_tokens += len(piece.get("tokens") or [0])
                    text += piece["content"]
    except urllib.error.HTTPError as error:
        raise AuguryError(f"{url} refuses a request: {error.read().decode(errors='replace')[:300]}") from None
    except (OSError, ValueError, HTTPException) as error:  # the last where it answers, but not by HTTP
        raise AuguryError(f"{url} does not answer: {error}") from None
    if not times:
        raise AuguryError(f"{url} answers without a token; its /completion is not llama.cpp's")
    token_s = (times[-1] - times[0]) / (n_tokens - 1) if n_tokens > 1 else 0.0
    return TimedRequest(text, n_tokens, times[0] - start, token_s)


def median_of(loads: Sequence[Load], name: str, q: float) -> float:
    """The median, over several loads, of a quantile."""
    return statistics.median(load.quantile(name, q) for load in loads)
