"""The figures of a finished request, as clients of llama.cpp's server read them, and those of speculation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from augury.engine.params import PromptProgress
from augury.types import Result, Summary, Token

if TYPE_CHECKING:
    from augury.plugins.server.fields import EngineFields
    from augury.plugins.server.generation import Pieces


def timings(summary: Summary) -> dict[str, Any]:
    """llama.cpp's `timings`, all of them numbers.

    `predicted_ms` begins with the first token, so it is the time of all tokens but that; the rates are as well.
    """
    times = summary.timings
    return {
        "cache_n": summary.n_reused,
        **_rates("prompt", times.n_prompt, times.n_prompt, times.prompt_s),
        **_rates("predicted", summary.n_emitted, times.n_predicted, times.predict_s),
        "draft_n": summary.n_drafted,
        "draft_n_accepted": summary.n_accepted,
    }


def speculation(summary: Summary) -> dict[str, Any]:
    """What speculation did, by drafter and round.

    `plain_per_second` is the planner's estimate of plain decoding here, or null. `plain_per_second_range` is from what the last
    rounds without drafts took, or null where these were few or differ much.
    """
    times = summary.timings
    return {
        "plain_per_second": times.plain_per_second,
        "plain_per_second_range": times.plain_range_s and [1 / seconds for seconds in reversed(times.plain_range_s)],
        "rounds": summary.n_rounds,
        "draft_lengths": list(summary.draft_lengths),
        "drafters": {
            name: {
                "drafted": each.drafted,
                "accepted": each.accepted,
                "offered_by_position": list(each.offered_by_position),
                "accepted_by_position": list(each.accepted_by_position),
                "begin_ms": each.begin_s * 1e3,
                "draft_ms": each.draft_s * 1e3,
                "ahead": each.ahead,
                "ahead_used": each.ahead_used,
                "hidden_ms": each.hidden_s * 1e3,
                "failed": each.failed,
            }
            for name, each in summary.drafters.items()
        },
        "effective": summary.effective,
    }


def end_figures(results: Sequence[Result]) -> dict[str, Any]:
    """The `timings` of an answer, or a list for several, and so what `own_figures` has."""
    return {"timings": _one_or_all([timings(result.stats) for result in results])} | own_figures(results)


def own_figures(results: Sequence[Result]) -> dict[str, Any]:
    """What `speculation` did for an answer, or a list for several, and so the `receipt` where one was asked for."""
    return {"speculation": _one_or_all([speculation(result.stats) for result in results])} | receipts(results)


def receipts(results: Sequence[Result]) -> dict[str, Any]:
    """The `receipt` of an answer, or a list for several; nothing where none was asked for."""
    found = [None if result.receipt is None else result.receipt.as_json() for result in results]
    return {"receipt": _one_or_all(found)} if any(found) else {}


def _one_or_all(found: list[Any]) -> Any:
    return found[0] if len(found) == 1 else found


class StreamTimings:
    """The figures of an answer while it streams: its prompt, its tokens so far and their drafters, and their time."""

    def __init__(self) -> None:
        self.n = self._n_drafted = self._n_accepted = 0
        self._begun_at = 0.0
        self._prompt = PromptProgress(0, 0, 0, 0.0)

    def add(self, piece: Token | PromptProgress) -> None:
        """Count a piece."""
        if isinstance(piece, PromptProgress):
            self._prompt = piece
            return
        self._begun_at = self._begun_at or perf_counter()
        self.n += 1
        self._n_drafted += piece.n_drafted or 0
        self._n_accepted += piece.drafter is not None

    def asked_figures(self, body: EngineFields, piece: Token | PromptProgress | Result) -> dict[str, Any]:
        """The figures that a request asked for with a piece: how far its prompt is, or the timings so far with a token."""
        if isinstance(piece, PromptProgress):
            given = {"total": piece.n_prompt, "cache": piece.n_reused, "processed": piece.n_processed}
            return {"prompt_progress": given | {"time_ms": int(piece.seconds * 1e3)}}  # llama.cpp's words
        if isinstance(piece, Result):
            return {}
        found = {"timings": self.timings()} if body.timings_per_token else {}
        if body.is_usage_continuous:
            n = self._prompt.n_prompt
            found["usage"] = {"prompt_tokens": n, "completion_tokens": self.n, "total_tokens": n + self.n}
        return found

    def timings(self) -> dict[str, Any]:
        """The part of `timings` that is known so far."""
        n_prompt = self._prompt.n_processed - self._prompt.n_reused
        prompt = _rates("prompt", n_prompt, n_prompt, self._prompt.seconds if n_prompt else 0.0)
        predicted = _rates("predicted", self.n, self.n - 1, perf_counter() - self._begun_at if self.n else 0.0)
        drafted = {"draft_n": self._n_drafted, "draft_n_accepted": self._n_accepted}
        return {"cache_n": self._prompt.n_reused, **prompt, **predicted, **drafted}


async def counted(
    body: EngineFields, pieces: Pieces
) -> AsyncIterator[tuple[int, Token | PromptProgress | Result, StreamTimings]]:
    """Pieces of a stream, each with the figures of its answer so far; prompts' progress only where the request asks for it."""
    counts = defaultdict[int, StreamTimings](StreamTimings)
    async for index, piece in pieces:
        if not isinstance(piece, Result):
            counts[index].add(piece)
        if body.return_progress or not isinstance(piece, PromptProgress):
            yield index, piece, counts[index]


def _rates(of: str, n: int, n_timed: int, seconds: float) -> dict[str, Any]:
    """Tokens, and the time that all or all but the first of them took."""
    return {
        f"{of}_n": n,
        f"{of}_ms": seconds * 1e3,
        f"{of}_per_token_ms": seconds * 1e3 / n_timed if n_timed > 0 else 0.0,
        f"{of}_per_second": n_timed / seconds if n_timed > 0 and seconds > 0 else 0.0,
    }
