"""`augury tune`: which drafter, and how far, is fastest on a workload, and the options for them.

Candidates run against plain decoding, and the worse half is left out in turns. Every trial is a pair, the candidate and plain
decoding on the same prompt beside each other. All candidates that are left run trial after trial together, so that a machine
that changes its speed changes it for all of them alike. First the drafters are settled, then the lengths.

Source: successive halving is from Jamieson and Talwalkar 2016, "Non-stochastic Best Arm Identification" (arXiv 1502.07943).
"""

from __future__ import annotations

import argparse
import shlex
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import zip_longest
from typing import Any

from attrs import define, evolve, field, frozen

from augury import Registry, cli
from augury.cli import Prompt
from augury.errors import OptionError
from augury.interfaces import Progress
from augury.options import Spec, parse_specs
from augury.plugins.bench.commands.drafters import DEFAULTS, engine_loader, exit_code
from augury.plugins.bench.machine import facts_as_json, run_facts
from augury.plugins.bench.pair_stats import PairStats, stall_lines
from augury.plugins.bench.paired_runs import Pair, PairedRuns
from augury.plugins.bench.workload import DEFAULT, add_workload_flag, prompts_to_compare

_MIN_TRIALS = 3  # before anybody is left out
_MIN_GAIN = 1.02  # a smaller speed-up cannot be distinguished from none
_SAME = 1.01  # of two candidates nearer than this the first is taken, which is the simpler one


@frozen
class Candidate:
    """Drafters and a draft length to try."""

    spec_type: tuple[str, ...]  # a chain, as repeated --spec-type flags name it
    draft_max: int
    draft_model: str | None = None


@frozen
class PromptTurn:
    """A prompt. Where the number is even plain decoding begins: that changes from prompt to prompt and from turn to turn."""

    prompt: Prompt
    number: int


def trials_of(prompts: Iterable[Prompt], turns: int) -> list[PromptTurn]:
    """All prompts `turns` times over; of every category one first, then the next of each."""
    by_category: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    mixed = [prompt for row in zip_longest(*by_category.values()) for prompt in row if prompt is not None]
    return [PromptTurn(prompt, place + turn) for turn in range(turns) for place, prompt in enumerate(mixed)]


