"""A drafter under test, and the surroundings that an engine would give it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from attrs import Factory, frozen

from augury.engine.context import EngineContext, EngineTarget
from augury.engine.sampling import SamplingParams
from augury.engine.session import EngineSession
from augury.errors import AuguryError
from augury.interfaces import Progress
from augury.loader import Loader, make_backend, make_memory
from augury.options import build
from augury.testing.drafter import contract
from augury.testing.drafter.driven_slot import DrivenSlot
from augury.testing.tiny_model import PERIOD
from augury.testing.toys import TINY_TARGET
from augury.types import ModelOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from augury.interfaces import Drafter
    from augury.registry import Registry
    from augury.testing.drafter.script import Request

__all__ = ["Subject", "Tally", "World"]

N_CTX = 768
_SAMPLING = SamplingParams(temperature=0.8, top_k=20, seed=7)


class Tally:
    """Counts what a drafter did in checks that run engines."""

    def __init__(self) -> None:
        self.n_requests = 0
        self.n_drafted = 0
        self.n_accepted = 0


@frozen(eq=False)
class Subject:
    """A drafter with options, and where to find everything else."""

    drafter: type[Drafter]
    values: Mapping[str, Any]  # of its options, by name
    registry: Registry  # with the toys
    backends: Sequence[str]  # that outputs are compared on
    verify: Literal["match", "rejection"] = "match"  # how its drafts are verified
    tally: Tally = Factory(Tally)

    @property
    def name(self) -> str:
        """The drafter's."""
        return self.drafter.name

    @property
    def is_alone(self) -> bool:
        """Whether what other slots do is nothing to it."""
        return self.drafter.scope != "process"

    def options(self, **values: Any) -> Any:
        """The drafter's options, some of them changed."""
        return build(self.drafter.options_class, {**self.values, **values}, self.name)

    def world(self, n_slots: int = 1, **values: Any) -> World:
        """A target and a drafter per slot."""
        return World(self, n_slots, self.options(**values))

    def drafts(self, requests: Sequence[Request], *, slot: int = 0, n_slots: int = 1) -> list[list[tuple[int, ...]]]:
        """What a new drafter drafts in requests one after another, by request and round."""
        with self.world(n_slots) as world:
            return [list(world.slots[slot].play(request)) for request in requests]


class World:
    """What an engine holds: a target, and for each slot a session and a drafter."""

    def __init__(self, subject: Subject, n_slots: int, options: Any) -> None:
        self._loader = Loader(subject.registry, make_backend(subject.registry, "toy"), Progress())
        load_options = ModelOptions(n_slots=n_slots, n_ctx=N_CTX, threads=1)
        model = self._loader.load(TINY_TARGET, load_options, purpose="target")
        context = EngineContext(model, make_memory(subject.registry, "auto", model))
        target = EngineTarget(context)
        tokenizer = self._loader.load_tokenizer(TINY_TARGET)
        self.slots: list[DrivenSlot] = []
        try:
            for slot in range(n_slots):
                session = EngineSession(slot, context.info, load_options, tokenizer, self._loader, target)
                session.sampling, session.verify = _SAMPLING, subject.verify
                self.slots.append(DrivenSlot(subject.drafter(options, session), context, slot, PERIOD))
        except AuguryError:
            self._loader.close()
            raise
        except Exception as error:
            self._loader.close()
            raise contract.CHOSEN.broken(subject.name, f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Close the drafters, then what they share."""
        for slot in self.slots:
            slot.close()
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self._loader.close()
