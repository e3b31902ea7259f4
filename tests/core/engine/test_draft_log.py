"""What a program that asks for it is told of drafts."""

import logging
from math import exp

import numpy as np
import pytest
from support.toys import ScriptedDrafter, toy_engine

from augury.engine import loop
from augury.types import Draft

GREEDY = {"temperature": 0.0, "max_tokens": 12}


class Branching(ScriptedDrafter):
    """Two tokens that could be next, the second of them right, and one after each."""

    def draft(self, history, limit):
        best = int(np.argmax(self.model.logits(history)))
        wrong = (best + 1) % self.model.info.n_vocab
        return Draft([wrong, best, wrong, wrong], parents=[-1, -1, 0, 1]) if limit >= 4 else Draft()


class Probable(ScriptedDrafter):
    def draft(self, history, limit):
        draft = super().draft(history, limit)
        return Draft(draft.tokens, probabilities=np.full((len(draft), self.model.info.n_vocab), 0.25, np.float32))


class Confident(ScriptedDrafter):
    def draft(self, history, limit):
        tokens = super().draft(history, limit).tokens
        return Draft(tokens, confidence=np.linspace(1, 0.5, len(tokens), dtype=np.float32))


def logged(caplog, make, **params):
    caplog.set_level(logging.DEBUG, "augury.drafts")
    with toy_engine(drafter=make) as engine:
        result = engine.generate([1, 2, 3], **GREEDY, **params)
    return result, [record for record in caplog.records if record.name == "augury.drafts"]


def test_each_token_of_a_draft_stands_beside_what_the_target_chose(caplog):
    result, records = logged(caplog, lambda model: ScriptedDrafter(model, [(2, 2)]), logprobs=0)
    assert records[0].message == "slot 0: scripted drafted 4 tokens, 2 accepted"
    draft, emitted = records[0].draft, result.pieces[1:4]  # the first token is the prompt's own
    assert [token.token for token in draft.tokens[:2]] == [piece.token for piece in emitted[:2]]
    assert [token.is_accepted for token in draft.tokens] == [True, True, False, False]
    chosen = [(piece.token, piece.logprob) for piece in emitted]
    assert [(token.target.token, token.target.logprob) for token in draft.tokens[:3]] == chosen
    assert draft.tokens[3].target is None
    assert (draft.target.token, draft.target.logprob) == chosen[2]


def test_a_tree_shows_its_accepted_path(caplog):
    _, records = logged(caplog, Branching)
    draft = records[0].draft
    assert draft.n_accepted == 1
    assert [token.is_accepted for token in draft.tokens] == [False, True, False, False]
    assert [token.target is not None for token in draft.tokens] == [True, True, False, True]


@pytest.mark.parametrize(
    ("drafter", "expected"),
    [(Probable, [0.25] * 3), (Confident, [1.0, 0.8333, 0.6667]), (ScriptedDrafter, [None] * 3)],  # cut with the draft
)
def test_how_probable_a_drafter_takes_its_tokens_to_be_is_shown(caplog, drafter, expected):
    _, records = logged(caplog, lambda model: drafter(model, [(4, 0)]), speculative={"n_max": 3})
    found = [token.probability for token in records[0].draft.tokens]
    assert found == (expected if expected[0] is None else pytest.approx(expected, abs=1e-4))


def test_what_comes_after_a_stop_is_left_out(caplog):
    with toy_engine() as plain:
        told = plain.generate([1, 2, 3], **GREEDY).tokens
    result, records = logged(caplog, lambda model: ScriptedDrafter(model, [(4, 0)]), stop_token_ids=[told[2]])
    draft = records[0].draft
    assert (draft.n_accepted, draft.target.token) == (1, told[2])
    assert result.tokens == told[:3]
    assert 0 < exp(draft.target.logprob) <= 1


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_it_costs_nothing_where_it_is_not_asked_for_and_changes_no_token(caplog, monkeypatch, level):
    calls = []
    log_draft = loop.log_draft
    monkeypatch.setattr(loop, "log_draft", lambda *args: calls.append(args) or log_draft(*args))
    caplog.set_level(level, "augury.drafts")
    with toy_engine(drafter=lambda model: ScriptedDrafter(model, [(2, 1)])) as engine, toy_engine() as plain:
        assert engine.generate([1, 2], **GREEDY).tokens == plain.generate([1, 2], **GREEDY).tokens
    assert bool(calls) == (level == logging.DEBUG)
