"""One round is read in one sitting: how many functions of ours it leads through, and that the page draws its steps."""

import inspect
import sys

import pytest
from support.sources import ROOT
from support.toys import ScriptedDrafter, planner_of, toy_engine

from augury.engine.loop import Loop
from augury.speculation.costs import PassCosts, PassTime
from augury.testing.toy_model import ToyModel

ARITHMETIC = {f"augury.speculation.{name}" for name in ("planner", "chances", "costs")}  # and trees

SECTION = (ROOT / "docs" / "architecture.md").read_text().split("\n## One round\n")[1].split("\n## ")[0]


def is_arithmetic(name):
    """Whether a function, by its module and name, belongs to the planner, which calls no plugin."""
    return name[0] in ARITHMETIC or name[1].startswith("JointTree.")


def function_of(frame, properties):
    """The module and name of the function of ours that a frame runs, or a closure in it; None of what does not count."""
    module, code = frame.f_globals.get("__name__", ""), frame.f_code
    is_ours = module.startswith(("augury.engine.", "augury.speculation.", "augury.guard"))
    name = module, code.co_qualname.split(".<locals>")[0]
    return name if is_ours and name not in properties and not name[1].endswith("__") else None


def any_function_of(frame):
    """The module and name of the function of core that a frame runs, be it a property or a record's constructor."""
    module = frame.f_globals.get("__name__", "")
    is_ours = module.startswith("augury.") and not module.startswith(("augury.testing.", "augury.plugins."))
    return (module, frame.f_code.co_qualname.split(".<locals>")[0]) if is_ours else None


def properties_of_ours():
    classes = {
        found
        for name, module in tuple(sys.modules.items())
        if name.startswith("augury.")
        for found in vars(module).values()
        if isinstance(found, type)
    }
    getters = [found.fget for each in classes for found in vars(each).values() if isinstance(found, property)]
    return {(each.__module__, each.__qualname__) for each in getters if inspect.isfunction(each)}


def callers_of(frame, properties):
    """The functions of ours through which a frame was called, the last one first."""
    while (frame := frame.f_back) is not None and frame.f_code.co_name != "watched":
        if (name := function_of(frame, properties)) is not None:
            yield name


@pytest.fixture
def traced(monkeypatch):
    """Of each round its functions in order: each with the one whose step it is, and whether it calls others."""
    rounds, run, properties = [], Loop.round, properties_of_ours()

    def watched(loop):
        steps_of, calling, every = {}, set(), set()

        def profile(frame, event, _):
            if event == "call":
                every.add(any_function_of(frame))
            if event == "call" and (name := function_of(frame, properties)) is not None:
                callers = list(callers_of(frame, properties))
                if name in callers:  # a closure, called back
                    return
                callers = [caller for caller in callers if not is_arithmetic(caller)]
                if not is_arithmetic(name):
                    calling.update(callers[:1])
                steps_of.setdefault(name, next((caller for caller in callers if caller != ("augury.guard", "guarded")), None))

        sys.setprofile(profile)
        try:
            run(loop)
        finally:
            sys.setprofile(None)
            rounds.append((steps_of, calling, every - {None}))

    monkeypatch.setattr(Loop, "round", watched)
    return rounds


def drawn():
    """The steps of docs/architecture.md: how deep each stands, its name, and its file."""
    for line in SECTION.split("```")[1].strip("\n").splitlines():
        yield (len(line) - len(line.lstrip())) // 2, *line.split()[:2]


def test_a_round_is_read_in_18_steps_of_7_files_which_the_page_draws_and_in_73_functions_of_16_files_in_all(
    traced, monkeypatch
):
    for module in ("engine.loop", "speculation.drafting", "speculation.drafter_guard"):  # a plan depends on what takes how long
        monkeypatch.setattr(f"augury.{module}.perf_counter", lambda: 0.0)
    costs = PassCosts([PassTime(1, 0, 1.0), PassTime(9, 0, 1.16)], 64)
    with toy_engine(drafter=lambda model: ScriptedDrafter(model, [(3, 1)]), planner=planner_of(costs, False)) as engine:
        result = engine.generate([1, 2, 3], max_tokens=40, temperature=0.0)
    assert result.stats.drafters["scripted"].accepted > 9
    steps_of, calling, every = traced[3]
    assert (len(every), len({module for module, _ in every})) == (73, 16), every
    names = list(steps_of)
    last = max(i for i, name in enumerate(names) if (steps_of[name] or name)[1] == "Drafting.settle")
    steps = [name for name in names[: last + 1] if name in calling and name[0] != "augury.guard" and not is_arithmetic(name)]
    assert (len(steps), len({module for module, _ in steps})) == (18, 7), steps

    def depth(name):
        return 0 if steps_of[name] is None else 1 + depth(steps_of[name])

    found = [(depth(name), name[1], "/".join(name[0].split(".")[1:]) + ".py") for name in steps]
    assert found == list(drawn()), "the round as it ran (left) and docs/architecture.md, One round (right), differ"


def test_a_round_without_drafters_leads_through_no_function_of_speculation(traced):
    with toy_engine() as engine:
        engine.generate([1, 2, 3], max_tokens=8, temperature=0.0)
    assert [name for name in traced[3][0] if name[0].startswith("augury.speculation.")] == []


def test_the_page_s_round_of_a_dozen_lines_decodes_what_plain_rounds_do():
    names = {}
    exec(SECTION.split("```python\n")[1].split("```")[0], names)
    text, model = names["text"].tolist(), names["model"]
    assert text[6:] == ToyModel(period=3).plain(text[:6], len(text) - 6)
    assert len(model.batches) < len(text) - 6, "some drafts were accepted"