@define(eq=False)
class Tuning:
    """Measures candidates. Results are in `pairs`, which grow while it runs."""

    _measure: Callable[[Candidate, PromptTurn], Pair]  # runs a candidate and plain decoding, cold
    _trials: Sequence[PromptTurn]  # of the whole workload, in the order in which they are run
    pairs: dict[Candidate, list[Pair]] = field(factory=dict, init=False)

    def settle(self, chains: Sequence[Candidate], lengths: Sequence[int]) -> Candidate | None:
        """The candidate to use; None where nothing pays. `chains` begin with the simplest; the best is tried in all lengths."""
        best = self._best(chains)
        if self.speedup(best) < _MIN_GAIN:
            return None
        return self._best([evolve(best, draft_max=length) for length in lengths])

    def n_trials(self, n_chains: int, n_lengths: int) -> int:
        """How many pairs `settle` runs at most."""
        n_known, _ = next(self._rungs(1))  # the best chain's own length has run them, and may be left out after them
        return self._cost(n_chains) + self._cost(n_lengths) - n_known

    def speedup(self, candidate: Candidate) -> float:
        """The speed-up of the whole workload, as if every prompt took plain decoding equally long."""
        medians = self._medians(candidate, lambda pair: pair.prompt.id)
        return statistics.harmonic_mean([*medians.values()]) if medians else 0.0

    def by_category(self, candidate: Candidate) -> dict[str, float]:
        """The median of the pairs' speed-ups in each category."""
        return self._medians(candidate, lambda pair: pair.prompt.category)

    def stats(self, candidate: Candidate) -> PairStats:
        """The statistics of its pairs."""
        return PairStats.of(self.pairs[candidate])

    def as_json(self, candidate: Candidate) -> dict[str, Any]:
        """As `augury tune --json` prints it."""
        figures = {"tuned_speedup": self.speedup(candidate), "by_category": self.by_category(candidate)}
        about = {"spec_type": list(candidate.spec_type), "draft_max": candidate.draft_max, "draft_model": candidate.draft_model}
        return about | figures | self.stats(candidate).as_json()

    def _best(self, candidates: Sequence[Candidate]) -> Candidate:
        """Run all candidates on some trials, the better half on twice as many, and so on, until the last two have run all."""
        left = list(dict.fromkeys(candidates))
        for n, n_left in self._rungs(len(left)):
            ranked = sorted(left, key=lambda each: self.speedup(each) if self.pairs.get(each) else 0.0, reverse=True)
            left = sorted(ranked[:n_left], key=left.index)
            for i, trial in enumerate(self._trials[:n]):
                for candidate in left:
                    pairs = self.pairs.setdefault(candidate, [])
                    if len(pairs) == i:
                        pairs.append(self._measure(candidate, trial))
        fastest = max(self.speedup(each) for each in left)
        return next(each for each in left if self.speedup(each) * _SAME >= fastest)

    def _medians(self, candidate: Candidate, key: Callable[[Pair], str]) -> dict[str, float]:
        """The median speed-up of the pairs of each key."""
        found: dict[str, list[float]] = {}
        for pair in self.pairs[candidate]:
            if (ratio := _ratio(pair)) is not None:
                found.setdefault(key(pair), []).append(ratio)
        return {name: statistics.median(ratios) for name, ratios in found.items()}

    def _rungs(self, n_candidates: int) -> Iterator[tuple[int, int]]:
        """(trials, candidates) of each stage."""
        n_all = len(self._trials)
        n_categories = len({trial.prompt.category for trial in self._trials})
        n = min(max(n_categories, _MIN_TRIALS), n_all)
        yield n, n_candidates
        while n < n_all:
            n, n_candidates = min(2 * n, n_all), min(n_candidates, max((n_candidates + 1) // 2, 2))
            yield n, n_candidates

    def _cost(self, n_candidates: int) -> int:
        n_before, n_pairs = 0, 0
        for n, n_left in self._rungs(n_candidates):
            n_pairs += (n - n_before) * n_left
            n_before = n
        return n_pairs


def _ratio(pair: Pair) -> float | None:
    """Plain over drafted seconds per token; drafters' time to begin counts, because it delays the answer.

    It is never more than there can be, so that a drafter with nothing accepted gains nothing by a plain run that was slow.
    """
    plain, drafted = pair.plain.stats, pair.drafted.stats
    begin_s = sum(each.begin_s for each in drafted.drafters.values())
    if not plain.timings.n_predicted or not drafted.timings.n_predicted or plain.timings.predict_s <= 0 or pair.is_stalled:
        return None
    plain_s = plain.timings.predict_s / plain.timings.n_predicted
    return min(plain_s * drafted.timings.n_predicted / (drafted.timings.predict_s + begin_s), pair.max_speedup)


_CHAINS = ("suffix", "suffix;recycle", "ngram-simple:n=3", "ngram-mod:preset=short")
_CHAINS_WITH_MODEL = ("{}", "suffix;recycle;{}")  # of the drafter that a draft model is for, or the model's further layers


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "tune",
        help="find the drafter and draft length that are fastest here",
        description="Compare drafters with plain decoding in turns, drop the slower half again and again, and print the "
        "options of the fastest on standard output. Without prompts it takes a small workload of its own; give your own, for "
        "the answer depends on the texts. Unless told otherwise it decodes greedily, 128 tokens.",
    )
    cli.add_prompt_flags(parser, DEFAULT)
    cli.add_model_flags(parser, registry, argv, n_slots=None)
    cli.add_sampling_flags(parser, registry)
    group = parser.add_argument_group("what is tried")
    add_workload_flag(group)
    group.flag("--against NAME[:K=V,...] ...", "another drafter or chain to try; repeats")
    group.flag("--layers N,N,...", "try the model's own first N layers, too (self-spec)", cli.counts(least=1), default=())
    group.flag("--turns N", "runs of each prompt at most (default: 2)", cli.count(least=1), default=2)
    parser.flag("--json", "print one JSON object")
    parser.show_first(f"-p -f {cli.FIRST_FLAGS} -n --temp --turns --json", words=("model",))
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    _check(args)
    tried = dict.fromkeys((max(args.draft_max // 2, 1), args.draft_max, 2 * args.draft_max))
    lengths, prompts = [length for length in tried if length >= args.draft_min], prompts_to_compare(args)
    params = {**DEFAULTS, **cli.request_params(args)}
    configs: list[Mapping[str, Any]] = []  # of the engines so far

    def pair(candidate: Candidate, trial: PromptTurn) -> Pair:
        """Run a candidate and plain decoding beside each other, from cold."""
        display("tuning", len(configs), n_pairs)
        own = argparse.Namespace(**{**vars(args), "draft_max": candidate.draft_max})
        load = engine_loader(own, candidate.spec_type, candidate.draft_model, display, is_shown=not configs)
        with closing(PairedRuns(load, dict(params), trial.prompt)) as runs:
            found = runs.pair(trial.number)
        configs.append(runs.config)
        return found

    with cli.ProgressDisplay() as display:
        chains = _candidates(args, display)
        tuning = Tuning(pair, trials_of(prompts, args.turns))
        n_pairs = tuning.n_trials(len(chains), len(lengths))
        choice = tuning.settle(chains, lengths)
    words = option_words(choice, args)
    if args.json:
        found = facts_as_json(run_facts(configs[-1], prompts, params["max_tokens"])) | {"turns": args.turns}
        found |= {
            "candidates": [tuning.as_json(each) for each in tuning.pairs],
            "arguments": words,
            "options": shlex.join(words),
        }
        cli.print_json(found)
    else:
        for line in _lines(tuning):
            cli.say(line)
    code = exit_code(tuning.stats(each) for each in tuning.pairs)
    if code == 0 and not args.json:
        cli.print_lines([shlex.join(words)])
    return code


def _check(args: argparse.Namespace) -> None:
    if args.draft_max < 1:
        raise OptionError(f"--draft-max is {args.draft_max}, expected at least 1: tune tries half and twice as much, too")
    if args.spec_type:
        raise OptionError("tune finds the --spec-type; give others to try with --against")
    if args.spec_synth_rates is not None or args.spec_synth_len is not None:
        raise OptionError("tune measures what drafters get right; leave out synthetic acceptance")


def _candidates(args: argparse.Namespace, progress: Progress) -> list[Candidate]:
    """The candidates, the simplest first, of installed drafters alone; model files may be downloaded."""
    owner = args.model_draft and (
        cli.drafter_of_model(args.registry, args.model_draft, progress) or cli.drafter_of_model(args.registry)
    )
    with_model = [text.format(each) for each in (owner, cli.drafter_of_mtp(args)) if each for text in _CHAINS_WITH_MODEL]
    drafters = args.registry.drafters
    texts = [text for text in (*_CHAINS, *with_model) if all(spec.name in drafters for spec in parse_specs(text))]
    texts += [f"self-spec:mode=layers,layers={n}" for n in args.layers]
    own = argparse.Namespace(**{**vars(args), "drafter_general": ()})  # general flags stand in the line by themselves
    found = []
    for text in (*texts, *args.against):
        names = cli.names_in_use([text], args.registry)
        takes_model = cli.takes_draft_model(names, args.registry, owner)
        given = cli.drafter_options(own, names)
        specs = tuple(str(Spec(spec.name, (*spec.values, *_given(spec, given)))) for spec in parse_specs(text))
        found.append(Candidate(specs, args.draft_max, args.model_draft if takes_model else None))
    tried = sorted({name for candidate in found for name in cli.names_in_use(candidate.spec_type, args.registry)})
    cli.leave_out_unused(args, tried)
    return list(dict.fromkeys(found))


def _given(spec: Spec, given: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The options of a drafter that were given as flags, to be named in the option line."""
    named = {key.replace("-", "_") for key, _ in spec.values}
    return [(key, str(value)) for key, value in given.get(spec.name, {}).items() if key not in named]


def option_words(candidate: Candidate | None, args: argparse.Namespace) -> list[str]:
    """The words of a command line that asks for a candidate; None for plain decoding."""
    if candidate is None:
        return ["--spec-type", "none"]
    is_plain = all(not spec.values for text in candidate.spec_type for spec in parse_specs(text))
    texts = [",".join(candidate.spec_type)] if is_plain else candidate.spec_type  # neither needs a shell's quotation marks
    words = [word for text in texts for word in ("--spec-type", text)]
    words += [] if candidate.draft_model is None else ["-md", candidate.draft_model]
    words += ["--draft-max", str(candidate.draft_max)]
    words += ["--draft-min", str(args.draft_min)] if args.draft_min else []
    words += ["--spec-fixed"] if args.spec_fixed else []
    return words + (["--spec-verify", args.spec_verify] if args.spec_verify != "match" else [])


def _lines(tuning: Tuning) -> list[str]:
    rows = [["drafter", "draft-max", "runs", "plain tok/s", "tok/s", "speed-up", "accepted", "slowest category"]]
    for candidate in tuning.pairs:
        stats, by_category = tuning.stats(candidate), tuning.by_category(candidate)
        slowest = min(by_category, key=lambda category: by_category[category], default="")
        rows.append(
            [
                ";".join(candidate.spec_type),
                str(candidate.draft_max),
                str(len(tuning.pairs[candidate])),
                f"{stats.plain_per_second:.1f}",
                f"{stats.per_second:.1f}",
                f"{tuning.speedup(candidate):.2f}x",
                f"{stats.acceptance_rate:.0%}",
                f"{by_category[slowest]:.2f}x {slowest}" if slowest else "",
            ]
        )
    lines = cli.align_rows(rows, is_right=(False, True, True, True, True, True, True, False))
    notes = stall_lines(tuning.stats(candidate) for candidate in tuning.pairs)
    return [*lines, "speed-up: of the whole workload, with what drafters do at the prompt; tok/s: after it", *notes]
