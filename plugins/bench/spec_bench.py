"""Spec-Bench's questions as a workload: six categories, the first of which are conversations of two turns.

The texts are not part of augury: Spec-Bench is under Apache-2.0, but its questions come from collections with terms of their
own, news articles among them. So users give their own copy.

Source: Xia et al. 2024, "Unlocking Efficiency in Large Language Model Inference: A Comprehensive Survey of Speculative
Decoding" (arXiv 2401.07851). The file is `data/spec_bench/question.jsonl` of github.com/hemingkx/Spec-Bench, and the six
categories are those of its `evaluation/speed.py`.
"""

from __future__ import annotations

import json
from typing import Any

from augury.cli import Prompt, read_text
from augury.errors import AuguryError

SPEC_BENCH = "spec-bench"
_SOURCE = "data/spec_bench/question.jsonl of https://github.com/hemingkx/Spec-Bench"
_MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
_CATEGORIES = dict.fromkeys(_MT_BENCH, "multi-turn") | {
    name: name for name in ("translation", "summarization", "qa", "math_reasoning", "rag")
}


def read_spec_bench(path: str) -> list[Prompt]:
    """A prompt for every turn of every question; in later turns the model's own answers stand between.

    Raises:
        AuguryError: The file is missing, or a line of it is no question of Spec-Bench.
    """
    if not path:
        raise AuguryError(f"--workload {SPEC_BENCH} names no file; fetch {_SOURCE} and give --workload {SPEC_BENCH}:PATH")
    try:
        text = read_text(path)
    except AuguryError as error:
        raise AuguryError(f"{error}; expected {_SOURCE}") from None
    lines = enumerate(text.split("\n"), start=1)
    return [prompt for number, line in lines if line.strip() for prompt in _prompts(line, f"{path}:{number}")]


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
