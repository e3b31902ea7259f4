"""The time on the way is a pass's: the planner drafts the deeper the longer it is, and drafting ahead fills it."""

import numpy as np
import pytest
from oracles.models import tiny_model
from support.nodes import NodeOnThread

from augury import Engine, Placement, Registry

REGISTRY = Registry.discover()
PROMPT = [3, 1, 4, 1, 5, 3, 1, 4, 1] * 2


@pytest.fixture(scope="module")
def devices():
    """By milliseconds of delay, two stages here and one between them."""
    nodes = {ms: NodeOnThread(registry=REGISTRY, delay_s=ms / 1000) for ms in (10, 50)}
    yield {0: None, **{ms: f"CPU,node:{node.address},CPU" for ms, node in nodes.items()}}
    for node in nodes.values():
        node.stop()


def answer(devices, **how):
    asked = {"temperature": 0.3, "seed": 3, "max_tokens": how.pop("n", 60)}
    with Engine.load(
        tiny_model("qwen2-dense"), placement=Placement(devices), n_ctx=128, threads=1, registry=REGISTRY, **how
    ) as engine:
        return engine.generate(PROMPT, **asked)


def test_drafts_are_longer_where_passes_take_longer(devices):
    answers = {ms: answer(devices[ms], spec_type="recycle", n=30 if ms == 50 else 60) for ms in devices}
    lengths = {ms: float(np.mean(each.stats.draft_lengths)) for ms, each in answers.items()}
    assert lengths[0] < 1
    assert min(lengths[10], lengths[50]) > 2
    assert answers[0].tokens == answers[10].tokens
    assert answers[0].tokens[:30] == answers[50].tokens


def test_a_draft_model_writes_on_while_a_node_computes(devices):
    how = {
        "spec_type": "draft-model",
        "draft_model": tiny_model("qwen2-dense"),
        "spec_options": {"draft-model": {"device": "none"}},
    }
    here, there = answer(devices[0], **how), answer(devices[10], **how)
    assert there.tokens == here.tokens
    stats = there.stats.drafters["draft-model"]
    assert stats.ahead_used > 0
    assert stats.hidden_s > 0
    assert here.stats.drafters["draft-model"].ahead == 0
