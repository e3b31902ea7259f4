"""Workloads: prompts by category, because a drafter may be good at some kinds of text and useless at others."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from attrs import evolve

from augury.cli import Prompt, count, numbered_lines, prompts_of_lines, read_prompts, read_text
from augury.errors import AuguryError, OptionError

SPEC_BENCH = "spec-bench"
_SOURCE = "data/spec_bench/question.jsonl of https://github.com/hemingkx/Spec-Bench"
_MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
_CATEGORIES = dict.fromkeys(_MT_BENCH, "multi-turn") | {
    name: name for name in ("translation", "summarization", "qa", "math_reasoning", "rag")
}


def read_spec_bench(path: str) -> list[Prompt]:
    """Spec-Bench's questions: a prompt for every turn; in later turns the model's own answers stand between.

    The texts are not part of augury: Spec-Bench is under Apache-2.0, but its questions come from collections with terms of
    their own, news articles among them. So users give their own copy. Of six categories, those of `evaluation/speed.py` of
    github.com/hemingkx/Spec-Bench, the first has conversations of two turns.

    Source: Xia et al. 2024, "Unlocking Efficiency in Large Language Model Inference: A Comprehensive Survey of Speculative
    Decoding" (arXiv 2401.07851).

    Raises:
        AuguryError: The file is missing, or a line of it is no question of Spec-Bench.
    """
    if not path:
        raise AuguryError(f"--workload {SPEC_BENCH} names no file; fetch {_SOURCE} and give --workload {SPEC_BENCH}:PATH")
    try:
        text = read_text(path)
    except AuguryError as error:
        raise AuguryError(f"{error}; expected {_SOURCE}") from None
    return [prompt for number, line in numbered_lines(text) for prompt in _prompts(line, f"{path}:{number}")]


def _prompts(line: str, where: str) -> list[Prompt]:
    question = _question(line, where)
    name, category = f"{SPEC_BENCH}-{question['question_id']}", _CATEGORIES[question["category"]]
    messages: list[dict[str, str]] = []
    prompts = []
    for number, turn in enumerate(question["turns"], start=1):
        messages = [*messages, *([{"role": "assistant"}] if messages else []), {"role": "user", "content": turn}]
        mark = "" if number == 1 else f", turn {number}"
        prompts.append(Prompt(messages=messages, id=f"{name}{mark}", category=category, where=where))
    return prompts


def _question(line: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise AuguryError(f"{where}: not JSON: {error}; expected {_SOURCE}") from None
    turns = found.get("turns") if isinstance(found, dict) else None
    if not (isinstance(turns, list) and turns and all(isinstance(turn, str) for turn in turns) and "question_id" in found):
        expected = 'an object with "question_id", "category" and "turns", a list of texts'
        raise AuguryError(f"{where}: no question of Spec-Bench; expected {expected}, as in {_SOURCE}")
    if str(found.get("category")) not in _CATEGORIES:
        raise AuguryError(f"{where}: category is {found.get('category')!r}, expected one of {', '.join(_CATEGORIES)}")
    return found


DEFAULT = "those of standard input, if any, or else a small workload"  # where `prompts_to_compare` finds them


def add_workload_flag(group: Any) -> None:
    """Add `--workload`, for commands that compare by category."""
    group.flag(
        "--workload FILE ...",
        'prompts as JSON lines with "id", "category", and "messages", "prompt" or "tokens", or '
        f"{SPEC_BENCH}:FILE, a copy of Spec-Bench's questions; repeats",
    )


def add_length_flag(group: Any, n_predict: int, *, least: int) -> None:
    """Add `-n`, for commands that always decode greedily."""
    group.flag(
        "-n --n-predict --max-tokens N", f"tokens to generate (default: {n_predict})", count(least=least), default=n_predict
    )


def prompts_to_compare(args: argparse.Namespace) -> list[Prompt]:
    """The command line's prompts; those of the built-in workload where there are none, and none wait at standard input."""
    prompts = [prompt for path in args.workload for prompt in read_workload(path)]
    is_given = args.prompt or args.prompt_tokens or args.file
    if is_given or not (prompts or sys.stdin is None or sys.stdin.closed or sys.stdin.isatty()):
        try:
            prompts += _labelled(read_prompts(args))
        except OptionError:
            if is_given:
                raise  # otherwise standard input was empty
    return _labelled(prompts) or builtin_workload()


def builtin_workload() -> list[Prompt]:
    """A small workload of six categories, for models with a chat template."""
    text = files("augury.plugins.bench").joinpath("workload.jsonl").read_text(encoding="utf-8")
    return _labelled(prompts_of_lines(text, "the built-in workload"))


def read_workload(path: str | Path) -> list[Prompt]:
    """The prompts of a file of JSON lines, such as `{"id": "a", "category": "writing", "prompt": "Once"}`.

    Each line has one of `prompt` (a text), `messages` and `tokens` (ids); further fields are parameters of the request.
    Without an id a prompt has its number's, without a category it belongs to `all`. A message of the assistant without content,
    between others, stands for the model's own answer there; see `with_answers`. `spec-bench:FILE` is a copy of the questions of
    Spec-Bench.

    Raises:
        AuguryError: The file cannot be read, or a line is something else.
    """
    name, _, rest = str(path).partition(":")
    prompts = _labelled(read_spec_bench(rest) if name == SPEC_BENCH else prompts_of_lines(read_text(path), str(path)))
    if not prompts:
        raise AuguryError(f"{path}: there is no prompt in it")
    return prompts


def with_answers(messages: Sequence[Mapping[str, Any]], answer: Callable[[list[Any]], str]) -> list[Any]:
    """A conversation with the answers in it that it leaves to the model: messages of the assistant without content.

    >>> with_answers([{"role": "user", "content": "Hi"}, {"role": "assistant"}], lambda before: f"{len(before)} heard")
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': '1 heard'}]
    """
    filled: list[Any] = []
    for message in messages:
        is_open = message.get("role") == "assistant" and message.keys() == {"role"}
        filled.append({**message, "content": answer(filled)} if is_open else message)
    return filled


def digest(prompts: Iterable[Prompt]) -> str:
    """A short hash of a workload, to tell whether two runs had the same prompts."""
    content = json.dumps([[each.id, each.category, each.arguments()] for each in prompts], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:8]


def _labelled(prompts: Iterable[Prompt]) -> list[Prompt]:
    """Give each prompt a unique id and a category, both text. Raises AuguryError: one is a line that is not a prompt."""
    n_seen: Counter[str] = Counter()
    labelled = []
    for number, prompt in enumerate(prompts, start=1):
        prompt.arguments()
        name, category = (
            default if label in (None, "") else str(label)
            for label, default in ((prompt.id, str(number)), (prompt.category, "all"))
        )
        n_seen[name] += 1
        labelled.append(evolve(prompt, id=name if n_seen[name] == 1 else f"{name} ({n_seen[name]})", category=category))
    return labelled
