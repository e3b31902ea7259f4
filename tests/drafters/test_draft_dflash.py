"""`draft-dflash` chooses by the tokens before, and `draft-dspark` believes its confidence."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.drafts import draft_file
from support.head_rig import OPTIONS
from support.toys import as_history

from augury.interfaces import Ask, Pace
from augury.types import Draft


@pytest.mark.parametrize(("name", "n"), [("dflash-qwen3", 2), ("dspark-qwen3", 3)])
def test_a_context_that_is_full_ends_drafts(rig, name, n):
    made = rig(name)
    text = np.resize(made.text, OPTIONS.n_ctx)
    made.feed(0, OPTIONS.n_ctx - 3, text=text)
    assert len(made.draft(text[: OPTIONS.n_ctx - 2], 5)) == n
    made.feed(OPTIONS.n_ctx - 3, OPTIONS.n_ctx - 1, text=text)
    assert len(made.draft(text, 5)) == n - 2


def test_a_block_is_not_teacher_forced(rig):
    made = rig("dflash-qwen3")
    made.feed(0, 8)
    assert made.drafters[0].teacher_forced(as_history(made.text[:9]), 4) is None


def test_what_may_follow_alternatives_of_dflash2_is_what_would_follow_them_if_they_were_drafted(rig, monkeypatch):
    made = rig("dflash2-qwen3")
    made.feed(0, 40)
    drafter, ask = made.drafters[0], Ask(made.drafters[0], as_history(made.text[:41]), 12, pace=Pace(4))
    request = drafter.request(ask)
    (written,) = made.runner.draft([request])
    for place, candidates in enumerate(written.candidates[1:], 1):
        assert np.allclose(written.lattice[place, written.tokens[place - 1]], candidates, atol=1e-6)
    other = written.candidates[0][1][0]  # as if it were drafted in the first place
    after, judged = made.runner._after, []

    def forced(logits, rows, best, hidden, before, step):
        before = [other] if len(judged) == 1 else before
        judged.append(after(logits, rows, best, hidden, before, step))
        return judged[-1]

    monkeypatch.setattr(made.runner, "_after", forced)
    (found,) = made.runner.draft([request])
    assert np.allclose(written.lattice[1, other], found.candidates[1], atol=1e-6)
    draft = drafter.made_of(written, 12)
    assert draft.depth == 4
    assert any(parent >= 4 for parent in draft.parents.tolist()), "an alternative goes on"


def test_a_head_that_tells_its_confidence_is_believed(rig):
    made = rig("dspark-qwen3")
    made.feed(0, 40)
    found = made.drafters[0].draft(as_history(made.text[:41]), 5)
    file, block = made.loader.open(draft_file("dspark-qwen3")), made.runner._block
    tensors = {
        name: tensor.data.view(np.float32).reshape(tensor.shape)
        for name, tensor in file.tensors.items()
        if name.startswith(("conf_proj", "markov_w1"))
    }
    tokens = np.int32([made.text[40], *[block.mask] * 4])
    context = made.runner._context
    passed = context.forward([context.prepare(0, tokens[:0], 5, Draft(tokens))], ("output",))
    before = [made.text[40], *found.tokens[:-1]]
    inputs = np.hstack([passed.features("output"), tensors["markov_w1.weight"][before]]).astype(np.float64)
    scores = inputs @ tensors["conf_proj.weight"][0] + tensors["conf_proj.bias"]
    assert np.allclose(found.confidence, 1 / (1 + np.exp(-scores)), rtol=1e-5)
