"""The checks that drive a drafter in the engine's loop, by scripts of anything that may become of its drafts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from augury.errors import AuguryError, OptionError
from augury.interfaces import Drafter, Pace
from augury.options import Option, build, options_of
from augury.testing.contract import Check, Contract, hypothesis_settings
from augury.testing.drafter import contract
from augury.testing.drafter.driven import LONG, REPEATING, DrivenLoop, ScriptedRequest, ScriptedRound, Subject, Way, requests

_LARGEST_BOUND = 1 << 20  # tried; a bound beyond may be one of memory


def any_script(subject: Subject, n_examples: int = 40) -> None:
    """With any fate, drafts are within limit and vocabulary, and the history is not written to."""
    from hypothesis import given, strategies as st

    @hypothesis_settings(n_examples)
    @given(script=st.lists(requests(), min_size=1, max_size=3))
    def run(script: list[ScriptedRequest]) -> None:
        subject.drafts(script)

    run()
    subject.drafts([REPEATING, REPEATING])


def short_texts(subject: Subject) -> None:
    """There is nothing to know in a text of one token, nor in one whose tokens are all different or all the same."""
    asked = tuple(ScriptedRound(Way.VERIFIED, limit) for limit in (1, 1, 2, 2, 16, 16))
    prompts = ((0,), (5, 5), tuple(range(40)), (9,) * 90, (0, 1) * 45, (3,) * 700)
    subject.drafts([ScriptedRequest(prompt, asked, heat) for prompt in prompts for heat in (0.0, 4.0)])


def reproducible(subject: Subject) -> None:
    """The same calls give the same drafts."""
    once, again = subject.drafts([REPEATING, REPEATING]), subject.drafts([REPEATING, REPEATING])
    if once != again:
        raise contract.REPRODUCIBLE.broken(subject.name, _difference(once, again))


def scope(subject: Subject) -> None:
    """A drafter forgets its knowledge with the request or the slot, if it says so."""
    other = ScriptedRequest(tuple(range(60, 90)) * 5, REPEATING.rounds)
    alone = subject.drafts([REPEATING])
    if subject.scope == "request":
        second = subject.drafts([other, REPEATING])[1:]
        if second != alone:
            detail = "scope is “request”, but after another request drafts are others"
            raise contract.SCOPE.broken(subject.name, f"{detail}: {_difference(alone, second)}")
    if subject.is_alone:
        with DrivenLoop(subject, 2) as loop:
            first = loop.start(ScriptedRequest(other.prompt, other.rounds * 3))
            while not first.drafts:
                loop.round()
            beside = loop.play(REPEATING).drafts
        if [beside] != alone:
            detail = f"scope is “{subject.scope}”, but another slot's requests change drafts"
            raise contract.SCOPE.broken(subject.name, f"{detail}: {_difference(alone, [beside])}")


def interleaved(subject: Subject) -> None:
    """Several slots, of which each begins when it may: each drafts as if it were alone, unless all learn together."""
    from hypothesis import given, strategies as st

    @hypothesis_settings(12)
    @given(scripts=st.lists(requests(max_rounds=8), min_size=2, max_size=3), waits=st.lists(st.integers(0, 4), min_size=3))
    def run(scripts: list[ScriptedRequest], waits: list[int]) -> None:
        plays = []
        with DrivenLoop(subject, len(scripts)) as loop:
            for script, n_rounds in zip(scripts, waits, strict=False):
                plays.append(loop.start(script))
                for _ in range(n_rounds):
                    loop.round()
            loop.run(*plays)
        drafts = [play.drafts for play in plays]
        if subject.is_alone:
            alone = [subject.drafts([script], n_slots=len(scripts))[0] for script in scripts]
            if drafts != alone:
                raise contract.SCOPE.broken(subject.name, f"beside other slots: {_difference(alone, drafts)}")

    run()


def prefilling(subject: Subject) -> None:
    """While a drafter is at a long prompt other slots go on, and the request may be cancelled."""
    busy = ScriptedRequest(REPEATING.prompt, REPEATING.rounds * 3)
    with DrivenLoop(subject, 2) as loop:
        beside = loop.start(busy)
        while not beside.drafts:
            loop.round()
        for n in (1, 2):
            cancelled = loop.start(LONG)
            while not cancelled.sequence.n_emitted:
                loop.round()
            for _ in range(n):
                loop.round()
            cancelled.cancel()
        long = loop.start(LONG)
        loop.run(long, beside)
    if subject.scope == "request" and [long.drafts] != (alone := subject.drafts([LONG])):
        detail = f"after requests that were cancelled in `begin`, and beside another slot: {_difference(alone, [long.drafts])}"
        raise contract.SCOPE.broken(subject.name, detail)
    if subject.is_alone and [beside.drafts] != (alone := subject.drafts([busy], n_slots=2)):
        raise contract.SCOPE.broken(subject.name, f"beside a slot that is in `begin`: {_difference(alone, [beside.drafts])}")


def together(subject: Subject) -> None:
    """Drafting for several slots at once is drafting for one after another."""
    from hypothesis import given, strategies as st

    @hypothesis_settings(12)
    @given(scripts=st.lists(requests(max_rounds=6), min_size=2, max_size=3))
    def run(scripts: list[ScriptedRequest]) -> None:
        _compare(subject, contract.TOGETHER, scripts, "is_together")

    run()
    _compare(subject, contract.TOGETHER, [REPEATING] * 3, "is_together")


def ahead(subject: Subject) -> None:
    """A draft ahead of a draft's verification equals the draft after it, and leaves no trace."""
    from hypothesis import given, strategies as st

    with DrivenLoop(subject) as loop:
        loop.play(REPEATING)
        if not loop.drafters[0].traits.drafts_ahead:
            return
    _check_knows_asks(subject, contract.AHEAD, "drafts_ahead without a `draft_together` that knows `Ask.guess`")

    @hypothesis_settings(5)
    @given(scripts=st.lists(requests(max_rounds=8), min_size=1, max_size=3))
    def run(scripts: list[ScriptedRequest]) -> None:
        _compare(subject, contract.AHEAD, scripts, "is_ahead", "after drafting ahead: ")

    _compare(subject, contract.AHEAD, [REPEATING] * 2, "is_ahead", "after drafting ahead: ")
    run()


