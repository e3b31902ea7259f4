"""`check_drafter`, the conformance suite of drafters, and its checks of drafts that are verified by rejection.

Of these not the output, but its distribution must be that of plain decoding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from augury.engine.engine import Engine
from augury.engine.sampler import Sampler
from augury.interfaces import Drafter
from augury.passes import ArrayPass
from augury.registry import Registry
from augury.sampling import SamplingParams
from augury.testing.contract import Checks, require_hypothesis
from augury.testing.drafter import contract, engines
from augury.testing.drafter.checks import DRIVEN_CHECKS, any_script, reproducible, together
from augury.testing.drafter.driven import PROMPTS, DrafterReport, Subject
from augury.testing.tiny_model import PERIOD
from augury.testing.toys import find_plugin

_PROMPT = PROMPTS[0][: 14 * PERIOD]  # the toy expects the phrase to go on
# three tokens at a time, none of them nearly sure
_CHOICES: dict[str, Any] = {"temperature": 4.0, "top_k": 3, "top_p": 1.0, "min_p": 0.0}
_N_ANSWERS = 1200
_N_SLOTS = 4  # answers at once, in half the time that they take one by one
_LENGTH = 4  # of an answer; the first token has no draft, the second and third have one together
_RARE = 5.0  # answers expected less often are counted together: chi-square needs about that many of each
_LARGEST = 6.0  # standard deviations: chance alone goes beyond it about once in a billion
REJECTION_CHECKS = Checks()


@REJECTION_CHECKS.add
def driven(subject: Subject) -> None:
    """Drafts what can be verified by rejection."""
    subject = _by_rejection(subject)
    any_script(subject, n_examples=20)
    reproducible(subject)
    together(subject)


@REJECTION_CHECKS.add
def counts(subject: Subject) -> None:
    """Keeps count where it is verified by rejection."""
    for i, backend in enumerate(subject.backends):
        ways = engines.WAYS if i == 0 else ("greedy", ("sampled", "penalised")[i % 2])
        with engines.engine_with(_by_rejection(subject), registry=subject.registry, backend=backend, slots=3) as engine:
            results = {
                way: engines.answers(subject.name, engine, engines.WAYS[way] | subject.params, subject.report) for way in ways
            }
        lengths = [len(result.tokens) for each in results.values() for result in each]
        if lengths != [engines.N_TOKENS] * len(lengths):
            raise contract.COUNTS.broken(subject.name, f"answers of {lengths} tokens, {engines.N_TOKENS} were asked for")
        expected = engines.plain(subject.registry, backend, "greedy")
        engines.compare(subject.name, f"greedy by rejection on {backend}", expected, engines.output(results["greedy"]))


@REJECTION_CHECKS.add
def distribution(subject: Subject) -> None:
    """Keeps the distribution where it is verified by rejection."""
    with engines.engine_with(_by_rejection(subject), registry=subject.registry, slots=_N_SLOTS) as engine:
        chances = _chances(engine)
        seeds = range(_N_ANSWERS)
        asked = [engine.submit(_PROMPT, max_tokens=_LENGTH, ignore_eos=True, seed=seed, **_CHOICES) for seed in seeds]
        results = engines.counted(subject.name, lambda: [running.result() for running in asked], subject.report)
    seen = Counter(result.tokens for result in results)
    if strange := seen.keys() - chances.keys():
        raise contract.DISTRIBUTION.broken(subject.name, f"the answer {min(strange)}, which the target never gives")
    found = np.array([seen[tokens] for tokens in chances], float)
    expected = _N_ANSWERS * np.array(list(chances.values()))
    if (distance := _distance(found, expected)) > _LARGEST:
        most = int(abs(found - expected).argmax())
        detail = f"{list(chances)[most]} {found[most]:.0f} times in {_N_ANSWERS}, expected {expected[most]:.0f}"
        raise contract.DISTRIBUTION.broken(subject.name, f"{detail}; all in all {distance:.0f} standard deviations from chance")


def _by_rejection(subject: Subject) -> Subject:
    return attrs.evolve(subject, verify="rejection")


def _chances(engine: Engine) -> dict[tuple[int, ...], float]:
    """Every possible answer with its probability, from the target's own logits."""
    sampler = Sampler(SamplingParams(**_CHOICES), n_vocab=engine.info.n_vocab)
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(_LENGTH):
        longer = {}
        for tokens, chance in chances.items():
            text = np.array([*_PROMPT, *tokens], np.int32)
            ids, probabilities = sampler.distribution(ArrayPass(engine.evaluate(text, [len(text) - 1])), 0, text, len(text))
            for token, probability in zip(ids.tolist(), probabilities.tolist(), strict=True):
                longer[*tokens, token] = chance * probability
        chances = longer
    return chances


def _distance(found: np.ndarray, expected: np.ndarray) -> float:
    """How far counts (m,) are from their expectation, in standard deviations.

    Source: Wilson & Hilferty 1931, "The distribution of chi-square": its cube root is nearly normal.
    """
    is_rare = expected < _RARE
    found = np.append(found[~is_rare], found[is_rare].sum())
    expected = np.append(expected[~is_rare], expected[is_rare].sum())
    n_free = len(found) - 1
    chi_square = ((found - expected) ** 2 / expected).sum()
    variance = 2 / (9 * n_free)
    return float(((chi_square / n_free) ** (1 / 3) - (1 - variance)) / variance**0.5)


DRAFTER_CHECKS = Checks([*DRIVEN_CHECKS, *REJECTION_CHECKS, *engines.ENGINE_CHECKS])


def check_drafter(
    drafter: type[Drafter] | str,
    options: Mapping[str, Any] | None = None,
    *,
    backends: Sequence[str] = ("toy", "reference"),
    registry: Registry | None = None,
) -> DrafterReport:
    """Prove that a drafter keeps its contracts, by driving it through scripts and engines; see `augury.testing`.

    It takes seconds, and downloads nothing. Choose options with which it drafts on short texts. Outputs are compared on the
    backends `toy` and any that is installed: on the first in all ways, on others in fewer.

    >>> from augury.drafters.ngram_simple import NgramSimple
    >>> check_drafter(NgramSimple, {"n": 3, "m": 8}, backends=["toy"]).n_accepted > 0
    True
    """
    subject = drafter_subject(drafter, options, backends=backends, registry=registry)
    DRAFTER_CHECKS.run(subject)
    return subject.report


def drafter_subject(
    drafter: type[Drafter] | str,
    options: Mapping[str, Any] | None = None,
    *,
    backends: Sequence[str] = ("toy", "reference"),
    registry: Registry | None = None,
) -> Subject:
    """The subject of the checks; arguments and errors are those of `check_drafter`."""
    require_hypothesis()
    found, registry = find_plugin("drafter", drafter, registry)
    subject = Subject(found, dict(options or {}), registry, tuple(backends))
    subject.options()
    return subject
