"""Counters for Prometheus, in llama.cpp's names, and of speculation in vLLM's form, by drafter; histograms in vLLM's names.

Requests are counted when they end, all figures at once, so that sums hold: tokens emitted are rounds and tokens accepted.
"""

from __future__ import annotations

import math
import threading
from collections import Counter as Sums
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import Metric

from augury.engine.stats import EngineStats
from augury.hookspecs import hookimpl
from augury.types import Round, Summary

disable_created_metrics()  # type: ignore[no-untyped-call] # further series of histograms, which nobody reads

_COUNTERS = {  # by figure
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
_GAUGES = {
    "prompt_rate": ("llamacpp:prompt_tokens_seconds", "Prompt tokens per second, since the last look."),
    "rate": ("llamacpp:predicted_tokens_seconds", "Tokens per second, since the last look."),
    "n_running": ("llamacpp:requests_processing", "Requests that have a slot."),
    "n_waiting": ("llamacpp:requests_deferred", "Requests that wait for a slot."),
    "longest": ("llamacpp:n_tokens_max", "Tokens of the longest request so far, with its prompt."),
    "busy": ("llamacpp:n_busy_slots_per_decode", "Mean number of slots in a pass."),
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
        elsewhere: Gives the counts in place of the engine here, where replicas count for themselves.
    """

    def __init__(self) -> None:
        self.elsewhere: Callable[[], Iterable[Metric]] | None = None
        self._counts, self.latencies = CollectorRegistry(), CollectorRegistry()
        self._lock = threading.Lock()  # held while a request is entered, so that sums hold
        self._totals = {figure: Counter(*named, registry=self._counts) for figure, named in _COUNTERS.items()}
        self._gauges = {figure: Gauge(*named, registry=self._counts) for figure, named in _GAUGES.items()}
        self._by_drafter, self._by_position = (
            {figure: Counter(*named, labels, registry=self._counts) for figure, named in figures.items()}
            for figures, labels in ((_BY_DRAFTER, ["drafter"]), (_BY_POSITION, ["drafter", "position"]))
        )
        self._histograms = {
            figure: Histogram(name, text, ["model_name"], registry=self.latencies, buckets=buckets)
            for figure, (name, text, buckets) in _HISTOGRAMS.items()
        }
        self._n_sequences = self._n_passes = self._longest = 0
        self._recent = Sums[str]()  # since the last look

    def observe(self, model: str, summary: Summary) -> None:
        """Enter the times of an answer that is whole; called on any thread."""
        for figure, histogram in self._histograms.items():
            found = getattr(summary.timings, figure)
            for seconds in found if isinstance(found, tuple) else (found,):
                histogram.labels(model).observe(seconds)

    @hookimpl
    def augury_round_done(self, round: Round) -> None:  # noqa: A002 - the field's word
        """Count a pass, and the tokens of texts that are only read, which end no request."""
        self._totals["n_passes"].inc()
        self._n_passes += 1
        self._n_sequences += round.n_sequences
        if not round.ids:
            with self._lock:
                self._totals["n_prompt"].inc(round.n_tokens)
                self._totals["prompt_s"].inc(round.forward_s)
                self._recent.update({"prompt": round.n_tokens, "prompt_s": round.forward_s})

    @hookimpl
    def augury_request_done(self, summary: Summary) -> None:
        """Count a request."""
        times = summary.timings
        counted = {"n_requests": 1, "n_drafts": sum(each.used for each in summary.drafters.values())}
        counted |= {name: getattr(times, name) for name in ("n_prompt", "prompt_s", "predict_s")}
        counted |= {name: getattr(summary, name) for name in ("n_reused", "n_emitted", "n_rounds", "n_drafted", "n_accepted")}
        with self._lock:
            self._longest = max(self._longest, summary.n_prompt + summary.n_emitted)
            recent: Any = {
                "prompt": times.n_prompt,
                "prompt_s": times.prompt_s,
                "timed": times.n_predicted,
                "s": times.predict_s,
            }
            self._recent.update(recent)
            for figure, n in counted.items():
                self._totals[figure].inc(n)
            for name, each in summary.drafters.items():
                for figure, counter in self._by_drafter.items():
                    counter.labels(name).inc(getattr(each, figure))
                for figure, counter in self._by_position.items():
                    for position, n in enumerate(getattr(each, figure)):
                        counter.labels(name, position).inc(n)

    def sample(self, engine: EngineStats | None) -> Iterable[Metric]:
        """The counts now. Rates are since the last time."""
        if self.elsewhere is not None:
            return self.elsewhere()
        with self._lock:
            recent, self._recent = self._recent, Sums()
            gauges = {
                "prompt_rate": recent["prompt"] / (recent["prompt_s"] or math.inf),
                "rate": recent["timed"] / (recent["s"] or math.inf),
                "n_running": 0 if engine is None else engine.n_running,
                "n_waiting": 0 if engine is None else engine.n_waiting,
                "longest": self._longest,
                "busy": self._n_sequences / max(self._n_passes, 1),
            }
            for figure, value in gauges.items():
                self._gauges[figure].set(value)
            return [*self._counts.collect()]


def exposition(models: Sequence[tuple[Mapping[str, str], Metrics, EngineStats | None]]) -> bytes:
    """The text that Prometheus reads, of models each with labels of its own.

    prometheus_client ends the name of every counter in `_total`, and llama.cpp has one whose name does not.
    """
    families: dict[str, Metric] = {}

    def add(found: Iterable[Metric], labels: Mapping[str, str]) -> None:
        for each in found:
            family = families.setdefault(each.name, Metric(each.name, each.documentation, each.type))
            family.samples += [sample._replace(labels={**labels, **sample.labels}) for sample in each.samples]

    for labels, metrics, engine in models:
        add(metrics.sample(engine), labels)
        add(metrics.latencies.collect(), {})
    text = generate_latest(SimpleNamespace(collect=families.values))
    return text.replace(b"# TYPE llamacpp:n_tokens_max gauge", b"# TYPE llamacpp:n_tokens_max counter")  # as llama.cpp has it
