"""The planner's constants, each with its unit, its reason, and where it was measured.

"Replay" is that of docs/benchmarks.md, "Parts of `auto`": recorded answers through the real drafters and planner, with the pass
costs of several machines. The others are choices.
"""

from __future__ import annotations

from attrs import frozen

from augury.compiled import ImportedLater


@frozen
class PlannerConstants:
    """A "plain pass" is one of a single token; a "round" one pass over all slots and the Python around it."""

    # How often a drafter is asked, by the time of asking
    cheap: float = 0.1  # plain passes: a drafter that takes more is costly, whether it says so or not
    free: float = 0.004  # plain tokens: one that takes more is asked less while it gives less; SmolLM2 writing, 0.88 to 0.95
    rarely: int = 12  # tokens between its asks, at most
    learn_overhead: float = 0.05  # weight of a round, in the time around drafters
    learn_gain: float = 1 / 8  # weight of an ask, in what a lookup gives in one request
    learn_all_gains: float = 1 / 32  # the same in all requests

    # The required promise of drafting
    gain: float = 0.02  # tokens of a pass or a slot: costs are not known more exactly, and plain passes want to be seen, too
    margin: float = 1.03  # times the pass's tokens per second, of a costly drafter: its cost is certain, its gain is not
    unlikely: float = 0.003  # chance of a node that no pass was ever cheap enough for
    n_wrong_early: int = 5  # tokens: where one of a costly draft's first is wrong, lookups beside it help; replay, 1.5 to 2.7 %
    sure: float = 0.995  # the highest chance of a model's token
    least_worth: float = 0.1  # tokens that a further one of a model has to promise, however little time it takes
    hope: float = 1.5  # times the pass's tokens per second, were the draft perfect, for a costly drafter to be tried

    # When a costly drafter is tried
    probe_length: int = 1  # tokens: a wrong one says as much as two do
    probe_first: int = 8  # rounds between tries, doubled with every failure
    probe_last: int = 160  # rounds between tries, at most
    n_teacher_forced: int = 16  # tokens guessed by teacher forcing; docs/benchmarks.md, "How much the planner leaves"
    mostly: float = 0.75  # share of these that are right, so that a try follows at once
    hopeless_share: float = 0.0025  # share of the time since then, for one that seems too slow: it may have been interrupted
    far_behind: int = 24  # tokens missed, beyond which it is asked by teacher forcing instead: catching up takes longer

    # Drafting ahead
    likely: float = 0.1  # chance that a token is accepted in the next round: a pass hides the time, but it is the CPU's work

    # Limits of losses
    lookups_lose: float = 0.1  # plain passes, at a request's start, by all lookups: of 14 tokens, under 1 % by simulation
    lookups_share: float = 0.005  # share of the request's time, by the same
    costly_loses: float = 1.0  # plain passes, at the engine's start, by each costly drafter: a try or two
    costly_share: float = 0.02  # share of all time, by the same: its later tries are paid from it
    most_saved: float = 8.0  # plain passes, by any: old gains are not gambled away

    # Measured costs, see `augury.speculation.costs`
    learn_all: float = 0.03  # weight of a pass in the figures of all sizes: the machine's speed drifts for all of them
    learn_near: float = 0.15  # further weight in those of its own size, and less in those of sizes up to half and double
    alike: float = 0.5  # the share of that for all other passes of several tokens
    stale: int = 32  # passes with drafts, or without, after which the others' figures follow theirs: none of these were seen
    doubt: float = 0.2  # share of a figure that rests on nothing; a measurement halves it; replay, "less doubt of costs"
    outlier: float = 2.0  # a longer time by this factor is an interruption, and counts as this factor
    learn_draft: float = 0.2  # weight of a new measurement of a drafter's time
    warm_up: int = 16  # asks: the first are slow
    much_missed: int = 4  # times the draft's length: tokens to catch up with, beyond which it is they that took the time


CONSTANTS = PlannerConstants()


kernels = ImportedLater("augury.speculation.kernels")

TOKEN, PARENT, FIRST, PROPOSERS, IS_DRAWN = range(5)  # of a tree's nodes; drafters are bits; the first one by itself, too
CHANCE, REACH = range(2)

N_NODES, N_CHOSEN, N_PATH, N_EMITTED, IS_STOPPED, DRAFTED_NS, PASS_NS = range(7)  # of a compiled round
N_FIGURES = 7
NOT_ASKED = -2  # in place of a draft's length

TYPICAL = 0
"""The bucket of all tokens together; among siblings only the first one's."""
RUNS = (0, 1, 2, 3, 5, 9, 17, 33)
"""The first run of right tokens of each bucket for runs; these come after `TYPICAL`."""
CONFIDENCE = 1 + len(RUNS)
"""The first bucket for confidences, up to and between these `EDGES`."""
EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
EVIDENCE = CONFIDENCE + len(EDGES) + 1
"""The first bucket that the drafter itself gives."""
STEPS = (0.05, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9)  # of chances, in which agreement is learnt apart
KEEP_ALL = 0.998  # of the trials of all requests with each new one
