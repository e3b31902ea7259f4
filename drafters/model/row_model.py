"""Models without layers that belong to a head: each row of logits depends on its own token or hidden state alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from attrs import evolve

from augury.passes import Context, Pass


class RowModel:
    """Computes rows of any number of tokens or hidden states, and keeps nothing of them."""

    def __init__(self, context: Context) -> None:
        """Take over the model."""
        self._context = context
        opened = context.open(np.zeros(1, np.int32), may_reuse=False)
        assert opened is not None
        self._slot = opened.slot

    def rows(self, hidden: np.ndarray) -> np.ndarray:
        """The logits (m, V) of hidden states (m, E)."""
        made = [passed.rows().copy() for passed in self._passes(np.zeros(len(hidden), np.int32), hidden)]
        return np.concatenate(made)

    def rows_of_tokens(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The logits (m, V) of tokens (m,) int32, and their hidden states (m, E)."""
        made = [(passed.rows().copy(), passed.features("output")) for passed in self._passes(tokens, None)]
        rows, hidden = zip(*made, strict=True)
        return np.concatenate(rows), np.concatenate(hidden)

    def hidden_of(self, tokens: np.ndarray) -> np.ndarray:
        """The hidden states (m, E) of tokens (m,) int32."""
        return np.concatenate([passed.features("output") for passed in self._passes(tokens, None, has_rows=False)])

    def _passes(self, tokens: np.ndarray, hidden: np.ndarray | None, *, has_rows: bool = True) -> Iterator[Pass]:
        context, features = self._context, () if hidden is not None else ("output",)
        for start in range(0, len(tokens), context.spec.n_ctx):
            here = slice(start, start + context.spec.n_ctx)
            feed = context.prepare(self._slot, tokens[here], len(tokens[here]) if has_rows else 0)
            feed = feed if hidden is None else evolve(feed, hidden=hidden[here])
            yield context.forward([feed], features)
            context.commit(feed)
            context.truncate(self._slot, 0)


class Encoder(RowModel):
    """Makes hidden states (m, E) of the target's features of m tokens.

    Attributes:
        names: The target's features that they are made of, side by side; empty ones stand for zeros.
        width: Values of one of them.
    """

    def __init__(self, context: Context, names: Sequence[str]) -> None:
        """Take over the model that makes them, whose rows of logits they are."""
        super().__init__(context)
        self.names = names
        self.width = context.info.n_embd // len(names)

    def joined(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """Features (m, F) by name, side by side; of several residual streams the mean counts."""
        m = len(next(iter(features.values())))
        parts = [features[name] if name else np.zeros((m, self.width), np.float32) for name in self.names]
        if any(part.shape[1] != self.width for part in parts):
            parts = [part.reshape(m, -1, self.width).mean(axis=1, dtype=np.float32) for part in parts]
        return np.concatenate(parts, axis=1)
