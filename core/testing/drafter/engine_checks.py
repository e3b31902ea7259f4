"""The checks that run whole engines: with any drafts the output is plain decoding's."""

from __future__ import annotations

import functools
from typing import Any

from augury.errors import AuguryError, OptionError
from augury.options import options_of
from augury.testing.contract import Check
from augury.testing.drafter import contract
from augury.testing.drafter.driven import DrafterReport, Subject
from augury.testing.drafter.engines import WAYS, answers, compare, engine_with, output, plain
from augury.testing.drafter.script import PROMPTS
from augury.testing.toys import ToyDrafter


def lossless(subject: Subject, way: str) -> None:
    """Tokens and their probabilities are those of plain decoding, alone and beside other requests.

    So they are on the first backend; on each of the others one way to sample is tried alone, the next beside others.
    """
    for i, backend in enumerate(subject.backends):
        for slots in (1, 3) if i == 0 else ((1, 3)[(i + list(WAYS).index(way)) % 2],):
            with engine_with(subject, registry=subject.registry, backend=backend, slots=slots) as engine:
                results = answers(subject.name, engine, WAYS[way] | subject.params, subject.report)
            expected = plain(subject.registry, backend, way)
            compare(subject.name, f"{way} on {backend} with {slots} slots", expected, output(results))


def in_chain(subject: Subject) -> None:
    """Other drafters of its chain, in any order, make no difference."""
    if subject.name == "none":  # it stands for no drafter, and is refused beside others
        return
    other = Subject(ToyDrafter, {}, subject.registry, subject.backends)
    for is_fixed in (True, False):
        for pair in ((subject, other), (other, subject)):
            chained(*pair, "toy", "sampled", is_fixed=is_fixed)


def full_context(subject: Subject) -> None:
    """A context may become full in the middle of a draft."""
    outputs = []
    for names in ((), (subject,)):
        with engine_with(*names, registry=subject.registry, n_ctx=64) as engine:
            ended = [engine.generate(PROMPTS[0][:n], logprobs=0, ignore_eos=True, temperature=0.0) for n in (30, 51, 63, 64)]
        outputs.append(output(ended))
    compare(subject.name, "where the context becomes full", *outputs)


def cancelled(subject: Subject) -> None:
    """A request that was given up leaves no trace in the next."""
    expected = plain(subject.registry, "toy", "greedy")
    with engine_with(subject, registry=subject.registry) as engine:
        for n in (1, 2, 9):
            for i, _ in enumerate(engine.stream(PROMPTS[1], max_tokens=30, temperature=0.0, ignore_eos=True)):
                if i == n:
                    break
            results = answers(subject.name, engine, WAYS["greedy"] | subject.params, subject.report)
            compare(subject.name, f"after a request cancelled at token {n}", expected, output(results))


def per_request(subject: Subject) -> None:
    """Requests may bring options of their own, each for itself."""
    wishes: list[dict[str, Any]] = [{"n_max": 0}, {"n_max": 1}, {"n_max": 5}, {"n_min": 3}, {"type": "none"}]
    for option in options_of(subject.drafter.options_class).values():
        if option.is_per_request:
            values = [option.kind(bound) for bound in (option.ge, option.le) if bound is not None]
            wishes += [{subject.name: {option.name: value}} for value in [*values, *option.choices]]
    with engine_with(subject, registry=subject.registry) as engine:
        for wish in wishes:
            try:
                results = answers(
                    subject.name, engine, {**WAYS["greedy"], **subject.params, "speculative": wish}, subject.report
                )
            except AuguryError as error:
                if isinstance(error, OptionError) and subject.name in wish:
                    continue  # a bound may contradict the other options, and was refused
                raise contract.BOUNDS.broken(subject.name, f"with speculative={wish}: {error}") from error
            compare(subject.name, f"with speculative={wish}", plain(subject.registry, "toy", "greedy"), output(results))


def planned(subject: Subject) -> None:
    """The planner's choices make no difference."""
    for slots in (1, 3):
        with engine_with(subject, registry=subject.registry, slots=slots, is_fixed=False) as engine:
            results = answers(subject.name, engine, WAYS["sampled"] | subject.params, subject.report)
        expected = plain(subject.registry, "toy", "sampled")
        compare(subject.name, f"planned, with {slots} slots", expected, output(results))


def chained(first: Subject, second: Subject, backend: str, way: str, *, is_fixed: bool) -> DrafterReport:
    """Two drafters in a chain leave the output as it is, and every accepted token is said to be from one of them.

    Returns:
        Their drafts.

    Raises:
        ContractError: It is another.
    """
    report = DrafterReport()
    with engine_with(first, second, registry=first.registry, backend=backend, slots=2, is_fixed=is_fixed) as engine:
        results = answers(f"{first.name};{second.name}", engine, WAYS[way] | first.params | second.params, report)
    name = f"{first.name};{second.name}"
    compare(name, f"{way} on {backend}", plain(first.registry, backend, way), output(results))
    for result in results:
        n_drafted = sum(piece.drafter in (first.name, second.name) for piece in result.pieces)
        if n_drafted != result.stats.n_accepted:
            raise contract.COUNTS.broken(name, f"{n_drafted} tokens by drafters, {result.stats.n_accepted} accepted")
    return report


ENGINE_CHECKS = (
    *(Check(f"leaves {way} output as it is", functools.partial(lossless, way=way)) for way in WAYS),
    Check("leaves planned output as it is", planned),
    Check("leaves output as it is in a chain", in_chain),
    Check("leaves output as it is where the context becomes full", full_context),
    Check("leaves no trace of a cancelled request", cancelled),
    Check("takes options by request", per_request),
)
