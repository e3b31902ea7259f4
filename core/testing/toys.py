"""Toys for checks: a backend that computes hashes, tiny models for it and all others, a drafter, and a constraint."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from augury.blocks import ModelPlan
from augury.constraint import Constraint, ConstraintSession
from augury.files.gguf import ModelFile
from augury.hookspecs import hookimpl
from augury.interfaces import Backend, Drafter, Model, Progress, Source
from augury.options import option
from augury.registry import Registry
from augury.testing.tiny_model import PERIOD, write_tiny_block_head, write_tiny_head, write_tiny_model
from augury.testing.toy_model import ToyModel
from augury.testing.toy_recurrent import ToyRecurrentModel
from augury.types import Draft, ModelInfo, ModelOptions, StateSpec

TINY_TARGET = "tiny:target"
TINY_DRAFT = "tiny:draft"
TINY_HEAD = "tiny:head"
TINY_DFLASH = "tiny:dflash"
TINY_DSPARK = "tiny:dspark"
_MODELS = {TINY_TARGET: {"seed": 0, "errors": 0.0, "has_nextn": True}, TINY_DRAFT: {"seed": 1, "errors": 0.3}}
_SURPRISES = 0.08  # share of the toy's tokens that do not repeat the token a period before


class ToyBackend(Backend):
    """Computes no plan, but a hash of every text: as sensitive to the contents of its memory as a real model, and faster."""

    name = "toy"
    computes_nextn = True

    def state_spec(self, plan: ModelPlan, options: ModelOptions) -> StateSpec:
        return self._model(plan, options).state_spec

    def load(self, file: ModelFile, plan: ModelPlan, options: ModelOptions, progress: Progress) -> Model:  # noqa: ARG002
        """A toy with the vocabulary of the file."""
        return self._model(plan, options, errors=file.get("augury.toy.errors", float, 0.0), info=ModelInfo.of(file, plan))

    def _model(self, plan: ModelPlan, options: ModelOptions, **more: Any) -> ToyModel:
        n: dict[str, Any] = {"n_vocab": plan.n_vocab, "n_slots": options.n_slots, "n_ctx": options.n_ctx}
        return ToyModel(**n, period=PERIOD, surprises=_SURPRISES, **more)


@frozen
class ToyRecurrentOptions:
    """Options of `toy-recurrent`."""

    keeps_aside: bool = option(True, help="drafted tokens stay out of the state")
    is_hybrid: bool = option(False, help="it has a KV cache as well")


class ToyRecurrentBackend(ToyBackend):
    """The same with a recurrent state; texts repeat the token three tokens before."""

    name = "toy-recurrent"
    options_class = ToyRecurrentOptions

    def _model(self, plan: ModelPlan, options: ModelOptions, **more: Any) -> ToyModel:
        n: dict[str, Any] = {"n_vocab": plan.n_vocab, "n_slots": options.n_slots, "n_ctx": options.n_ctx}
        n |= {"can_keep_aside": self.options.keeps_aside, "is_hybrid": self.options.is_hybrid}
        return ToyRecurrentModel(**n, period=3, surprises=_SURPRISES, **more)


class ToyDrafter(Drafter):
    """Proposes the tokens that a constraint forces, or the ones a period before: a drafter to share a chain with."""

    name = "toy-period"
    scope = "request"

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        """Propose the last tokens once more, where there are enough of them."""
        if self.session is not None and len(forced := self.session.forced(limit)):
            return Draft(forced)
        return Draft(history[-PERIOD:][:limit]) if len(history) > 2 * PERIOD else Draft()


@frozen
class ToyOptions:
    """Options of `toy-residues`."""

    modulus: int = option(3, help="number of residue classes, which take turns", ge=1)
    stretch: int = option(4, help="tokens that are forced after a multiple of 5; 0: none", ge=0)
    length: int = option(0, help="tokens after which the text is complete; 0: never", ge=0)


class ToyConstraint(Constraint):
    """Token i of the output is of residue class i; after a multiple of 5 come its successors, which have no alternative."""

    name = "toy-residues"
    options_class = ToyOptions

    def __init__(self, options: ToyOptions, session: ConstraintSession) -> None:
        super().__init__(options, session)
        self._n = self._last = self._n_left = 0  # tokens of the output, its last, and those of a stretch that are to come
        self._mask = np.zeros(session.n_vocab, bool)
        self._tokens = np.setdiff1d(np.arange(session.n_vocab), list(session.end_tokens))

    def allowed(self) -> np.ndarray:
        """A residue class and the end tokens, or the one token that is forced."""
        self._mask[:] = False
        if self._n_left:
            self._mask[self.forced(1)] = True
        else:
            self._mask[self._n % self.options.modulus :: self.options.modulus] = True
            self._mask[list(self.session.end_tokens)] = True
        return self._mask

    def accept(self, token: int) -> None:
        self._n += 1
        self._last = token
        self._n_left = max(self._n_left - 1, 0) if self._n_left or token % 5 else self.options.stretch

    @property
    def is_complete(self) -> bool:
        """Whether it is long enough, and no stretch is begun."""
        return 0 < self.options.length <= self._n and not self._n_left

    def forced(self, limit: int) -> list[int]:
        first = np.searchsorted(self._tokens, self._last, side="right")
        return [int(self._tokens[(first + i) % len(self._tokens)]) for i in range(min(limit, self._n_left))]


class TinySource(Source):
    """Writes the tiny models when they are first wanted, for as long as the process lives.

    `tiny:target` and `tiny:draft` have one vocabulary and are often of the same mind. The target has a layer that predicts
    further tokens, and `tiny:head` is an EAGLE-3 head of it, `tiny:dflash` and `tiny:dspark` are heads that draft blocks.
    """

    name = "tiny"

    @classmethod
    def handles(cls, reference: str) -> bool:
        return reference in (*_MODELS, TINY_HEAD, TINY_DFLASH, TINY_DSPARK)

    @classmethod
    def fetch(cls, reference: str, folder: Path, progress: Progress) -> Path:  # noqa: ARG003 - the cache is the user's
        return _written(reference)


@functools.cache
def _written(reference: str) -> Path:
    path = Path(_folder().name) / f"{reference.replace(':', '-')}.gguf"
    if reference == TINY_HEAD:
        write_tiny_head(path, n_layers=3)
    elif reference in (TINY_DFLASH, TINY_DSPARK):
        target = ModelFile.open(_written(TINY_TARGET))
        embedding, output = (target.tensor(name).data.view(np.float32) for name in ("token_embd.weight", "output.weight"))
        shape = target.tensor("output.weight").shape
        write_tiny_block_head(
            path, embedding.reshape(shape), output=output.reshape(shape) if reference == TINY_DSPARK else None
        )
    else:
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
    toys = _Offering(
        augury_backends=[ToyBackend, ToyRecurrentBackend],
        augury_drafters=[ToyDrafter],
        augury_constraints=[ToyConstraint],
        augury_sources=[TinySource],
    )
    registry.register(toys, name="toys", distribution="augury.testing")
    return registry


class _Offering:
    """A plugin that offers these classes by hooks of these names."""

    def __init__(self, **offered: list[Any]) -> None:
        vars(self).update({hook: hookimpl(lambda kinds=kinds: kinds) for hook, kinds in offered.items()})
