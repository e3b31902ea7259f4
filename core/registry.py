"""Finds plugins, checks them and hands out their classes.

Plugins are modules named by entry points of the group `augury`; first-party ones enter the same way as strangers'. One broken
package is a warning and a line in `augury plugins`, never a crash; two plugins of one name are an error that names both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import metadata
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pluggy
from attrs import frozen, has

from augury import hookspecs, log
from augury.constraint import Constraint
from augury.errors import PluginError
from augury.interfaces import API_VERSION, Architecture, Backend, Drafter, FileFormat, MemoryManager, Plugin, Source
from augury.options import nearest, options_of
from augury.types import ModelInfo

GROUP = "augury"
ALLOW_LIST = "AUGURY_PLUGINS"  # comma-separated distributions that may be loaded beside augury's own

_KINDS: dict[str, tuple[str, type[Plugin]]] = {  # kind: (hook, the parent of its classes)
    "backend": ("augury_backends", Backend),
    "drafter": ("augury_drafters", Drafter),
    "memory": ("augury_memory_managers", MemoryManager),
    "architecture": ("augury_architectures", Architecture),
    "source": ("augury_sources", Source),
    "format": ("augury_formats", FileFormat),
    "constraint": ("augury_constraints", Constraint),
}
_FUNCTIONS = {  # hook: what a plugin with it is called
    "augury_choose": "choice",
    "augury_round_done": "observer",
    "augury_request_done": "observer",
    "augury_commands": "command",
}
_HOOKABLE = (FunctionType, MethodType, staticmethod, classmethod)
_WORDS = {"memory": "memory manager"}
_NAME = re.compile(r"[\w.-]+")  # which `parse_specs` reads


@frozen
class FunctionRecord:
    """What a plugin's functions do, which offer no class: they observe, choose or add commands."""

    kind: str
    name: str
    distribution: str
    version: str


@frozen
class PluginRecord(FunctionRecord):
    """A class that can be used, and where it came from."""

    plugin: type[Plugin]


@frozen
class BrokenPlugin:
    """An entry point that could not be used, and why."""

    name: str
    distribution: str
    version: str
    reason: str


