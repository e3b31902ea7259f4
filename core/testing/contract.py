"""The promises of a plugin, and the error that says which one it broke."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from attrs import frozen

from augury.errors import OptionError
from augury.extras import install_command

if TYPE_CHECKING:
    from hypothesis import settings


class ContractError(AssertionError):
    """A plugin broke a contract: the contract, the observation, and the place where it is documented."""


@frozen
class Contract:
    """One promise."""

    sentence: str
    where: str  # documented, such as "augury.Drafter.draft"

    def broken(self, plugin: str, seen: str) -> ContractError:
        """The error to raise.

        >>> str(Contract("A drafter makes tea.", "docs/tea.md").broken("kettle", "coffee"))
        'kettle: A drafter makes tea. Seen: coffee. See docs/tea.md.'
        """
        return ContractError(f"{plugin}: {self.sentence} Seen: {seen.rstrip('.')}. See {self.where}.")


@frozen
class Check:
    """One part of a conformance suite: a sentence as its name, and a function that raises `ContractError` or returns."""

    name: str
    run: Callable[[Any], None]


def run_checks(checks: Iterable[Check], subject: Any) -> None:
    """Run all, up to the first that fails."""
    for check in checks:
        check.run(subject)


def require_hypothesis() -> None:
    """Check that the library that tries many scripts is there.

    Raises:
        OptionError: hypothesis is not installed.
    """
    try:
        import hypothesis  # noqa: F401 - the checks import it where they use it
    except ImportError:
        raise OptionError(f"augury.testing tries many scripts and needs hypothesis: {install_command('testing')}") from None


def hypothesis_settings(n_examples: int) -> settings:
    """A decorator for properties: the same examples in every run, none of them kept on disk, no matter how long they take."""
    from hypothesis import HealthCheck, Phase, settings

    return settings(
        max_examples=n_examples,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )
