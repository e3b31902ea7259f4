"""Figures of requests and of the engine: `RequestCounter` comes to a `Summary`, `EngineCounter` to `EngineStats`."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from statistics import quantiles
from time import perf_counter
from typing import Any, Literal

import attrs
from attrs import frozen

from augury.engine.params import PromptProgress
from augury.engine.request import Request
from augury.guard import guarded
from augury.log import get_logger
from augury.speculation.drafter_guard import DraftingCounter
from augury.types import Round, Summary, Timings, TokenLogprob

_LEARN_OVERHEAD = 0.05  # of a round, in the time beside the passes of rounds
_LAST_ROUNDS, _FEW_ROUNDS = 64, 8  # plain ones, that say how long such a round takes
_MOST_SPREAD = 1.5  # between the quartiles of these, beyond which others use the machine, too
_LOGGER = logging.getLogger("augury.engine.loop")  # where structlog's events go; asked first, as events cost something to make
_FIGURES = (  # of a `Summary`, as a `RequestCounter` counts them
    *("slot", "n_prompt", "n_reused", "n_recomputed", "n_restores", "n_replayed", "n_shifts", "n_discarded", "n_restarts"),
    *("n_emitted", "n_drafted", "n_accepted"),
)

# One request


@frozen
class PromptToken:
    """A token of a text that was given, and how probable it was after those before it, under the model's own distribution."""

    token: int
    bytes: bytes | None = None  # its own text; None: no tokenizer
    logprob: float | None = None  # natural logarithm; None of the first token, which follows nothing
    rank: int | None = None  # 1: no token was more probable
    top_logprobs: tuple[TokenLogprob, ...] = ()  # the n most probable tokens in its place, best first


class RequestCounter(DraftingCounter):
    """Counts the work of one request. Only rounds that are over are counted, so there is nothing to roll back."""

    def __init__(self, request: Request, n_prompt: int) -> None:
        super().__init__(member.name for member in request.speculation.members)
        self.slot: int | None = None
        self.n_prompt, self.n_reused, self.n_recomputed, self.n_restores, self.n_replayed = n_prompt, 0, 0, 0, 0
        self.n_shifts = self.n_discarded = self.n_restarts = self.n_emitted = 0
        self.n_rounds = self.n_drafted = self.n_accepted = 0  # of rounds after the prompt's
        self.draft_lengths: list[int] = []
        self.last_drafter: str | None = None
        self.plain_s: float | None = None  # the planner's estimate of a plain round
        self.plain_range_s: tuple[float, float] | None = None  # of those that were made last
        self._request = request
        self._accepted_by_position: list[int] = []
        self._n_processed = 0
        self._prompt_s = self._first_token_at = self._last_token_at = self._first_s = 0.0
        self._submitted_at = self._opened_at = perf_counter()
        self._round_s: list[float] = []

    def opened(self, slot: int, n_reused: int, n_recomputed: int) -> None:
        """The request's slot holds so many tokens of its prompt; so many more were held, but not where it could go on."""
        self.slot, self._opened_at = slot, perf_counter()
        self.n_reused, self.n_recomputed = n_reused, n_recomputed
        self._progressed()

    def begun(self, drafter: str, seconds: float) -> None:
        """A drafter has worked on the text for so long, which is prompt time, unless the text was cut in the middle."""
        if self.n_emitted <= 1:
            self._first_token_at = self._last_token_at = perf_counter()
            self._prompt_s += seconds
        super().begun(drafter, seconds)

    def chunk(self, n_tokens: int, seconds: float) -> None:
        """So many tokens of the prompt were in a pass, of which they took `seconds`."""
        self._n_processed += n_tokens
        self._prompt_s += seconds
        self._progressed()

    def _progressed(self) -> None:
        if (on_prompt := self._request.on_prompt) is not None:
            seconds = perf_counter() - self._opened_at
            guarded(on_prompt, PromptProgress(self.n_prompt, self.n_reused, self.n_reused + self._n_processed, seconds))

    def prefilled(self) -> None:
        """The prompt, or a text that was cut, is processed and its token emitted: its last pass is a round."""
        if self.n_emitted:
            self.round((), 0, 0, 1)
            return
        self.n_emitted += 1
        self._first_token_at = self._last_token_at = perf_counter()
        self._first_s = self._first_token_at - self._submitted_at

    def shifted(self, n_discarded: int) -> None:
        """The context was full, and so many tokens were left out."""
        self.n_shifts += 1
        self.n_discarded += n_discarded

    def round(self, drafters: Sequence[str], depth: int, n_accepted: int, n_emitted: int) -> None:
        """A round is over; `drafters` (k,) proposed the tokens that were verified, of which `depth` could be accepted."""
        n_drafted, by_position = len(drafters), self._accepted_by_position
        self.n_rounds += 1
        self.n_emitted += n_emitted
        self.draft_lengths.append(n_drafted)
        before, self._last_token_at = self._last_token_at, perf_counter()
        self._round_s.append(self._last_token_at - before)
        if n_drafted:
            self.n_drafted += n_drafted
            self.n_accepted += n_accepted
            self.last_drafter = drafters[0]
            by_position += [0] * (depth - len(by_position))
            for position in range(n_accepted):
                by_position[position] += 1

    def chained(self, n: int) -> None:
        """A chain of passes is over: n rounds of a token each, which took as long as each other."""
        before, now = self._last_token_at, perf_counter()
        for _ in range(n):
            self.round((), 0, 0, 1)
            self._round_s[-1] = (now - before) / n
        self._last_token_at = now

    def summary(self) -> Summary:
        """The summary so far."""
        return Summary(
            id=self._request.id,
            **{name: getattr(self, name) for name in _FIGURES},
            n_rounds=self.n_rounds + (self.n_emitted > 0),
            accepted_by_position=tuple(self._accepted_by_position),
            draft_lengths=tuple(self.draft_lengths),
            drafters=self.drafters(),
            timings=Timings(
                prompt_s=self._prompt_s,
                predict_s=self._last_token_at - self._first_token_at,
                n_prompt=self._n_processed,
                n_predicted=max(self.n_emitted - 1, 0),
                plain_s=self.plain_s,
                plain_range_s=self.plain_range_s,
                queue_s=self._opened_at - self._submitted_at,
                first_s=self._first_s,
                whole_s=self._last_token_at - self._submitted_at if self.n_emitted else 0.0,
                round_s=tuple(self._round_s),
            ),
            effective=self._request.speculation.effective(),
        )


