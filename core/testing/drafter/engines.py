"""The checks that run whole engines: answers with drafts are counted, and compared with those of plain decoding."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np

from augury.engine.engine import Engine
from augury.errors import AuguryError, OptionError
from augury.options import options_of
from augury.registry import Registry
from augury.testing.contract import Check, Checks
from augury.testing.drafter import contract
from augury.testing.drafter.driven import PROMPTS, DrafterReport, Subject
from augury.testing.toys import TINY_TARGET, ToyDrafter
from augury.types import DrafterStats, Result, Summary

_REASONS = ("stop", "length", "context", "cancelled")


def miscounts(result: Result) -> list[str]:
    """Which identities a result's statistics break, in words; none where all is well."""
    stats = result.stats
    checks = [*_of_the_text(result), *_of_the_sums(stats), *_of_the_times(stats, is_whole=result.finish_reason != "cancelled")]
    for name, each in stats.drafters.items():
        checks += [(f"{name}: {text}", holds) for text, holds in _of_a_drafter(each)]
    return [f"not {text}: {stats}" for text, holds in checks if not holds]


def _of_the_text(result: Result) -> Iterator[tuple[str, bool]]:
    stats, pieces = result.stats, result.pieces
    yield "n_emitted == n_rounds + n_accepted", stats.n_emitted == stats.n_rounds + stats.n_accepted
    yield "n_emitted == tokens", stats.n_emitted == len(result.tokens)
    yield "tokens == pieces", result.tokens == tuple(piece.token for piece in pieces)
    yield "text == that of the pieces", result.text == "".join(piece.text for piece in pieces)
    yield "a known finish reason", result.finish_reason in _REASONS
    origins = Counter(piece.drafter for piece in pieces if piece.drafter is not None)
    accepted = {name: each.accepted for name, each in stats.drafters.items() if each.accepted}
    yield "drafted pieces == n_accepted", origins.total() == stats.n_accepted
    yield "drafted pieces <= accepted, by drafter", all(n <= accepted.get(name, 0) for name, n in origins.items())
    by_round = [piece.n_drafted for piece in pieces if piece.n_drafted is not None]
    lengths = [0, *stats.draft_lengths][: stats.n_rounds]  # the prompt's round drafts nothing
    yield "drafts of the pieces == draft_lengths", by_round == lengths
    yield "no round of drafted tokens alone", all(piece.drafter is None for piece in (*pieces[:1], *pieces[-1:]))


def _of_the_sums(stats: Summary) -> Iterator[tuple[str, bool]]:
    drafters = stats.drafters.values()
    yield "0 <= n_reused < n_prompt", stats.n_emitted == 0 or 0 <= stats.n_reused < stats.n_prompt
    yield "n_reused + n_recomputed < n_prompt", stats.n_reused + stats.n_recomputed < max(stats.n_prompt, 1)
    again = (stats.n_recomputed, stats.n_restores, stats.n_replayed, stats.n_restarts)
    yield "tokens are replayed after restores alone", min(again) >= 0 and (stats.n_restores > 0 or stats.n_replayed == 0)
    yield "tokens are discarded by shifts alone", stats.n_shifts > 0 or stats.n_discarded == 0
    yield "no shift without a discarded token", 0 <= stats.n_shifts <= stats.n_discarded
    yield "n_accepted <= n_drafted", stats.n_accepted <= stats.n_drafted
    yield "n_accepted is that of some drafter", _is_shared(stats.n_accepted, (each.accepted for each in drafters))
    yield "n_drafted is that of some drafter", _is_shared(stats.n_drafted, (each.drafted for each in drafters))
    yield "n_drafted == sum(draft_lengths)", stats.n_drafted == sum(stats.draft_lengths)
    yield "a draft length for each round after the prompt's", len(stats.draft_lengths) == max(stats.n_rounds - 1, 0)
    n_drafts = sum(k > 0 for k in stats.draft_lengths)
    yield "drafts that were verified are used ones", _is_shared(n_drafts, (each.used for each in drafters))
    by_position = list(zip_longest(stats.accepted_by_position, *(each.accepted_by_position for each in drafters), fillvalue=0))
    up_to = np.cumsum(by_position, axis=0).tolist()  # a drafter's own count from the first token that it proposed
    yield "accepted_by_position is that of some drafter", all(_is_shared(n, own) for n, *own in up_to)
    yield "n_accepted == sum(accepted_by_position)", stats.n_accepted == sum(stats.accepted_by_position)


