import attrs
import pytest
from support.toys import ScriptedDrafter, toy_engine

from augury.testing.drafter.engines import miscounts

MAY_BE_LESS = (  # nothing bounds them from above
    *("calls", "drafts", "begin_s", "draft_s", "accept_s", "hidden_s", "ahead"),
    *("prompt_s", "predict_s", "whole_s", "n_recomputed", "n_restores", "n_restarts"),
)


@pytest.fixture(scope="module")
def result():
    with toy_engine(drafter=lambda model: ScriptedDrafter(model, [(2, 1), (0, 2)])) as engine:
        return engine.generate([1, 2], max_tokens=20, temperature=0.0)


def off_by(record, step):
    """The record with one of its numbers or of a tuple's first ones wrong, each in turn."""
    for name, value in attrs.asdict(record, recurse=False).items():
        if name == "slot":  # a name
            continue
        if isinstance(value, int | float) and (step < 0 or name not in MAY_BE_LESS):
            yield attrs.evolve(record, **{name: value + step * (1e9 if name.endswith("_s") else 1)})
        elif isinstance(value, tuple) and value:
            yield attrs.evolve(record, **{name: (value[0] + step, *value[1:])})


@pytest.mark.parametrize("step", [-1, 1])
def test_every_figure_that_is_off_is_noticed(result, step):
    stats = result.stats
    wrong = list(off_by(stats, step))
    wrong += [attrs.evolve(stats, drafters={"scripted": each}) for each in off_by(stats.drafters["scripted"], step)]
    wrong += [attrs.evolve(stats, timings=each) for each in off_by(stats.timings, step)]
    assert miscounts(result) == []
    assert [each for each in wrong if not miscounts(attrs.evolve(result, stats=each))] == []


@pytest.mark.parametrize("wrong", [{"tokens": ()}, {"finish_reason": "eos"}, {"text": "x"}, {"pieces": ()}])
def test_a_result_that_is_not_what_its_figures_say_is_noticed(result, wrong):
    assert miscounts(attrs.evolve(result, **wrong))
