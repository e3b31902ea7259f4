"""Prompts one after another, again, then all in parallel, with speculation and without: everywhere the same, to the bit.

The test of llama.cpp's pull request 19493, for any model: python tests/in_parallel.py MODEL --spec-type suffix
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from augury import Engine

__all__ = ["PROMPTS", "differences"]

PROMPTS = [  # two begin alike, one repeats itself, one is long, one short
    [7, 8, 9, 10, 11, 12, 5, 6],
    [7, 8, 9, 10, 11, 12, 20, 3],
    [9, 7, 5] * 8,
    [*range(2, 40), *range(2, 30)],
    [1, 4],
]
WAYS = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 0.8, "seed": 11, "top_k": 20}}

Answers = list[tuple[list[int], list[float | None]]]


def differences(
    load: Callable[..., Engine],
    specs: Sequence[str],
    *,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    n: int = 32,
    tell: Callable[[str], object] = lambda _: None,
) -> Iterator[str]:
    """What differs from the first answers of plain decoding, one prompt at a time.

    Args:
        load: load(spec_type=..., slots=...) loads an engine.
        specs: Drafters to speculate with, as `--spec-type` names them; plain decoding comes first.
        prompts: Token ids.
        n: Tokens of each answer.
        tell: Told of every run that is over.
    """
    expected: dict[str, Answers] = {}
    for spec in ("none", *specs):
        with load(spec_type=spec, slots=len(prompts)) as engine:
            for way, how in WAYS.items():
                for order in ("one after another", "again", "in parallel"):
                    found, n_accepted = _answers(engine, prompts, is_parallel=order == "in parallel", max_tokens=n, **how)
                    tell(f"{spec}, {way}, {order}: {n_accepted} drafted tokens accepted")
                    for i, (one, other) in enumerate(zip(found, expected.setdefault(way, found), strict=True)):
                        if one != other:
                            yield f"{spec}, {way}, {order}: the answer to prompt {i} differs"


def _answers(engine: Engine, prompts: Sequence[Sequence[int]], *, is_parallel: bool, **params: Any) -> tuple[Answers, int]:
    params |= {"ignore_eos": True, "logprobs": 0}
    if is_parallel:
        results = engine.generate([list(prompt) for prompt in prompts], **params)
    else:
        results = [engine.generate(list(prompt), **params) for prompt in prompts]
    told = [(list(result.tokens), [piece.logprob for piece in result.pieces]) for result in results]
    return told, sum(result.stats.n_accepted for result in results)


def main() -> int:
    """Run it on a model that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--memory", default="auto")
    parser.add_argument("--spec-type", action="append", default=[], help="repeats; default: suffix and ngram-simple:n=2,m=6")
    parser.add_argument("-n", type=int, default=64, help="tokens of each answer")
    args = parser.parse_args()

    def load(**how: Any) -> Engine:
        return Engine.load(args.model, backend=args.backend, memory=args.memory, n_ctx=512, spec_fixed=True, draft_max=8, **how)

    specs = args.spec_type or ["suffix", "ngram-simple:n=2,m=6"]
    rng = np.random.default_rng(1)
    with load(spec_type="none") as engine:
        prompts = [rng.integers(0, min(engine.info.n_vocab, 5000), size).tolist() * 3 for size in (5, 17, 40, 90)]
    found = list(differences(load, specs, prompts=prompts, n=args.n, tell=print))
    print(*found or ["all the same"], sep="\n")  # noqa: T201 - what it is for
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
