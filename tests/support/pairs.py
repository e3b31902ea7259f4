"""Pairs made up by hand, for what is computed and drawn from them."""

from augury.cli.prompts import Prompt
from augury.plugins.bench.paired_runs import Pair
from augury.types import DrafterStats, Result, Summary, Timings, Token


def result(seconds, tokens=(1, 2, 3, 4), rounds=((0, 0),), pieces=()):
    """`rounds` are pairs of drafted and accepted tokens, the prompt's first."""
    n_drafted, n_accepted = (sum(each) for each in zip(*rounds, strict=True))
    longest = max(k for k, _ in rounds)
    by_position = [tuple(sum(each[what] > i for each in rounds) for i in range(longest)) for what in (0, 1)]
    summary = Summary(
        n_emitted=len(tokens),
        n_rounds=len(rounds),
        n_drafted=n_drafted,
        n_accepted=n_accepted,
        draft_lengths=tuple(k for k, _ in rounds[1:]),
        drafters={"x": DrafterStats(offered_by_position=by_position[0], accepted_by_position=by_position[1])},
        timings=Timings(predict_s=seconds, n_predicted=len(tokens) - 1),
    )
    if not pieces:
        origins = [origin for _, a in rounds for origin in [*["x"] * a, None]] + [None] * len(tokens)
        pieces = [Token(token, "", origin) for token, origin in zip(tokens, origins, strict=False)]
    return Result(tuple(tokens), "", "length", summary, tuple(pieces))


def pair(plain_s=3.0, drafted_s=1.0, *, name="a", category="all", rounds=((0, 0), (3, 2)), tokens=(1, 2, 3, 4), pieces=()):
    """Four tokens, plain and drafted."""
    return Pair(Prompt(text="", id=name, category=category), result(plain_s), result(drafted_s, tokens, rounds, pieces))
