"""Paired runs: plain decoding and a drafter in turns on one prompt.

Every pair has a fresh engine, unless it is to be warm: a drafter that remembers its texts would otherwise draft the second
run of a prompt from the first. On that engine the prompt is processed once, untimed, and then both generate. Which of them
begins changes from pair to pair (plain, drafted, drafted, plain, ...), so that a machine that grows slower or faster is unfair
to neither. A plain run that stalled, and would make any drafter look fast, is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from attrs import Factory, define, evolve, field, frozen

from augury import Engine
from augury.cli import Prompt
from augury.errors import AuguryError, PluginError
from augury.plugins.bench.reliability import Reliability
from augury.plugins.bench.workload import with_answers
from augury.speculation.trials import Trial
from augury.types import Result

_N_WARM = 8  # tokens: the first passes touch memory for the first time
_STALL = 1.5  # a plain pass that takes longer than so many rounds of drafting and verifying was held up
_MAX_REPEATS = 3


@frozen(eq=False)
class Pair:
    """A plain and a drafted run of one prompt. The prompt is not timed: speeds are those after the first token."""

    prompt: Prompt
    plain: Result
    drafted: Result
    is_promised: bool = True  # whether both should emit the same tokens; rejection promises the distribution alone
    n_repeated: int = 0  # plain runs that stalled before this one
    reliability: Reliability = Factory(Reliability)  # of tokens proposed in the drafted run

    @property
    def is_identical(self) -> bool:
        """Whether both emitted the same tokens."""
        return self.plain.tokens == self.drafted.tokens

    @property
    def max_speedup(self) -> float:
        """The highest ratio that there can be: a round takes a plain pass at least, and emits so many tokens."""
        return self.drafted.stats.timings.n_predicted / max(self.drafted.stats.n_rounds - 1, 1)  # the prompt's is not timed

    @property
    def is_stalled(self) -> bool:
        """Whether something held up the plain run: the ratio is far above the highest that there can be."""
        speeds = [run.stats.timings.predicted_per_second for run in (self.drafted, self.plain)]
        return speeds[0] > _STALL * self.max_speedup * speeds[1] > 0


@define(eq=False, slots=False)
class PairedRuns:
    """Runs one prompt with and without a drafter. `prepare` it, let both run, and `close` it."""

    _load: Callable[[], Engine]  # with the drafter
    _params: dict[str, Any]  # of the requests; those of the prompt come first
    _prompt: Prompt
    config: Mapping[str, Any] = field(factory=dict, init=False)  # of the engine loaded last, with the model's own name
    _engine: Engine | None = field(default=None, init=False)
    _trials: list[Iterable[Trial]] = field(factory=list, init=False)  # of the drafted run that was last

    def __attrs_post_init__(self) -> None:
        self._params = {**self._params, **self._prompt.arguments()}

    def prepare(self, *, is_warm: bool) -> None:
        """Load a fresh engine and process the prompt; if warm, only once, and let the drafter see the answer, too."""
        if is_warm and self._engine is not None:
            return
        self.close()
        self._engine = self._load()
        self._engine.watch_trials(self._trials.append)
        self.config = {**self._engine.config, "model": self._engine.info.name}
        if (messages := self._params.get("messages")) is not None:
            self._params["messages"] = with_answers(
                messages, lambda before: self._generate({"type": "none"}, messages=before).text
            )
        self._generate({"type": "none"}, max_tokens=_N_WARM)
        if is_warm:
            self.drafted()

    def plain(self) -> Result:
        """Generate without the drafter."""
        return self._generate({"type": "none"})

    def drafted(self) -> Result:
        """Generate with the drafter."""
        self._trials.clear()
        options = {name: each for name, each in self.config["speculative"].items() if isinstance(each, Mapping)}
        # measured texts must not teach later runs
        result = self._generate({name: {"corpus_learns": False} for name, each in options.items() if each.get("corpus")})
        check_drafters(result)
        return result

    def pair(self, index: int, *, is_warm: bool = False) -> Pair:
        """Both, with a fresh engine unless a warm one is wanted; with an odd index the drafter begins."""
        self.prepare(is_warm=is_warm)
        if index % 2:
            drafted, plain = self.drafted(), self.plain()
        else:
            plain, drafted = self.plain(), self.drafted()
        pair = self.beside(plain, drafted)
        if not is_warm:
            self.close()
        return pair

    def beside(self, plain: Result, drafted: Result) -> Pair:
        """Both as a pair, with another plain run for one that stalled, or the last of several."""
        is_promised = self._params.get("temperature") == 0 or drafted.stats.effective.get("verify") != "rejection"
        reliability = Reliability.of(chain.from_iterable(self._trials))
        pair = Pair(self._prompt, plain, drafted, is_promised, reliability=reliability)
        while pair.is_stalled and pair.n_repeated < _MAX_REPEATS:
            pair = evolve(pair, plain=self.plain(), n_repeated=pair.n_repeated + 1)
        return pair

    def close(self) -> None:
        """Close the engine. May be called twice."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _generate(self, speculative: Mapping[str, Any], **changed: Any) -> Result:
        if self._engine is None:
            raise AuguryError("no engine is loaded; call prepare() first")
        return self._engine.submit(**{**self._params, **changed, "speculative": speculative}).result()


def check_drafters(result: Result) -> None:
    """Check that no drafter was left out of a run, whose figures would then be those of plain decoding.

    Raises:
        PluginError: One failed.
    """
    for name, stats in result.stats.drafters.items():
        if stats.failed is not None:
            raise PluginError(f"drafter {name} failed in {stats.failed}; leave it out, or mend it, to compare speeds")
