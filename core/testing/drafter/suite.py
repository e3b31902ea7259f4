"""`check_drafter`: the conformance suite of drafters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from augury.interfaces import Drafter
from augury.registry import Registry
from augury.testing.contract import Checks, require_hypothesis
from augury.testing.drafter.checks import DRIVEN_CHECKS
from augury.testing.drafter.driven import DrafterReport, Subject
from augury.testing.drafter.engines import ENGINE_CHECKS
from augury.testing.drafter.rejection_checks import REJECTION_CHECKS
from augury.testing.toys import find_plugin

DRAFTER_CHECKS = Checks([*DRIVEN_CHECKS, *REJECTION_CHECKS, *ENGINE_CHECKS])


def check_drafter(
    drafter: type[Drafter] | str,
    options: Mapping[str, Any] | None = None,
    *,
    backends: Sequence[str] = ("toy", "reference"),
    registry: Registry | None = None,
) -> DrafterReport:
    """Prove that a drafter keeps its contracts, by driving it through scripts and engines. Takes seconds; downloads nothing.

    Args:
        drafter: A class, or the name of an installed drafter.
        options: Values of its options by name; choose them so that it drafts on short texts.
        backends: Where outputs are compared, `toy` and any that is installed: on the first in all ways, on others in fewer.
        registry: Where everything is found; None for installed plugins.

    Raises:
        ContractError: It breaks a contract; the message says which, how, and where it is documented.
        OptionError: The options do not fit it, or hypothesis is not installed.
        PluginError: There is no such drafter, or the class is none.

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
