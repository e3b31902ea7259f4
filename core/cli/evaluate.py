"""`augury perplexity` and `augury eval`: how well a model predicts a text, and how many questions of a file it answers."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from attrs import asdict, frozen

from augury.cli.model_flags import add_model_flags, load_engine
from augury.cli.parser import count
from augury.cli.progress import ProgressDisplay
from augury.cli.report import print_json, print_lines, say
from augury.cli.text_file import numbered_lines, read_text
from augury.engine.perplexity import WINDOW
from augury.errors import AuguryError
from augury.registry import Registry

if TYPE_CHECKING:
    from augury.engine.engine import Engine


@frozen
class Question:
    """A prompt, and its answer: the place of the right choice, or without choices the text itself."""

    prompt: str
    answer: Any
    choices: Sequence[str] = ()

    @classmethod
    def of(cls, line: str, where: str) -> Question:
        """The question in a line of JSON. Raises AuguryError: it is none."""
        try:
            found = json.loads(line)
            question = cls(**found)
        except (ValueError, RecursionError, TypeError):
            raise AuguryError(
                f'{where}: expected an object with "prompt", "answer" and, for multiple choice, "choices"'
            ) from None
        prompt, answer, choices = question.prompt, question.answer, question.choices
        is_right = isinstance(choices, list) and all(isinstance(each, str) and each for each in choices)
        if "choices" in found and not (is_right and type(answer) is int and 0 <= answer < len(choices)):
            raise AuguryError(f"{where}: expected choices that are texts, and as answer the place of the right one, from 0 on")
        if not isinstance(prompt, str) or not prompt or not ("choices" in found or isinstance(answer, str)):
            raise AuguryError(f"{where}: expected a prompt and an answer that are texts")
        return question


@frozen
class Rate:
    """The share of questions that are answered rightly, and its standard error."""

    value: float
    error: float | None  # None: a single question has none
    n: int

    @classmethod
    def of(cls, right: Sequence[bool]) -> Rate:
        """From each question's outcome."""
        n = len(right)
        return cls(float(np.mean(right)), float(np.std(right, ddof=1)) / math.sqrt(n) if n > 1 else None, n)

    def __str__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.4f}"
        return f"{self.value:.4f}{error} ({self.n} question{'s' * (self.n > 1)})"


def add_parsers(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    """Add the commands."""
    _add_perplexity(subparsers, registry, argv)
    parser = subparsers.add_parser(
        "eval",
        description="Count the questions that a model answers, as lm-evaluation-harness does. A line of the file is "
        '{"prompt", "choices", "answer": 0}: the choice that is most probable after the prompt and a space is taken (acc), and '
        'the most probable one by letter (acc_norm); or {"prompt", "answer": "TEXT"}: the line that is generated after the '
        "prompt has to be this text (exact_match).",
    )
    parser.flag("-f --file FILE", "questions, as JSON lines", Path, required=True)
    parser.flag("-n --n-predict N", "tokens of an answer (default: 64)", count(least=1), default=64)
    parser.flag("--json", "print a JSON object")
    add_model_flags(parser, registry, argv, n_slots=4, has_drafters=False)
    parser.set_defaults(run=_eval)
    parser.show_first("-f -n --json -m -c -np -t -ngl", words=("model",))


def _eval(args: argparse.Namespace) -> int:
    questions = [Question.of(line, f"{args.file}:{i}") for i, line in numbered_lines(read_text(args.file))]
    if not questions:
        raise AuguryError(f"{args.file}: empty, expected a question in each line")
    right: dict[str, list[bool]] = {}
    with load_engine(args, (), None) as engine, ProgressDisplay() as progress:
        for done, outcome in enumerate(outcomes(engine, questions, args.n_predict), start=1):
            for name, is_right in outcome.items():
                right.setdefault(name, []).append(is_right)
            progress("questions", done, len(questions))
    rates = {name: Rate.of(found) for name, found in right.items()}
    if args.json:
        print_json({"model": str(engine.config["model"]), **{name: asdict(rate) for name, rate in rates.items()}})
    else:
        print_lines(f"{name} {rate}" for name, rate in rates.items())
    return 0


def outcomes(engine: Engine, questions: Sequence[Question], max_tokens: int) -> Iterator[dict[str, bool]]:
    """Yield by metric whether a question is answered rightly, first of all with choices."""
    for question in questions:
        if question.choices:
            totals = log_likelihoods(engine, question.prompt, question.choices)
            lengths = [len(choice) for choice in question.choices]
            yield {
                "acc": int(np.argmax(totals)) == question.answer,
                "acc_norm": int(np.argmax(totals / lengths)) == question.answer,
            }
    written, n_at_once = [question for question in questions if not question.choices], engine.config["n_slots"]
    for start in range(0, len(written), n_at_once):
        asked = written[start : start + n_at_once]
        answers = engine.generate([each.prompt for each in asked], max_tokens=max_tokens, temperature=0.0, stop=["\n"])
        yield from (
            {"exact_match": answer.text.strip() == each.answer.strip()} for each, answer in zip(asked, answers, strict=True)
        )


def log_likelihoods(engine: Engine, prompt: str, choices: Sequence[str]) -> np.ndarray:
    """The log-likelihood of each choice after a prompt and a space, (n,) float64.

    The prompt's tokens are those that it has alone, and blanks at its end are the choices', as in lm-evaluation-harness.
    """
    begun = prompt.rstrip()
    first = max(len(engine.tokenize(begun)), 1)
    texts = [engine.tokenize(f"{prompt} {choice}") for choice in choices]
    return np.array([logprobs.sum() for logprobs in engine.logprobs(texts, first=first)])


def _add_perplexity(subparsers: Any, registry: Registry, argv: Sequence[str]) -> None:
    parser = subparsers.add_parser(
        "perplexity",
        description="Measure how well a model predicts a text. Windows are those of llama-perplexity, so that figures compare: "
        "in the second half of each, every token is predicted after all before it.",
    )
    parser.flag("-f --file FILE", "the text, in UTF-8", Path, required=True)
    parser.flag("--chunks N", "take the first N windows (default: all)", count(least=1))
    parser.flag("--json", "print a JSON object")
    add_model_flags(parser, registry, argv, n_slots=1, has_drafters=False)
    parser.set_defaults(ctx_size=WINDOW, run=_perplexity)
    parser.show_first("-f --chunks --json -m -c -t -ngl", words=("model",))


def _perplexity(args: argparse.Namespace) -> int:
    text = read_text(args.file)
    with load_engine(args, (), None) as engine, ProgressDisplay() as progress:
        start, window = perf_counter(), engine.config["n_ctx"]
        found = engine.perplexity(text, window=window, n_windows=args.chunks, progress=progress)
        seconds, n_read = perf_counter() - start, found.n_windows * window
        name = engine.config["model"]
    if args.json:
        error = found.error if math.isfinite(found.error) else None  # of a single token, which has none
        print_json({"model": name, "window": window, **attrs.asdict(found), "error": error, "seconds": seconds})
    else:
        print_lines([f"perplexity {found.value:.4f} ± {found.error:.4f}"])
        windows = "1 window" if found.n_windows == 1 else f"{found.n_windows} windows"
        speed = f"{n_read / seconds:.1f} tok/s"
        say(f"{windows} of {window} tokens, {found.n_tokens} tokens predicted | {speed}")
    return 0
