"""Loads models and tokenizers for one engine: the target first, second models for its drafters."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import attrs

from augury.engine.context import CheckedContext
from augury.engine.guard import guarded
from augury.errors import ModelFileError, OptionError, UnsupportedError
from augury.files.gguf import ModelFile
from augury.files.models import resolve
from augury.log import get_logger
from augury.options import Spec, build, parse_specs
from augury.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from pathlib import Path

    from augury.blocks import ModelPlan
    from augury.interfaces import Backend, MemoryManager, Model, Progress
    from augury.registry import Registry
    from augury.text.tokenizer import Tokenizer
    from augury.types import ModelOptions

__all__ = ["Loader", "Shared", "make_backend", "make_memory", "plan_of"]


def make_backend(registry: Registry, text: str) -> Backend:
    """The backend that `name:key=value,...` asks for; `auto` is the preferred one.

    Raises:
        PluginError: There is no such backend.
        OptionError: It is not of that form, or an option is unknown or out of range.
        UnsupportedError: It cannot run on this machine.
    """
    spec = _only("backend", text)
    backend: type[Backend] = registry.choose("backend", None) if spec.name == "auto" else registry.find("backend", spec.name)
    if (reason := backend.unavailable_reason()) is not None:
        raise UnsupportedError(f"backend {backend.name} cannot run here: {reason}")
    return backend(build(backend.options_class, dict(spec.values), f"--backend {backend.name}"))


def _only(what: str, text: str) -> Spec:
    specs = parse_specs(text)
    if len(specs) != 1:
        raise OptionError(f"{what} is {text!r}, expected one {what}; a model runs on one")
    return specs[0]


def make_memory(registry: Registry, text: str, model: Model) -> MemoryManager:
    """The memory manager that `name:key=value,...` asks for; `auto` is the preferred one of those that suit the model.

    Raises:
        PluginError: There is no such memory manager.
        OptionError: It is not of that form, or an option is unknown or out of range.
        UnsupportedError: It does not suit the model's state.
    """
    spec, state = _only("memory", text), model.state_spec
    cls: type[MemoryManager] = (
        registry.find("memory", spec.name)
        if spec.name != "auto"
        else registry.choose("memory", model.info, lambda each: each.suitable(state))
    )
    if (reason := cls.suitable(state)) is not None:
        raise UnsupportedError(f"memory manager {cls.name} does not suit {model.info.name}: {reason}")
    return cls(build(cls.options_class, dict(spec.values), f"--memory {cls.name}"), state, model)


def plan_of(file: ModelFile, registry: Registry) -> ModelPlan:
    """The plan of the model in a file.

    Raises:
        ModelFileError: No plugin knows its architecture, or the file does not fit it.
    """
    architecture = registry.architectures.get(file.architecture)
    if architecture is None:
        known = ", ".join(sorted(registry.architectures)) or "none"  # what sounds alike is no help: the file is what it is
        raise ModelFileError(
            f"{file.path}: architecture {file.architecture!r} is not supported; expected one of {known}, or a plugin for it"
        )
    return architecture.plans(file)["main"]


class Shared:
    """What the sessions of one engine have in common, made once and closed with the engine."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self._lock = threading.RLock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value under `key`, made by the first that asks."""
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    def values(self) -> list[Any]:
        """All values, in the order in which they were made."""
        with self._lock:
            return list(self._made.values())

    def close(self) -> None:
        """Close, last made first, what can be closed; where that fails the others are closed all the same."""
        for value in reversed(self.values()):
            if callable(close := getattr(value, "close", None)):
                guarded(close)
        self._made.clear()


class Loader:
    """Loads each model once, and remembers what is to be closed."""

    def __init__(self, registry: Registry, backend: Backend, progress: Progress) -> None:
        self.shared = Shared()
        self.models: list[Model] = []
        self.registry = registry
        self._backend = backend
        self._progress = progress
        self._files: dict[str, ModelFile] = {}

    def open(self, reference: str | Path) -> ModelFile:
        """The file that `reference` means, open until `close_files`: reading a large header twice would be felt."""
        if str(reference) not in self._files:
            self._files[str(reference)] = ModelFile.open(resolve(reference, self.registry, self._progress))
        return self._files[str(reference)]

    def load(self, reference: str | Path, options: ModelOptions, *, purpose: str, backend: str | None = None) -> Model:
        """The model that `reference` means; the same arguments load once. `backend` names another one than the engine's.

        A target that is its own draft model is loaded twice: each needs slots of its own.
        """

        def make() -> Model:
            file = self.open(reference)
            device = self._backend if backend is None else make_backend(self.registry, backend)
            plan = plan_of(file, self.registry)
            wanted = options if options.n_ctx else attrs.evolve(options, n_ctx=plan.n_ctx_train)
            self.models.append(device.load(file, plan, wanted, self._progress))
            return self.models[-1]

        return self.shared.get(("model", purpose, str(reference), options, backend), make)

    def load_draft_model(self, reference: str, options: ModelOptions, backend: str | None = None) -> CheckedContext:
        """A model that drafters feed, with a memory manager that suits it; the same arguments load once."""

        def make() -> CheckedContext:
            model = self.load(reference, options, purpose="draft", backend=backend)
            return CheckedContext(model, make_memory(self.registry, "auto", model))

        return self.shared.get(("context", reference, options, backend), make)

    def load_tokenizer(self, reference: str | Path) -> Tokenizer | None:
        """The tokenizer of a model's file, or None where the file has none that augury can read: token ids work without."""

        def make() -> Tokenizer | None:
            try:
                return load_tokenizer(self.open(reference).metadata)
            except UnsupportedError as error:
                get_logger("augury.loader").warning("no tokenizer", model=str(reference), reason=str(error))
                return None

        return self.shared.get(("tokenizer", str(reference)), make)

    def check(self) -> None:
        """See that no model's file was changed; see `Model.check`."""
        for model in self.models:
            model.check()

    def close_files(self) -> None:
        """Close the files that are open; what was loaded from them stays."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def close(self) -> None:
        """Close all models and what drafters share."""
        self.close_files()
        self.shared.close()
        self.models.clear()
