"""Engines with drafters under test: their answers are counted, and compared with those of plain decoding."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

from augury.engine.engine import Engine
from augury.errors import AuguryError
from augury.registry import Registry
from augury.testing.counts import miscounts
from augury.testing.drafter import contract
from augury.testing.drafter.driven import DrafterReport, Subject
from augury.testing.drafter.script import PROMPTS
from augury.testing.toys import TINY_TARGET
from augury.types import Result

N_TOKENS = 40  # that an answer has
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "seed": 7, "top_k": 20},
    "penalised": {"temperature": 0.7, "seed": 3, "repeat_penalty": 1.1, "frequency_penalty": 0.2, "repeat_last_n": 24},
}
Output = list[tuple[tuple[int, ...], list[float | None]]]
"""Tokens and their log-probabilities for each prompt."""


class StrictEngine(Engine):
    """An engine in which no drafter may fail: leaving it raises if one did."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._failures = failures = list[tuple[str, str, BaseException]]()
        self._drafting.on_failure = lambda *failure: failures.append(failure[:3])  # the thread must not hold the engine

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close.

        Raises:
            ContractError: A drafter failed.
        """
        super().__exit__(kind, error, trace)
        if error is None and self._failures:
            name, method, failure = self._failures[0]
            raise contract.ERROR.broken(
                name, f"{type(failure).__name__}: {failure}, in `{method}`, in a running engine"
            ) from failure


def engine_with(
    *drafters: Subject,
    registry: Registry,
    backend: str = "toy",
    slots: int = 1,
    is_fixed: bool = True,
    n_ctx: int = 320,
) -> Engine:
    """An engine on the tiny target with a chain of drafters, or with none, which may not fail."""
    return StrictEngine.load(
        TINY_TARGET,
        backend=backend,
        spec_type=[each.name for each in drafters],
        spec_options={each.name: each.values for each in drafters},
        spec_fixed=is_fixed,
        spec_verify=drafters[0].verify if drafters else "match",
        slots=slots,
        threads=min(slots, 2),
        n_ctx=n_ctx,
        registry=registry,
    )


def answers(name: str, engine: Engine, params: dict[str, Any], report: DrafterReport) -> list[Result]:
    """The counted results of all prompts; errors are those of `counted`."""
    asked = {"max_tokens": N_TOKENS, "logprobs": 0, "ignore_eos": True, **params}
    return counted(name, lambda: engine.generate(PROMPTS, **asked), report)


def counted(name: str, run: Callable[[], list[Result]], report: DrafterReport) -> list[Result]:
    """The result of `run`, added to the report.

    Raises:
        ContractError: An engine fell over its drafters, or lost count.
        AuguryError: Requests were refused.
    """
    try:
        results = run()
    except AuguryError:
        raise
    except Exception as error:
        raise contract.ERROR.broken(name, f"{type(error).__name__}: {error}, in a running engine") from error
    for result in results:
        stats = result.stats
        report.n_requests += 1
        report.n_drafted += stats.n_drafted
        report.n_accepted += stats.n_accepted
        if wrong := miscounts(result):
            raise contract.COUNTS.broken(name, "; ".join(wrong))
    return results


def output(results: list[Result]) -> Output:
    """The part of results that must not depend on drafters."""
    return [(result.tokens, [piece.logprob for piece in result.pieces]) for result in results]


@functools.cache
def plain(registry: Registry, backend: str, way: str) -> Output:
    """Plain decoding of all prompts."""
    with engine_with(registry=registry, backend=backend) as engine:
        return output(engine.generate(PROMPTS, max_tokens=N_TOKENS, logprobs=0, ignore_eos=True, **WAYS[way]))


def compare(name: str, where: str, expected: Output, found: Output) -> None:
    """See that one output is the other.

    Raises:
        ContractError: It is not.
    """
    for i, ((tokens, logprobs), (others, other_logprobs)) in enumerate(zip(expected, found, strict=True)):
        if tokens != others:
            at = next(j for j, (one, other) in enumerate(zip(tokens, others, strict=False)) if one != other)
            seen = f"{where}, token {at} of prompt {i} is {others[at]}, plainly it is {tokens[at]}"
            raise contract.LOSSLESS.broken(name, seen)
        if logprobs != other_logprobs:
            raise contract.LOSSLESS.broken(name, f"{where}, prompt {i} has the right tokens of other probabilities")
