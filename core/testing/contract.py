"""The promises of a plugin, and the error that says which one it broke."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import frozen

from augury.errors import OptionError
from augury.extras import install_command

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


Run = TypeVar("Run", bound=Callable[..., None])


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

    @contextmanager
    def kept(self, plugin: str, detail: str = "", but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Make any exception that leaves the block, `but` these, this promise broken; `detail` is said after it."""
        kept: tuple[type[Exception], ...] = (ContractError, *but)
        try:
            yield
        except kept:
            raise
        except (Exception, SystemExit) as error:
            raise self.broken(plugin, f"{type(error).__name__}: {error}{detail}") from error


@frozen
class Check:
    """One part of a conformance suite: what a plugin does, and a function that raises `ContractError` or returns."""

    name: str
    run: Callable[[Any], None]


class Checks(list[Check]):
    """A conformance suite, in the order in which it is run."""

    def run(self, subject: Any) -> None:
        """Run all of them. Raises ContractError: the subject breaks a contract."""
        for check in self:
            check.run(subject)

    def add(self, run: Run) -> Run:
        """Decorate a check; its name is the first line of its docstring."""
        first = (run.__doc__ or run.__name__).partition("\n")[0]
        self.append(Check(first[0].lower() + first[1:].removesuffix("."), run))
        return run


def require_hypothesis() -> None:
    """Raise an OptionError if the library that tries many scripts is not installed."""
    try:
        import hypothesis  # noqa: F401 - the checks import it where they use it
    except ImportError:
        raise OptionError(f"augury.testing tries many scripts and needs hypothesis: {install_command('testing')}") from None


def try_examples(n: int, run: Callable[..., object], **strategies: SearchStrategy[Any]) -> None:
    """Call `run` with n examples: the same ones every time, none of them kept on disk, no matter how long they take."""
    from hypothesis import HealthCheck, Phase, given, settings

    decorate = settings(
        max_examples=n,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )

    @decorate
    @given(**strategies)
    def example(**drawn: Any) -> None:
        run(**drawn)

    example()
