"""Paired runs: plain decoding and a drafter in turns on one prompt.

Every pair has a fresh engine, unless it is to be warm: a drafter that remembers its texts would otherwise draft the second
run of a prompt from the first. On that engine the prompt is processed once, untimed, and then both generate. Which of them
begins changes from pair to pair (plain, drafted, drafted, plain, ...), so that a machine that grows slower or faster is unfair
to neither. A plain run that stalled, and would make any drafter look fast, is repeated.

Beside them it is counted whether chances are true: of the tokens that were proposed with a chance, how many were right, by
chance and by bucket. A token counts where all before it was right, for each drafter that proposed it and once for all together.
The chance is that of the planner, after the effect of other drafters' proposals; to measure that effect, it is that of the
token's own drafters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from math import sqrt
from typing import Any, TypeVar

from attrs import Factory, asdict, define, evolve, field, frozen

from augury import Engine
from augury.cli import Prompt
from augury.errors import PluginError
from augury.plugins.bench.workload import with_answers
from augury.speculation.trials import Trial
from augury.types import Result

N_STEPS = 10  # of chances, equally wide
TOGETHER = "together"  # in the place of a drafter's name: all tokens, each once
_Z = 1.96  # 95 of 100 cases

Key = TypeVar("Key")


@frozen
class Tally:
    """How many tokens were tried, the sum of their chances, and how many were right."""

    n: int = 0
    expected: float = 0.0
    n_right: int = 0

    def __add__(self, other: Tally) -> Tally:
        """Both."""
        return Tally(self.n + other.n, self.expected + other.expected, self.n_right + other.n_right)

    @property
    def chance(self) -> float:
        """Their mean chance."""
        return self.expected / self.n if self.n else 0.0

    @property
    def share(self) -> float:
        """How many of them were right."""
        return self.n_right / self.n if self.n else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Holds the share that more such tokens would have in 95 of 100 cases, were each of them drawn by itself.

        Source: Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference".
        """
        if not self.n:
            return 0.0, 1.0
        spread = _Z * sqrt(self.share * (1 - self.share) / self.n + _Z**2 / (4 * self.n**2))
        low, high = ((self.share + _Z**2 / (2 * self.n) + sign * spread) / (1 + _Z**2 / self.n) for sign in (-1, 1))
        return max(low, 0.0), min(high, 1.0)


@frozen
class Reliability:
    """The results of trials.

    Attributes:
        steps: By drafter, and of all together first: a tally for each tenth of chances.
        buckets: By drafter and bucket: the chance that tokens proposed on it have before any was seen, and a tally.
        agreement: By what others propose in a token's place and its own drafters' chance: the ratio of right tokens to expected
            ones that is taken before any was seen, and a tally, which expects what that chance promises.
    """

    steps: Mapping[str, Sequence[Tally]] = Factory(dict)
    buckets: Mapping[tuple[str, str], tuple[float, Tally]] = Factory(dict)
    agreement: Mapping[str, tuple[float, Tally]] = Factory(dict)

    @classmethod
    def of(cls, trials: Iterable[Trial]) -> Reliability:
        """Count trials."""
        steps: dict[str, list[Tally]] = {}
        buckets: dict[tuple[str, str], tuple[float, Tally]] = {}
        agreement: dict[str, tuple[float, Tally]] = {}
        for trial in trials:
            step, one = min(int(N_STEPS * trial.chance), N_STEPS - 1), Tally(1, trial.chance, int(trial.is_right))
            for name in (TOGETHER, *trial.buckets):
                steps.setdefault(name, [Tally()] * N_STEPS)[step] += one
            for name, bucket in trial.buckets.items():
                _add(buckets, (name, bucket.name), bucket.prior, one)
            if trial.agreement is not None:
                own = Tally(1, trial.own_chance, int(trial.is_right))
                _add(agreement, trial.agreement.name, trial.agreement.prior, own)
        return cls(steps, buckets, agreement)

    def as_json(self) -> dict[str, Any]:
        """As `augury bench drafters --json` prints it: rows of tokens, the sum of their chances, and how many were right."""
        buckets: dict[str, dict[str, Any]] = {}
        for (drafter, bucket), (prior, tally) in self.buckets.items():
            buckets.setdefault(drafter, {})[bucket] = {"prior": prior, "n": tally.n, "n_right": tally.n_right}
        steps = {name: [[each.n, each.expected, each.n_right] for each in mine] for name, mine in self.steps.items()}
        agreement = {name: {"prior": ratio} | asdict(tally) for name, (ratio, tally) in self.agreement.items()}
        return {"steps": steps, "buckets": buckets, "agreement": agreement}


