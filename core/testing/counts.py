"""Equations between the figures of a request, with any drafter."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise, zip_longest

import numpy as np

from augury.types import DrafterStats, Result, Summary

_REASONS = ("stop", "length", "context", "cancelled")


def miscounts(result: Result) -> list[str]:
    """Which identities a result's statistics break, in words; none where all is well."""
    stats = result.stats
    checks = [*_of_the_text(result), *_of_the_sums(stats), *_of_the_times(stats, is_whole=result.finish_reason != "cancelled")]
    for name, each in stats.drafters.items():
        checks += [(f"{name}: {text}", holds) for text, holds in _of_a_drafter(each)]
    return [f"not {text}: {stats}" for text, holds in checks if not holds]


def _of_the_text(result: Result) -> Iterator[tuple[str, bool]]:
    stats, pieces = result.stats, result.pieces
    yield "n_emitted == n_rounds + n_accepted", stats.n_emitted == stats.n_rounds + stats.n_accepted
    yield "n_emitted == tokens", stats.n_emitted == len(result.tokens)
    yield "tokens == pieces", result.tokens == tuple(piece.token for piece in pieces)
    yield "text == that of the pieces", result.text == "".join(piece.text for piece in pieces)
    yield "a known finish reason", result.finish_reason in _REASONS
    origins = Counter(piece.drafter for piece in pieces if piece.drafter is not None)
    accepted = {name: each.accepted for name, each in stats.drafters.items() if each.accepted}
    yield "drafted pieces == n_accepted", origins.total() == stats.n_accepted
    yield "drafted pieces <= accepted, by drafter", all(n <= accepted.get(name, 0) for name, n in origins.items())
    by_round = [piece.n_drafted for piece in pieces if piece.n_drafted is not None]
    lengths = [0, *stats.draft_lengths][: stats.n_rounds]  # the prompt's round drafts nothing
    yield "drafts of the pieces == draft_lengths", by_round == lengths
    yield "no round of drafted tokens alone", all(piece.drafter is None for piece in (*pieces[:1], *pieces[-1:]))


def _of_the_sums(stats: Summary) -> Iterator[tuple[str, bool]]:
    drafters = stats.drafters.values()
    yield "0 <= n_reused < n_prompt", stats.n_emitted == 0 or 0 <= stats.n_reused < stats.n_prompt
    yield "n_reused + n_recomputed < n_prompt", stats.n_reused + stats.n_recomputed < max(stats.n_prompt, 1)
    again = (stats.n_recomputed, stats.n_restores, stats.n_replayed, stats.n_restarts)
    yield "tokens are replayed after restores alone", min(again) >= 0 and (stats.n_restores > 0 or stats.n_replayed == 0)
    yield "tokens are discarded by shifts alone", stats.n_shifts > 0 or stats.n_discarded == 0
    yield "no shift without a discarded token", 0 <= stats.n_shifts <= stats.n_discarded
    yield "n_accepted <= n_drafted", stats.n_accepted <= stats.n_drafted
    yield "n_accepted is that of some drafter", _is_shared(stats.n_accepted, (each.accepted for each in drafters))
    yield "n_drafted is that of some drafter", _is_shared(stats.n_drafted, (each.drafted for each in drafters))
    yield "n_drafted == sum(draft_lengths)", stats.n_drafted == sum(stats.draft_lengths)
    yield "a draft length for each round after the prompt's", len(stats.draft_lengths) == max(stats.n_rounds - 1, 0)
    n_drafts = sum(k > 0 for k in stats.draft_lengths)
    yield "drafts that were verified are used ones", _is_shared(n_drafts, (each.used for each in drafters))
    by_position = list(zip_longest(stats.accepted_by_position, *(each.accepted_by_position for each in drafters), fillvalue=0))
    up_to = np.cumsum(by_position, axis=0).tolist()  # a drafter's own count from the first token that it proposed
    yield "accepted_by_position is that of some drafter", all(_is_shared(n, own) for n, *own in up_to)
    yield "n_accepted == sum(accepted_by_position)", stats.n_accepted == sum(stats.accepted_by_position)


def _is_shared(n: int, by_drafter: Iterable[int]) -> bool:
    """Whether n can be drafters' work together: each did a part of it, and several some of it."""
    own = list(by_drafter)
    return max(own, default=0) <= n <= sum(own)


def _of_the_times(stats: Summary, *, is_whole: bool) -> Iterator[tuple[str, bool]]:
    timings = stats.timings
    times = (timings.prompt_s, timings.predict_s, timings.queue_s, timings.first_s, *timings.round_s)
    yield "no negative times", min(times) >= 0
    yield "queue_s <= first_s", stats.n_emitted == 0 or timings.queue_s <= timings.first_s
    yield (
        "first_s + predict_s <= whole_s",
        timings.first_s + timings.predict_s <= timings.whole_s + 1e-6,
    )  # drafters begin between
    yield "predict_s == sum(round_s)", math.isclose(timings.predict_s, sum(timings.round_s), abs_tol=1e-6)
    yield "n_predicted == all but the first", timings.n_predicted == max(stats.n_emitted - 1, 0)
    n_prompt = stats.n_prompt - stats.n_reused
    is_once = not stats.n_restarts
    yield (
        "n_prompt == what was not reused",
        not is_once or (timings.n_prompt == n_prompt if is_whole else timings.n_prompt <= n_prompt),
    )
    begin_s = sum(each.begin_s for each in stats.drafters.values())
    yield "drafters' beginning is prompt time", stats.n_shifts > 0 or not is_once or begin_s <= timings.prompt_s * (1 + 1e-9)


def _of_a_drafter(each: DrafterStats) -> Iterator[tuple[str, bool]]:
    offered, accepted = each.offered_by_position, each.accepted_by_position
    yield "used <= drafts <= calls", each.used <= each.drafts <= each.calls
    yield "accepted <= drafted", each.accepted <= each.drafted
    yield "accepted == sum(accepted_by_position)", each.accepted == sum(accepted)
    yield "used <= sum(offered_by_position) <= drafted", each.used <= sum(offered) <= each.drafted
    yield "all drafts offer their first token", each.used == (offered[0] if offered else 0)
    yield "offered at every position that is accepted", len(offered) == len(accepted)
    yield "accepted <= offered at every position", all(a <= o for a, o in zip(accepted, offered, strict=False))
    falls = all(before >= after for counts in (offered, accepted) for before, after in pairwise(counts))
    yield "no later position oftener than an earlier one", falls
    yield "0 <= ahead_used <= ahead, drafted", 0 <= each.ahead_used <= min(each.ahead, each.drafted)
    yield "no negative times", min(each.begin_s, each.draft_s, each.accept_s, each.hidden_s) >= 0
