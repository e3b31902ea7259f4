"""The Python of a round with the drafters of `auto`: its time beside the pass, of a model whose passes are looked up."""

from time import thread_time
from types import SimpleNamespace

import numpy as np
import pytest
from support.toys import toy_engine

from augury.drafters.recycle import Recycle, RecycleOptions
from augury.drafters.suffix import Suffix, SuffixOptions
from augury.engine.loop import Loop
from augury.passes import ArrayPass
from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.planner import DraftPlanner
from augury.speculation.profiles import DrafterProfile
from augury.testing.toy_model import ToyModel

pytestmark = pytest.mark.bench

V, N_TOKENS, N_CTX, N_MAX = 512, 300, 1024, 16
TIMES = [PassTime(n, 0, seconds) for n, seconds in ((1, 0.02), (4, 0.0205), (8, 0.022), (16, 0.03), (32, 0.06), (64, 0.12))]


class TablePass(ArrayPass):
    """Rows of which the best tokens alone are known."""

    def __init__(self, best):
        self._best = best

    def argmax(self):
        return self._best

    def top_k(self, rows, k):
        ids = (self._best[rows][:, None] + np.arange(k, dtype=np.int32)) % V
        return ids, np.zeros(ids.shape, np.float32)


class TableModel(ToyModel):
    """Each token has a successor, but at some places of a text another one follows."""

    rng = np.random.default_rng(1)
    successors = rng.integers(0, V, V).astype(np.int32)
    jumps = np.full(N_CTX, -1, np.int32)  # by place; -1: none
    seconds = 0.0  # of all passes

    @classmethod
    def begin(cls, share):
        """Another text, in which the token at a share of the places does not follow from the one before."""
        cls.jumps = np.where(cls.rng.random(N_CTX) < share, cls.rng.integers(0, V, N_CTX), -1).astype(np.int32)

    def forward(self, batch):
        start = thread_time()
        jumps = self.jumps[batch.positions[batch.rows]]
        best = np.where(jumps >= 0, jumps, self.successors[batch.tokens[batch.rows]])
        TableModel.seconds += thread_time() - start
        return TablePass(best)


def made(kind, options, shared):
    session = {"tokenizer": None, "n_slots": 4, "verify": "match"}
    session["shared"] = lambda key, make: shared.setdefault(key, make())
    return lambda model: kind(options, SimpleNamespace(model=model.info, **session))


@pytest.mark.parametrize("n_slots", [1, 4])
@pytest.mark.parametrize(("jumps", "speed"), [(0.25, 1), (1.0, 8)], ids=["drafting", "resting"])
def test_a_round_of_auto(benchmark, monkeypatch, n_slots, jumps, speed):
    seconds, run = [], Loop.round

    def timed(loop):
        before, start = TableModel.seconds, thread_time()
        run(loop)
        if len(loop._running) == n_slots:
            seconds.append(thread_time() - start - (TableModel.seconds - before))

    class Planner(DraftPlanner):
        """Is told that passes took what they were said to take."""

        def observe_round(self, rounds, depth, n_others, pass_s, overhead_s):
            n = len(rounds) + n_others + sum(len(choice.nodes) for choice, _ in rounds)
            super().observe_round(rounds, depth, n_others, known.seconds(n, depth), overhead_s)

    drafters = [made(Suffix, SuffixOptions(), {}), made(Recycle, RecycleOptions(), {})]
    times = [PassTime(each.n, 0, each.seconds / speed) for each in TIMES]
    known, costs = (PassCosts(times, n_slots * (N_MAX + 1)) for _ in range(2))
    planner = Planner(costs, [DrafterProfile.of(make(TableModel(n_vocab=V))) for make in drafters])
    how = {"drafter": drafters, "planner": planner, "n_max": N_MAX, "slots": n_slots}
    with toy_engine(target=TableModel, n_vocab=V, n_ctx=N_CTX, **how) as engine:

        def texts():
            TableModel.begin(jumps)
            running = [engine.submit([1, 2, 3 + i], max_tokens=N_TOKENS, temperature=0.0) for i in range(n_slots)]
            return [each.result().stats for each in running]

        texts()
        monkeypatch.setattr(Loop, "round", timed)
        (stats, *_) = benchmark.pedantic(texts, rounds=12)
    for name, share in (("quiet", 10), ("median", 50)):  # beside other work on the machine, the quiet ones say more
        benchmark.extra_info[f"ms of Python, {name}"] = round(1e3 * float(np.percentile(seconds, share)), 3)
    benchmark.extra_info["drafted by round"] = round(stats.n_drafted / stats.n_rounds, 2)
    benchmark.extra_info["tokens by round"] = round(stats.mean_accepted_length, 2)
