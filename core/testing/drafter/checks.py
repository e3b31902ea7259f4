"""The checks that drive a drafter directly, on a toy target, by scripts of anything that may become of its drafts."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from augury.errors import AuguryError, OptionError
from augury.options import build, options_of
from augury.testing.contract import Check, ContractError, hypothesis_settings
from augury.testing.drafter import contract
from augury.testing.drafter.script import Request, Round, Way
from augury.testing.drafter.scripts import LONG, REPEATING, requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from augury.options import Option
    from augury.testing.drafter.world import Subject
    from augury.types import Draft

__all__ = ["DRIVEN_CHECKS", "any_script", "reproducible", "together"]

_LARGEST_BOUND = 1 << 20  # tried; a bound beyond may be one of memory


def any_script(subject: Subject) -> None:
    """Whatever becomes of drafts, they are within limit and vocabulary, and the history is left alone."""
    from hypothesis import given
    from hypothesis import strategies as st

    @hypothesis_settings(40)
    @given(script=st.lists(requests(), min_size=1, max_size=3))
    def run(script: list[Request]) -> None:
        subject.drafts(script)

    run()
    subject.drafts([REPEATING, REPEATING])


def short_texts(subject: Subject) -> None:
    """There is nothing to know in a text of one token, nor in one whose tokens are all different or all the same."""
    asked = tuple(Round(Way.VERIFIED, limit, n_right, 1) for limit in (1, 2, 16) for n_right in (0, 99))
    for prompt in ((0,), (5, 5), tuple(range(40)), (9,) * 90, (0, 1) * 45, (3,) * 700):
        subject.drafts([Request(prompt, asked)])


def reproducible(subject: Subject) -> None:
    """The same calls give the same drafts."""
    once, again = subject.drafts([REPEATING, REPEATING]), subject.drafts([REPEATING, REPEATING])
    if once != again:
        raise contract.REPRODUCIBLE.broken(subject.name, _difference(once, again))


def scope(subject: Subject) -> None:
    """What is learnt is forgotten with the request or the slot, if the drafter says so."""
    if subject.drafter.scope not in ("request", "slot", "process"):
        raise contract.SCOPE.broken(subject.name, f"scope {subject.drafter.scope!r}, expected request, slot or process")
    other = Request(tuple(range(60, 90)) * 5, REPEATING.rounds)
    alone = subject.drafts([REPEATING])
    if subject.drafter.scope == "request":
        second = subject.drafts([other, REPEATING])[1:]
        if second != alone:
            told = "scope is “request”, but behind another request drafts are others"
            raise contract.SCOPE.broken(subject.name, f"{told}: {_difference(alone, second)}")
    if subject.is_alone:
        with subject.world(2) as world:
            for request in (other, REPEATING):
                list(world.slots[1].play(request))
            beside = [list(world.slots[0].play(REPEATING))]
        if beside != alone:
            told = f"scope is “{subject.drafter.scope}”, but another slot's requests change drafts"
            raise contract.SCOPE.broken(subject.name, f"{told}: {_difference(alone, beside)}")


def interleaved(subject: Subject) -> None:
    """Several slots in any order of rounds: each drafts as if it were alone, unless all learn together."""
    from hypothesis import given
    from hypothesis import strategies as st

    @hypothesis_settings(12)
    @given(scripts=st.lists(requests(max_rounds=8), min_size=2, max_size=3), order=st.lists(st.integers(0, 2), max_size=24))
    def run(scripts: list[Request], order: list[int]) -> None:
        with subject.world(len(scripts)) as world:
            drafts: list[list[tuple[int, ...]]] = [[] for _ in scripts]
            plays = [slot.play(script) for slot, script in zip(world.slots, scripts, strict=True)]
            for i in [*(i % len(scripts) for i in order), *range(len(scripts))]:
                drafts[i].extend(_next(plays[i]))
            for i, play in enumerate(plays):
                drafts[i].extend(play)
        if subject.is_alone:
            alone = [subject.drafts([script], slot=i, n_slots=len(scripts))[0] for i, script in enumerate(scripts)]
            if drafts != alone:
                raise contract.SCOPE.broken(subject.name, f"beside other slots: {_difference(alone, drafts)}")

    run()


def prefilling(subject: Subject) -> None:
    """While a drafter is at a long prompt other slots go on, and the request may be cancelled."""
    with subject.world(2) as world:
        slot, other = world.slots
        for n in (1, 2):
            list(islice(slot.prefill(LONG), n))
            slot.end()
        rounds = other.play(REPEATING)
        beside = [draft for _ in slot.prefill(LONG) for draft in _next(rounds)]
        drafts = list(slot.go_on(LONG))
        beside += rounds
    if subject.drafter.scope == "request" and [drafts] != (alone := subject.drafts([LONG])):
        told = f"behind requests that were cancelled in `begin`, and beside another slot: {_difference(alone, [drafts])}"
        raise contract.SCOPE.broken(subject.name, told)
    if subject.is_alone and [beside] != (alone := subject.drafts([REPEATING])):
        raise contract.SCOPE.broken(subject.name, f"beside a slot that is in `begin`: {_difference(alone, [beside])}")


def together(subject: Subject) -> None:
    """Drafting for several slots at once is drafting for one after another."""
    from hypothesis import given
    from hypothesis import strategies as st

    @hypothesis_settings(12)
    @given(scripts=st.lists(requests(max_rounds=6), min_size=2, max_size=3))
    def run(scripts: list[Request]) -> None:
        check(scripts)

    def check(scripts: list[Request]) -> None:
        once = _in_step(subject, scripts, is_together=True)
        by_slot = _in_step(subject, scripts, is_together=False)
        if once != by_slot:
            raise contract.TOGETHER.broken(subject.name, _difference(by_slot, once))

    run()
    check([REPEATING] * 3)


def references(subject: Subject) -> None:
    """Nothing holds on to a history that is over."""
    with subject.world() as world:
        for _ in range(2):
            list(world.slots[0].play(REPEATING))
            world.slots[0].check_references()


def ends_and_closes(subject: Subject) -> None:
    """Slots end in any order, at any time, some without a request, some without an answer."""
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        world = subject.world(3)
        ended, begun, _ = (world.slots[i] for i in order)  # the third never has a request
        for n in (0, 1, 5):
            list(ended.play(Request(REPEATING.prompt, REPEATING.rounds[:n])))
        list(begun.play(Request(REPEATING.prompt, REPEATING.rounds[:3])))
        list(begun.play(Request(REPEATING.prompt, REPEATING.rounds[3:4])))
        world.close()


def option_validation(subject: Subject) -> None:
    """Defaults are allowed values, and what lies outside of the bounds is not."""
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
                with subject.world(**{option.name: value}) as world:
                    list(world.slots[0].play(REPEATING))
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


def _next(play: Iterator[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [draft for draft in [next(play, None)] if draft is not None]


def _in_step(subject: Subject, scripts: list[Request], *, is_together: bool) -> list[list[tuple[int, ...]]]:
    """All slots round by round, as the loop runs them."""
    with subject.world(len(scripts)) as world:
        for slot, script in zip(world.slots, scripts, strict=True):
            slot.begin(script)
        for i in range(max(len(script.rounds) for script in scripts)):
            live = [
                (slot, script.rounds[i]) for slot, script in zip(world.slots, scripts, strict=True) if i < len(script.rounds)
            ]
            drafts = _together(subject, live) if is_together else [slot.propose(each) for slot, each in live]
            for (slot, each), draft in zip(live, drafts, strict=True):
                slot.settle(each, draft)
        for slot in world.slots:
            slot.end()
        return [slot.drafts for slot in world.slots]


def _together(subject: Subject, live: list[Any]) -> list[Draft]:
    from augury.types import Draft

    asks = [slot.ask(each) for slot, each in live]
    asked = [ask for ask in asks if ask is not None]
    try:
        answers = subject.drafter.draft_together(asked) if asked else []
    except ContractError:
        raise
    except Exception as error:
        raise contract.ERROR.broken(subject.name, f"draft_together: {type(error).__name__}: {error}") from error
    if not isinstance(answers, list) or len(answers) != len(asked):
        raise contract.TOGETHER.broken(subject.name, f"{answers!r} for {len(asked)} asks")
    given = iter(answers)
    return [Draft() if ask is None else slot.checked(next(given), ask.limit) for (slot, _), ask in zip(live, asks, strict=True)]


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
    Check("keeps no reference to a history that is over", references),
    Check("ends and closes in every order", ends_and_closes),
)
