"""Servers that are started to be measured, by llama.cpp's `/completion`: one request at a time, or many at once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException
from pathlib import Path
from time import monotonic, perf_counter, sleep
from types import TracebackType
from typing import Any, Self

import numpy as np
from attrs import frozen

from augury.errors import AuguryError
from augury.plugins.bench.timing import Measurement, Runner


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
    with ThreadPoolExecutor(n_clients) as clients:
        start = perf_counter()
        found = tuple(clients.map(partial(ask, url), bodies))
        return Load(perf_counter() - start, found)


def ask(url: str, body: Mapping[str, Any]) -> TimedRequest:
    """Ask for one completion, streamed.

    Raises:
        AuguryError: It was refused, or the server went away, or the answer is none of `/completion`.
    """
    times: list[float] = []
    text, n_tokens = "", 0
    start = perf_counter()
    try:
        with _posted(f"{url}/completion", {**body, "stream": True}) as answer:
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


def _posted(url: str, body: Mapping[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310 - as named
    return urllib.request.urlopen(request, timeout=_ANSWER_S)  # noqa: S310


_READY_S = 300.0  # a large model on a slow disk
_ANSWER_S = 900.0
GREEDY = {"temperature": 0, "top_k": 1, "samplers": ["top_k"], "ignore_eos": True}


class ServerProcess:
    """A server on a free port of this machine, for as long as a `with` statement; it has llama.cpp's `/health`.

    Raises:
        AuguryError: It cannot be run, or ends or takes too long before it is ready.
    """

    def __init__(
        self, name: str, program: Sequence[object], words: Sequence[object], env: Mapping[str, str] | None = None
    ) -> None:
        """Nothing is started yet: `program` and `words` are its command line, between which its port is named."""
        self.url = ""  # its address
        self._name, self._program, self._words, self._env = name, program, words, env or {}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [*self._program, "--host", "127.0.0.1", "--port", port, *self._words]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this program, or one that the user named
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._env},
            )
            self._wait(self._process)
        except OSError as error:
            self.close()
            raise AuguryError(f"{self._program[0]} cannot be run: {error.strerror or error}") from None
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the server. May be called twice."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        self._log.close()

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Ask for JSON. Raises AuguryError: the server refuses, or does not answer."""
        try:
            with _posted(f"{self.url}{path}", body) as answer:
                return json.load(answer)
        except (OSError, ValueError) as error:
            raise AuguryError(f"{self._name} does not answer: {error}{self._last_words()}") from None

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        end = monotonic() + _READY_S
        while monotonic() < end:
            if process.poll() is not None:
                raise AuguryError(f"{self._name} ended before it was ready{self._last_words()}")
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2) as reply:  # noqa: S310 - our own server
                    if reply.status == 200:
                        return
            except OSError:
                pass
            sleep(0.1)
        raise AuguryError(f"{self._name} was not ready in {_READY_S:.0f} s{self._last_words()}")

    def _last_words(self) -> str:
        """The end of the server's output, for a message."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        last = [line.strip() for line in lines if line.strip()][-2:]
        return f"; its last words: {' / '.join(last)}" if last else ""


class ServerRunner(ServerProcess, Runner):
    """Runs a server of its own, and reads the times that it measures itself.

    A measurement at a depth sends a prompt whose first `depth` tokens the server holds, and whose next token is new. The server
    computes the logits of a prompt's last token only, also where the measurement is of the kind `curve`.
    """

    def __init__(self, program: Path, words: Sequence[object], tokens: np.ndarray, n_vocab: int) -> None:
        """Nothing is started yet; prompts are made of `tokens`, (n_ctx,) ids. Raises AuguryError: there is no such program."""
        if not program.is_file() or not os.access(program, os.X_OK):
            raise AuguryError(f"{program} is not a program; --vs takes the path of a llama-server")
        folder = str(program.resolve().parent)  # packaged builds keep their libraries beside the program
        paths = os.pathsep.join(filter(None, (folder, os.environ.get("LD_LIBRARY_PATH"))))
        super().__init__(program.name, [program], words, {"LD_LIBRARY_PATH": paths})
        self._tokens = tokens.tolist()
        self._n_vocab = n_vocab
        self._n_asked = 0

    def prepare(self, depth: int) -> None:
        if depth:
            self._ask(self._tokens[:depth], 1, may_reuse=True)

    def seconds(self, measurement: Measurement) -> float:
        """Run a measurement once. Raises AuguryError: the server died, or computed something else than it was asked for."""
        depth = measurement.depth
        n_prompt, n_predict = (1, measurement.n + 1) if measurement.kind == "decode" else (measurement.n, 1)
        prompt = self._tokens[: depth + n_prompt]
        self._n_asked += 1
        prompt[depth] = (prompt[depth] + self._n_asked) % self._n_vocab  # never the token that the server has there
        timings = self._ask(prompt, n_predict, n_new=n_prompt, may_reuse=depth > 0)["timings"]
        # the first token comes out of the prompt's pass, and the server's clock for generation starts after it
        return self._seconds("predicted_ms" if measurement.kind == "decode" else "prompt_ms", timings)

    def _seconds(self, key: str, timings: dict[str, Any]) -> float:
        ms = timings.get(key)
        if not isinstance(ms, int | float) or not ms > 0:
            raise AuguryError(f"{self._name} says that {key} is {ms!r}, expected a positive number of ms")
        return ms / 1e3

    def _ask(self, prompt: Sequence[int], n_predict: int, *, may_reuse: bool, n_new: int | None = None) -> dict[str, Any]:
        """Ask for a completion; the server must compute `n_new` tokens of the prompt, None: however many."""
        body = {"prompt": list(prompt), "n_predict": n_predict, "cache_prompt": may_reuse, "return_tokens": True} | GREEDY
        reply, name = self.post("/completion", body), self._name
        if not isinstance(reply, dict) or not isinstance(timings := reply.get("timings"), dict):
            raise AuguryError(f"{name} answers without timings; --vs needs a llama-server")
        for key, expected in (("prompt_n", n_new), ("predicted_n", n_predict)):
            if expected is not None and timings.get(key) != expected:
                raise AuguryError(
                    f"{name} reports {key} {timings.get(key)!r}, expected {expected}; "
                    "it did not do what was asked, so its times mean nothing"
                )
        return reply
