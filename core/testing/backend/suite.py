"""`check_backend`: the conformance suite of backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from augury.errors import UnsupportedError
from augury.interfaces import Backend
from augury.options import build
from augury.registry import Registry
from augury.testing.backend.checks import BACKEND_CHECKS
from augury.testing.backend.subject import BackendSubject
from augury.testing.contract import require_hypothesis, run_checks
from augury.testing.toys import registry_with_toys


def check_backend(
    backend: type[Backend] | str,
    options: Mapping[str, Any] | None = None,
    *,
    tolerance: float | None = None,
    registry: Registry | None = None,
    n_examples: int = 15,
) -> None:
    """Prove that a backend keeps its contracts, on a tiny model with weights of several types.

    Args:
        backend: A class, or the name of an installed one.
        options: Values of its options by name.
        tolerance: Mean squared error of its logits as a share of their mean square, at most; None for its own `tolerance`.
        registry: Where everything is found; None for installed plugins.
        n_examples: Random cuts of texts, and random trees, that are tried; fewer for a backend that takes minutes for them.

    Raises:
        ContractError: It breaks a contract; the message says which, how, and where it is documented.
        UnsupportedError: It cannot run on this machine.
        OptionError: The options do not fit it, or hypothesis is not installed.
        PluginError: There is no such backend, or the class is none.
    """
    subject = backend_subject(backend, options, tolerance=tolerance, registry=registry, n_examples=n_examples)
    run_checks(BACKEND_CHECKS, subject)


def backend_subject(
    backend: type[Backend] | str,
    options: Mapping[str, Any] | None = None,
    *,
    tolerance: float | None = None,
    registry: Registry | None = None,
    n_examples: int = 15,
) -> BackendSubject:
    """The subject of the checks; arguments and errors are those of `check_backend`."""
    require_hypothesis()
    registry = registry or registry_with_toys()
    found: type[Backend] = registry.find("backend", backend)
    if (reason := found.unavailable_reason()) is not None:
        raise UnsupportedError(f"backend {found.name} cannot run here: {reason}")
    values = build(found.options_class, options or {}, found.name)
    return BackendSubject(found, values, registry, found.tolerance if tolerance is None else tolerance, n_examples)
