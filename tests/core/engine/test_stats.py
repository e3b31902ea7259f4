from augury.engine.stats import Recorder
from augury.types import DrafterStats, Summary, Timings, Verdict


def test_a_summary_is_what_was_counted(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("augury.engine.stats.perf_counter", lambda: now[0])
    recorder = Recorder("req-1", ["one", "other"], {"type": "one;other"})
    untouched = recorder.summary()
    recorder.start(10, 4)
    recorder.chunk(4, 2.0)
    recorder.chunk(2, 1.0)
    recorder.first_token()
    now[0] += 5
    recorder.begun("one", 0.5)  # prompt time, whatever went by meanwhile
    now[0] += 1
    recorder.drafted("one", 3, 0.25)
    recorder.drafted("other", 0, 0.125)
    recorder.round(3, 3)
    recorder.verified("one", Verdict(3, 2, 3, is_used=True), 3)
    recorder.told("one", 0.0625)
    now[0] += 1
    recorder.teacher_forced("other", 0.5)
    recorder.drafted("one", 2, 0.25)
    recorder.round(1, 1)
    recorder.verified("one", Verdict(1, 0, 1, is_used=True), 1)
    recorder.told("other", 0.125)
    recorder.failed("other", "draft: broken")
    now[0] += 9
    one = DrafterStats(2, 2, 2, 4, 2, (2, 1, 1), (1, 1, 0), 0.5, 0.5, 0.0625)
    other = DrafterStats(1, 0, begin_s=0.0, draft_s=0.625, accept_s=0.125, failed="draft: broken")
    assert recorder.summary() == Summary(
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
        timings=Timings(prompt_s=3.5, predict_s=2.0, n_prompt=6, n_predicted=4),
        effective={"type": "one;other"},
    )
    nothing = {"one": DrafterStats(), "other": DrafterStats()}
    assert untouched == Summary(id="req-1", drafters=nothing, effective={"type": "one;other"})
