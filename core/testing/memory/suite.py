"""`check_memory_manager`: the conformance suite of memory managers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from attrs import frozen

from augury.interfaces import MemoryManager
from augury.options import build
from augury.registry import Registry
from augury.testing.contract import Checks, require_hypothesis, try_examples
from augury.testing.memory.driven_memory import SUITABLE, DrivenMemory, Guess
from augury.testing.toy_model import ToyModel, ToyRecurrentModel
from augury.testing.toys import registry_with_toys
from augury.types import Draft

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject, SearchStrategy

_N_CTX = 24
MEMORY_CHECKS = Checks()
_KINDS = ("open", "round", "round", "round", "ahead", "truncate", "end", "save", "load", "fail")  # of events
_MODELS: Mapping[str, Callable[..., ToyModel]] = {
    "a KV cache": ToyModel,
    "a recurrent state": ToyRecurrentModel,
    "both": partial(ToyRecurrentModel, is_hybrid=True),
    "both, with nothing kept aside": partial(ToyRecurrentModel, is_hybrid=True, can_keep_aside=False),
}


@frozen(eq=False)
class MemorySubject:
    """A memory manager with options."""

    manager: type[MemoryManager]
    options: Any

    @property
    def kinds(self) -> list[str]:
        """The states of models that it suits."""
        reasons = {kind: self.manager.suitable(model().state_spec) for kind, model in _MODELS.items()}
        if None not in reasons.values() or not all(reason is None or isinstance(reason, str) for reason in reasons.values()):
            raise SUITABLE.broken(self.manager.name, f"{reasons}")
        return [kind for kind, reason in reasons.items() if reason is None]

    def driven(self, n_slots: int, kind: str) -> DrivenMemory:
        """A new one, with a model."""
        make = partial(self.manager, self.options)
        return DrivenMemory(make, _MODELS[kind](n_slots=n_slots, n_ctx=_N_CTX), f"{self.manager.name} with {kind}")


@MEMORY_CHECKS.add
def full_slots(subject: MemorySubject) -> None:
    """Fills slots to the last position, and no further."""
    for kind in subject.kinds:
        memory = subject.driven(2, kind)
        memory.open([*range(16), *range(_N_CTX - 15)], may_reuse=True, chunk=8)
        memory.open([1] * _N_CTX, may_reuse=True, chunk=5)
        memory.open([2] * (_N_CTX - 6), may_reuse=True, chunk=99)
        memory.open([3], may_reuse=True, chunk=1)  # there is no slot for it
        for _ in range(8):
            memory.round({slot: Guess(Draft([1, 2, 3]), 1, 0) for slot in sorted(memory.texts)})
        for _ in range(2):
            memory.open([1] * _N_CTX, may_reuse=True, chunk=7)


@MEMORY_CHECKS.add
def tree_then_reuse(subject: MemorySubject) -> None:
    """Reuses what a tree left behind in its place."""
    tree = Guess(Draft([3, 4, 5, 6, 7], [-1, -1, 1, 1, 3]), n_right=9, own=8)  # its path is 4, 6, 7
    for kind, ends in product(subject.kinds, ("end", "fail")):
        memory = subject.driven(1, kind)
        memory.open([1, 2], may_reuse=True, chunk=8)
        memory.round({0: tree})
        getattr(memory, ends)(0)
        memory.open([*memory.past[-1], 9], may_reuse=True, chunk=8)
        memory.round({0: tree})
        memory.ahead(0)
        memory.round({0: tree})


@MEMORY_CHECKS.add
def private_texts(subject: MemorySubject) -> None:
    """Keeps private texts from other requests."""
    for kind, n_slots in product(subject.kinds, (1, 2)):
        memory, prompt = subject.driven(n_slots, kind), [*range(16)]
        memory.open(prompt, may_reuse=False, chunk=9)
        if n_slots == 1:
            memory.end(0)
        memory.open(prompt, may_reuse=True, chunk=8, n_known=0)


@MEMORY_CHECKS.add
def any_script(subject: MemorySubject) -> None:
    """Holds the texts of its slots under any script.

    Requests share prefixes, and rounds go over any slots, with chains and trees, failures and ends.
    """
    from hypothesis import strategies as st

    kinds = subject.kinds

    def run(data: DataObject) -> None:
        memory = subject.driven(data.draw(st.integers(1, 3)), data.draw(st.sampled_from(kinds)))
        for _ in range(data.draw(st.integers(1, 14))):
            kind = data.draw(st.sampled_from(_KINDS if memory.texts else ("open", "open", "load")))
            if kind == "open":
                _open(memory, data)
            elif kind == "load":
                memory.load()
            elif kind == "round":
                asked = data.draw(st.lists(st.sampled_from(sorted(memory.texts)), min_size=1, unique=True))
                memory.round({slot: data.draw(_guesses()) for slot in asked})
            else:
                getattr(memory, kind)(data.draw(st.sampled_from(sorted(memory.texts))))

    try_examples(80, run, data=st.data())


def _open(memory: DrivenMemory, data: DataObject) -> None:
    from hypothesis import strategies as st

    tails = st.lists(st.integers(0, 2), min_size=1, max_size=9)
    known = data.draw(st.sampled_from(memory.past))
    prompt = [*known[: data.draw(st.integers(0, len(known)))], *data.draw(tails)]
    chunk, slot = data.draw(st.integers(1, 8)), data.draw(st.sampled_from([None, *memory.free_slots]))
    memory.open(prompt, may_reuse=data.draw(st.booleans()), chunk=chunk, slot=slot)


def _guesses() -> SearchStrategy[Guess]:
    from hypothesis import strategies as st

    def drafts(tokens: list[int]) -> SearchStrategy[Draft]:
        tree = st.tuples(*(st.integers(-1, i - 1) for i in range(len(tokens)))).map(list)
        return st.builds(Draft, st.just(tokens), st.one_of(st.none(), tree))

    tokens = st.lists(st.integers(0, 3), max_size=5)
    return st.builds(Guess, tokens.flatmap(drafts), st.integers(0, 5), st.integers(0, 3))


def check_memory_manager(
    manager: type[MemoryManager] | str, options: Mapping[str, Any] | None = None, *, registry: Registry | None = None
) -> None:
    """Prove that a memory manager keeps its contracts, by any script of requests, rounds, drafts, trees, failures and ends.

    It is tried with toy models of every kind of state that it suits.

    Args:
        manager: A class, or the name of an installed one.
        options: Values of its options by name.
        registry: Where a name is looked up; None for installed plugins.

    Raises:
        ContractError: It breaks a contract; the message says which, how, and where it is documented.
        OptionError: The options do not fit it, or hypothesis is not installed.
        PluginError: There is no such memory manager, or the class is none.

    >>> check_memory_manager("contiguous")
    """
    MEMORY_CHECKS.run(memory_subject(manager, options, registry=registry))


def memory_subject(
    manager: type[MemoryManager] | str, options: Mapping[str, Any] | None = None, *, registry: Registry | None = None
) -> MemorySubject:
    """The subject of the checks; arguments and errors are those of `check_memory_manager`."""
    require_hypothesis()
    found = (registry or registry_with_toys()).find("memory", manager)
    return MemorySubject(found, build(found.options_class, options or {}, found.name))
