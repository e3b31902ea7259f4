"""Output of the command line: tables, the configuration, statistics of requests, and JSON."""

from __future__ import annotations

import io
import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from augury.cli.text_file import check_writable
from augury.options import Spec
from augury.types import Allocation, Result, Summary, TokenLogprob

if TYPE_CHECKING:
    from augury.engine.engine import Engine
    from augury.engine.stats import EngineStats


_UNBOUNDED = 1 << 16  # columns where there is no terminal: programs read a row as a line


def align_rows(rows: Sequence[Sequence[str]], is_right: Sequence[bool] = (), *, has_head: bool = True) -> list[str]:
    """Format rows of cells as aligned columns, as lines of text; in a narrow terminal cells are folded.

    The head's row comes first, if there is one. `is_right` says which columns are aligned to the right.
    """
    from rich.console import Console  # here: importing rich takes longer than most commands without a table
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=has_head, pad_edge=False, padding=(0, 2, 0, 0))
    for i, name in enumerate(rows[0]):
        justify: Literal["left", "right"] = "right" if any(is_right[i : i + 1]) else "left"
        table.add_column(Text(name), justify=justify, overflow="fold", min_width=max(map(len, name.split()), default=0))
    for row in rows[int(has_head) :]:
        table.add_row(*map(Text, row))
    text = io.StringIO()
    Console(file=text, width=_n_columns(), color_system=None).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def fold(begin: str, text: str, indent: str) -> str:
    """Fold `begin` and `text` to the width of the terminal; all lines but the first begin with `indent`."""
    lines = textwrap.wrap(text, _n_columns(), initial_indent=begin, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines) or begin.rstrip()


def _n_columns() -> int:
    return shutil.get_terminal_size((_UNBOUNDED, 0)).columns


