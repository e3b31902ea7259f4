"""What Prometheus reads: llama.cpp's names, counts by drafter, and sums that hold."""

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.toys import ScriptedDrafter, toy_engine

from augury.plugins.server.metrics import Metrics, exposition
from augury.types import DrafterStats, Round, Summary, Timings

GREEDY = {"temperature": 0.0}


def read(metrics, engine=None):
    families = text_string_to_metric_families(exposition([({}, metrics, None if engine is None else engine.stats())]).decode())
    return {
        (sample.name, *sample.labels.values()): (family.type, sample.value) for family in families for sample in family.samples
    }


def value(found, *name):
    return found[name][1]


def test_what_an_engine_does_is_counted_and_tokens_are_rounds_and_accepted_ones():
    metrics = Metrics()
    observers = (metrics.augury_round_done, metrics.augury_request_done)
    with toy_engine(drafter=ScriptedDrafter, observers=observers) as engine:
        results = [engine.generate([1, 2, 3], max_tokens=9, **GREEDY) for _ in range(2)]
        found = read(metrics, engine)
    sums = [result.stats for result in results]
    for name, figure in (
        ("llamacpp:tokens_predicted_total", "n_emitted"),
        ("augury:rounds_total", "n_rounds"),
        ("llamacpp:spec_decode_num_draft_tokens_total", "n_drafted"),
        ("llamacpp:spec_decode_num_accepted_tokens_total", "n_accepted"),
        ("llamacpp:prompt_tokens_cached_total", "n_reused"),
    ):
        assert found[name,] == ("counter", sum(getattr(each, figure) for each in sums)) > ("counter", 0)
    emitted, rounds = value(found, "llamacpp:tokens_predicted_total"), value(found, "augury:rounds_total")
    assert emitted == rounds + value(found, "augury:spec_decode_num_accepted_tokens_total", "scripted")
    per_position = [each for (name, *_), (_, each) in found.items() if name.endswith("accepted_tokens_per_pos_total")]
    assert sum(per_position) == emitted - rounds
    assert value(found, "llamacpp:n_decode_total") == sum(each.n_rounds for each in sums)
    assert found["llamacpp:n_busy_slots_per_decode",] == ("gauge", 1.0)
    assert found["llamacpp:n_tokens_max_total",] == ("counter", 12)  # as this parser calls it
    assert b"# TYPE llamacpp:n_tokens_max counter\nllamacpp:n_tokens_max 12.0\n" in exposition([({}, metrics, None)])
    assert value(found, "llamacpp:requests_processing") == value(found, "llamacpp:requests_deferred") == 0
    assert value(found, "augury:requests_total") == 2


def test_rates_are_those_since_the_last_look():
    metrics = Metrics()
    metrics.augury_request_done(summary=Summary(n_emitted=9, timings=Timings(0.5, 2.0, 3, 8)))
    first, second = read(metrics), read(metrics)
    assert value(first, "llamacpp:predicted_tokens_seconds") == 4.0
    assert value(first, "llamacpp:prompt_tokens_seconds") == 6.0
    assert value(second, "llamacpp:predicted_tokens_seconds") == value(second, "llamacpp:prompt_tokens_seconds") == 0.0
    metrics.augury_request_done(summary=Summary(n_emitted=3, timings=Timings(0.0, 1.0, 0, 2)))
    assert value(read(metrics), "llamacpp:predicted_tokens_seconds") == 2.0
    assert value(second, "llamacpp:tokens_predicted_seconds_total") == 2.0


def test_texts_that_are_only_read_are_counted_as_prompts_of_no_request():
    metrics = Metrics()
    with toy_engine(slots=2, observers=(metrics.augury_round_done, metrics.augury_request_done)) as engine:
        engine.score([[1, 2, 3], [4, 5]])
        found = read(metrics, engine)
    assert value(found, "llamacpp:prompt_tokens_total") == 5
    assert value(found, "llamacpp:n_decode_total") == 1
    assert value(found, "llamacpp:n_busy_slots_per_decode") == 2.0
    assert value(found, "llamacpp:prompt_seconds_total") > 0
    assert value(found, "llamacpp:prompt_tokens_seconds") > 0
    assert value(found, "llamacpp:tokens_predicted_total") == value(found, "augury:requests_total") == 0