def _is_shared(n: int, by_drafter: Iterable[int]) -> bool:
    """Whether n can be drafters' work together: each did a part of it, and several some of it."""
    own = list(by_drafter)
    return max(own, default=0) <= n <= sum(own)


def _of_the_times(stats: Summary, *, is_whole: bool) -> Iterator[tuple[str, bool]]:
    timings = stats.timings
    times = (timings.prompt_s, timings.predict_s, timings.queue_s, timings.first_s, *timings.round_s)
    yield "no negative times", min(times) >= 0
    yield "queue_s <= first_s", stats.n_emitted == 0 or timings.queue_s <= timings.first_s
    begun_s = timings.first_s + timings.predict_s  # drafters begin between
    yield "first_s + predict_s <= whole_s", begun_s <= timings.whole_s + 1e-6
    yield "predict_s == sum(round_s)", math.isclose(timings.predict_s, sum(timings.round_s), abs_tol=1e-6)
    yield "n_predicted == all but the first", timings.n_predicted == max(stats.n_emitted - 1, 0)
    n_prompt = stats.n_prompt - stats.n_reused
    is_once = not stats.n_restarts
    is_all = timings.n_prompt == n_prompt if is_whole else timings.n_prompt <= n_prompt
    yield "n_prompt == what was not reused", is_all or not is_once
    begin_s = sum(each.begin_s for each in stats.drafters.values())
    yield "drafters' beginning is prompt time", stats.n_shifts > 0 or not is_once or begin_s <= timings.prompt_s * (1 + 1e-9)


def _of_a_drafter(each: DrafterStats) -> Iterator[tuple[str, bool]]:
    offered, accepted = each.offered_by_position, each.accepted_by_position
    yield "used <= drafts <= calls", each.used <= each.drafts <= each.calls
    yield "accepted <= drafted", each.accepted <= each.drafted
    yield "accepted == sum(accepted_by_position)", each.accepted == sum(accepted)
    yield "used <= sum(offered_by_position) <= drafted", each.used <= sum(offered) <= each.drafted
    yield "all drafts offer their first token", each.used == (offered[0] if offered else 0)
    yield "offered at every position that is accepted", len(offered) == len(accepted)
    yield "accepted <= offered at every position", all(a <= o for a, o in zip(accepted, offered, strict=False))
    falls = all(before >= after for counts in (offered, accepted) for before, after in pairwise(counts))
    yield "no later position oftener than an earlier one", falls
    yield "0 <= ahead_used <= ahead, drafted", 0 <= each.ahead_used <= min(each.ahead, each.drafted)
    yield "no negative times", min(each.begin_s, each.draft_s, each.accept_s, each.hidden_s) >= 0


N_TOKENS = 40  # that an answer has
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "seed": 7, "top_k": 20},
    "penalised": {"temperature": 0.7, "seed": 3, "repeat_penalty": 1.1, "frequency_penalty": 0.2, "repeat_last_n": 24},
}
Output = list[tuple[tuple[int, ...], list[float | None]]]
"""Tokens and their log-probabilities for each prompt."""


