"""Plain decoding and a drafter in turns on one prompt.

Every pair has a fresh engine, unless it is to be warm: a drafter that remembers what it saw would else draft the second run of
a prompt from the first. On that engine the prompt is processed once, untimed, and then both generate; who begins changes from
pair to pair (plain, drafted, drafted, plain, ...), so that a machine that grows slower or faster is unfair to neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from augury.errors import AuguryError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from augury.bench.workload import Item
    from augury.engine import Engine
    from augury.types import Result

__all__ = ["Contest", "Pair"]

_N_WARM = 8  # tokens: the first passes touch memory for the first time


@frozen(eq=False)
class Pair:
    """Both, beside each other. Their prompts are not timed: speeds are those behind the first token."""

    item: Item
    plain: Result
    drafted: Result
    is_promised: bool = True  # whether both should emit the same tokens; rejection promises the distribution alone

    @property
    def is_identical(self) -> bool:
        """Whether both emitted the same tokens."""
        return self.plain.tokens == self.drafted.tokens


class Contest:
    """One prompt, plain and drafted. `open` it, let both run, and `close` it; then again for another pair."""

    def __init__(self, load: Callable[[], Engine], params: Mapping[str, Any], item: Item) -> None:
        """Nothing is loaded yet.

        Args:
            load: Loads an engine with the drafter.
            params: Of the requests; those of the item count more.
            item: The prompt.
        """
        self.item = item
        self.config: Mapping[str, Any] = {}  # of the engine loaded last, with the model's own name
        self._load = load
        self._params = params
        self._engine: Engine | None = None

    def open(self) -> None:
        """Load an engine and process the prompt."""
        self.close()
        self._engine = self._load()
        self.config = {**self._engine.config, "model": self._engine.info.name}
        self._generate({"type": "none"}, max_tokens=_N_WARM)

    def plain(self) -> Result:
        """Generate without the drafter."""
        return self._generate({"type": "none"})

    def drafted(self) -> Result:
        """Generate with the drafter."""
        return self._generate({})

    def pair(self, index: int, *, is_warm: bool = False) -> Pair:
        """Both, with a fresh engine unless a warm one is wanted; with an odd index the drafter begins."""
        if not is_warm:
            self.open()
        elif self._engine is None:
            self.open()
            self.drafted()
        if index % 2:
            drafted, plain = self.drafted(), self.plain()
        else:
            plain, drafted = self.plain(), self.drafted()
        if not is_warm:
            self.close()
        is_greedy = {**self._params, **self.item.arguments}.get("temperature") == 0
        return Pair(self.item, plain, drafted, is_promised=is_greedy or drafted.stats.effective.get("verify") != "rejection")

    def close(self) -> None:
        """Close the engine. May be called twice."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _generate(self, speculative: Mapping[str, Any], **changed: Any) -> Result:
        if self._engine is None:
            raise AuguryError("the contest is not open; call open() first")
        params = {**self._params, **self.item.arguments, **changed, "speculative": speculative}
        return self._engine.submit(**params).result()