def test_drafters_are_told_apart_by_position():
    metrics = Metrics()
    metrics.augury_round_done(round=Round(3, 3, 0, 0, 3, 0.0, 0.0))
    drafters = {
        "a": DrafterStats(
            used=2, drafted=3, accepted=1, offered_by_position=(2, 1), accepted_by_position=(1, 0), draft_s=0.25, begin_s=2.0
        ),
        "b": DrafterStats(used=1, drafted=1, accepted=1, offered_by_position=(1,), accepted_by_position=(1,)),
    }
    for _ in range(2):
        metrics.augury_request_done(summary=Summary(n_drafted=4, n_accepted=2, drafters=drafters))
    found = read(metrics)
    assert value(found, "llamacpp:spec_decode_num_drafts_total") == 6
    assert value(found, "augury:spec_decode_num_drafts_total", "a") == 4
    assert value(found, "augury:spec_decode_num_draft_tokens_per_pos_total", "a", "1") == 2
    assert value(found, "augury:spec_decode_num_accepted_tokens_per_pos_total", "a", "1") == 0
    assert value(found, "augury:spec_decode_num_accepted_tokens_per_pos_total", "b", "0") == 2
    assert value(found, "augury:spec_decode_draft_seconds_total", "a") == 0.5
    assert value(found, "augury:spec_decode_prompt_seconds_total", "a") == 4.0
    assert value(found, "llamacpp:n_busy_slots_per_decode") == 3.0


def test_times_of_whole_answers_are_histograms_by_model():
    metrics = Metrics()
    times = Timings(queue_s=0.3, first_s=0.7, whole_s=3.0, round_s=(0.02, 0.02, 0.2))
    for model in ("a", "a", "b"):
        metrics.observe(model, Summary(timings=times))
    found = read(metrics)
    for name, n, total, within in (
        ("time_to_first_token", 1, 0.7, 0.75),
        ("inter_token_latency", 3, 0.24, 0.2),
        ("e2e_request_latency", 1, 3.0, 5.0),
        ("request_queue_time", 1, 0.3, 0.3),
    ):
        full = f"vllm:{name}_seconds"
        for model, n_answers in (("a", 2), ("b", 1)):
            assert found[f"{full}_count", model] == ("histogram", n * n_answers)
            assert value(found, f"{full}_sum", model) == pytest.approx(total * n_answers)
            assert value(found, f"{full}_bucket", str(within), model) == n * n_answers
    assert value(found, "vllm:inter_token_latency_seconds_bucket", "0.1", "a") == 4


def test_the_times_of_a_request_are_in_order():
    with toy_engine() as engine:
        times = engine.generate([1, 2, 3], max_tokens=9, **GREEDY).stats.timings
    assert 0 < times.queue_s < times.first_s < times.whole_s
    assert len(times.round_s) == 8
    assert times.first_s + sum(times.round_s) == pytest.approx(times.whole_s)


def test_models_are_told_apart_by_a_label():
    found = {name: Metrics() for name in "ab"}
    for n, metrics in enumerate(found.values(), 1):
        metrics.augury_request_done(summary=Summary(n_emitted=n, drafters={"d": DrafterStats(used=n)}))
    text = exposition([({"model": name}, metrics, None) for name, metrics in found.items()]).decode()
    for name, n in (("a", 1.0), ("b", 2.0)):
        assert f'llamacpp:tokens_predicted_total{{model="{name}"}} {n}' in text
        assert f'augury:spec_decode_num_drafts_total{{drafter="d",model="{name}"}} {n}' in text
    assert text.count("# TYPE llamacpp:tokens_predicted_total counter") == 1
