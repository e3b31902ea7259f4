"""Counters for Prometheus, in llama.cpp's names, and of speculation in vLLM's form, by drafter; histograms in vLLM's names.

Requests are counted when they end, all figures at once, so that sums hold: tokens emitted are rounds and tokens accepted.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from augury.engine.stats import EngineStats
from augury.hookspecs import hookimpl
from augury.types import Round, Summary

disable_created_metrics()  # type: ignore[no-untyped-call] # further series of histograms, which nobody reads

Sample = tuple[Any, str, str, Mapping[str, str], float]
"""Kind, name, text, labels and value of a figure."""

_COUNTERS = {  # by attribute of `Metrics.totals`
    "n_prompt": ("llamacpp:prompt_tokens", "Prompt tokens processed."),
    "n_reused": ("llamacpp:prompt_tokens_cached", "Prompt tokens that slots still held."),
    "prompt_s": ("llamacpp:prompt_seconds", "Seconds spent on prompts."),
    "n_emitted": ("llamacpp:tokens_predicted", "Tokens generated."),
    "predict_s": ("llamacpp:tokens_predicted_seconds", "Seconds spent on generated tokens but the first of each request."),
    "n_passes": ("llamacpp:n_decode", "Passes of the target model."),
    "n_drafts": ("llamacpp:spec_decode_num_drafts", "Drafts that were verified."),
    "n_drafted": ("llamacpp:spec_decode_num_draft_tokens", "Drafted tokens that were verified."),
    "n_accepted": ("llamacpp:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted."),
    "n_requests": ("augury:requests", "Requests that have ended."),
    "n_rounds": ("augury:rounds", "Rounds of requests; tokens generated are rounds and accepted tokens."),
}
_BY_DRAFTER = {  # by attribute of `DrafterStats`
    "used": ("augury:spec_decode_num_drafts", "Drafts that were verified, by drafter."),
    "drafted": ("augury:spec_decode_num_draft_tokens", "Drafted tokens that were verified, by drafter."),
    "accepted": ("augury:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted, by drafter."),
    "begin_s": ("augury:spec_decode_prompt_seconds", "Seconds spent on prompts, by drafter."),
    "draft_s": ("augury:spec_decode_draft_seconds", "Seconds spent on drafting, by drafter."),
}
_BY_POSITION = {
    "offered_by_position": ("augury:spec_decode_num_draft_tokens_per_pos", "Drafts that were verified as far as a position."),
    "accepted_by_position": (
        "augury:spec_decode_num_accepted_tokens_per_pos",
        "Drafts whose token at a position was accepted.",
    ),
}


_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_MINUTES = (60.0, 120.0, 240.0, 480.0, 960.0)
_LONG = (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, *_MINUTES)
_HISTOGRAMS = {  # by attribute of `Timings`
    "first_s": (
        "vllm:time_to_first_token_seconds",
        "Seconds from a request to its first token.",
        (*_SHORT, 20.0, 40.0, 80.0, 160.0),
    ),
    "round_s": ("vllm:inter_token_latency_seconds", "Seconds from one token to those of the next round.", _SHORT),
    "whole_s": ("vllm:e2e_request_latency_seconds", "Seconds from a request to its last token.", _LONG),
    "queue_s": ("vllm:request_queue_time_seconds", "Seconds that a request waits for a slot.", (*_SHORT[:4], *_LONG)),
}


class Metrics:
    """Counts over the life of the server, over all engines of a model; it observes them as a plugin does.

    Attributes:
        latencies: The histograms.
        elsewhere: Gives the figures in place of the engine here, where replicas count for themselves.
    """

    def __init__(self) -> None:
        self.elsewhere: Callable[[], Iterator[Sample]] | None = None
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()
        self._of_drafters: Counter[tuple[str, ...]] = Counter()  # by figure, drafter and, where there are such, position
        self._n_sequences = self._n_passes = 0  # of the engine's thread, which alone writes them
        self._longest = 0
        self._last: Counter[str] = Counter()  # totals at the last look
        self.latencies = CollectorRegistry()
        self._histograms = {
            figure: Histogram(name, text, ["model_name"], registry=self.latencies, buckets=buckets)
            for figure, (name, text, buckets) in _HISTOGRAMS.items()
        }

    def observe(self, model: str, summary: Summary) -> None:
        """Enter the times of an answer that is whole; called on any thread."""
        for figure, histogram in self._histograms.items():
            found = getattr(summary.timings, figure)
            for seconds in found if isinstance(found, tuple) else (found,):
                histogram.labels(model).observe(seconds)

    @hookimpl
    def augury_round_done(self, round: Round) -> None:  # noqa: A002 - the field's word
        """Count a pass."""
        self._n_passes += 1
        self._n_sequences += round.n_sequences

    @hookimpl
    def augury_request_done(self, summary: Summary) -> None:
        """Count a request."""
        times = summary.timings
        with self._lock:
            self._longest = max(self._longest, summary.n_prompt + summary.n_emitted)
            counted: Any = {"n_requests": 1, "n_prompt": times.n_prompt, "n_timed": times.n_predicted}
            counted |= {name: getattr(times, name) for name in ("prompt_s", "predict_s")}
            of_summary = ("n_reused", "n_emitted", "n_rounds", "n_drafted", "n_accepted")
            self._totals.update(counted | {name: getattr(summary, name) for name in of_summary})
            for name, each in summary.drafters.items():
                self._totals["n_drafts"] += each.used
                for figure in _BY_DRAFTER:
                    self._of_drafters[figure, name] += getattr(each, figure)
                for figure in _BY_POSITION:
                    for position, n in enumerate(getattr(each, figure)):
                        self._of_drafters[figure, name, str(position)] += n

    def sample(self, engine: EngineStats | None) -> Iterator[Sample]:
        """The figures now. Rates are since the last time."""
        if self.elsewhere is not None:
            yield from self.elsewhere()
            return
        with self._lock:
            totals, last = self._totals.copy(), self._last
            of_drafters = self._of_drafters.copy()
            self._last = totals
        totals["n_passes"] = self._n_passes
        for figure, (name, text) in _COUNTERS.items():
            yield CounterMetricFamily, name, text, {}, totals[figure]
        for figures, labels in ((_BY_DRAFTER, ["drafter"]), (_BY_POSITION, ["drafter", "position"])):
            for (figure, *of), n in of_drafters.items():
                if figure in figures:
                    yield CounterMetricFamily, *figures[figure], dict(zip(labels, of, strict=True)), n
        gauges = {
            "llamacpp:prompt_tokens_seconds": (
                "Prompt tokens per second, since the last look.",
                _rate(totals, last, "n_prompt", "prompt_s"),
            ),
            "llamacpp:predicted_tokens_seconds": (
                "Tokens per second, since the last look.",
                _rate(totals, last, "n_timed", "predict_s"),
            ),
            "llamacpp:requests_processing": ("Requests that have a slot.", 0 if engine is None else engine.n_running),
            "llamacpp:requests_deferred": ("Requests that wait for a slot.", 0 if engine is None else engine.n_waiting),
            "llamacpp:n_tokens_max": ("Tokens of the longest request so far, with its prompt.", self._longest),
            "llamacpp:n_busy_slots_per_decode": ("Mean number of slots in a pass.", self._n_sequences / max(self._n_passes, 1)),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily, name, text, {}, value


class _Samples(Collector):
    """The figures of all models, as they were taken."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """See `Collector`."""
        return self._families


def exposition(models: Sequence[tuple[Mapping[str, str], Metrics, EngineStats | None]]) -> bytes:
    """The text that Prometheus reads, of models each with labels of its own."""
    families: dict[str, Any] = {}
    for of_model, metrics, engine in models:
        for kind, name, text, labels, value in metrics.sample(engine):
            labels = {**of_model, **labels}  # noqa: PLW2901
            family = families.setdefault(name, kind(name, text, labels=[*labels]))
            family.add_metric([*labels.values()], value)
        for family in metrics.latencies.collect():
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type)).samples += family.samples
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Samples(families.values()))
    return generate_latest(registry)


def _rate(totals: Counter[str], last: Counter[str], n: str, seconds: str) -> float:
    passed = totals[seconds] - last[seconds]
    return (totals[n] - last[n]) / passed if passed > 0 else 0.0
