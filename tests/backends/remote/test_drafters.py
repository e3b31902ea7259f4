"""Draft models and heads on a node: one trip a draft, and the same text whether the node is there or not."""

from time import monotonic

import pytest
from oracles.models import tiny_model
from support.drafter_specs import head_specs
from support.nodes import NodeOnThread, node_on_thread

from augury import Engine, Registry
from augury.backends.remote.model import RemoteModel

REGISTRY = Registry.discover()
PROMPT = [3, 1, 4, 1, 5, 3, 1, 4, 1] * 2
HEADS = head_specs("llama-dense")
SPECS = {
    "draft-model": f"draft-model:model={tiny_model('llama-dense-q4_0')}",
    "recurrent": f"draft-model:model={tiny_model('qwen35-dense')}",
    **HEADS,
}


@pytest.fixture
def node():
    made = NodeOnThread(registry=REGISTRY)
    yield made
    made.stop()


@pytest.fixture
def trips(monkeypatch):
    """The kinds of messages that are sent, in order."""
    sent, ask = [], RemoteModel.ask
    monkeypatch.setattr(RemoteModel, "ask", lambda self, message: (sent.append(message.kind), ask(self, message))[1])
    return sent


def load(spec_type, name="llama-dense", **how):
    how = {"spec_fixed": True, "draft_max": 4, "n_ctx": 256, "threads": 1, "registry": REGISTRY, **how}
    return Engine.load(tiny_model(name), spec_type=spec_type, **how)


@pytest.mark.parametrize("spec", SPECS)
def test_what_drafts_on_a_node_drafts_what_it_would_here(node, spec):
    asked = {"temperature": 0.7, "seed": 7, "top_k": 8, "max_tokens": 32}
    found = []
    for device in ("none", f"node:{node.address}"):
        with load(f"{SPECS[spec]},device={device}") as engine:
            result = engine.generate(PROMPT, **asked)
            stats = next(iter(result.stats.drafters.values()))
            found.append((result.tokens, stats.drafted, stats.accepted, stats.failed))
            assert {line.device for line in engine.memory_table() if "(draft)" in line.purpose} >= {device} - {"none"}
    assert found[0] == found[1]
    assert found[1][1] > 0


@pytest.mark.parametrize("spec", SPECS)
def test_a_drafter_tells_how_long_a_trip_takes(spec):
    with node_on_thread(registry=REGISTRY, delay_s=0.02) as far, load(f"{SPECS[spec]},device=node:{far.address}") as engine:
        drafter, *_ = engine._drafters
        assert (drafter.traits.trip_s >= 0.02, drafter.traits.is_paced) == (True, False)


def test_a_draft_is_one_trip(node, trips):
    with load(f"draft-model:model={tiny_model('qwen2-dense')},device=node:{node.address}", "qwen2-dense") as engine:
        trips.clear()
        stats = engine.generate(PROMPT, temperature=0, max_tokens=60).stats.drafters["draft-model"]
    assert stats.drafts > 5
    assert trips == ["check", *["forward"] * (stats.drafts + 1)], "the prompt's is one, too"


@pytest.mark.parametrize("spec", ["draft-model", *HEADS])
def test_a_drafter_that_vanishes_changes_no_text_and_drafts_again_when_it_is_back(node, spec):
    asked = {"temperature": 0.7, "seed": 7, "top_k": 8, "max_tokens": 60}
    with load("none") as engine:
        right = engine.generate(PROMPT, **asked).tokens
    with load(f"{SPECS[spec]},device=node:{node.address}") as engine:
        found = []
        for piece in (running := engine.submit(PROMPT, **asked)):
            found.append(piece)
            if len(found) == 20:
                node.stop()
            if len(found) == 30:
                node.start()
        assert tuple(piece.token for piece in found) == right
        assert all(each.failed is None for each in running.result().stats.drafters.values())
        end, n_drafted = monotonic() + 60, 0
        while not n_drafted and monotonic() < end:
            n_drafted = engine.generate(PROMPT, **asked).stats.n_drafted
        assert n_drafted > 0
