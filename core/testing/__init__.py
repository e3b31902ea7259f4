"""Proves plugins: checks that any plugin of a kind must pass, and the toys that they run on.

There is a `check_...` for each kind of plugin. It takes a class, or the name of an installed plugin, values of its options by
name, and a registry where names are looked up, None for installed plugins and the toys. It raises a `ContractError` that says
which contract was broken, how, and where it is documented; an `OptionError` if the options do not fit or hypothesis is not
installed; and a `PluginError` if there is no such plugin, or the class is none.

`pytest --augury-drafter NAME` runs the checks of an installed drafter, each as a test. Needs the extra `augury[testing]`.

Each kind has a module, or a package: `suite` or `checks` holds its function and its parts, `contract` the promises that plugins
are held to. `drafter.driven` is the engine's loop by a script, `drafter.watched` the drafter in it, `drafter.engines` whole
ones. `tiny_model` writes model files, `toy_model` stands in for a model, `toys` offers both to engines.
`pytest_plugin` makes checks pytest's items.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from augury.testing.architecture import check_architecture as check_architecture
    from augury.testing.backend.checks import check_backend as check_backend
    from augury.testing.constraint import check_constraint as check_constraint
    from augury.testing.contract import ContractError as ContractError
    from augury.testing.drafter.suite import check_drafter as check_drafter
    from augury.testing.memory import check_memory_manager as check_memory_manager
    from augury.testing.source import check_source as check_source
    from augury.testing.tiny_model import N_EMBD as N_EMBD, write_tiny_model as write_tiny_model
    from augury.testing.toy_model import ToyModel as ToyModel

_HOMES = {
    "ContractError": "contract",
    "N_EMBD": "tiny_model",
    "ToyModel": "toy_model",
    "check_architecture": "architecture",
    "check_backend": "backend.checks",
    "check_constraint": "constraint",
    "check_drafter": "drafter.suite",
    "check_memory_manager": "memory",
    "check_source": "source",
    "write_tiny_model": "tiny_model",
}
__all__ = list(_HOMES)  # type checkers go by the imports above


def __getattr__(name: str) -> Any:
    # imported when first used: pytest loads this package wherever augury is installed
    if name not in _HOMES:
        raise AttributeError(f"module 'augury.testing' has no attribute {name!r}")
    return getattr(import_module(f"augury.testing.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
