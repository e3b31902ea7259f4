from types import SimpleNamespace

import pytest
from attrs import evolve

from augury.engine.stats import EngineCounter, RequestCounter
from augury.options import NoOptions
from augury.speculation.config import Member, Speculation
from augury.types import DrafterStats, Round, Summary, Timings


def test_a_summary_is_what_was_counted(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("augury.engine.stats.perf_counter", lambda: now[0])
    speculation = Speculation((Member("one", NoOptions()), Member("other", NoOptions())))
    counter = RequestCounter(SimpleNamespace(id="req-1", prompt=[0] * 10, speculation=speculation, on_prompt=None), 10)
    untouched = counter.summary()
    now[0] += 3
    counter.opened(None, 4, 0)
    now[0] += 2
    counter.chunk(4, 2.0)
    counter.chunk(2, 1.0)
    counter.prefilled()
    now[0] += 5
    counter.begun("one", 0.5)  # prompt time, whatever went by meanwhile
    now[0] += 1
    one, other = counter.by_drafter["one"], counter.by_drafter["other"]
    one |= {"calls": 1, "drafts": 1, "draft_s": 0.25}
    other |= {"calls": 1, "draft_s": 0.125}
    counter.round(["one"] * 3, 3, 2, 3)
    counter.verified("one", 3, 2, 3)
    one["accept_s"] += 0.0625
    counter.begun("other", 8.0)  # with a text that was cut in the middle of the answer: no prompt time
    now[0] += 1
    other["draft_s"] += 0.5
    one |= {"calls": 2, "drafts": 2, "draft_s": 0.5}
    counter.round(["one"], 1, 0, 1)
    counter.verified("one", 1, 0, 1)
    other["accept_s"] += 0.125
    other["failed"] = "draft: broken"
    now[0] += 9
    one = DrafterStats(2, 2, 2, 4, 2, (2, 1, 1), (1, 1, 0), 0.5, 0.5, 0.0625)
    other = DrafterStats(1, 0, begin_s=8.0, draft_s=0.625, accept_s=0.125, failed="draft: broken")
    assert counter.summary() == Summary(
        id="req-1",
        n_prompt=10,
        n_reused=4,
        n_emitted=5,
        n_rounds=3,
        n_drafted=4,
        n_accepted=2,
        accepted_by_position=(1, 1, 0),
        draft_lengths=(3, 1),
        drafters={"one": one, "other": other},
        timings=Timings(
            prompt_s=3.5, predict_s=2.0, n_prompt=6, n_predicted=4, queue_s=3.0, first_s=5.0, whole_s=12.0, round_s=(1.0, 1.0)
        ),
        effective=speculation.effective(),
    )
    nothing = {"one": DrafterStats(), "other": DrafterStats()}
    assert untouched == Summary(id="req-1", n_prompt=10, drafters=nothing, effective=speculation.effective())


def test_the_rest_of_plain_rounds_is_averaged_and_one_beyond_its_pass_was_interrupted():
    counter, found = EngineCounter(2), []
    assert (counter.plain_s(None), counter.plain_s(2.0)) == (None, 2.0)

    def see(seconds, n_running=1, **facts):
        counter.overhead(evolve(Round(1, 1, 0, 0, 1, draft_s=0.0, forward_s=2.0), **facts), n_running, seconds)
        found.append(counter.plain_s(2.0) - 2.0)

    for seconds in (40.0, 0.2, *[0.5] * 18, 0.0):
        see(seconds)
    mean = (2.0 + 0.2 + 18 * 0.5) / 20
    assert [*found[:2], *found[-2:]] == pytest.approx([2.0, 1.1, mean, 0.95 * mean])
    see(0.2, n_tokens=3, n_drafted=2)  # which were all wrong
    see(0.4, n_running=2, n_sequences=2, n_tokens=2, n_emitted=2)
    assert found[-2:] == pytest.approx([0.2 + (0.95 * mean - 0.2) * 0.95**i for i in (1, 2)])
    see(1.0, n_tokens=3, n_drafted=2, n_emitted=2, n_accepted=1)
    see(1.0, n_running=0)  # the request ended in it
    see(1.0, n_tokens=5)  # of a prompt
    assert set(found[-3:]) == {found[-4]}