class StrictEngine(Engine):
    """An engine in which no drafter may fail: leaving it raises if one did."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._failures = failures = list[tuple[str, str, BaseException]]()
        self._drafting.on_failure = lambda *failure: failures.append(failure[:3])  # the thread must not hold the engine

    def __exit__(self, *raised: object) -> None:
        """Close. Raises ContractError: a drafter failed."""
        super().__exit__(*raised)
        if raised == (None, None, None) and self._failures:
            name, method, failure = self._failures[0]
            with contract.ERROR.kept(name, f", in `{method}`, in a running engine"):
                raise failure


def engine_with(
    *drafters: Subject, registry: Registry, backend: str = "toy", slots: int = 1, is_fixed: bool = True, n_ctx: int = 320
) -> Engine:
    """An engine on the tiny target with a chain of drafters, or with none, which may not fail."""
    return StrictEngine.load(
        TINY_TARGET,
        backend=backend,
        spec_type=[each.name for each in drafters],
        spec_options={each.name: each.values for each in drafters},
        spec_fixed=is_fixed,
        spec_verify=drafters[0].verify if drafters else "match",
        slots=slots,
        threads=min(slots, 2),
        n_ctx=n_ctx,
        registry=registry,
    )


def answers(name: str, engine: Engine, params: dict[str, Any], report: DrafterReport) -> list[Result]:
    """The counted results of all prompts; errors are those of `counted`."""
    asked = {"max_tokens": N_TOKENS, "logprobs": 0, "ignore_eos": True, **params}
    return counted(name, lambda: engine.generate(PROMPTS, **asked), report)


def counted(name: str, run: Callable[[], list[Result]], report: DrafterReport) -> list[Result]:
    """The result of `run`, added to the report. Raises ContractError: an engine fell over its drafters, or lost count."""
    with contract.ERROR.kept(name, ", in a running engine", (AuguryError,)):
        results = run()
    for result in results:
        stats = result.stats
        report.n_requests += 1
        report.n_drafted += stats.n_drafted
        report.n_accepted += stats.n_accepted
        if wrong := miscounts(result):
            raise contract.COUNTS.broken(name, "; ".join(wrong))
    return results


def output(results: list[Result]) -> Output:
    """The part of results that must not depend on drafters."""
    return [(result.tokens, [piece.logprob for piece in result.pieces]) for result in results]


@functools.cache
def plain(registry: Registry, backend: str, way: str) -> Output:
    """Plain decoding of all prompts."""
    with engine_with(registry=registry, backend=backend) as engine:
        return output(engine.generate(PROMPTS, max_tokens=N_TOKENS, logprobs=0, ignore_eos=True, **WAYS[way]))


def compare(name: str, where: str, expected: Output, found: Output) -> None:
    """See that one output is the other, or raise a ContractError."""
    for i, ((tokens, logprobs), (others, other_logprobs)) in enumerate(zip(expected, found, strict=True)):
        if tokens != others:
            at = next(j for j, (one, other) in enumerate(zip(tokens, others, strict=False)) if one != other)
            seen = f"{where}, token {at} of prompt {i} is {others[at]}, plainly it is {tokens[at]}"
            raise contract.LOSSLESS.broken(name, seen)
        if logprobs != other_logprobs:
            raise contract.LOSSLESS.broken(name, f"{where}, prompt {i} has the right tokens of other probabilities")


def check_plain(subject: Subject, engine: Engine, way: str, where: str, *, backend: str = "toy", **params: Any) -> None:
    """See that an engine's counted answers are those of plain decoding; errors are those of `answers` and `compare`."""
    results = answers(subject.name, engine, WAYS[way] | subject.params | params, subject.report)
    compare(subject.name, where, plain(subject.registry, backend, way), output(results))


def lossless(subject: Subject, way: str) -> None:
    """Tokens and their probabilities are those of plain decoding, alone and beside other requests.

    So they are on the first backend; on each of the others one way to sample is tried alone, the next beside others.
    """
    for i, backend in enumerate(subject.backends):
        for slots in (1, 3) if i == 0 else ((1, 3)[(i + list(WAYS).index(way)) % 2],):
            with engine_with(subject, registry=subject.registry, backend=backend, slots=slots) as engine:
                check_plain(subject, engine, way, f"{way} on {backend} with {slots} slots", backend=backend)