class _Hooks(pluggy.PluginManager):
    """Finds a plugin's hooks; pluggy itself takes its time for every name of a module, of which few are functions."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        if isinstance(plugin, ModuleType) and not isinstance(vars(plugin).get(name), _HOOKABLE):
            return None
        return super().parse_hookimpl_opts(plugin, name)


class Registry:
    """All plugins of one process. Build it with `discover`, or empty for tests and `register` into it."""

    def __init__(self) -> None:
        self.hooks = _Hooks("augury")  # that plugins implement
        self.hooks.add_hookspecs(hookspecs)
        self.records: list[PluginRecord] = []  # classes that can be used
        self.functions: list[FunctionRecord] = []  # what plugins do by functions
        self.broken: list[BrokenPlugin] = []  # that cannot be used
        self.backends: dict[str, type[Backend]] = {}  # the classes of each kind, by name
        self.drafters: dict[str, type[Drafter]] = {}
        self.memory_managers: dict[str, type[MemoryManager]] = {}
        self.architectures: dict[str, type[Architecture]] = {}
        self.sources: dict[str, type[Source]] = {}
        self.formats: dict[str, type[FileFormat]] = {}
        self.constraints: dict[str, type[Constraint]] = {}
        self._taken: dict[str, dict[str, PluginRecord]] = {kind: {} for kind in _KINDS}  # by kind, then by name or alias
        self._keywords: dict[str, PluginRecord] = {}  # of constraints
        self._of_kind: dict[str, dict[str, Any]] = {
            kind: getattr(self, hook.removeprefix("augury_")) for kind, (hook, _) in _KINDS.items()
        }

    @classmethod
    def discover(cls) -> Registry:
        """Load every entry point of the group that the environment's allow-list admits; errors are those of `register`."""
        registry = cls()
        allowed = os.environ.get(ALLOW_LIST)
        names = None if allowed is None else {"augury", *(_normalized(name) for name in allowed.split(","))}
        facts = cache(lambda found: (found.name, found.version) if found else ("unknown", ""))  # each time they are parsed
        for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
            distribution, version = facts(entry.dist)
            if names is not None and _normalized(distribution) not in names:
                continue
            try:
                module = entry.load()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's module may raise anything at import
                registry._give_up(entry.name, distribution, version, f"{type(error).__name__}: {error}")
                continue
            registry.register(module, name=entry.name, distribution=distribution, version=version)
        return registry

    def register(self, plugin: Any, *, name: str, distribution: str = "this process", version: str = "") -> None:
        """Take a module or object with hook implementations, and the classes that it offers.

        Raises PluginError: a name is taken already, or a hook's name is misspelt.
        """
        try:
            self.hooks.register(plugin, name=f"{distribution}:{name}")
        except pluggy.PluginValidationError as error:  # of the arguments of a hook
            self.hooks.unregister(name=f"{distribution}:{name}")  # by name: pluggy 1.7 keeps nothing of it, earlier ones do
            self._give_up(name, distribution, version, " ".join(str(error).split()))
            return
        try:
            self.hooks.check_pending()
        except pluggy.PluginValidationError as error:
            self.hooks.unregister(plugin)
            known = [spec for spec in dir(hookspecs) if spec.startswith("augury_")]
            wrong = next(word for word in str(error).replace("'", " ").split() if word.startswith("augury_"))
            raise PluginError(
                f"{distribution}: plugin {name!r} implements no known hook {wrong!r}{nearest(wrong, known)}"
            ) from None
        try:
            found = [record for kind in _KINDS for record in self._offered(plugin, kind, distribution, version)]
        except Exception as error:  # noqa: BLE001 - a stranger's hook may raise anything
            self.hooks.unregister(plugin)
            self._give_up(name, distribution, version, f"{type(error).__name__}: {error}")
            return
        for record in found:
            self._add(record)
        kinds = sorted({_FUNCTIONS[each.name] for each in self.hooks.get_hookcallers(plugin) or () if each.name in _FUNCTIONS})
        self.functions += [FunctionRecord(kind, name, distribution, version) for kind in kinds]

    def _offered(self, plugin: Any, kind: str, distribution: str, version: str) -> Iterable[PluginRecord]:
        hook, _ = _KINDS[kind]
        found = getattr(plugin, hook)() if hasattr(plugin, hook) else ()
        if not isinstance(found, Iterable):
            raise PluginError(f"{hook} returned {found!r}, expected a list of classes")
        for cls in found:
            _check(kind, cls, distribution)
            yield PluginRecord(kind, cls.name, distribution, version, cls)

    def _add(self, record: PluginRecord) -> None:
        names, keyword = (record.name, *record.plugin.aliases), getattr(record.plugin, "keyword", None)
        taken = self._taken[record.kind]
        if (other := next((taken[name] for name in names if name in taken), None)) is not None:
            raise PluginError(
                f"two {record.kind} plugins are called {record.name!r}: one of {_where(other)}, one of {_where(record)}; "
                f"uninstall one, or name those to load in {ALLOW_LIST}"
            )
        if keyword is not None and (other := self._keywords.get(keyword)) is not None:
            raise PluginError(
                f"two constraints have the keyword {keyword!r}: {other.name} of {_where(other)}, {record.name} of "
                f"{_where(record)}; uninstall one, or name those to load in {ALLOW_LIST}"
            )
        taken.update(dict.fromkeys(names, record))
        if keyword is not None:
            self._keywords[keyword] = record
        self.records.append(record)
        self._of_kind[record.kind][record.name] = record.plugin

    def _give_up(self, name: str, distribution: str, version: str, reason: str) -> None:
        self.broken.append(BrokenPlugin(name, distribution, version, reason))
        log.get_logger("augury.registry").warning(
            "plugin cannot be used", plugin=name, distribution=distribution, reason=reason
        )

    # Looking up

    def find(self, kind: str, name: str | type[Any]) -> Any:
        """The class of `kind` that has a name, or has it as an alias; or `name` itself, if it is such a class.

        Raises PluginError: there is none.
        """
        if not isinstance(name, str):
            _check(kind, name, "this process")
            return name
        classes = self._of_kind[kind]
        for cls in classes.values():
            if name == cls.name or name in cls.aliases:
                return cls
        broken = "".join(f"; {each.name} of {each.distribution} is broken: {each.reason}" for each in self.broken)
        allowed = os.environ.get(ALLOW_LIST)
        left_out = "" if allowed is None else f"; {ALLOW_LIST} is {allowed!r}, which leaves out all other distributions"
        raise PluginError(f"there is no {_WORDS.get(kind, kind)} {name!r}{nearest(name, classes)}{broken}{left_out}")

    def choose(self, kind: str, model: ModelInfo | None, reason: Callable[[type[Any]], str | None] | None = None) -> Any:
        """The class of `kind` for a user who said `auto`; see `choice`."""
        return self.find(kind, self.choice(kind, model, reason))

    def choice(self, kind: str, model: ModelInfo | None, reason: Callable[[type[Any]], str | None] | None = None) -> str:
        """The plugin of `kind` for `auto`, perhaps a chain of drafters: what `augury_choose` names, or the first that can run.

        `model` is the one that is loaded, if any. `reason` says why a class cannot run, None where it can; by default it is a
        backend's own. Raises PluginError: none can run.
        """
        why_not = reason or (lambda cls: cls.unavailable_reason() if issubclass(cls, Backend) else None)
        reasons = {name: why_not(cls) for name, cls in self._of_kind[kind].items()}
        usable = [name for name, why in reasons.items() if why is None]
        if not usable:
            found = "; ".join(f"{name}: {why}" for name, why in reasons.items())
            raise PluginError(f"no {_WORDS.get(kind, kind)} can run here ({found or 'none is installed'})")
        return str(self.hooks.hook.augury_choose(kind=kind, names=usable, model=model) or usable[0])

    def add_commands(self, subparsers: Any, argv: Sequence[str]) -> None:
        """Let plugins add commands to argparse's `subparsers` for the words `argv`; one that fails is given up."""
        plugins = self.hooks.get_plugins()
        for plugin in sorted(plugins, key=lambda plugin: self.hooks.get_name(plugin) or ""):
            caller = self.hooks.subset_hook_caller("augury_commands", plugins - {plugin})
            try:
                caller(subparsers=subparsers, registry=self, argv=argv)
            except Exception as error:  # noqa: BLE001 - a stranger's hook may raise anything
                distribution, _, name = str(self.hooks.get_name(plugin)).partition(":")
                self._give_up(name, distribution, "", f"augury_commands: {type(error).__name__}: {error}")

    def observers(self, hook: str) -> Callable[..., Any] | None:
        """The hook call of an observer hook, or None where nobody listens."""
        caller = getattr(self.hooks.hook, hook)
        return caller if caller.get_hookimpls() else None


