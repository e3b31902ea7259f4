"""Whether chances are true: of the tokens that are given a chance of 0.4, about 40 % are right, on texts that nobody fitted.

The interval is stated in `OFF`, and faults that are planted leave it.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from oracles.planner_scenarios import choice_of, request_of, slot_of

from augury.drafters.recycle import Recycle, RecycleOptions
from augury.drafters.suffix import Suffix, SuffixOptions
from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.drafts import Outcome
from augury.speculation.planner import DraftPlanner
from augury.speculation.profiles import DrafterProfile
from augury.speculation.trials import Trials
from augury.types import Verdict

PAGES = Path(__file__).parents[2] / "data" / "pages"  # beginnings of docs, which stay as they were
COSTS = [PassTime(n, 0, 0.02 + 0.001 * n) for n in (1, 4, 16)]
EDGES = (0.05, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9)
N_SUCCESSORS = 8


class Session:
    slot = 0
    tokenizer = None

    def __init__(self, n_vocab):
        self.model = type("Model", (), {"n_vocab": n_vocab})
        self._shared = {}

    def shared(self, key, make):
        return self._shared.setdefault(key, make())


def texts():
    """Pages of the documentation as numbers, one for each word or sign."""
    words = {}
    pages = [(PAGES / f"{name}.txt").read_text() for name in ("options", "server", "architecture", "library")]
    return [np.int32([words.setdefault(word, len(words)) for word in re.findall(r"\w+|\W", page)]) for page in pages], words


def successors(text, n_vocab):
    """What a bigram model of the whole text finds most probable after each token, (V, n)."""
    counts = np.zeros((n_vocab, n_vocab), np.int32)
    np.add.at(counts, (text[:-1], text[1:]), 1)
    return np.argsort(-counts, axis=1, kind="stable")[:, :N_SUCCESSORS].astype(np.int32)


def play(n_pages=4, plant=lambda planner: None):
    """Of every token that was proposed, in every round, the chance that it was given and whether it was right.

    Two tables: that all up to it is right, and that it is right where its parent is. `plant` may plant a fault.
    """
    pages, words = texts()
    session = Session(len(words))
    drafters = [Suffix(SuffixOptions(), session), Recycle(RecycleOptions(), session)]
    planner = DraftPlanner(PassCosts(COSTS, 17), map(DrafterProfile.of, drafters))
    plant(planner)
    found, tried = [], []
    for text in pages[:n_pages]:
        request, best, at = request_of(planner), successors(text, len(words)), 500
        drafters[0].begin(text[: at + 1], 0)
        while at < len(text) - 20:
            history, slot = text[: at + 1], slot_of(request, agreement=planner.agreement)
            for known, drafter in zip(request.every, drafters, strict=True):
                slot.add(known, drafter.draft(history, 16))
            (nodes,) = planner.choose([slot])
            choice, follows = choice_of(slot, nodes), text[at + 1 : at + 18].tolist()
            ways = [()]
            for token, parent, chance in zip(slot.tree.tokens, slot.tree.parents, slot.reach().tolist(), strict=True):
                ways.append((*ways[parent + 1], token))
                found.append((chance, list(ways[-1]) == follows[: len(ways[-1])]))
            path, node = [], -1
            for i, parent in enumerate(choice.draft.above.tolist()):
                if parent == node and choice.draft.tokens[i] == follows[len(path)]:
                    path.append(node := i)
            outcome = Outcome(path, len(path) + 1)
            emitted = follows[: outcome.n_emitted]
            at += outcome.n_emitted
            tried += [(trial.chance, trial.is_right) for trial in Trials(slot, emitted)]
            after = np.append(history[-1:], choice.draft.tokens)
            verdict = Verdict(0, 0, len(emitted), is_used=False, top_after=after, top_ids=best[after], top_logits=best[after])
            slot.tree.teach(planner.agreement, emitted)
            for known, drafter in zip(request.every, drafters, strict=True):
                slot.score(known, emitted)
                drafter.accept(text[: at + 1], verdict)
            planner.observe_round([(choice, outcome)], at, 0, COSTS[0].seconds)
    return np.array(found, float), np.array(tried, float)


STEPS = list(zip((0.01, *EDGES), (*EDGES, 1.01), strict=True))
OFF = 0.05, 0.05  # by table: the share of right tokens may be so far from their mean chance


def off(found):
    """By how much each step of chances is off, and how many tokens are in it."""
    parts = [found[(found[:, 0] >= low) & (found[:, 0] < high)] for low, high in STEPS]
    return [(part[:, 1].mean() - part[:, 0].mean(), len(part)) if len(part) else (0.0, 0) for part in parts]


@pytest.fixture(scope="module")
def seen():
    return play()


@pytest.mark.parametrize("step", range(len(STEPS)), ids=[f"{low} to {high}" for low, high in STEPS])
@pytest.mark.parametrize("table", [0, 1], ids=["reached", "after a right parent"])
def test_of_the_tokens_that_are_given_a_chance_so_many_are_right(seen, step, table):
    by, n = off(seen[table])[step]
    assert n > 300
    assert abs(by) < OFF[table]


def overconfident(planner):
    """Every token is taken to be right, whatever is seen."""
    for profile in planner.profiles:
        profile.chances.prior[:] = profile.chances.table[2] = 0.97
        profile.chances.learning = 1e12, 1.0


def credulous(planner):
    """What two drafters propose is taken to be all but certain."""
    ratios = np.tile([1.0, 99.0, 1.0], planner.agreement.table.shape[1] // 3)  # alone, agreed, contested
    planner.agreement.table[:] = [np.full(len(ratios), 1e12), 1e12 * ratios, ratios]  # trials, against which others are few


@pytest.mark.parametrize("fault", [overconfident, credulous])
def test_a_fault_in_the_chances_is_seen(fault):
    for found, most in zip(play(2, fault), OFF, strict=True):
        assert max(abs(by) for by, n in off(found) if n > 300) > most
