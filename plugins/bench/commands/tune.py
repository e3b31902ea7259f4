"""`augury tune`: finds the fastest drafter and draft length, and prints the options for them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from augury import Registry, cli
from augury.errors import OptionError
from augury.interfaces import Progress
from augury.options import Spec, parse_specs
from augury.plugins.bench.commands.drafters import DEFAULTS, engine_loader, exit_code
from augury.plugins.bench.machine import facts_as_json, run_facts
from augury.plugins.bench.pair_stats import stall_lines
from augury.plugins.bench.paired_runs import Pair, PairedRuns
from augury.plugins.bench.tuning import Candidate, PromptTurn, Tuning, trials_of
from augury.plugins.bench.workload import DEFAULT, add_workload_flag, prompts_to_compare

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
    with cli.ProgressDisplay() as display:
        chains = _candidates(args, display)
        runner = _PairRunner(args, params, display)
        tuning = Tuning(runner.pair, trials_of(prompts, args.turns))
        runner.n_pairs = tuning.n_trials(len(chains), len(lengths))
        choice = tuning.settle(chains, lengths)
    words = option_words(choice, args)
    if args.json:
        found = facts_as_json(run_facts(runner.config, prompts, params["max_tokens"])) | {"turns": args.turns}
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


class _PairRunner:
    """Runs pairs, each from cold, and shows how many there were."""

    def __init__(self, args: argparse.Namespace, params: dict[str, Any], display: Progress) -> None:
        self.config: Mapping[str, Any] = {}  # of the engine loaded last
        self.n_pairs = 0  # at most
        self._args = args
        self._params = params
        self._display = display
        self._n_done = 0

    def pair(self, candidate: Candidate, trial: PromptTurn) -> Pair:
        """A candidate and plain decoding, beside each other."""
        self._display("tuning", self._n_done, self.n_pairs)
        args = argparse.Namespace(**{**vars(self._args), "draft_max": candidate.draft_max})
        is_first = self._n_done == 0
        load = engine_loader(args, candidate.spec_type, candidate.draft_model, self._display, is_shown=is_first)
        with closing(PairedRuns(load, dict(self._params), trial.prompt)) as runs:
            pair = runs.pair(trial.number)
        self.config = runs.config
        self._n_done += 1
        return pair


def _lines(tuning: Tuning) -> list[str]:
    """The measurements, a line for each candidate."""
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
