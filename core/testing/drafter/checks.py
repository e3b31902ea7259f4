"""The checks that drive a drafter in the engine's loop, by scripts of anything that may become of its drafts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from augury.errors import AuguryError, OptionError
from augury.interfaces import Drafter, Pace
from augury.options import Option, build, options_of
from augury.testing.contract import Checks, Contract, try_examples
from augury.testing.drafter import contract
from augury.testing.drafter.driven import (
    LONG,
    REPEATING,
    DrivenLoop,
    ScriptedRequest,
    ScriptedRound,
    Subject,
    Way,
    requests,
    several,
)

_LARGEST_BOUND = 1 << 20  # tried; a bound beyond may be one of memory
DRIVEN_CHECKS = Checks()


@DRIVEN_CHECKS.add
def option_validation(subject: Subject) -> None:
    """Refuses options outside their bounds."""
    options_class, promise = subject.drafter.options_class, contract.OPTIONS
    with promise.kept(subject.name, " without any"):
        found = options_of(options_class)
        build(options_class, {}, subject.name)
    for option in found.values():
        if option.default is not None or not option.is_optional:
            with promise.kept(subject.name, ", a default outside its bounds"):
                option.convert(option.default, subject.name)
        for value in _outside(option):
            with suppress(OptionError):
                build(options_class, {option.name: value}, subject.name)
                raise promise.broken(subject.name, f"{option.name}={value!r} was taken")


@DRIVEN_CHECKS.add
def bounds(subject: Subject) -> None:
    """Works at the bounds of its options."""
    for option in options_of(subject.drafter.options_class).values():
        values = [option.kind(bound) for bound in (option.ge, option.le) if bound is not None and abs(bound) <= _LARGEST_BOUND]
        for value in [*values, *option.choices]:
            try:
                with suppress(AuguryError), DrivenLoop(subject, **{option.name: value}) as loop:
                    loop.play(REPEATING)
            except AssertionError as error:
                raise contract.BOUNDS.broken(subject.name, f"with {option.name}={value!r}: {error}") from error


@DRIVEN_CHECKS.add
def any_script(subject: Subject, n_examples: int = 40) -> None:
    """Keeps limit, vocabulary and history under any script."""
    try_examples(n_examples, subject.drafts, requests=several(requests(), least=1))
    subject.drafts([REPEATING, REPEATING])


@DRIVEN_CHECKS.add
def short_texts(subject: Subject) -> None:
    """Declines gracefully on short and odd texts."""
    asked = tuple(ScriptedRound(Way.VERIFIED, limit) for limit in (1, 1, 2, 2, 16, 16))
    prompts = ((0,), (5, 5), tuple(range(40)), (9,) * 90, (0, 1) * 45, (3,) * 700)
    subject.drafts([ScriptedRequest(prompt, asked, heat) for prompt in prompts for heat in (0.0, 4.0)])


@DRIVEN_CHECKS.add
def reproducible(subject: Subject) -> None:
    """Gives the same drafts for the same calls."""
    once, again = subject.drafts([REPEATING, REPEATING]), subject.drafts([REPEATING, REPEATING])
    if once != again:
        raise contract.REPRODUCIBLE.broken(subject.name, _difference(once, again))


@DRIVEN_CHECKS.add
def scope(subject: Subject) -> None:
    """Remembers no longer than its scope."""
    other = ScriptedRequest(tuple(range(60, 90)) * 5, REPEATING.rounds)
    alone = subject.drafts([REPEATING])
    if subject.traits.scope == "request":
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
            detail = f"scope is “{subject.traits.scope}”, but another slot's requests change drafts"
            raise contract.SCOPE.broken(subject.name, f"{detail}: {_difference(alone, [beside])}")


@DRIVEN_CHECKS.add
def interleaved(subject: Subject) -> None:
    """Drafts beside other slots as alone."""
    from hypothesis import strategies as st

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

    try_examples(12, run, scripts=several(requests(max_rounds=8)), waits=st.lists(st.integers(0, 4), min_size=3))


@DRIVEN_CHECKS.add
def prefilling(subject: Subject) -> None:
    """Lets others go on while it begins."""
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
    if subject.traits.scope == "request" and [long.drafts] != (alone := subject.drafts([LONG])):
        detail = f"after requests that were cancelled in `begin`, and beside another slot: {_difference(alone, [long.drafts])}"
        raise contract.SCOPE.broken(subject.name, detail)
    if subject.is_alone and [beside.drafts] != (alone := subject.drafts([busy], n_slots=2)):
        raise contract.SCOPE.broken(subject.name, f"beside a slot that is in `begin`: {_difference(alone, [beside.drafts])}")


@DRIVEN_CHECKS.add
def together(subject: Subject) -> None:
    """Drafts together as one by one."""
    compare = partial(_compare, subject, contract.TOGETHER, "is_together")
    try_examples(12, compare, scripts=several(requests(max_rounds=6)))
    compare([REPEATING] * 3)


@DRIVEN_CHECKS.add
def ahead(subject: Subject) -> None:
    """Drafts ahead without a trace."""
    if not subject.traits.drafts_ahead:
        return
    _check_knows_asks(subject, contract.AHEAD, "drafts_ahead without a `draft_together` that knows `Ask.guess`")
    compare = partial(_compare, subject, contract.AHEAD, "is_ahead")
    compare([REPEATING] * 2)
    try_examples(5, compare, scripts=several(requests(max_rounds=8), least=1))


def _compare(subject: Subject, promise: Contract, option: str, scripts: list[ScriptedRequest]) -> None:
    drafts = []
    for value in (True, False):
        options: Any = {option: value}
        with DrivenLoop(subject, len(scripts), **options) as loop:
            plays = [loop.start(script) for script in scripts]
            loop.run(*plays)
            drafts.append([play.drafts for play in plays])
    found, expected = drafts
    if found != expected:
        raise promise.broken(subject.name, _difference(expected, found))


def _check_knows_asks(subject: Subject, promise: Contract, seen: str) -> None:
    if getattr(subject.drafter.draft_together, "__func__", None) is vars(Drafter)["draft_together"].__func__:
        raise promise.broken(subject.name, seen)


@DRIVEN_CHECKS.add
def pace(subject: Subject) -> None:
    """Drafts no deeper than pays."""
    if not subject.traits.is_paced:
        return
    _check_knows_asks(subject, contract.PACE, "is_paced without a `draft_together` that knows `Ask.pace`")
    for each in (Pace(1), Pace(3, 0.3), Pace(64, 0.01)):
        with DrivenLoop(subject, 2, pace=each) as loop:
            loop.run(*(loop.start(REPEATING) for _ in range(2)))


@DRIVEN_CHECKS.add
def references(subject: Subject) -> None:
    """Keeps no reference to a history that is over."""
    with DrivenLoop(subject) as loop:
        for _ in range(2):
            loop.play(REPEATING)
            loop.drafters[0].check_references()


@DRIVEN_CHECKS.add
def ends_and_closes(subject: Subject) -> None:
    """Ends and closes in every order."""
    for lengths in ((0, 3, 1), (3, 0, 5), (1, 5, 0)):
        with DrivenLoop(subject, 4) as loop:
            plays = [loop.start(ScriptedRequest(REPEATING.prompt, REPEATING.rounds[:n])) for n in lengths]
            loop.run(*plays)
            last = loop.start(REPEATING)
            while not last.drafts:
                loop.round()


def _outside(option: Option) -> Iterator[Any]:
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
