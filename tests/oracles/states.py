"""Texts in slots of a model with a state per sequence, played pass by pass, and held against fresh runs."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
from oracles.passes import run_of

from augury.batch import Batch
from augury.interfaces import Progress
from augury.types import ModelOptions

BLOCK = 16  # keys of so many positions lie together
SPARE = 3  # a slot where fresh runs are computed to compare with
CHAIN = tuple(range(-1, 8))
TREE = (-1, -1, 0, 1)
SCRIPT = (((7, ()), (2, ())), ((1, TREE), (1, ())), ((2, ()), (1, (-1, 0))), ((1, ()), (3, ())))  # of two texts, pass by pass
ACCEPTED = (3, 1)  # which path of each one's drafts
RIGHT = WeakKeyDictionary()  # by model: the logits after a text


class Text:
    """What a slot holds, what of its last draft is to be taken in, and what a manager would have it do next."""

    def __init__(self, slot, seed):
        self.slot = slot
        self.rng = np.random.default_rng(seed)
        self.tokens = np.empty(0, np.int32)
        self.accepted = []

    def share(self, n_certain, parents):
        """Tokens of a pass: certain ones, then a draft by its parents; and the texts that their rows follow."""
        start, n = len(self.tokens), n_certain + len(parents)
        tokens = self.rng.integers(0, 128, n).astype(np.int32)
        above = [*range(-1, n_certain - 1), *(n_certain + parent if parent >= 0 else n_certain - 1 for parent in parents)]
        paths = []
        for i, parent in enumerate(above):
            paths.append([*(paths[parent] if parent >= 0 else []), i])
        self.fed = tokens, above, paths, start, n_certain
        return tokens, np.array([start + len(path) - 1 for path in paths], np.int32), above, n_certain

    def expected(self, model):
        """The logits of the share's rows, by fresh runs over each path that no other run has covered."""
        tokens, _, paths, _, _ = self.fed
        rows = RIGHT.setdefault(model, {})
        texts = [(*self.tokens.tolist(), *tokens[path].tolist()) for path in paths]
        for text in reversed(texts):
            if text not in rows:  # a leaf
                logits = model.forward(run_of(text, slot=SPARE)).rows().copy()
                rows |= {text[: i + 1]: row for i, row in enumerate(logits)}
        return np.stack([rows[text] for text in texts])

    def keep(self, which):
        """Accept a path to one of the share's nodes, or none of the draft."""
        tokens, _, paths, start, n_certain = self.fed
        path = [i for i in paths[n_certain + which] if i >= n_certain] if 0 <= which < len(tokens) - n_certain else []
        self.tokens = np.concatenate([self.tokens, tokens[:n_certain], tokens[path]])
        self.accepted = [(self.slot, start + i, start + n_certain + at) for at, i in enumerate(path)]


def batch_of(texts, shares, *, is_mixed=False):
    """One pass over shares of several texts."""
    columns, slots, parents, drafted, accepted, n = ([], []), [], [], [], [], 0
    for text, (tokens, positions, above, n_certain) in zip(texts, shares, strict=True):
        columns[0].append(tokens)
        columns[1].append(positions)
        slots += [text.slot] * len(tokens)
        parents += [n + parent if parent >= 0 else -1 for parent in above]
        drafted += [i >= n_certain for i in range(len(tokens))]
        accepted += text.accepted
        n += len(tokens)
    places = np.concatenate([np.arange(len(tokens)) for tokens, _, _, _ in shares])
    order = np.argsort(places, kind="stable") if is_mixed else np.arange(n)
    at = np.empty(n + 1, np.int32)
    at[order], at[-1] = np.arange(n), -1
    is_chain = all(above == list(range(-1, len(above) - 1)) for _, _, above, _ in shares)
    return Batch(
        np.concatenate(columns[0])[order],
        np.array(slots, np.int32)[order],
        np.concatenate(columns[1])[order],
        np.arange(n, dtype=np.int32),
        parents=None if is_chain else at[np.array(parents, np.int32)[order]],
        accepted=np.array(accepted, np.int32) if accepted else None,
        is_drafted=np.array(drafted)[order] if any(drafted) else None,
    ), order


def memory(model, slot, n):
    return [array.copy() for array in model.slot_memory(slot, n // BLOCK * BLOCK)]


def assert_same_state(model, text):
    """One more token, with which what is accepted is taken in: its logits and all that its slot holds are a fresh run's."""
    batch, _ = batch_of([text], [text.share(1, ())])
    found = model.forward(batch).rows().copy()
    text.keep(-1)
    assert np.array_equal(found[0], model.forward(run_of(text.tokens, slot=SPARE)).rows()[-1])
    n = len(text.tokens)
    for found, right in zip(memory(model, text.slot, n), memory(model, SPARE, n), strict=True):
        assert np.array_equal(found, right)


def play(model, texts, played, *, is_mixed=False):
    """One pass over the shares of those texts that have a move, whose logits are those of fresh runs."""
    moves = [(text, move) for text, move in zip(texts, played, strict=True) if move is not None and move[0] + len(move[1])]
    if not moves:
        return
    some = [text for text, _ in moves]
    shares = [text.share(n_certain, parents) for text, (n_certain, parents, _) in moves]
    batch, order = batch_of(some, shares, is_mixed=is_mixed)
    found = model.forward(batch).rows().copy()
    assert np.array_equal(found, np.concatenate([text.expected(model) for text in some])[order])
    for text, (_, _, which) in moves:
        text.keep(which)


def script_rows(backend, file, plan):
    """The logits of a script of passes with prompts, trees and drafts, some of which are accepted."""
    options = ModelOptions(n_slots=3, n_ctx=64, threads=2, draft_max=5)
    model = backend(backend.options_class()).load(file, plan, options, Progress())
    texts, found = [Text(i, i) for i in range(2)], []
    for moves in SCRIPT:
        shares = [text.share(*move) for text, move in zip(texts, moves, strict=True)]
        batch, _ = batch_of(texts, shares)
        found.append(model.forward(batch).rows().copy())
        for text, which in zip(texts, ACCEPTED, strict=True):
            text.keep(which)
    model.close()
    return np.concatenate(found)
