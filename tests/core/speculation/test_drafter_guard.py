"""A drafter that fails is left out of its request: the tokens, its neighbours and the rest of its chain do not feel it."""

import functools
import logging
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from support.toys import ScriptedDrafter, planner_of, toy_engine

from augury.engine.checked_context import EngineTarget
from augury.engine.engine import Engine
from augury.interfaces import DrafterTraits
from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.drafter_guard import DrafterGuard
from augury.speculation.drafts import CostlyAsk
from augury.speculation.planner import DraftPlanner
from augury.speculation.profiles import DrafterProfile
from augury.speculation.verification import RULES
from augury.testing.toy_model import ToyModel
from augury.types import Draft

GREEDY = {"temperature": 0.0}
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
N = 20
VOCAB = 16  # of the toy model


class Other(ScriptedDrafter):
    name = "other"


class Fault(ScriptedDrafter):
    """Does what `fault` does in place of one method, once, in the slot that is given the second prompt."""

    name = "fault"
    method = None
    traits = DrafterTraits(evidence_chances=(0.5, 0.8))

    def begin(self, history, n_reused):
        self.is_faulty = history[:2].tolist() == PROMPTS[1]
        super().begin(history, n_reused)
        return self.steps() if self.method == "step" else self.of("begin", None)

    def steps(self):
        yield
        self.of("step", None)
        yield

    def draft(self, history, limit):
        return self.of("draft", super().draft(history, limit), history)

    def accept(self, history, verdict):
        super().accept(history, verdict)
        self.of("accept", None)

    def end(self):
        super().end()
        self.of("end", None)

    def of(self, method, right, *args):
        if method != self.method or not self.is_faulty:
            return right
        self.is_faulty = False  # it would go on as if nothing had been
        return type(self).fault(*args)


def faulty(method="draft", fault=None):
    return type("Faulty", (Fault,), {"method": method, "fault": staticmethod(fault)})


def raising(error):
    def fault(*args):
        raise error

    return fault


def returning(value):
    return lambda *args: value


def changed(name, value):
    """A draft that was changed where it should not be possible."""

    def fault(history):
        draft = Draft([1, 2])
        object.__setattr__(draft, name, value)
        return draft

    return fault


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def run(*kinds, prompts=PROMPTS, **how):
    """What becomes of requests in an engine that forgives."""
    with toy_engine(drafter=list(kinds), slots=2, kind=Engine, **how) as engine:
        results = engine.generate(prompts, max_tokens=N, **GREEDY)
        events = [[event[0] for event in drafter.events] for drafter in engine._drafters]
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.tokens) == ToyModel().plain(prompt, N)
    return results, events


def guard_of(drafter):
    """A guard by itself, and the failures that it tells of."""
    seen = []

    class Counts(dict):
        def __setitem__(self, figure, told):
            assert figure == "failed"
            seen.append(told)

    sequence = SimpleNamespace(
        id="a",
        history=np.arange(6, dtype=np.int32),
        n_left=4,
        speculation=SimpleNamespace(timeout_s=9.0),
        counter=SimpleNamespace(by_drafter={"d": Counts()}),
    )
    return DrafterGuard(drafter, "d", sequence, VOCAB, 2, lambda *_: None), seen


def holding(n_held):
    drafter = ScriptedDrafter(None)
    drafter.n_held = n_held
    return drafter


