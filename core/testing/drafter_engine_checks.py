"""The checks that run whole engines: whatever is drafted, the output is that of plain decoding."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from augury.engine import Engine
from augury.errors import AuguryError, OptionError
from augury.options import options_of
from augury.testing import drafter_contract as contract
from augury.testing.contract import Check
from augury.testing.drafter_scripts import PROMPTS
from augury.testing.drafter_world import Subject, Tally
from augury.testing.toys import TINY_TARGET, ToyDrafter

if TYPE_CHECKING:
    from augury.registry import Registry
    from augury.types import Result

__all__ = ["ENGINE_CHECKS", "WAYS", "chained"]

_N_TOKENS = 40
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "seed": 7, "top_k": 20},
    "penalised": {"temperature": 0.7, "seed": 3, "repeat_penalty": 1.1, "frequency_penalty": 0.2, "repeat_last_n": 24},
}
_Output = list[tuple[tuple[int, ...], list[float | None]]]  # of each prompt tokens and their log-probabilities


def lossless(subject: Subject, way: str) -> None:
    """Tokens and their probabilities are those of plain decoding, alone and beside other requests."""
    for backend in subject.backends:
        for slots in (1, 3):
            with _engine(subject, registry=subject.registry, backend=backend, slots=slots) as engine:
                results = _answers(subject.name, engine, WAYS[way], subject.tally)
            plain = _plain(subject.registry, backend, way)
            _compare(subject.name, f"{way} on {backend} with {slots} slots", plain, _output(results))


def in_chain(subject: Subject) -> None:
    """Nor does it matter which drafter it shares a chain with, and in which order."""
    other = Subject(ToyDrafter, {}, subject.registry, subject.backends)
    for is_fixed in (True, False):
        for pair in ((subject, other), (other, subject)):
            chained(*pair, "toy", "sampled", is_fixed=is_fixed)


def full_context(subject: Subject) -> None:
    """A context may become full in the middle of a draft."""
    outputs = []
    for names in ((), (subject,)):
        with _engine(*names, registry=subject.registry, backend="toy", n_ctx=64) as engine:
            ended = [engine.generate(PROMPTS[0][:n], logprobs=0, ignore_eos=True, temperature=0.0) for n in (30, 51, 63, 64)]
        outputs.append(_output(ended))
    _compare(subject.name, "where the context becomes full", *outputs)


def cancelled(subject: Subject) -> None:
    """A request that was given up leaves no trace in the next."""
    plain = _plain(subject.registry, "toy", "greedy")
    with _engine(subject, registry=subject.registry, backend="toy") as engine:
        for n in (1, 2, 9):
            for i, _ in enumerate(engine.stream(PROMPTS[1], max_tokens=30, temperature=0.0, ignore_eos=True)):
                if i == n:
                    break
            results = _answers(subject.name, engine, WAYS["greedy"], subject.tally)
            _compare(subject.name, f"after a request cancelled at token {n}", plain, _output(results))


def per_request(subject: Subject) -> None:
    """Requests may bring options of their own, each for itself."""
    wishes: list[dict[str, Any]] = [{"n_max": 0}, {"n_max": 1}, {"n_max": 5}, {"n_min": 3}, {"type": "none"}]
    for option in options_of(subject.drafter.options_class).values():
        if option.is_per_request:
            values = [option.kind(bound) for bound in (option.ge, option.le) if bound is not None]
            wishes += [{subject.name: {option.name: value}} for value in [*values, *option.choices]]
    with _engine(subject, registry=subject.registry, backend="toy") as engine:
        for wish in wishes:
            try:
                results = _answers(subject.name, engine, {**WAYS["greedy"], "speculative": wish}, subject.tally)
            except AuguryError as error:
                if isinstance(error, OptionError) and subject.name in wish:
                    continue  # a bound may contradict the other options, and was refused
                raise contract.BOUNDS.broken(subject.name, f"with speculative={wish}: {error}") from error
            _compare(subject.name, f"with speculative={wish}", _plain(subject.registry, "toy", "greedy"), _output(results))


def planned(subject: Subject) -> None:
    """Nor does it matter when and how far the planner lets it draft."""
    for slots in (1, 3):
        with _engine(subject, registry=subject.registry, backend="toy", slots=slots, is_fixed=False) as engine:
            results = _answers(subject.name, engine, WAYS["sampled"], subject.tally)
        plain = _plain(subject.registry, "toy", "sampled")
        _compare(subject.name, f"planned, with {slots} slots", plain, _output(results))


def chained(first: Subject, second: Subject, backend: str, way: str, *, is_fixed: bool) -> Tally:
    """Two drafters in a chain leave the output as it is, and every accepted token is said to be from one of them.

    Returns:
        What they drafted.

    Raises:
        ContractError: It is another.
    """
    tally = Tally()
    with _engine(first, second, registry=first.registry, backend=backend, slots=2, is_fixed=is_fixed) as engine:
        results = _answers(f"{first.name};{second.name}", engine, WAYS[way], tally)
    name = f"{first.name};{second.name}"
    _compare(name, f"{way} on {backend}", _plain(first.registry, backend, way), _output(results))
    for result in results:
        n_drafted = sum(piece.drafter in (first.name, second.name) for piece in result.pieces)
        if n_drafted != result.stats.n_accepted:
            raise contract.COUNTS.broken(name, f"{n_drafted} tokens by drafters, {result.stats.n_accepted} accepted")
    return tally


def _engine(
    *drafters: Subject, registry: Registry, backend: str, slots: int = 1, is_fixed: bool = True, n_ctx: int = 320
) -> Engine:
    return Engine.load(
        TINY_TARGET,
        backend=backend,
        spec_type=[each.name for each in drafters],
        spec_options={each.name: each.values for each in drafters},
        spec_fixed=is_fixed,
        slots=slots,
        threads=min(slots, 2),
        n_ctx=n_ctx,
        registry=registry,
    )


def _answers(name: str, engine: Engine, params: dict[str, Any], tally: Tally) -> list[Result]:
    try:
        results = engine.generate(PROMPTS, max_tokens=_N_TOKENS, logprobs=0, ignore_eos=True, **params)
    except AuguryError:
        raise
    except Exception as error:
        raise contract.ERROR.broken(name, f"{type(error).__name__}: {error}, in a running engine") from error
    for result in results:
        stats = result.stats
        tally.n_requests += 1
        tally.n_drafted += stats.n_drafted
        tally.n_accepted += stats.n_accepted
        if not stats.n_emitted == len(result.tokens) == stats.n_rounds + stats.n_accepted:
            seen = f"{stats.n_emitted} emitted in {stats.n_rounds} rounds, {stats.n_accepted} accepted"
            raise contract.COUNTS.broken(name, seen)
    return results


def _output(results: list[Result]) -> _Output:
    return [(result.tokens, [piece.logprob for piece in result.pieces]) for result in results]


@functools.cache
def _plain(registry: Registry, backend: str, way: str) -> _Output:
    with _engine(registry=registry, backend=backend) as engine:
        return _output(engine.generate(PROMPTS, max_tokens=_N_TOKENS, logprobs=0, ignore_eos=True, **WAYS[way]))


def _compare(name: str, where: str, plain: _Output, found: _Output) -> None:
    for i, ((tokens, logprobs), (others, other_logprobs)) in enumerate(zip(plain, found, strict=True)):
        if tokens != others:
            at = next(j for j, (one, other) in enumerate(zip(tokens, others, strict=False)) if one != other)
            seen = f"{where}, token {at} of prompt {i} is {others[at]}, plainly it is {tokens[at]}"
            raise contract.LOSSLESS.broken(name, seen)
        if logprobs != other_logprobs:
            raise contract.LOSSLESS.broken(name, f"{where}, prompt {i} has the right tokens of other probabilities")


ENGINE_CHECKS = (
    *(Check(f"leaves {way} output as it is", functools.partial(lossless, way=way)) for way in WAYS),
    Check("leaves planned output as it is", planned),
    Check("leaves output as it is in a chain", in_chain),
    Check("leaves output as it is where the context becomes full", full_context),
    Check("leaves no trace of a cancelled request", cancelled),
    Check("takes options by request", per_request),
)