def log_request(summary: Summary) -> None:
    """Log a request's result."""
    if not _LOGGER.isEnabledFor(logging.INFO):
        return
    logger = get_logger("augury.engine.loop")
    counted = ("prompt", "reused", "recomputed", "restores", "replayed", "emitted", "rounds")
    counts = {name: getattr(summary, f"n_{name}") for name in counted}
    seconds = {name: round(getattr(summary.timings, name), 4) for name in ("prompt_s", "predict_s")}
    logger.info("request done", id=summary.id, **counts, **seconds)
    for name, stats in summary.drafters.items():
        logger.info("drafter done", id=summary.id, drafter=name, **attrs.asdict(stats))


# The engine


@frozen
class SlotStats:
    """One slot, at the end of the last round."""

    slot: int
    state: Literal["idle", "prompt", "decoding", "evaluating"] = "idle"
    id: str | None = None  # of its request
    n_prompt: int = 0  # of the request
    n_held: int | None = None  # tokens of the request whose states the slot holds; None where it has no request
    n_emitted: int = 0
    drafters: tuple[str, ...] = ()  # of the request, by priority
    drafter: str | None = None  # whose draft was verified last
    n_drafted: int = 0
    n_accepted: int = 0
    draft_lengths: tuple[int, ...] = ()  # tokens verified in each round after the prompt's
    n_left: int | None = None  # tokens that it may still emit; None for any number


@frozen
class Counts:
    """Since the engine was loaded; evaluations are not counted."""

    n_finished: int = 0  # requests that came to their end
    n_failed: int = 0
    n_cancelled: int = 0
    n_reused: int = 0  # prompt tokens that slots still held
    n_recomputed: int = 0  # prompt tokens that a slot shared with the prompt, and that were computed again all the same
    n_restores: int = 0  # passes that began by setting a recurrent state back, after a rejected draft
    n_replayed: int = 0  # accepted tokens that were computed again because of that
    n_shifts: int = 0  # full contexts whose text was cut
    n_prompt: int = 0  # prompt tokens processed, and those of texts that were cut
    n_emitted: int = 0
    n_drafted: int = 0  # drafted tokens that were verified
    n_accepted: int = 0
    n_rounds: int = 0  # passes of the target, or chains of passes
    draft_s: float = 0.0
    forward_s: float = 0.0  # in the target's passes


@frozen
class EngineStats:
    """The result of `Engine.stats`."""

    slots: tuple[SlotStats, ...]
    n_waiting: int  # requests without a slot
    counts: Counts
    # of a round of one token alone, uninterrupted, by the planner's measurements; None without a planner
    plain_s: float | None = None

    @property
    def plain_per_second(self) -> float | None:
        """Tokens per second without drafts, as the planner expects them; None without a planner."""
        return None if self.plain_s is None else 1 / self.plain_s

    @property
    def n_running(self) -> int:
        """Requests that have a slot."""
        return sum(slot.id is not None for slot in self.slots)


