"""Which candidate is chosen, with invented times."""

import pytest
from attrs import evolve
from hypothesis import given, strategies as st
from support.pairs import pair

from augury.cli.prompts import Prompt
from augury.plugins.bench.commands.tune import Candidate, Tuning, trials_of
from augury.plugins.bench.paired_runs import Pair

PROMPTS = [
    Prompt(text="", id=f"{category}-{i}", category=category) for category in ("copying", "prose", "math") for i in range(3)
]
LENGTHS = (8, 16, 32)


def chain(name, draft_max=16):
    return Candidate((name,), draft_max)


class Scenario:
    """Speeds up by name and length, plain decoding's speed drifting meanwhile; remembers what was run."""

    def __init__(self, speedups, lengths=(1.0, 1.0, 1.0), by_category=None):
        self.speedups = speedups
        self.lengths = dict(zip(LENGTHS, lengths, strict=True))
        self.by_category = by_category or {}
        self.asked = []

    def __call__(self, candidate, trial):
        self.asked.append((candidate, trial))
        plain_s = 3.0 + len(self.asked) / 7
        (name,) = candidate.spec_type
        factor = self.speedups[name] * self.lengths[candidate.draft_max]
        factor *= self.by_category.get((name, trial.prompt.category), 1.0)
        return pair(plain_s, plain_s / factor, name=trial.prompt.id, category=trial.prompt.category)


def settled(scenario, names, turns=2):
    tuning = Tuning(scenario, trials_of(PROMPTS, turns))
    return tuning, tuning.settle([chain(name) for name in names], LENGTHS)


def test_the_fastest_is_chosen_and_then_its_length():
    scenario = Scenario({"a": 1.1, "b": 1.4, "c": 1.2, "d": 0.7}, (0.9, 1.0, 1.2))
    tuning, choice = settled(scenario, "abcd")
    assert choice == chain("b", 32)
    assert tuning.speedup(choice) == pytest.approx(1.4 * 1.2)


def test_nothing_is_chosen_where_nothing_pays():
    tuning, choice = settled(Scenario({"a": 0.99, "b": 1.01}), "ab")
    assert choice is None
    assert {candidate.draft_max for candidate in tuning.pairs} == {16}  # how far does not matter then


def test_of_equals_the_simplest_is_chosen():
    assert settled(Scenario({"a": 1.298, "b": 1.3}, (1.0, 1.0, 1.001)), "ab")[1] == chain("a", 8)


def test_a_drafter_is_judged_by_all_categories():
    scenario = Scenario({"a": 1.2, "b": 1.0}, by_category={("b", "copying"): 3.0, ("b", "prose"): 0.8, ("b", "math"): 0.8})
    tuning, choice = settled(scenario, "ab")
    assert choice.spec_type == ("a",)
    assert tuning.by_category(chain("b")) == pytest.approx({"copying": 3.0, "prose": 0.8, "math": 0.8})
    assert tuning.speedup(chain("b")) == pytest.approx(3 / (1 / 3 + 1 / 0.8 + 1 / 0.8))


def test_the_slower_half_is_left_out_and_the_others_take_turns():
    scenario = Scenario({"a": 1.1, "b": 1.4, "c": 1.2, "d": 0.7})
    tuning, _ = settled(scenario, "abcd")
    counts = {candidate.spec_type[0]: len(pairs) for candidate, pairs in tuning.pairs.items() if candidate.draft_max == 16}
    assert counts == {"a": 3, "b": 18, "c": 18, "d": 3}
    first = [candidate.spec_type[0] for candidate, _ in scenario.asked[:12]]
    assert first == list("abcd" * 3)
    assert {trial.prompt.category for _, trial in scenario.asked[:12]} == {"copying", "prose", "math"}


@given(speedups=st.lists(st.floats(0.5, 3.0), min_size=1, max_size=7), n_prompts=st.integers(1, 9), turns=st.integers(1, 3))
def test_no_trial_runs_twice_and_no_more_run_than_were_announced(speedups, n_prompts, turns):
    scenario = Scenario({str(i): speedup for i, speedup in enumerate(speedups)})
    tuning = Tuning(scenario, trials_of(PROMPTS[:n_prompts], turns))
    choice = tuning.settle([chain(name) for name in scenario.speedups], LENGTHS)
    asked = {(candidate, trial.prompt.id, trial.number) for candidate, trial in scenario.asked}
    assert len(asked) == len(scenario.asked) <= tuning.n_trials(len(speedups), len(LENGTHS))
    assert len(scenario.asked) == sum(map(len, tuning.pairs.values()))
    if choice is None:
        assert max(speedups) < 1.03
    else:
        assert scenario.speedups[choice.spec_type[0]] * 1.02 >= max(speedups)


def test_one_slow_run_of_three_does_not_decide():
    scenario = Scenario({"a": 1.5})

    def hiccup(candidate, trial):
        found = scenario(candidate, trial)
        is_first = sum(each.prompt is trial.prompt for _, each in scenario.asked) == 1
        return pair(1.0, 9.0, name=trial.prompt.id) if is_first else found

    tuning = Tuning(hiccup, trials_of(PROMPTS, 3))
    assert tuning.settle([chain("a")], [16]) == chain("a")
    assert tuning.speedup(chain("a")) == pytest.approx(1.5)


def test_a_drafter_with_nothing_accepted_is_not_chosen_however_slow_plain_runs_were():
    nothing = ((0, 0), (4, 0), (4, 0), (4, 0))

    def measure(candidate, trial):
        plain_s = {0: 49.0, 1: 1.4}.get(trial.number, 1.0)  # one that stalled each time, and one that was merely slow
        return pair(plain_s, 1.0, name=trial.prompt.id, rounds=nothing)

    tuning = Tuning(measure, trials_of(PROMPTS, 1))
    assert tuning.settle([chain("a")], [16]) is None
    assert tuning.speedup(chain("a")) == 1.0
    assert tuning.as_json(chain("a"))["stalled"] == 1


def test_what_a_drafter_takes_to_begin_counts():
    def measure(candidate, trial):
        found = pair(3.0, 1.0, name=trial.prompt.id)
        stats = found.drafted.stats
        begun = {"x": evolve(stats.drafters["x"], begin_s=5.0)}
        return Pair(found.prompt, found.plain, evolve(found.drafted, stats=evolve(stats, drafters=begun)))

    tuning = Tuning(measure, trials_of(PROMPTS, 1))
    assert tuning.settle([chain("a")], [16]) is None
    assert tuning.speedup(chain("a")) == pytest.approx(3 / 6)


def test_texts_of_one_token_say_nothing():
    tuning = Tuning(lambda _, trial: pair(0.0, 0.0, name=trial.prompt.id), trials_of(PROMPTS, 1))
    assert tuning.settle([chain("a")], [16]) is None


def test_who_begins_changes_for_every_prompt():
    trials = trials_of(PROMPTS[:2], 2)
    assert [(trial.prompt.id, trial.number % 2) for trial in trials] == [
        ("copying-0", 0),
        ("copying-1", 1),
        ("copying-0", 1),
        ("copying-1", 0),
    ]
