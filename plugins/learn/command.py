"""`augury learn`: its flags, and a training from texts to a head."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from augury import Registry, cli
from augury.errors import CapacityError, ModelFileError, OptionError
from augury.extras import require_libraries
from augury.files.gguf import ModelFile
from augury.files.models import open_model, resolve
from augury.interfaces import Progress
from augury.memory_limit import n_bytes_of_machine
from augury.plugins.learn import corpus, head
from augury.plugins.learn.block_head import BlockSizes
from augury.plugins.learn.hidden_states import HiddenStates, Piece, cut
from augury.plugins.learn.recorded import Recorded, check_disk, recorded_bytes
from augury.plugins.learn.schedule import Schedule
from augury.plugins.published_heads import export

if TYPE_CHECKING:
    from augury import Engine

_KINDS: dict[str, type[head.HeadSizes]] = {"eagle3": head.HeadSizes, "block": BlockSizes}
_DEFAULTS: dict[str, Any] = {"temperature": 0.0, "seed": 1, "max_tokens": 512}
_N_SLOTS = 8
_HELD_OUT = 20  # one of so many pieces
_N_MEASURED = 8  # pieces held out that the engine goes on from
_N_WRITTEN = 64  # tokens of each


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "learn",
        help="train a head that drafts for a model",
        description="Train a head for a model, on texts or on the model's own answers to prompts, and write it as a "
        "GGUF file for -md. Hidden states and checkpoints are kept beside that file, in HEAD.gguf.learn, until it is written: "
        "the same command goes on where an earlier one ended. Unless told otherwise the model answers greedily, 512 tokens.",
    )
    group = parser.add_argument_group("training")
    group.flag(
        "-f --file PATH ...",
        'texts: a file, or a folder of files; in .jsonl a line is {"prompt": TEXT}, {"messages"} or {"tokens"}; repeats',
        Path,
    )
    group.flag("--prompts FILE", "prompts as the same JSON lines: the model's answers are learnt from", Path)
    group.flag("-o --output HEAD.gguf", "where the head goes", Path, required=True)
    group.flag(
        "--kind KIND",
        "eagle3: a head that drafts token by token; block: one that drafts a block of tokens at once, as DSpark does "
        "(default: eagle3, or that of --from)",
        choices=tuple(_KINDS),
    )
    group.flag(
        "--from HEAD",
        "go on from a head of the same model: a GGUF file, or a folder or hf:owner/repo as EAGLE-3 heads are published",
        dest="first",
    )
    group.flag(
        "--export FOLDER",
        "write the head as a folder for vLLM as well; without -f and --prompts: a head that -o names is there already",
        Path,
    )
    group.flag(
        "--draft-vocabulary N",
        "the head drafts the N most frequent tokens alone (default: 8192)",
        cli.count(least=1),
        default=8192,
    )
    group.flag(
        "--epochs N",
        "go through the texts so often at most; it ends when texts held out are predicted no better (default: 8)",
        cli.count(least=1),
        default=8,
    )
    group.flag(
        "--hours H",
        "learn from as many texts, and go through them as often, as there is time for; --epochs is the most",
        cli.expecting("a number of hours above 0, such as 8 or 0.5", float, lambda found: 0 < found < np.inf),
    )
    group.flag("--disk GB", "keep so much of hidden states at most (default: 16)", cli.count(least=1), default=16)
    cli.add_model_flags(parser, registry, argv, n_slots=_N_SLOTS)
    cli.add_sampling_flags(parser, registry)
    parser.show_first("-f --prompts -o --kind --from --export -m -t --hours --epochs --draft-vocabulary --disk")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if args.export and not args.file and args.prompts is None:
        _export(args)
        return 0
    _check_flags(args)
    params = {**_DEFAULTS, **cli.request_params(args)}
    with ExitStack() as stack:
        recorded = stack.enter_context(Recorded(args.output.with_name(f"{args.output.name}.learn")))
        prompts = corpus.read_texts(args.file) if args.file else corpus.read_prompts(args.prompts)
        known = corpus.collected(args.file)
        with cli.ProgressDisplay() as progress:
            path = resolve(args.model, args.registry, progress)
        file = stack.enter_context(ModelFile.open(path, cli.overrides_of(args)))
        plan = cli.plan_of(file, args.registry)
        first = None if args.first is None else stack.enter_context(open_model(args.first, args.registry, Progress()))
        kind = args.kind or ("block" if first is not None and first.architecture == BlockSizes.architecture else "eagle3")
        sizes = _KINDS[kind].for_target(file, plan, str(args.model), args.draft_vocabulary)
        if first is not None:
            sizes = sizes.of_head(first, file, plan)
        if args.export and kind != "eagle3":
            raise OptionError(f"--export writes heads of --kind eagle3 as a folder, not of {kind}; leave it out")
        _check_memory(sizes)
        n_kept = args.disk * 10**9
        setup = {
            "model": file.digest,
            "texts": corpus.digest(prompts, known),
            "sampling": params if args.prompts else None,
            "draft_vocabulary": sizes.n_drafted,
            "seed": params["seed"],
            "epochs": args.epochs,
            "disk": args.disk,
            "n_ctx": args.ctx_size,
            "from": first and first.digest,
            "hours": args.hours,
            **({} if kind == "eagle3" else {"kind": kind}),
        }
        recorded.take_up(sizes, setup)
        if recorded.is_fresh:
            n_answer = (params["max_tokens"] or -1) if args.prompts else 0
            n_tokens = corpus.most_tokens(prompts, n_answer) if n_answer >= 0 else n_kept
            n_bytes = min(n_tokens * recorded_bytes(sizes), n_kept)
            n_bytes += 4 * sizes.n_weights * 8  # two checkpoints at once, and the best twice
            check_disk(args.output.resolve().parent, n_bytes)
        schedule, target = Schedule(recorded, args.hours, args.epochs, cli.say), head.TargetTensors(file, plan)
        if not schedule.is_planned:
            schedule.measure(sizes, target, is_head=first is not None)
        training = _Training(args, params, recorded, schedule, file, target, first)
        pieces = training.record(prompts, known)
        n_held_out = max(len(pieces) // _HELD_OUT, 1)
        training.train(pieces, n_held_out)
        _report(args, params, sizes, pieces[:n_held_out])
        recorded.remove()
    return 0


def _check_flags(args: argparse.Namespace) -> None:
    if bool(args.file) == (args.prompts is not None):
        found = "both" if args.file else "neither"
        raise OptionError(f"{found} of -f and --prompts; give texts with -f, or prompts for the model to answer with --prompts")
    require_libraries("learning needs", "learn", "jax", "optax")
    _check_output(args.output)
    if args.first is not None and Path(args.first).resolve() == args.output.resolve():
        raise OptionError(f"--from and -o are both {args.output}; name another file with -o, for a training that is taken up")
    if args.export:
        export.check_folder(args.export)


def _check_output(path: Path) -> None:
    """See that the head takes the place of no model, text or other file, but perhaps of an earlier head."""
    cli.check_writable(path, "-o")
    if path.exists() and path.stat().st_size:
        try:
            with ModelFile.open(path) as file:
                is_head = file.architecture in {kind.architecture for kind in _KINDS.values()}
        except ModelFileError:
            is_head = False
        if not is_head:
            raise OptionError(f"-o: {path} exists and is no head; it is left as it is, name another file")


def _check_memory(sizes: head.HeadSizes) -> None:
    """See that the training fits. Raises CapacityError: it does not."""
    of_weights = 6 * sizes.n_weights + sizes.n_drafted * sizes.n_embd  # Adam's before and after, and the output
    n_logits = sizes.n_steps * head.N_BATCH * head.N_ROW * sizes.n_drafted
    n_bytes = 4 * (of_weights + 4 * n_logits)  # logits, and their derived arrays
    if (found := n_bytes_of_machine()) < n_bytes:
        raise CapacityError(
            f"training needs {n_bytes >> 20} MiB of memory, but there are {found >> 20} MiB; lower --draft-vocabulary"
        )


@frozen(eq=False)
class _Training:
    """A training that is begun or taken up: its flags, how the model answers, the model's file, and a head to go on from."""

    args: argparse.Namespace
    params: Mapping[str, Any]
    recorded: Recorded
    schedule: Schedule
    file: ModelFile
    target: head.TargetTensors
    first: ModelFile | None

    def record(self, prompts: Sequence[cli.Prompt], known: Mapping[str, Path]) -> list[Piece]:
        """Let the engine answer prompts, and compute the hidden states that are not known from that, nor `collected`."""
        args, params, recorded, schedule = self.args, self.params, self.recorded, self.schedule
        n_most = args.disk * 10**9 // recorded_bytes(recorded.sizes)
        with cli.ProgressDisplay() as progress, cli.load_engine(args, args.spec_type, args.model_draft, progress) as engine:
            n_piece = corpus.n_piece_of(engine)
            if args.prompts is None:
                texts, width = list(corpus.encoded(engine, prompts)), recorded.sizes.n_embd * len(recorded.sizes.columns)
                cuts, places = corpus.cut_texts(texts, n_piece, known, width)
            else:
                texts = corpus.answered(
                    engine, prompts, params, recorded, lambda n: n >= n_most or schedule.is_enough(n), progress
                )
                cuts, places = [cut(whole.text, n_piece) for whole, _ in corpus.distinct(map(Piece, texts))], {}
            pieces = corpus.mixed(cuts, params["seed"], n_most)[: schedule.n_pieces]
            known_rows = [recorded.has_rows(piece) or recorded.copy_rows(piece, places) for piece in pieces]
            left = np.flatnonzero(np.logical_not(known_rows)).tolist()
            for start in range(0, len(left), args.parallel):
                n_ready = left[start]
                progress("hidden states", len(pieces) - len(left) + start, len(pieces))
                n_tokens = sum(len(piece.tokens) for piece in pieces[:n_ready])
                if args.file and n_ready > 1 and schedule.n_pieces is None and schedule.is_enough(n_tokens):
                    del pieces[n_ready:]
                    break
                now = [pieces[number] for number in left[start : start + args.parallel]]
                for piece, rows in zip(now, _rows(engine, recorded.sizes, now), strict=True):
                    recorded.add_rows(piece, rows)
        n, n_all = sum(len(piece.tokens) for piece in pieces), sum(map(len, texts))
        left_out = f"; {n_all - n} are left out (--disk, --hours, short ends, repeated texts)" if n < n_all else ""
        cli.say(f"{len(pieces)} pieces of text, {n} tokens{left_out}")
        return pieces

    def train(self, pieces: Sequence[Piece], n_held_out: int) -> None:
        """Train a head, from the first one if there is one, and write it each time that it is better."""
        from augury.plugins.learn.training import Corpus, Trainer, fit, quicker_product

        recorded, schedule, target, first, seed = self.recorded, self.schedule, self.target, self.first, self.params["seed"]
        sizes = recorded.sizes
        tokens = head.draft_vocabulary((piece.tokens for piece in pieces[n_held_out:]), sizes.n_vocab, sizes.n_drafted)
        learnt, output = Corpus(recorded, target, pieces, n_held_out, tokens), target.output(tokens)
        n_of_epoch, n_judged = (-(-len(rows) // head.N_BATCH) for rows in (learnt.rows, learnt.held_out))
        n_batches = schedule.plan(len(pieces), n_of_epoch, n_judged)
        weights = sizes.first_weights(target, learnt.sample(), seed)
        if first is not None:
            weights = sizes.weights_of(first, weights, target)

        def keep(best: head.Weights) -> None:
            head.write_head(self.args.output, sizes, self.file, tokens, sizes.stored(best, target), output)

        trainer = Trainer(sizes, weights, output, target, sizes.rate, n_batches, quicker_product(recorded))
        with cli.ProgressDisplay() as progress:
            how: dict[str, Any] = {"n_batches": n_batches, "is_over": schedule.is_over}
            how |= {"n_stages": sizes.n_stages, "is_head": first is not None}
            fit(trainer, recorded, learnt, seed, progress, lambda line: cli.say(f"{line}{schedule.told()}"), keep, **how)
        if self.args.export:
            _export(self.args, {**(recorded.load("best") or {}), "output.weight": output})


def _rows(engine: Engine, sizes: head.HeadSizes, pieces: Sequence[Piece]) -> Iterator[np.ndarray]:
    """The hidden states of pieces, as a request for each would tell them."""
    texts, names = [piece.text[:-1] for piece in pieces], list(dict.fromkeys(sizes.columns))
    for piece, text, found in zip(pieces, texts, engine.hidden_states(texts, names), strict=True):
        states = HiddenStates(sizes.columns, sizes.n_embd)
        states.add(0, text, found)
        rows = states.of(piece.text, piece.start)
        assert rows is not None
        yield rows


def _export(args: argparse.Namespace, values: Mapping[str, np.ndarray] | None = None) -> None:
    """Write a head that is there as a folder, with the weights as they were before they were quantised, if these are known."""
    export.check_folder(args.export)
    with ModelFile.open(args.output) as file:
        export.write_folder(args.export, file, values)
    cli.say(f'{args.export}: the head for vLLM, --speculative-config \'{{"model": "{args.export}", "method": "eagle3"}}\'')


def _report(args: argparse.Namespace, params: Mapping[str, Any], sizes: head.HeadSizes, held_out: Sequence[Piece]) -> None:
    """Let the engine go on from texts held out, with the head and without, and report acceptance and speed."""
    from augury.plugins.learn.training import percent

    params = {**params, "max_tokens": _N_WRITTEN, "cache_prompt": False}
    texts = [piece.tokens for piece in held_out[:_N_MEASURED]]
    starts = [text[: -(-len(text) // 2)].tolist() for text in texts]
    seconds, n_predicted = {True: 0.0, False: 0.0}, {True: 0, False: 0}
    offered, accepted = np.zeros(sizes.n_steps, int), np.zeros(sizes.n_steps, int)
    for is_fixed in (True, False):
        given = {
            "spec_fixed": is_fixed,
            "draft_max": sizes.n_steps if is_fixed else args.draft_max,
            "verbose": 0,
            "quiet": True,
        }
        flags = argparse.Namespace(**{**vars(args), **given, "spec_type": [sizes.drafter], "parallel": 1})
        with cli.load_engine(flags, (sizes.drafter,), str(args.output)) as engine:
            for start in starts:
                if is_fixed:
                    stats = engine.generate(start, **params).stats.drafters[sizes.drafter]
                    for sums, found in ((offered, stats.offered_by_position), (accepted, stats.accepted_by_position)):
                        sums[: len(found)] += found
                    continue
                for drafts in (False, True):
                    timings = engine.generate(start, **params, speculative=drafts).stats.timings
                    seconds[drafts] += timings.predict_s
                    n_predicted[drafts] += timings.n_predicted
    shares = [a / max(offered[0], 1) for a in accepted]
    cli.say(f"in {len(starts)} texts held out, {percent(shares)} of drafts were accepted up to token 1, 2, ...")
    plain, drafted = (n_predicted[each] / max(seconds[each], 1e-9) for each in (False, True))
    cli.say(f"{plain:.1f} tokens a second without the head, {drafted:.1f} with it")
    cli.print_lines([shlex.join(["augury", "run", "-m", str(args.model), "-md", str(args.output)])])
