# ruff: noqa: INP001, T201 - a script, not a module
"""How a head drafts after more and more text: python docs/long_contexts.py MODEL HEAD TEXT [TEXT ...].

At the same places of the texts the model goes on greedily, with so many tokens before it, and the head drafts three tokens in
every round. After each length but the first the model is held to what it wrote after the first: how many tokens are accepted
depends on the text far more than on what is before it. `--own` lets it write another text after each. The table says how many
tokens are accepted on average, how probable the written ones are to the model, and how long a draft takes. docs/benchmarks.md,
"Heads after long texts", has what came of it. `-w N` sets `--spec-draft-window`.

Places that lie close together share the beginning of what is before them, which is read once: up to an eighth more than told.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from augury import Engine
from augury.types import DrafterStats

CONTEXTS, N_DRAFTED = (128, 256, 512, 1024, 2048, 4000, 7000, 16000), 3


def hold(history: np.ndarray, ids: np.ndarray, logits: np.ndarray, *, text: Sequence[int], n_prompt: int) -> Any:
    """Leave the next token of a text alone, after a prompt and the text's beginning; after its end any."""
    if (n := len(history) - n_prompt) < len(text):
        logits[ids != text[n]] = float("-inf")
    return ids, logits


def main() -> None:
    """Print a row for each length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("head")
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("-w", "--window", type=int)
    parser.add_argument("-n", "--written", type=int, default=64, help="tokens that are written at each place")
    parser.add_argument("--places", type=int, default=8, help="of each text, in its middle, one behind the other")
    parser.add_argument("--own", action="store_true", help="after each length the model writes its own text")
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS)
    args = parser.parse_args()
    options = {"spec_type": "draft-eagle3", "draft_model": args.head, "spec_fixed": True, "draft_max": N_DRAFTED}
    if args.window is not None:
        options["spec_type"] = f"draft-eagle3:window={args.window}"
    n_most, found, chances = max(args.contexts), dict[int, list[DrafterStats]](), dict[int, list[float]]()
    held = dict[int, list[int]]()
    with Engine.load(args.model, n_ctx=n_most * 9 // 8 + args.written + N_DRAFTED, **options) as engine:
        assert engine.tokenizer is not None
        for path in args.texts:
            text = engine.tokenizer.encode(path.read_text())
            first = n_most + max(len(text) - n_most - args.places * args.written, 0) // 2
            places = range(first, len(text), args.written)[: args.places]
            if not places:
                parser.error(f"{path} has {len(text)} tokens, expected more than {n_most}")
            held.clear()
            for n in args.contexts:
                n_alike = max(n // 8 // args.written, 1)
                for i, place in enumerate(places):
                    start = places[i - i % n_alike] - n
                    how: dict[str, Any] = {"max_tokens": args.written, "temperature": 0.0, "ignore_eos": True, "logprobs": 0}
                    if place in held:
                        how["logits_processors"] = [partial(hold, text=held[place], n_prompt=place - start)]
                    made = engine.generate(text[start:place], **how)
                    if not args.own:
                        held.setdefault(place, list(made.tokens))
                    found.setdefault(n, []).append(made.stats.drafters["draft-eagle3"])
                    chances.setdefault(n, []).extend(math.exp(each) for each in made.logprobs)
    print("| tokens before | accepted a round | the model's probability | a draft takes |\n|---|---|---|---|")
    for n, stats in found.items():
        n_rounds = sum(each.used for each in stats)
        accepted, seconds = sum(each.accepted for each in stats), sum(each.draft_s for each in stats)
        sure = statistics.fmean(chances[n])
        print(f"| {n} | {accepted / n_rounds:.2f} | {sure:.2f} | {1e3 * seconds / n_rounds:.1f} ms |")


if __name__ == "__main__":
    main()