class EngineCounter:
    """Counts an engine's work, on its thread, and publishes immutable values that any thread may read."""

    def __init__(self, n_slots: int) -> None:
        self._counts = attrs.asdict(Counts())
        self._n_slots = n_slots
        self._overhead_s = 0.0  # of a slot's round without drafts, beside its pass
        self._n_overheads = 0
        self._plain_rounds: deque[float] = deque(maxlen=_LAST_ROUNDS)  # seconds of the last ones without drafts
        self._seen: tuple[dict[str, Any], list[Any]] = (self._counts.copy(), [])

    def started(self, n_reused: int, n_recomputed: int) -> None:
        """A request has a slot, which reuses so many tokens of its prompt, of those that some slot had."""
        self._add(n_reused=n_reused, n_recomputed=n_recomputed)

    def passed(self, seen: Round, n_prompt: int, running: Iterable[Any]) -> None:
        """A round is over, with so many tokens of prompts in its pass."""
        self._counts["n_rounds"] += 1
        self._counts["n_prompt"] += n_prompt
        for name in ("n_emitted", "n_drafted", "n_accepted", "draft_s", "forward_s"):
            self._counts[name] += getattr(seen, name)
        self.publish(running)

    def overhead(self, seen: Round, n_running: int, seconds: float) -> None:
        """A round took so long beside its pass and its drafters; `n_running` requests go on."""
        n, n_tokens = seen.n_sequences, seen.n_tokens - seen.n_drafted
        if not seen.n_emitted == n_tokens >= n == n_running:
            return
        if n_tokens == n:  # a token of each, as without drafts; of a chain of passes there are more
            self._n_overheads += 1
            each_s = min(seconds, seen.forward_s) / n  # one that took longer than its pass compiled, or was interrupted
            self._overhead_s += (each_s - self._overhead_s) * max(_LEARN_OVERHEAD, 1 / self._n_overheads)
        self._plain_rounds.append((seen.forward_s + seconds) * n / n_tokens)

    def plain_s(self, pass_s: float | None) -> float | None:
        """Seconds of a slot's round without drafts, by those of its pass; None where these are unknown. Any thread may ask."""
        return None if pass_s is None else pass_s + self._overhead_s

    def tell_plain(self, counter: RequestCounter, pass_s: float | None) -> None:
        """Tell a request's figures how long rounds without drafts take."""
        counter.plain_s = self.plain_s(pass_s)
        if len(self._plain_rounds) >= _FEW_ROUNDS:
            first, _, third = quantiles(self._plain_rounds, n=4)
            counter.plain_range_s = (first, third) if third <= _MOST_SPREAD * first else None

    def ended(self, counter: RequestCounter, finish_reason: str | None, *, is_failed: bool) -> None:
        """A request is over."""
        self._add(n_restores=counter.n_restores, n_replayed=counter.n_replayed, n_shifts=counter.n_shifts)
        self._add(**{"n_failed" if is_failed else "n_finished" if finish_reason else "n_cancelled": 1})

    def _add(self, **more: float) -> None:
        for name, n in more.items():
            self._counts[name] += n

    def publish(self, running: Iterable[Any]) -> None:
        """Publish the counts, and the figures of running sequences that change."""
        figures = []
        for each in running:
            own = each.counter
            drafted = own.last_drafter, own.n_drafted, own.n_accepted, own.draft_lengths, own.n_rounds
            figures.append((each.slot, each.request, each.n_kept, each.n_emitted, drafted))
        self._seen = self._counts.copy(), figures

    def stats(self, n_waiting: int, evaluating: Collection[int], pass_s: float | None) -> EngineStats:
        """The figures that were published last; `pass_s` is a plain pass's time. Any thread may ask."""
        counts, running = self._seen
        slots = [SlotStats(slot, "evaluating" if slot in evaluating else "idle") for slot in range(self._n_slots)]
        for slot, request, n_held, n_emitted, (drafter, n_drafted, n_accepted, lengths, n_rounds) in running:
            drafters = tuple(member.name for member in request.speculation.members)
            state: Literal["prompt", "decoding"] = "decoding" if n_emitted else "prompt"
            drafted = drafter, n_drafted, n_accepted, tuple(lengths[:n_rounds])  # the list grows at its end alone
            n_left = None if request.max_tokens is None else request.max_tokens - n_emitted
            slots[slot] = SlotStats(slot, state, request.id, len(request.prompt), n_held, n_emitted, drafters, *drafted, n_left)
        return EngineStats(tuple(slots), n_waiting, Counts(**counts), self.plain_s(pass_s))
