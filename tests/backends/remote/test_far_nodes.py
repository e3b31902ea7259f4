"""The time on the way is a pass's: the planner drafts the deeper the longer it is, and drafting ahead fills it.

Time passes by what is computed and sent, not by what the machine has to do beside it.
"""

import importlib
import threading

import numpy as np
import pytest
from oracles.models import tiny_model
from support.nodes import node_on_thread

from augury import Engine, Placement, Registry
from augury.backends.numba_cpu.model import NumbaCpuModel
from augury.backends.numba_cpu.team import Team
from augury.backends.remote import node as node_module
from augury.backends.remote.backend import hello
from augury.backends.remote.connection import Connection, Endpoint
from augury.backends.remote.model import RemoteModel

REGISTRY = Registry.discover()
PROMPT = [3, 1, 4, 1, 5, 3, 1, 4, 1] * 2
TOKEN_S, TRIP_S = 1e-4, 1e-4
CLOCKED = ("engine.loop", "engine.round_pass", "speculation.costs", "speculation.drafting")
CLOCKED += ("speculation.drafter_guard", "stages")


class Clock(threading.local):
    """Each thread's own time."""

    now = 0.0


@pytest.fixture
def ways(monkeypatch):
    """By address of a node the seconds that its way takes, 0.1 ms where nothing is set; as a token to compute."""
    clock, found, ask, forward = Clock(), dict[str, float](), Connection.ask, NumbaCpuModel.forward

    def asked(connection, message):
        clock.now += found.get(connection._address, TRIP_S)
        return ask(connection, message)

    def computed(model, batch):
        clock.now += TOKEN_S * len(batch.tokens)
        return forward(model, batch)

    monkeypatch.setattr(Connection, "ask", asked)
    monkeypatch.setattr(NumbaCpuModel, "forward", computed)
    monkeypatch.setattr(Team, "_was_displaced", lambda _: False)  # by other processes, in time of theirs
    for name in CLOCKED:
        monkeypatch.setattr(importlib.import_module(f"augury.{name}"), "perf_counter", lambda: clock.now)
    return found


@pytest.fixture(scope="module")
def far():
    with node_on_thread(registry=REGISTRY) as node:
        yield node.address


def answer(address, n=60, **how):
    """With a stage on a node between two here, or all of it here."""
    places = Placement(None if address is None else f"CPU,node:{address},CPU")
    how = {"placement": places, "n_ctx": 128, "threads": 1, "registry": REGISTRY, **how}
    with Engine.load(tiny_model("qwen2-dense"), **how) as engine:
        return engine.generate(PROMPT, temperature=0.3, seed=3, max_tokens=n)


def test_drafts_are_longer_where_passes_take_longer(ways, far):
    found = []
    for address, way_s in ((None, 0.0), (far, 0.01), (far, 0.05)):
        ways[far] = way_s
        found.append(answer(address, spec_type="recycle"))
    here, near, away = [float(np.mean(each.stats.draft_lengths)) for each in found]
    assert here < 1 < near < away
    assert found[0].tokens == found[1].tokens == found[2].tokens


def test_a_draft_model_writes_on_while_a_node_computes(ways, far):
    ways[far] = 0.05
    how = {"spec_type": "draft-model", "draft_model": tiny_model("qwen2-dense")}
    how["spec_options"] = {"draft-model": {"device": "none"}}
    here, there = answer(None, **how), answer(far, **how)
    assert there.tokens == here.tokens
    stats = there.stats.drafters["draft-model"]
    assert stats.ahead_used > 0
    assert stats.hidden_s > 0
    assert here.stats.drafters["draft-model"].ahead == 0


def test_the_next_draft_is_written_elsewhere_while_one_is_verified(ways, far, monkeypatch):
    ways[far], trips, ask = 0.05, list[str](), RemoteModel.ask
    monkeypatch.setattr(RemoteModel, "ask", lambda self, message: (trips.append(message.kind), ask(self, message))[1])
    with node_on_thread(registry=REGISTRY) as near:
        spec = f"draft-model:model={tiny_model('qwen2-dense')},device=node:{near.address}"
        there = answer(far, spec_type=spec, draft_max=4)
    assert there.tokens == answer(None, spec_type="none").tokens
    assert there.stats.drafters["draft-model"].ahead_used > 0
    assert len([kind for kind in trips if kind not in {"check", "forward"}]) <= 3, "what is asked of rows comes along later"


def test_a_node_with_a_delay_answers_so_much_later(monkeypatch):
    slept = []
    monkeypatch.setattr(node_module, "sleep", slept.append)
    with node_on_thread(registry=REGISTRY, delay_s=0.05) as node:
        hello(Endpoint(node.address))
    assert slept == [0.05]