def say(text: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def print_json(found: Mapping[str, Any]) -> None:
    """Write an object as one line of standard output."""
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")  # elsewhere letters would be replaced
    sys.stdout.write(json.dumps(found, ensure_ascii=not is_unicode) + "\n")
    sys.stdout.flush()


def print_lines(lines: Iterable[str]) -> None:
    """Write lines to standard output."""
    sys.stdout.writelines(f"{line}\n" for line in lines)


def run_line(summaries: Sequence[Summary]) -> str:
    """Prompt and generation speed and acceptance of one or more requests."""
    timings = [summary.timings for summary in summaries]
    n_emitted, speed = sum(summary.n_emitted for summary in summaries), _mean_speed(timings, "predict")
    parts = [
        f"prompt {sum(each.n_prompt for each in timings)} tokens{_mean_speed(timings, 'prompt')}",
        f"generated {n_emitted} tokens{speed and speed + ' per sequence' * (len(summaries) > 1)}",
    ]
    n_drafted, n_accepted = (sum(getattr(each, name) for each in summaries) for name in ("n_drafted", "n_accepted"))
    if any(summary.drafters for summary in summaries):
        share = n_accepted / n_drafted if n_drafted else 0.0
        mark = ", synthetic" if any(summary.effective.get("synthetic") for summary in summaries) else ""
        parts.append(f"accepted {n_accepted} of {n_drafted} drafted tokens ({share:.0%}{mark})")
    if n_recomputed := sum(summary.n_recomputed for summary in summaries):
        parts.append(f"{n_recomputed} prompt tokens computed again, though a slot had them")
    return " | ".join(parts)


def engine_line(stats: EngineStats) -> str:
    """The work of an engine since it was loaded."""
    counts = stats.counts
    return (
        f"requests {counts.n_finished} finished, {counts.n_failed} failed, {counts.n_cancelled} cancelled | "
        f"{counts.n_rounds} rounds, {counts.forward_s:.2f} s in passes, {counts.draft_s:.2f} s drafting | "
        f"prompt tokens {counts.n_prompt} processed, {counts.n_reused} reused, {counts.n_recomputed} computed again"
    )


def _mean_speed(timings: Sequence[Any], what: str) -> str:
    """The speed as it follows a number of tokens; nothing where there was none to measure."""
    n_tokens = sum(each.n_prompt if what == "prompt" else each.n_predicted for each in timings)
    seconds = sum(each.prompt_s if what == "prompt" else each.predict_s for each in timings)
    return f", {n_tokens / seconds:.1f} tok/s" if n_tokens and seconds > 0 else ""


def synthetic_text(rates: Sequence[float]) -> str:
    """That drafts were accepted by chance, and at which rates."""
    return f"acceptance is synthetic ({', '.join(f'{rate:g}' for rate in rates)} by position)"


def drafting_lines(summary: Summary) -> list[str]:
    """The figures of each drafter for a request."""
    lines = [f"{summary.n_emitted} tokens in {summary.n_rounds} rounds, {summary.mean_accepted_length:.2f} tokens per round"]
    if rates := summary.effective.get("synthetic"):
        lines.append(synthetic_text(rates))
    if summary.n_restores:
        lines.append(f"{summary.n_restores} drafts undone by restoring a state, {summary.n_replayed} tokens computed again")
    if sum(stats.drafted > 0 for stats in summary.drafters.values()) > 1:
        lines.append("a token that several drafters proposed counts for each of them:")
    for name, stats in summary.drafters.items():
        lines.append(
            f"{name}: {stats.calls} calls, {stats.drafts} drafts, {stats.used} verified, {stats.drafted} tokens drafted, "
            f"{stats.accepted} accepted, {stats.begin_s * 1e3:.1f} ms beginning, {stats.draft_s * 1e3:.1f} ms drafting, "
            f"{stats.accept_s * 1e3:.1f} ms learning"
        )
        if stats.ahead:
            lines.append(
                f"  {stats.ahead} tokens drafted ahead during passes, {stats.ahead_used} of them verified, the others thrown "
                f"away; {stats.hidden_s * 1e3:.1f} ms of drafting hidden"
            )
        if stats.failed is not None:
            lines.append(f"  left out because it failed in {stats.failed}")
        if stats.offered_by_position:
            shares = zip(stats.accepted_by_position, stats.offered_by_position, strict=True)
            lines.append("  accepted by position: " + " ".join(f"{right}/{offered}" for right, offered in shares))
    return lines


def spec_type_of(engine: Engine) -> str:
    """The drafters in use with their options, in the form of `--spec-type`."""
    speculative = engine.config["speculative"]
    specs = []
    for name in str(speculative["type"]).split(";"):
        values = ((key, value) for key, value in speculative.get(name, {}).items() if value is not None)
        specs.append(str(Spec(name, tuple((key, str(value)) for key, value in values))))
    return ";".join(specs)


def as_json(engine: Engine, result: Result) -> dict[str, Any]:
    """The object that `run --json` prints for one prompt."""
    summary, timings = result.stats, result.stats.timings
    found: dict[str, Any] = {
        "model": engine.config["model"],
        "backend": engine.config["backend"],
        "spec_type": spec_type_of(engine),
        "speculative": dict(summary.effective),
        "prompt_tokens": summary.n_prompt,
        "tokens": list(result.tokens),
        "text": result.text,
        "finish_reason": result.finish_reason,
        "timings": {
            "load_s": engine.load_s,
            **{name: getattr(timings, name) for name in ("prompt_s", "predict_s", "prompt_per_second", "predicted_per_second")},
        },
        "memory": {name: getattr(summary, f"n_{name}") for name in ("reused", "recomputed", "restores", "replayed")},
        "draft": {
            **{name: getattr(summary, f"n_{name}") for name in ("rounds", "drafted", "accepted")},
            "accepted_by_position": list(summary.accepted_by_position),
            "draft_lengths": list(summary.draft_lengths),
            "origins": [piece.drafter for piece in result.pieces],
            "drafters": {name: attrs.asdict(stats) for name, stats in summary.drafters.items()},
        },
    }
    if rates := summary.effective.get("synthetic"):
        found["synthetic"] = list(rates)
    if any(piece.logprob is not None for piece in result.pieces):
        found["logprobs"] = [
            {
                **_logprob(TokenLogprob(piece.token, piece.logprob, piece.bytes)),
                "top": [_logprob(each) for each in piece.top_logprobs],
            }
            for piece in result.pieces
            if piece.logprob is not None
        ]
    if result.prompt is not None:
        found |= {"prompt": list(result.prompt), "prompt_text": result.prompt_text}
    return found


def _logprob(each: TokenLogprob) -> dict[str, Any]:
    return {
        "token": each.token,
        "text": each.text,
        "bytes": None if each.bytes is None else list(each.bytes),
        "logprob": each.logprob,
    }


def show_configuration(engine: Engine) -> None:
    """Show the whole configuration, and the memory table."""
    say("configuration:")
    for key, value in _flat(engine.config):
        say(f"  {key} = {value}")
    say("memory:")
    for line in _memory_lines(engine.memory_table()):
        say(f"  {line}".replace("\n", "\n  "))


def _memory_lines(lines: Sequence[Allocation]) -> list[str]:
    rows, devices = list[list[str]](), list(dict.fromkeys(line.device for line in lines))
    for device in devices:
        here = [line for line in lines if line.device == device]
        rows += [[device, line.purpose, _mib(line.n_bytes)] for line in here]
        rows.append([device, "total", _mib(sum(line.n_bytes for line in here))])
    return align_rows(rows, is_right=(False, False, True), has_head=False)


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.1f} MiB"


def show_in_brief(engine: Engine) -> None:
    """Show on a terminal the essentials of the configuration: above all the drafters."""
    if not sys.stderr.isatty():
        return
    config = engine.config
    slots = "1 slot" if config["n_slots"] == 1 else f"{config['n_slots']} slots"
    threads = "1 thread" if config["threads"] == 1 else f"{config['threads']} threads"
    cache = "/".join(dict.fromkeys((config["cache_type_k"], config["cache_type_v"])))
    place = f"{config['backend']} ({config['isa']}), {threads}"
    say(f"{engine.info.name} on {place}, {slots} of {config['n_ctx']} tokens, KV cache {cache}")
    say(f"drafts: {_drafts(config)}")


def _drafts(config: Mapping[str, Any]) -> str:
    speculative = config["speculative"]
    if speculative["type"] == "none" or not speculative["n_max"]:
        return "none, each token takes a pass"
    length = f"{n_min} to" if (n_min := speculative["n_min"]) else "up to"
    when = "in every round" if speculative["is_fixed"] else "where they pay"
    verify = ", verified by rejection" if speculative["verify"] == "rejection" else ""
    return f"{config['spec_type']}, {length} {speculative['n_max']} tokens, {when}{verify}"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if hasattr(value, "items"):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def check_page(path: Path) -> None:
    """See that a page can be written, in place of an earlier page alone. Raises AuguryError: it cannot, or would not be."""
    check_writable(path, "--html", over=("page of augury", b"<title>augury "))
