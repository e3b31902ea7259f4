"""Toys for checks: a backend that computes hashes, tiny models for it and all others, and a drafter."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from augury.blocks import ModelPlan
from augury.files.gguf import ModelFile
from augury.hookspecs import hookimpl
from augury.interfaces import Backend, Drafter, DrafterTraits, Model, Progress, Source
from augury.registry import Registry
from augury.testing.tiny_model import PERIOD, write_tiny_model
from augury.testing.toy_model import ToyModel
from augury.types import Draft, ModelInfo, ModelOptions, StateSpec

TINY_TARGET = "tiny:target"
TINY_DRAFT = "tiny:draft"
_MODELS = {TINY_TARGET: {"seed": 0, "errors": 0.0, "has_mtp": True}, TINY_DRAFT: {"seed": 1, "errors": 0.3}}
_SURPRISES = 0.08  # share of the toy's tokens that do not repeat the token a period before


class ToyBackend(Backend):
    """Computes no plan, but a hash of every text: as sensitive to the contents of its memory as a real model, and faster."""

    name = "toy"
    computes_mtp = True

    def state_spec(self, plan: ModelPlan, options: ModelOptions) -> StateSpec:
        return self._model(plan, options).state_spec

    def load(self, file: ModelFile, plan: ModelPlan, options: ModelOptions, progress: Progress) -> Model:  # noqa: ARG002
        return self._model(plan, options, errors=file.get("augury.toy.errors", float, 0.0), info=ModelInfo.of(file, plan))

    def _model(self, plan: ModelPlan, options: ModelOptions, **more: Any) -> ToyModel:
        n: dict[str, Any] = {"n_vocab": plan.n_vocab, "n_slots": options.n_slots, "n_ctx": options.n_ctx}
        return ToyModel(**n, period=PERIOD, surprises=_SURPRISES, **more)


class ToyDrafter(Drafter):
    """Proposes the tokens that a constraint forces, or the ones a period before: a drafter to share a chain with."""

    name = "toy-period"
    traits = DrafterTraits(scope="request")

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        if self.session is not None and len(forced := self.session.forced(limit)):
            return Draft(forced)
        return Draft(history[-PERIOD:][:limit]) if len(history) > 2 * PERIOD else Draft()


class TinySource(Source):
    """Writes the tiny models when they are first wanted, for as long as the process lives.

    `tiny:target` and `tiny:draft` have one vocabulary and are often of the same mind. The target has a layer that predicts
    further tokens.
    """

    name = "tiny"

    @classmethod
    def handles(cls, reference: str) -> bool:
        return reference in _MODELS

    @classmethod
    def fetch(cls, reference: str, folder: Path, progress: Progress) -> Path:  # noqa: ARG003 - the cache is the user's
        path = Path(_folder().name) / f"{reference.replace(':', '-')}.gguf"
        if not path.exists():
            write_tiny_model(path, **_MODELS[reference])  # type: ignore[arg-type]
        return path


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="augury-tiny-")


def find_plugin(kind: str, plugin: Any, registry: Registry | None) -> tuple[Any, Registry]:
    """The class that is given or named, and a registry that has it, too; None for installed plugins, and the toys."""
    registry = registry or registry_with_toys()
    found = registry.find(kind, plugin)
    if found not in (record.plugin for record in registry.records):
        registry.register(_Offering(**{f"augury_{kind}s": [found]}), name=found.name)
    return found, registry


def registry_with_toys() -> Registry:
    """All plugins that are installed, and the toys."""
    registry = Registry.discover()
    toys = _Offering(augury_backends=[ToyBackend], augury_drafters=[ToyDrafter], augury_sources=[TinySource])
    registry.register(toys, name="toys", distribution="augury.testing")
    return registry


class _Offering:
    """A plugin that offers these classes by hooks of these names."""

    def __init__(self, **offered: list[Any]) -> None:
        vars(self).update({hook: hookimpl(lambda kinds=kinds: kinds) for hook, kinds in offered.items()})