@pytest.mark.parametrize("is_tree", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_draft_is_cut_to_the_limit_with_all_that_it_says_of_its_tokens(limit, is_tree):
    guard, _ = guard_of(ScriptedDrafter(None))
    for n in range(1, limit + 4):
        parents = [-1, -1, 0, 2, 1, 3, 3, 4, 7][:n] if is_tree else None
        rows, confidence = np.eye(n, VOCAB), np.linspace(0.5, 1, n)
        found = guard.checked(Draft(range(n), parents, rows, confidence, [i % 2 for i in range(n)]), limit)
        kept = min(n, limit)
        assert found.tokens.tolist() == [*range(kept)]
        assert (None if found.parents is None else found.parents.tolist()) == (parents[:kept] if is_tree else None)
        assert np.array_equal(found.probabilities, np.float32(rows)[:kept])
        assert np.array_equal(found.confidence, np.float32(confidence)[:kept])
        assert found.evidence.tolist() == [i % 2 for i in range(kept)]
        assert len(guard.checked(Draft(range(n)), limit)) == kept


@pytest.mark.parametrize("held", [-1, np.int64(-1), -9, 2.0, "2", None, np.ones(1, np.int32)])
def test_what_is_no_number_of_tokens_held_is_a_fault_and_asks_for_none_again(held):
    guard, seen = guard_of(holding(lambda _: held))
    assert guard.n_held(5) == 5
    assert seen == [f"n_held: PluginError: returned {held!r}, expected a number of tokens"]
    assert guard.is_left_out


@pytest.mark.parametrize("held", [0, 1, 7, np.int64(0), np.int32(3)])
def test_the_number_of_tokens_held_is_told_as_it_is(held):
    guard, seen = guard_of(holding(lambda history: held + len(history) - 6))
    assert guard.n_held(5) == held
    assert (seen, guard.is_left_out) == ([], False)


class SillyError(Exception):
    def __str__(self):
        raise RuntimeError


ERRORS = [RuntimeError("no idea"), ValueError("long\n" * 9999), SystemExit(3), KeyboardInterrupt(), MemoryError(), SillyError()]
NO_DRAFTS = {
    "returned a NoneType, expected a Draft": returning(None),
    "returned a list": returning([1, 2]),
    "returned a str": returning("ab"),
    "token -1, where the target has 0 to 15": returning(Draft([1, -1])),
    "token 16, where": returning(Draft([1, VOCAB])),
    "tokens are float64 of shape (2,), expected a row of numbers of int32": lambda history: Draft([1.0, 2.5]),
    "parents are float64 of shape (2,), expected a row of numbers of int32": lambda history: Draft([1, 2], [-1.0, 0.0]),
    "tokens are <U1 of shape (2,)": lambda history: Draft(["a", "b"]),
    "tokens are int64 of shape (1,)": lambda history: Draft([2**32 + 1]),
    "tokens are int64 of shape (1, 2)": lambda history: Draft([[1, 2]]),
    "parents [1, -1], where each": returning(Draft([1, 2], [1, -1])),
    "parents [-2, 0], where each": returning(Draft([1, 2], [-2, 0])),
    "parents of shape (1,), expected (2,)": returning(Draft([1, 2], [-1])),
    "probabilities of shape (2, 15), expected (2, 16)": returning(Draft([1, 2], probabilities=np.ones((2, 15)) / 15)),
    "confidence of shape (1,), expected (2,)": returning(Draft([1, 2], confidence=np.ones(1))),
    "confidence [1.0, nan], where each": returning(Draft([1, 2], confidence=np.float32([1, np.nan]))),
    "confidence [-0.5, 1.0], where each": returning(Draft([1, 2], [-1, 0], confidence=np.float32([-0.5, 1]))),
    "confidence [0.5, 1.5], where each": returning(Draft([1, 2], confidence=np.float32([0.5, 1.5]))),
    "evidence of shape (1,), expected (2,)": returning(Draft([1, 2], evidence=[0])),
    "evidence [0, 2], where the drafter began with 2": returning(Draft([1, 2], evidence=[0, 2])),
    "evidence [-1, 0], where": returning(Draft([1, 2], [-1, 0], evidence=[-1, 0])),
    "evidence is float64 of shape (2,), expected a row of numbers of int32": lambda history: Draft([1, 2], evidence=[0.5, 1.0]),
    "probabilities of shape (1, 16)": returning(Draft([1, 2], probabilities=np.ones((1, 16)) / 16)),
    "probabilities are <U1 of shape (2, 16), expected float32": lambda history: Draft(
        [1, 2], probabilities=np.full((2, 16), "a")
    ),
    "confidence is <U1 of shape (1,), expected float32": lambda history: Draft([1], confidence=["a"]),
    "'list' object has no attribute": changed("tokens", [0.5]),
    "tokens of shape (1,), expected (1,) of int32": changed("tokens", np.array([0.5])),
    "object of type 'int' has no len": changed("tokens", 5),
}
CASES = [
    *(
        (method, type(error).__name__, raising(error))
        for method in ("begin", "step", "draft", "accept", "end")
        for error in ERRORS
    ),
    *(("draft", told, fault) for told, fault in NO_DRAFTS.items()),
    ("begin", "returned a list, expected None or an iterator", returning([])),
    ("begin", "returned a int", returning(5)),
]


@pytest.mark.parametrize(("method", "told", "fault"), CASES, ids=[f"{method}: {told}" for method, told, _ in CASES])
def test_one_request_goes_on_without_a_drafter_that_fails(method, told, fault, caplog):
    results, events = run(faulty(method=method, fault=fault), Other)
    own, neighbours = results[1].stats.drafters, [results[i].stats.drafters for i in (0, 2)]
    name = "begin" if method == "step" else method
    assert own["fault"].failed.startswith(f"{name}: ")
    assert told in own["fault"].failed
    (warning,) = warnings_of(caplog)
    assert all(part in warning for part in ("left out of the rest of the request", "plugin=fault", f"method={name}"))
    if method in ("begin", "step"):
        assert own["fault"].calls == 0
    if method == "draft":
        assert (own["fault"].calls, own["fault"].used) == (1, 0)
    assert own["other"].failed is None
    assert own["other"].used > 0 or method == "end"
    assert all(each["fault"].failed is None and each["fault"].accepted > 0 for each in neighbours)
    assert [each.count("begin") for each in events] == [each.count("end") for each in events], (
        "it is told of the end all the same"
    )


class Growing(ScriptedDrafter):
    name = "growing"
    traits = DrafterTraits(evidence_chances=(0.9,))

    def draft(self, history, limit):
        self.traits = DrafterTraits(evidence_chances=(0.9, 0.9))
        tokens = super().draft(history, limit).tokens
        return Draft(tokens, evidence=[1] * len(tokens))


def test_evidence_that_was_declared_after_the_drafter_was_loaded_is_a_fault():
    planner = DraftPlanner(PassCosts([PassTime(1, 0, 1.0), PassTime(9, 0, 1.2)], 64), map(DrafterProfile.of, (Growing, Other)))
    results, _ = run(Growing, Other, planner=planner)
    for result in results:
        assert "evidence [1, 1, 1], where the drafter began with 1" in result.stats.drafters["growing"].failed
        assert result.stats.drafters["other"].used > 0


def test_what_a_failed_call_took_says_nothing_of_what_a_draft_costs():
    seen = set()

    class Noting(DraftPlanner):
        def observe_draft(self, drafter, k, seconds):
            seen.add(drafter.profile.name)
            super().observe_draft(drafter, k, seconds)

    costs = PassCosts([PassTime(1, 0, 1.0), PassTime(9, 0, 1.2)], 64)
    kind, planner = faulty(fault=raising(RuntimeError("no idea"))), planner_of(costs, False, False, kind=Noting)
    ((result,), _) = run(kind, Other, prompts=PROMPTS[1:2], planner=planner)
    assert (result.stats.drafters["fault"].calls, result.stats.drafters["fault"].drafts) == (1, 0)
    assert seen == {"other"}


class Together(ScriptedDrafter):
    """Drafts for several slots at once; `fault` says what it returns for those whose drafters are asked."""

    name = "together"

    @classmethod
    def draft_together(cls, asks):
        for ask in asks:
            ask.drafter.events.append(("together", len(asks)))
        return cls.fault(asks, super().draft_together(asks))


TOGETHER_FAULTS = {
    "RuntimeError: no idea": raising(RuntimeError("no idea")),
    "TypeError: 'NoneType' object is not iterable": returning(None),
    "returned 0 drafts, expected 1": returning([]),
    "returned 2 drafts, expected 1": lambda asks, drafts: drafts * 2,
    "returned a str, expected a Draft": lambda asks, drafts: "a" * len(asks),
    "AttributeError": lambda asks, drafts: asks.clear() or drafts.tokens,
}


@pytest.mark.parametrize("told", TOGETHER_FAULTS)
def test_a_drafter_that_fails_for_all_slots_together_is_asked_slot_by_slot(told, caplog):
    kind = type("Together", (Together,), {"fault": staticmethod(TOGETHER_FAULTS[told])})
    results, events = run(kind, prompts=PROMPTS[:1])
    assert events[0].count("together") == 1, "not again in this request"
    own = results[0].stats.drafters["together"]
    assert own.failed is None
    assert own.accepted > 0
    (warning,) = warnings_of(caplog)
    assert "slot by slot" in warning
    assert "plugin=together method=draft_together" in warning
    assert told in warning


def test_of_several_slots_drafted_for_together_the_one_that_fails_is_left_out(caplog):
    class Picky(Together):
        name = "picky"

        def draft(self, history, limit):
            return "nothing" if history[:2].tolist() == PROMPTS[1] else super().draft(history, limit)

        fault = staticmethod(lambda asks, drafts: drafts)

    results, _ = run(Picky)
    assert [result.stats.drafters["picky"].failed is None for result in results] == [True, False, True]
    assert all(results[i].stats.drafters["picky"].accepted > 0 for i in (0, 2))
    (warning,) = warnings_of(caplog)
    assert f"id={results[1].id} plugin=picky method=draft error=" in warning


class Clock:
    """Time that passes where a test says so."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("augury.speculation.drafter_guard.perf_counter", lambda: self.now)

    def slow(self, method, seconds, n_times, kind=ScriptedDrafter):
        """A drafter whose `method` takes so long, so many times."""
        clock, left = self, [n_times]

        def call(drafter, *args):
            left[0] -= 1
            clock.now += seconds if left[0] >= 0 else 0
            return getattr(super(made, drafter), method)(*args)

        made = type("Slow", (kind,), {"name": "slow", method: call})
        return made


@pytest.mark.parametrize("method", ["draft", "accept"])
@pytest.mark.parametrize(("seconds", "n_times", "is_left_out"), [(6, 1, False), (5, 9, False), (6, 2, True), (6, 9, True)])
def test_a_drafter_that_takes_too_long_twice_is_left_out(method, seconds, n_times, is_left_out, monkeypatch, caplog):
    kind = Clock(monkeypatch).slow(method, seconds, n_times)
    ((result,), events) = run(kind, prompts=PROMPTS[:1], timeout_s=5.0)
    failed = result.stats.drafters["slow"].failed
    if is_left_out:
        assert failed == f"{method}: TimeoutError: took 6 s, the second call that took more than 5 s"
        assert events[0].count(method) == 2
        assert len(warnings_of(caplog)) == 1
    else:
        assert failed is None
        assert events[0].count(method) > 2
        assert not caplog.records


def test_a_step_of_a_begin_is_a_call(monkeypatch):
    clock = Clock(monkeypatch)

    class Stepping(ScriptedDrafter):
        name = "slow"

        def begin(self, history, n_reused):
            super().begin(history, n_reused)
            for _ in range(3):
                clock.now += 6
                yield

    ((result,), events) = run(Stepping, prompts=PROMPTS[:1], timeout_s=5.0)
    assert result.stats.drafters["slow"].failed.startswith("begin: TimeoutError")
    assert result.stats.drafters["slow"].begin_s == 12
    assert events[0] == ["begin", "end"]


def test_who_was_slow_for_several_slots_is_found_out_slot_by_slot(monkeypatch):
    clock = Clock(monkeypatch)

    class Slow(ScriptedDrafter):
        name = "slow"

        def draft(self, history, limit):
            clock.now += 6 * (history[:2].tolist() == PROMPTS[1])
            return super().draft(history, limit)

        @classmethod
        def draft_together(cls, asks):
            return super().draft_together(asks)

    results, _ = run(Slow, timeout_s=5.0)
    assert [result.stats.drafters["slow"].failed is None for result in results] == [True, False, True]


@pytest.mark.parametrize("n_too_many", [0, 1])
def test_a_begin_may_take_a_thousand_steps_and_one_for_each_token(n_too_many):
    class Stepping(ScriptedDrafter):
        name = "stepping"

        def begin(self, history, n_reused):
            super().begin(history, n_reused)
            for _ in range(1000 + len(history) - 1 + n_too_many):  # and a last one, which does not yield
                yield

    results, _ = run(Stepping)
    for prompt, result in zip(PROMPTS, results, strict=True):
        n = len(prompt) + 1
        failed = result.stats.drafters["stepping"].failed or ""
        assert failed.startswith(
            f"begin: PluginError: takes more than {1000 + n} steps for a text of {n} tokens; " * n_too_many
        )
        assert bool(failed) == n_too_many


# passes that take so long that no drafter seems slow beside them, however busy the machine is
COSTS = PassCosts([PassTime(1, 0, 1e4), PassTime(9, 0, 1.2e4)], 64)


class Costly(ScriptedDrafter):
    name = "costly"
    traits = DrafterTraits(is_costly=True)


class Asking(DraftPlanner):
    """Asks drafter 0, a costly one, by teacher forcing in the 20th round of a slot, and lets drafter 1 draft."""

    n_rounds = 0

    def is_asked(self, drafter):
        return drafter.profile.name == "other"  # however long its calls take on this machine

    def asks(self, slots, n_others=0):
        self.n_rounds += 1
        return [CostlyAsk(slots[0], slots[0].drafters.every[0])] if self.n_rounds == 18 else []

    def choose(self, slots, n_others=0):
        return [[0] for _ in slots]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (raising(RuntimeError("no idea")), "RuntimeError: no idea"),
        (returning([1] * 16), "returned a list, expected an array or None"),
        (returning(np.ones(15, np.int32)), "returned int32 of shape (15,)"),
        (returning(np.ones(16)), "returned float64 of shape (16,)"),
    ],
)
def test_a_drafter_that_fails_in_teacher_forcing_is_left_out(fault, told, caplog):
    failing = type("Failing", (Costly,), {"teacher_forced": fault})
    planner = planner_of(COSTS, True, False, kind=Asking)
    with toy_engine(drafter=[failing, lambda model: Other(model, [(1, 0)])], planner=planner, kind=Engine) as engine:
        result = engine.generate([1, 2], max_tokens=50, **GREEDY)
    assert list(result.tokens) == ToyModel().plain([1, 2], 50)
    assert told in result.stats.drafters["costly"].failed
    assert result.stats.drafters["other"].used > 18
    assert len(warnings_of(caplog)) == 1
    assert [profile.can_be_teacher_forced for profile in planner.profiles] == [True, True], "other requests may ask"


def test_a_warning_that_cannot_be_written_ends_nothing(monkeypatch):
    written = []

    class Broken(logging.Handler):
        def emit(self, record):
            written.append(record)
            raise ValueError("I/O operation on closed file")

    logger, handler = logging.getLogger("augury.speculation.drafting"), Broken()
    logger.addHandler(handler)
    try:
        run(faulty(fault=raising(RuntimeError("no idea"))))
    finally:
        logger.removeHandler(handler)
    assert written, "it was tried"


class Wild(ScriptedDrafter):
    """Does anything at any time."""

    def __init__(self, model, seed, rate):
        super().__init__(model)
        self.rng, self.rate = np.random.default_rng(seed), rate

    def maybe(self, *faults):
        if self.rng.random() < self.rate:
            return faults[self.rng.integers(len(faults))]()
        return None

    def fail(self):
        raise ERRORS[self.rng.integers(len(ERRORS))]

    def begin(self, history, n_reused):
        super().begin(history, n_reused)
        return self.maybe(self.fail, list, self.steps)

    def steps(self):
        yield
        self.maybe(self.fail)
        yield

    def draft(self, history, limit):
        bad = list(NO_DRAFTS.values())[self.rng.integers(len(NO_DRAFTS))]
        return self.maybe(self.fail, lambda: bad(history)) or super().draft(history, limit)

    def teacher_forced(self, history, n):
        return self.maybe(self.fail, list, lambda: np.ones(n, np.int32))

    def accept(self, history, verdict):
        super().accept(history, verdict)
        self.maybe(self.fail)

    def end(self):
        super().end()
        self.maybe(self.fail)


class WildTogether(Wild):
    @classmethod
    def draft_together(cls, asks):
        return asks[0].drafter.maybe(asks[0].drafter.fail, list) or super().draft_together(asks)


@settings(max_examples=40)  # each of hundreds of calls that may fail
@given(
    seed=st.integers(0, 2**32),
    rate=st.sampled_from([0.02, 0.1, 0.5]),
    kinds=st.lists(st.sampled_from([Wild, WildTogether]), min_size=1, max_size=3),
    is_costly=st.lists(st.booleans(), min_size=3, max_size=3),
    slots=st.integers(1, 3),
    is_planned=st.booleans(),
    way=st.sampled_from([GREEDY, {"temperature": 0.8, "seed": 4, "top_k": 4}]),
)
def test_whatever_fails_at_any_time_the_tokens_are_those_of_plain_decoding(
    seed, rate, kinds, is_costly, slots, is_planned, way
):
    def maker(i, kind):
        named = type(kind.__name__, (kind,), {"name": f"d{i}", "traits": DrafterTraits(is_costly=is_costly[i])})
        return lambda model: named(model, [seed, i], rate)

    planner = None
    if is_planned:
        planner = planner_of(PassCosts([PassTime(1, 0, 1.0), PassTime(9, 0, 1.2)], 64), *is_costly[: len(kinds)])
    prompts = [*PROMPTS, [1], [5, 5, 5, 5]]
    chain = [maker(i, kind) for i, kind in enumerate(kinds)]
    with toy_engine(drafter=chain, slots=slots, planner=planner, kind=Engine) as engine:
        results = engine.generate(prompts, max_tokens=40, **way)
    assert [result.tokens for result in results] == plain_tokens(tuple(map(tuple, prompts)), **way)


@functools.cache
def plain_tokens(prompts, **way):
    with toy_engine() as engine:
        return [result.tokens for result in engine.generate([*map(list, prompts)], max_tokens=40, **way)]


WAYS = [GREEDY, {"temperature": 0.8, "seed": 4, "repeat_penalty": 1.4, "top_k": 4}]


def scribble(array):
    """Write into an array and into whatever its memory belongs to, as far as Python lets one."""
    while array is not None:
        with suppress(ValueError, AttributeError):
            array.flags.writeable = True
        with suppress(ValueError, TypeError):
            array[:] = 7
        array = getattr(array, "base", None) if isinstance(array, np.ndarray) else getattr(array, "obj", None)


class Scribbling(ScriptedDrafter):
    """Writes wherever it can, into what it is given and into what it gave, during the pass, too."""

    name = "scribbling"

    def __init__(self, model):
        super().__init__(model)
        self.drafts, self.told = [], None
        before = model.on_forward
        model.on_forward = lambda: (before(), [self.spoil(draft) for draft in self.drafts])

    def begin(self, history, n_reused):
        self.text = history.tolist()
        scribble(history)

    def draft(self, history, limit):
        self.past = history = np.array(self.text)
        history.flags.writeable = False
        draft = super().draft(history, limit)
        self.drafts.append(Draft(draft.tokens, range(-1, len(draft) - 1), np.full((len(draft), VOCAB), 1 / VOCAB)))
        return self.drafts[-1]

    def spoil(self, draft):
        for array in (draft.tokens, draft.parents, draft.probabilities):
            scribble(array)

    def accept(self, history, verdict):
        self.text += history[-verdict.n_emitted :].tolist()
        scribble(history)
        with suppress(TypeError):
            verdict.path[:] = [99]


@pytest.mark.parametrize("way", WAYS)
def test_what_a_drafter_writes_into_reaches_nobody(way):
    with toy_engine() as plain:
        expected = [result.tokens for result in plain.generate(PROMPTS, max_tokens=40, **way)]
    with toy_engine(drafter=[Scribbling, Other], slots=2, kind=Engine) as engine:
        results = engine.generate(PROMPTS, max_tokens=40, **way)
    assert [result.tokens for result in results] == expected
    for result in results:
        own, other = result.stats.drafters["scribbling"], result.stats.drafters["other"]
        assert (own.failed, other.failed) == (None, None), "the other still sees the right text"
        assert own.accepted > 0


def test_a_text_cannot_be_made_writable():
    class Trying(ScriptedDrafter):
        name = "trying"

        def draft(self, history, limit):
            history.flags.writeable = True

    results, _ = run(Trying)
    assert "ValueError: cannot set WRITEABLE flag to True" in results[0].stats.drafters["trying"].failed
    for array in (Draft([1, 2]).tokens, Draft([1], [-1]).parents):
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


def test_a_pass_of_a_drafter_s_own_is_harmless_in_any_of_its_calls():
    class Passing(ScriptedDrafter):
        name = "passing"

        def anywhere(self):
            for slot in range(2):
                if self.target._context.room(slot) > 4:
                    self.target.forward({slot: np.int32([7, 7, 7, 7])}, 1)

        def begin(self, history, n_reused):
            super().begin(history, n_reused)
            self.anywhere()

        def draft(self, history, limit):
            self.anywhere()
            return super().draft(history, limit)

        def accept(self, history, verdict):
            super().accept(history, verdict)
            self.anywhere()

        def end(self):
            super().end()
            self.anywhere()

    with toy_engine(drafter=Passing, slots=2) as engine:
        loop = engine._worker._loop
        for drafter in engine._drafters:
            drafter.target = EngineTarget(loop._context)
        results = engine.generate([*PROMPTS, *PROMPTS], max_tokens=N, **GREEDY)
    assert [list(result.tokens) for result in results] == [ToyModel().plain(prompt, N) for prompt in [*PROMPTS, *PROMPTS]]


def test_a_drafter_s_session_says_how_its_request_is_sampled_and_verified():
    seen = []

    class Asking(ScriptedDrafter):
        def begin(self, history, n_reused):
            seen.append((self.session.sampling.temperature, self.session.verify))
            super().begin(history, n_reused)

    def asking(model):
        drafter = Asking(model)
        drafter.session = SimpleNamespace()
        return drafter

    with toy_engine(drafter=asking, rule=RULES["rejection"]) as engine:
        for temperature in (0.5, 0.25):
            engine.generate([1], max_tokens=3, temperature=temperature)
    assert seen == [(0.5, "rejection"), (0.25, "rejection")]