ENGINE_CHECKS = Checks(Check(f"leaves {way} output as it is", functools.partial(lossless, way=way)) for way in WAYS)


@ENGINE_CHECKS.add
def planned(subject: Subject) -> None:
    """Leaves planned output as it is."""
    for slots in (1, 3):
        with engine_with(subject, registry=subject.registry, slots=slots, is_fixed=False) as engine:
            check_plain(subject, engine, "sampled", f"planned, with {slots} slots")


@ENGINE_CHECKS.add
def in_chain(subject: Subject) -> None:
    """Leaves output as it is in a chain."""
    if subject.name == "none":  # it stands for no drafter, and is refused beside others
        return
    other = Subject(ToyDrafter, {}, subject.registry, subject.backends)
    for is_fixed in (True, False):
        for pair in ((subject, other), (other, subject)):
            chained(*pair, "toy", "sampled", is_fixed=is_fixed)


@ENGINE_CHECKS.add
def full_context(subject: Subject) -> None:
    """Leaves output as it is where the context becomes full."""
    outputs = []
    for names in ((), (subject,)):
        with engine_with(*names, registry=subject.registry, n_ctx=64) as engine:
            ended = [engine.generate(PROMPTS[0][:n], logprobs=0, ignore_eos=True, temperature=0.0) for n in (30, 51, 63, 64)]
        outputs.append(output(ended))
    compare(subject.name, "where the context becomes full", *outputs)


@ENGINE_CHECKS.add
def cancelled(subject: Subject) -> None:
    """Leaves no trace of a cancelled request."""
    with engine_with(subject, registry=subject.registry) as engine:
        for n in (1, 2, 9):
            for i, _ in enumerate(engine.stream(PROMPTS[1], max_tokens=30, temperature=0.0, ignore_eos=True)):
                if i == n:
                    break
            check_plain(subject, engine, "greedy", f"after a request cancelled at token {n}")


@ENGINE_CHECKS.add
def per_request(subject: Subject) -> None:
    """Takes options by request."""
    wishes: list[dict[str, Any]] = [{"n_max": 0}, {"n_max": 1}, {"n_max": 5}, {"n_min": 3}, {"type": "none"}]
    for option in options_of(subject.drafter.options_class).values():
        if option.is_per_request:
            values = [option.kind(bound) for bound in (option.ge, option.le) if bound is not None]
            wishes += [{subject.name: {option.name: value}} for value in [*values, *option.choices]]
    with engine_with(subject, registry=subject.registry) as engine:
        for wish in wishes:
            try:
                check_plain(subject, engine, "greedy", f"with speculative={wish}", speculative=wish)
            except AuguryError as error:
                if isinstance(error, OptionError) and subject.name in wish:
                    continue  # a bound may contradict the other options, and was refused
                raise contract.BOUNDS.broken(subject.name, f"with speculative={wish}: {error}") from error


def chained(first: Subject, second: Subject, backend: str, way: str, *, is_fixed: bool) -> DrafterReport:
    """See that two drafters in a chain leave the output as it is, and that each accepted token is said to be of one of them."""
    report = DrafterReport()
    with engine_with(first, second, registry=first.registry, backend=backend, slots=2, is_fixed=is_fixed) as engine:
        results = answers(f"{first.name};{second.name}", engine, WAYS[way] | first.params | second.params, report)
    name = f"{first.name};{second.name}"
    compare(name, f"{way} on {backend}", plain(first.registry, backend, way), output(results))
    for result in results:
        n_drafted = sum(piece.drafter in (first.name, second.name) for piece in result.pieces)
        if n_drafted != result.stats.n_accepted:
            raise contract.COUNTS.broken(name, f"{n_drafted} tokens by drafters, {result.stats.n_accepted} accepted")
    return report