def _check(kind: str, cls: Any, distribution: str) -> None:
    base, word = _KINDS[kind][1], _WORDS.get(kind, kind)
    where = f"augury.{base.__name__}"
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise PluginError(f"{cls!r} is no {word}; expected a subclass of {where}")
    if not isinstance(getattr(cls, "name", None), str):
        raise PluginError(f"{word} {cls.__name__} states no name; expected a class attribute `name`")
    if _NAME.fullmatch(cls.name) is None:
        raise PluginError(f"{word} {cls.__name__} is named {cls.name!r}, expected letters, digits and any of -_.")
    if cls.api_version != API_VERSION:
        older = distribution if cls.api_version < API_VERSION else "augury"
        message = f"{cls.name} was written for plugin API {cls.api_version}, this augury has {API_VERSION}"
        raise PluginError(f"{message}; upgrade {older}")
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise PluginError(f"{cls.name} lacks {', '.join(missing)}, see {where}")
    if not has(cls.options_class):
        expected = "expected a class with attrs' @frozen, whose fields are made by augury.option"
        raise PluginError(f"the options of {cls.name} are {cls.options_class!r}, {expected}")
    options_of(cls.options_class)  # of which the command line makes flags for all commands


def _normalized(distribution: str) -> str:
    """A distribution's name as package registries compare it (PEP 503): augury_trail is Augury-Trail."""
    return re.sub(r"[-_.]+", "-", distribution.strip()).lower()


def _where(record: PluginRecord) -> str:
    return f"{record.distribution} {record.version}".strip()
