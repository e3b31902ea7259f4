"""The engine's offers to its drafters: second models, shared state, facts about the target, and its first layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from attrs import Factory, define, field

from augury.errors import AuguryError, PluginError
from augury.interfaces import Drafter, Session
from augury.loader import Loader
from augury.passes import Context, Target
from augury.speculation.config import Member, choose_drafters
from augury.text.tokenizer import Tokenizer
from augury.types import ModelInfo, ModelOptions


@define(eq=False, slots=False)
class EngineSession(Session):
    """The session of one slot."""

    slot: int
    model: ModelInfo
    options: ModelOptions
    tokenizer: Tokenizer | None
    _loader: Loader
    target: Target
    n_slots: int = field(default=Factory(lambda self: self.options.n_slots, takes_self=True), init=False)

    def load(self, reference: str, options: ModelOptions, backend: str | None = None, plan: str = "main") -> Context:
        return self._loader.load(reference, options, purpose="draft", backend=backend, plan_name=plan)

    def load_tokenizer(self, reference: str) -> Tokenizer | None:
        return self._loader.load_tokenizer(reference)

    def make_drafters(self, chosen: Iterable[tuple[type[Drafter], Member]], made: list[Drafter]) -> list[Drafter]:
        """The slot's drafters, each of which is in `made` as soon as it is there."""
        first = len(made)
        for drafter, member in chosen:
            made.append(self._make(drafter, member))
        return made[first:]

    def drafters(self, text: str) -> list[Drafter]:
        return [self._make(drafter, member) for drafter, member in choose_drafters(self._loader.registry, text)]

    def _make(self, drafter: type[Drafter], member: Member) -> Drafter:
        try:
            return drafter(member.options, self)
        except (AuguryError, MemoryError, OSError):
            raise
        except Exception as error:
            raise PluginError(
                f"drafter {drafter.name!r} cannot begin: {type(error).__name__}: {error}; leave it out (--spec-type), or ask "
                f"the authors of {drafter.__module__}"
            ) from error

    def shared(self, key: Hashable, make: Callable[[], Any]) -> Any:
        return self._loader.shared.get(key, make)
