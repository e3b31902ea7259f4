"""Drafts that are drawn, by tiny distributions that are known, and how far what is emitted is from the target's."""

from collections import defaultdict
from itertools import product

import numpy as np

from augury.speculation.verification import reject

N_VOCAB = 3


class Text:
    """A target and a drafter with a distribution after every text, some of them with tokens that cannot come."""

    def __init__(self, seed, depth, n_vocab=N_VOCAB):
        rng = np.random.default_rng(seed)
        self.depth, self.n_vocab = depth, n_vocab
        texts = [text for n in range(depth + 1) for text in product(range(n_vocab), repeat=n)]
        self.p, self.q = ({text: self._odds(rng) for text in texts} for _ in range(2))
        for text in texts:  # the drafter may be the target
            if rng.random() < 0.1:
                self.q[text] = self.p[text]
        self.ends = {text for text in texts if text and rng.random() < 0.2}  # where a draft ends early
        self.certain = {text for text in texts if rng.random() < 0.2}  # where nothing is drawn of a tree
        self.others = {text: [int(i) for i in np.flatnonzero(rng.random(n_vocab) < 0.4)] for text in texts}

    def _odds(self, rng):
        odds = rng.integers(0, 6, self.n_vocab)
        odds[rng.integers(self.n_vocab)] += 1
        return odds / odds.sum()

    def chain(self, chance, text=()):
        """A drawn draft after a text: tokens, parents, probabilities."""
        tokens, rows = [], []
        while len(text) < self.depth and text not in self.ends:
            rows.append(self.q[text])
            tokens.append(chance.pick(self.q[text]))
            text += (tokens[-1],)
        return tokens, range(-1, len(tokens) - 1), rows

    def tree(self, chance, text=()):
        """The same with certain tokens beside the drawn ones, whose own drafts may be drawn as well."""
        tokens, parents, rows = [], [], []
        places = [(text, -1)]
        for at, parent in places:
            if len(at) == self.depth or at in self.ends:
                continue
            drawn = None if at in self.certain else chance.pick(self.q[at])
            for token in dict.fromkeys([*([] if drawn is None else [drawn]), *self.others[at]]):
                places.append(((*at, token), len(tokens)))
                tokens.append(token)
                parents.append(parent)
                rows.append(self.q[at] if token == drawn else [0.0] * self.n_vocab)
        return tokens, parents, rows


def verified(text, draft, chance, emitted=(), verify=reject, accept_by=lambda place: place, **how):
    """What a round emits after some tokens, and which of the draft it accepts; numbers are those of their places."""
    tokens, parents, rows = draft

    def target(node, depth):
        path = []
        while node >= 0:
            path.append(tokens[node])
            node = parents[node]
        assert len(path) == depth
        return np.arange(text.n_vocab), text.p[(*emitted, *reversed(path))]

    def uniform(depth):
        place = len(emitted) + depth
        return chance.number("accept", accept_by(place)), chance.number("draw", place)

    accepted = verify(tokens, parents, np.array(rows) if rows else None, target, uniform, **how)
    assert [tokens[i] for i in accepted.path] == accepted.tokens[:-1]
    assert [parents[i] for i in accepted.path] == [-1, *accepted.path[:-1]][: len(accepted.path)]
    return tuple(accepted.tokens), tuple(accepted.path)


def distance(text, outcomes):
    """How far what is emitted, and goes on as the target says, is from the target's distribution of texts."""
    n = text.depth + 1
    found, expected = defaultdict(float), defaultdict(float)

    def go_on(emitted, weight, into):
        if len(emitted) == n:
            into[emitted] += weight
            return
        for token, p in enumerate(text.p[emitted]):
            go_on((*emitted, token), weight * p, into)

    go_on((), 1.0, expected)
    for (emitted, *_), weight in outcomes.items():
        go_on(emitted, weight, found)
    return max(abs(found[each] - expected[each]) for each in expected)
