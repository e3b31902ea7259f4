"""`augury batch`: answer each line of a file, in this run or the next."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augury.cli import (
    FIRST_FLAGS,
    add_model_flags,
    add_sampling_flags,
    add_template_flags,
    check_writable,
    load_engine,
    request_params,
    say,
    template_of,
    use_template,
    warn_of_synthetic,
)
from augury.errors import AuguryError, OptionError

if TYPE_CHECKING:
    from augury import Registry
    from augury.plugins.server.batch.answers import Answering

_N_SLOTS = 4


def add_parser(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "batch",
        help="answer each line of a file, and go on where an earlier run stopped",
        description="Answer each line of a file, and add the answers to another. A run that was stopped, killed or cut off is "
        "gone on with by the same command: what has an answer there is not asked again.",
    )
    parser.add_argument(
        "input",
        type=Path,
        metavar="IN",
        help='JSON lines: {"prompt"}, {"messages"} or {"tokens"}, with "id" and parameters such as "seed"; or OpenAI\'s batch '
        'requests: {"custom_id", "method", "url", "body"}',
    )
    parser.add_argument("output", type=Path, metavar="OUT", help="where answers are added, by id, as they come")
    parser.flag("--ordered", "add answers in the order of their lines")
    parser.flag(
        "--ray ADDRESS",
        "answer on all nodes of a Ray cluster: HOST:PORT, ray://HOST:PORT, auto for the one of this machine, "
        "or local for one that is started here; a worker on each node, or as many as -t leaves cores for",
    )
    add_model_flags(parser, registry, argv, n_slots=_N_SLOTS)
    add_sampling_flags(parser, registry)
    add_template_flags(parser)
    parser.show_first(f"--ordered {FIRST_FLAGS} -n --temp -s -np")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    # here: other commands wait for none of it
    from augury.plugins.server.batch.answers import Tally, answer_all
    from augury.plugins.server.batch.rows import RowFile, ids_of, read_lines

    params = request_params(args)
    places = ids_of(args.input)
    check_writable(args.output, "OUT")
    if args.output.exists() and args.output.samefile(args.input):
        raise OptionError(f"OUT is {args.output}, which is IN; name another file for the answers")
    with RowFile(args.output) as rows:
        if strange := rows.ids - places.keys():
            message = f"{args.output} answers {min(strange, key=str)!r}, which {args.input} does not have"
            raise OptionError(f"{message}; name another file for the answers")
        if rows.ids:
            say(f"{len(rows.ids)} of {len(places)} lines have their answers already")
        if len(rows.ids) == len(places):
            return 0
        warn_of_synthetic(args)
        template = template_of(args)
        lines = (line for line in read_lines(args.input) if line.id not in rows.ids)
        with _answering(args, template, params) as (answers, n_ahead):
            tally = Tally(len(rows.ids), len(places))
            try:
                answer_all(lines, answers, rows, tally, n_ahead=n_ahead, is_ordered=args.ordered)
            finally:
                tally.show()
    return AuguryError.exit_code if tally.n_errors else 0


@contextmanager
def _answering(args: argparse.Namespace, template: str | None, params: Mapping[str, Any]) -> Iterator[tuple[Answering, int]]:
    """What answers lines, and how many it has at once."""
    if args.ray is not None:
        from augury.plugins.ray import cluster

        cluster.check_ray("--ray needs")
        from augury.plugins.ray import batch

        workers = batch.Workers(args, template, params)
        yield workers, workers.n_ahead
        return
    from augury.plugins.server.batch.answers import Answers

    with load_engine(args, args.spec_type, args.model_draft) as engine:
        use_template(engine, template, parse_special=args.parse_special)
        yield Answers(engine, params, args.chat_template_kwargs), 2 * args.parallel