def _compare(subject: Subject, promise: Contract, scripts: list[ScriptedRequest], option: str, when: str = "") -> None:
    """See that requests get the same drafts with an option of the loop and without it."""
    drafts = []
    for value in (True, False):
        options: Any = {option: value}
        with DrivenLoop(subject, len(scripts), **options) as loop:
            plays = [loop.start(script) for script in scripts]
            loop.run(*plays)
            drafts.append([play.drafts for play in plays])
    found, expected = drafts
    if found != expected:
        raise promise.broken(subject.name, f"{when}{_difference(expected, found)}")


def _check_knows_asks(subject: Subject, promise: Contract, seen: str) -> None:
    """See that it has a `draft_together` of its own."""
    if getattr(subject.drafter.draft_together, "__func__", None) is vars(Drafter)["draft_together"].__func__:
        raise promise.broken(subject.name, seen)


def pace(subject: Subject) -> None:
    """A draft ends where the planner says that further tokens do not pay."""
    with DrivenLoop(subject) as loop:
        if not loop.drafters[0].traits.is_paced:
            return
    _check_knows_asks(subject, contract.PACE, "is_paced without a `draft_together` that knows `Ask.pace`")
    for each in (Pace(1), Pace(3, 0.3), Pace(64, 0.01)):
        with DrivenLoop(subject, 2, pace=each) as loop:
            loop.run(*(loop.start(REPEATING) for _ in range(2)))