def _add(found: dict[Key, tuple[float, Tally]], key: Key, prior: float, tally: Tally) -> None:
    found[key] = prior, found.get(key, (prior, Tally()))[1] + tally


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
    trials: tuple[Trial, ...] = ()  # of tokens proposed in the drafted run

    @property
    def is_identical(self) -> bool:
        """Whether both emitted the same tokens."""
        return self.plain.tokens == self.drafted.tokens

    @property
    def speeds(self) -> tuple[float, float]:
        """Tokens per second, plain and drafted."""
        return self.plain.stats.timings.predicted_per_second, self.drafted.stats.timings.predicted_per_second

    @property
    def max_speedup(self) -> float:
        """The highest ratio that there can be: a round takes a plain pass at least, and emits so many tokens."""
        return self.drafted.stats.timings.n_predicted / max(self.drafted.stats.n_rounds - 1, 1)  # the prompt's is not timed

    @property
    def is_stalled(self) -> bool:
        """Whether something held up the plain run: the ratio is far above the highest that there can be."""
        plain, drafted = self.speeds
        return drafted > _STALL * self.max_speedup * plain > 0


@define(eq=False, slots=False)
class PairedRuns:
    """Runs one prompt with and without a drafter, pair by pair. `close` it at last."""

    _load: Callable[[], Engine]  # with the drafter
    _params: dict[str, Any]  # of the requests; those of the prompt come first
    _prompt: Prompt
    config: Mapping[str, Any] = field(factory=dict, init=False)  # of the engine loaded last, with the model's own name
    _engine: Engine | None = field(default=None, init=False)
    _trials: list[Iterable[Trial]] = field(factory=list, init=False)  # of the drafted run that was last

    def __attrs_post_init__(self) -> None:
        self._params = {**self._params, **self._prompt.arguments()}

    def pair(self, index: int, *, is_warm: bool = False) -> Pair:
        """A drafted run and a plain one, which begins with an even index, on a fresh engine unless it is to be warm.

        A plain run that stalled is repeated, and the last of several counts.
        """
        if self._engine is None or not is_warm:
            self._prepare(is_warm=is_warm)
        before = None if index % 2 else self._plain()
        drafted = self._drafted()
        is_promised = self._params.get("temperature") == 0 or drafted.stats.effective.get("verify") != "rejection"
        trials = tuple(chain.from_iterable(self._trials))
        pair = Pair(self._prompt, before or self._plain(), drafted, is_promised, trials=trials)
        while pair.is_stalled and pair.n_repeated < _MAX_REPEATS:
            pair = evolve(pair, plain=self._plain(), n_repeated=pair.n_repeated + 1)
        if not is_warm:
            self.close()
        return pair

    def close(self) -> None:
        """Close the engine. May be called twice."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _prepare(self, *, is_warm: bool) -> None:
        """Load a fresh engine and process the prompt; if warm, let the drafter see the answer, too."""
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
            self._drafted()

    def _plain(self) -> Result:
        return self._generate({"type": "none"})

    def _drafted(self) -> Result:
        """Generate with the drafter. Raises PluginError: one failed, so that the figures would be those of plain decoding."""
        self._trials.clear()
        options = {name: each for name, each in self.config["speculative"].items() if isinstance(each, Mapping)}
        # measured texts must not teach later runs
        result = self._generate({name: {"corpus_learns": False} for name, each in options.items() if each.get("corpus")})
        for name, stats in result.stats.drafters.items():
            if stats.failed is not None:
                raise PluginError(f"drafter {name} failed in {stats.failed}; leave it out, or mend it, to compare speeds")
        return result

    def _generate(self, speculative: Mapping[str, Any], **changed: Any) -> Result:
        assert self._engine is not None
        return self._engine.submit(**{**self._params, **changed, "speculative": speculative}).result()
