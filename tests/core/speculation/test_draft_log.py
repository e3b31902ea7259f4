"""What -vv tells of drafts."""

import logging

import numpy as np
import pytest
from toys import ScriptedDrafter, toy_engine

from augury.engine import loop
from augury.types import Draft

GREEDY = {"temperature": 0.0, "max_tokens": 12}


class Branching(ScriptedDrafter):
    """Two tokens that could be next, the second of them right, and one behind each."""

    def draft(self, history, limit):
        best = int(np.argmax(self.model.logits(history)))
        wrong = (best + 1) % self.model.info.n_vocab
        return Draft([wrong, best, wrong, wrong], parents=[-1, -1, 0, 1]) if limit >= 4 else Draft()


def told(caplog, make, **params):
    caplog.set_level(logging.DEBUG, "augury.drafts")
    with toy_engine(drafter=make) as engine:
        result = engine.generate([1, 2, 3], **GREEDY, **params)
    return result, [record.message.splitlines() for record in caplog.records if record.name == "augury.drafts"]


def test_each_token_of_a_draft_stands_beside_what_the_target_chose(caplog):
    result, drafts = told(caplog, lambda model: ScriptedDrafter(model, [(2, 2)]), logprobs=0)
    head, titles, *lines = drafts[0]
    assert head == "slot 0: scripted drafted 4 tokens, 2 accepted"
    assert titles.split() == ["drafted", "p", "target", "p"]
    words = [line.split() for line in lines]
    emitted = result.pieces[1:4]  # the first token is the prompt's own
    assert [row[0] for row in words[:2]] == [str(piece.token) for piece in emitted[:2]]
    chosen = [[str(piece.token), f"{np.exp(piece.logprob):.3f}"] for piece in emitted]
    assert [row[1:] for row in words[:2]] == [[*each, "accepted"] for each in chosen[:2]]
    assert words[2][1:] == [*chosen[2], "rejected"]
    assert words[3][1:] == ["not", "reached"]
    assert words[4] == [*chosen[2], "the", "target's", "own"]


def test_a_tree_shows_its_accepted_path(caplog):
    _, drafts = told(caplog, Branching)
    assert drafts[0][0] == "slot 0: scripted drafted 4 tokens, 1 accepted"
    assert [line.split()[-1] for line in drafts[0][2:6]] == ["rejected", "accepted", "reached", "rejected"]


def test_a_drafters_own_probabilities_are_shown(caplog):
    class Drawing(ScriptedDrafter):
        def draft(self, history, limit):
            draft = super().draft(history, limit)
            return Draft(draft.tokens, probabilities=np.full((len(draft), self.model.info.n_vocab), 0.25, np.float32))

    _, drafts = told(caplog, lambda model: Drawing(model, [(1, 0)]))
    assert drafts[0][2].split()[1] == "0.250"


def test_texts_are_shown_where_there_is_a_tokenizer(caplog):
    class Letters:
        eog = frozenset()

        def piece(self, token):
            return bytes([ord("a") + token])

    from augury.speculation.draft_log import _text

    class Row:
        tokenizer = Letters()

    assert _text(Row(), 2) == "2 'c'"


def test_how_confident_a_drafter_is_is_shown(caplog):
    class Sure(ScriptedDrafter):
        def draft(self, history, limit):
            tokens = super().draft(history, limit).tokens
            return Draft(tokens, confidence=np.linspace(1, 0.5, len(tokens), dtype=np.float32))

    _, drafts = told(caplog, lambda model: Sure(model, [(4, 0)]), speculative={"n_max": 3})
    assert [line.split()[1] for line in drafts[0][2:5]] == ["1.000", "0.833", "0.667"]  # cut with the draft


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_it_costs_nothing_where_it_is_not_asked_for_and_changes_no_token(caplog, monkeypatch, level):
    calls = []
    lines = loop.draft_lines
    monkeypatch.setattr(loop, "draft_lines", lambda *args: calls.append(args) or lines(*args))
    caplog.set_level(level, "augury.drafts")
    with toy_engine(drafter=lambda model: ScriptedDrafter(model, [(2, 1)])) as engine, toy_engine() as plain:
        assert engine.generate([1, 2], **GREEDY).tokens == plain.generate([1, 2], **GREEDY).tokens
    assert bool(calls) == (level == logging.DEBUG)