def references(subject: Subject) -> None:
    """Nothing holds on to a history that is over."""
    with DrivenLoop(subject) as loop:
        for _ in range(2):
            loop.play(REPEATING)
            loop.drafters[0].check_references()


def ends_and_closes(subject: Subject) -> None:
    """Requests end in any order, at any time; some slots never have one, some have one to the last."""
    for lengths in ((0, 3, 1), (3, 0, 5), (1, 5, 0)):
        with DrivenLoop(subject, 4) as loop:
            plays = [loop.start(ScriptedRequest(REPEATING.prompt, REPEATING.rounds[:n])) for n in lengths]
            loop.run(*plays)
            last = loop.start(REPEATING)
            while not last.drafts:
                loop.round()


def option_validation(subject: Subject) -> None:
    """Defaults are allowed values, and values outside of the bounds are not."""
    options_class = subject.drafter.options_class
    try:
        found = options_of(options_class)
        build(options_class, {}, subject.name)
    except Exception as error:
        raise contract.OPTIONS.broken(subject.name, f"{type(error).__name__} without any: {error}") from error
    for option in found.values():
        if option.default is not None or not option.is_optional:
            _allowed(subject, option, option.default)
        for value in _outside(option):
            try:
                build(options_class, {option.name: value}, subject.name)
            except OptionError:
                continue
            raise contract.OPTIONS.broken(subject.name, f"{option.name}={value!r} was taken")


def bounds(subject: Subject) -> None:
    """The smallest and the largest value of every option work, or are refused in words."""
    for option in options_of(subject.drafter.options_class).values():
        values = [option.kind(bound) for bound in (option.ge, option.le) if bound is not None and abs(bound) <= _LARGEST_BOUND]
        for value in [*values, *option.choices]:
            try:
                with DrivenLoop(subject, **{option.name: value}) as loop:
                    loop.play(REPEATING)
            except AuguryError:
                continue
            except AssertionError as error:
                raise contract.BOUNDS.broken(subject.name, f"with {option.name}={value!r}: {error}") from error


def _allowed(subject: Subject, option: Option, value: Any) -> None:
    try:
        option.convert(value, subject.name)
    except OptionError as error:
        raise contract.OPTIONS.broken(subject.name, f"a default outside its bounds: {error}") from error


def _outside(option: Option) -> Iterator[Any]:
    """Values that an option must refuse."""
    step = 1 if option.kind is int else 0.001
    if option.ge is not None:
        yield option.ge - step
    if option.le is not None:
        yield option.le + step
    if option.choices:
        yield "none of these"
    if option.kind in (int, float):
        yield from ("many", float("nan"), True, [])
    elif option.kind is bool:
        yield from ("maybe", 2, [])
    else:
        yield 7


def _difference(expected: list[list[tuple[int, ...]]], found: list[list[tuple[int, ...]]]) -> str:
    for i, (one, other) in enumerate(zip(expected, found, strict=True)):
        for round_, (draft, another) in enumerate(zip(one, other, strict=False)):
            if draft != another:
                return f"draft {round_} of request {i} is {list(another)}, before it was {list(draft)}"
    return "another number of drafts"


DRIVEN_CHECKS = (
    Check("refuses options outside their bounds", option_validation),
    Check("works at the bounds of its options", bounds),
    Check("keeps limit, vocabulary and history under any script", any_script),
    Check("declines gracefully on short and odd texts", short_texts),
    Check("gives the same drafts for the same calls", reproducible),
    Check("remembers no longer than its scope", scope),
    Check("drafts beside other slots as alone", interleaved),
    Check("lets others go on while it begins", prefilling),
    Check("drafts together as one by one", together),
    Check("drafts ahead without a trace", ahead),
    Check("drafts no deeper than pays", pace),
    Check("keeps no reference to a history that is over", references),
    Check("ends and closes in every order", ends_and_closes),
)
