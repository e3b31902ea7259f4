"""Runs a head that drafts a block of tokens with one pass, for all slots.

Position p of a slot holds the head's keys and values of the target's hidden state of token p. A draft is a pass over the last
token and masks, which leaves nothing::

    text                  the   cat   sat   on          "on" was sampled last, and is not in the target's memory
    hidden states of       0     1     2
    positions              0     1     2     3     4     5
    hold, or are given     0     1     2    on   mask  mask     predict tokens 4 and 5

Where a head predicts the next token at each position, "on" predicts token 4, and a mask less is given. Some heads
add logits by the token before, place by place, as the draft is chosen: to all tokens (DSpark, which may also go by the place
and by all tokens before, as Domino does), or to the best ones, which alone can be chosen then (DFlash2).

Source: DFlash, DFlash2, DSpark and Domino (see `augury.plugins.architectures.draft_heads`), as llama.cpp's driver feeds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve

from augury.batch import SlotInput
from augury.drafters.model.part_runner import PartRunner
from augury.drafters.model.written_draft import N_JUDGED, DraftRequest, WrittenDraft
from augury.passes import ArrayPass, Context, Pass
from augury.types import Draft

if TYPE_CHECKING:
    from augury.drafters.model.draft_runner import Shares
    from augury.drafters.model.part_runner import Encoder, RowModel

_NO_TOKENS = np.empty(0, np.int32)


class BlockRunner(PartRunner):
    """A head that the drafters of all slots share."""

    def __init__(
        self, context: Context, encoder: Encoder, *, n_vocab: int, further: Mapping[str, RowModel] = MappingProxyType({})
    ) -> None:
        """Take over a loaded head, and the `further` models on which a choice depends, by the names of plans.

        `transitions` gives logits that are added after each token, and a hidden state of it; with `previous` and `gate` see
        `_transitions`. `confidence` gives the probability of the best token from that state and the place's. `predecessor` and
        `successor` give factors of each token, `selector` those of a place.
        """
        super().__init__(context, encoder, n_vocab=n_vocab)
        block = context.info.parts["main"].block
        assert block is not None
        self._block = block
        self._further = further
        self._features = ("output",) if {"selector", "confidence", "gate"} & further.keys() else ()
        self._n_judged = self._block.n_selected or N_JUDGED
        self._states: dict[int, np.ndarray] = {}  # of a recurrent head after a place, by its row of logits

    def draft(self, requests: Sequence[DraftRequest]) -> list[WrittenDraft]:
        """See `DraftRunner.draft`: one pass over the blocks of all slots, of which nothing stays."""
        has_lattice = "transitions" not in self._further
        written = [WrittenDraft(lattice_reach=request.min_path_probability if has_lattice else None) for request in requests]
        requests = [evolve(request, limit=self._limit(request)) for request in requests]
        if not (writing := [i for i, request in enumerate(requests) if request.limit > 0]):
            return written
        logits, n_unread = self._pass([requests[i] for i in writing]), self._block.n_unread
        hidden, best = logits.features("output") if self._features else np.empty((0, 0)), logits.argmax()
        starts = dict(
            zip(writing, np.cumsum([0, *(requests[i].limit for i in writing)]).tolist(), strict=False)
        )  # of rows of logits
        n_skipped = {i: n * n_unread for n, i in enumerate(writing, 1)}  # rows of hidden states before
        step, drafting = 0, writing
        self._states.clear()
        while writing:
            rows = np.array([starts[i] + step for i in writing])
            places = rows + [n_skipped[i] for i in writing]
            before = [written[i].tokens[-1] if step else int(requests[i].history[-1]) for i in writing]
            judged, chosen, sure = self._after(logits, rows, best, hidden[places] if self._features else hidden, before, step)
            going_on = []
            for place, i in enumerate(writing):
                if written[i].add(
                    *(requests[i], judged, int(rows[place]) if judged is logits else place, int(chosen[place])),
                    n_vocab=self._n_vocab,
                    n_judged=self._n_judged,
                    confidence=None if sure is None else float(sure[place]),
                ):
                    going_on.append(i)
            writing, step = going_on, step + 1
        if "selector" in self._further:
            branching = [i for i in drafting if requests[i].n_candidates > 1 and requests[i].sampler is None]
            after = [(i, j + 1, a) for i in branching for j, each in enumerate(written[i].candidates[:-1]) for a, _ in each]
            rows = np.array([starts[i] + j for i, j, _ in after], np.int64)
            places = rows + np.array([n_skipped[i] for i, _, _ in after], np.int64)
            self._add_lattice(written, after, *self._selected(logits, rows, hidden[places], [a for _, _, a in after]))
        return written

    def _pass(self, requests: Sequence[DraftRequest]) -> Pass:
        """Keep the tokens that were fed since the last draft, and compute a block for each request."""
        texts = [self._text(request.slot) for request in requests]
        if behind := [text for text in texts if text.n < text.n_fed]:
            self._forward([(text, text.tokens[text.n : text.n_fed].copy(), None) for text in behind], n_rows=0)
            for text in behind:
                self._forget(text)
        n_unread, mask = self._block.n_unread, self._block.mask
        blocks = [Draft([int(each.history[-1]), *[mask] * (each.limit - 1 + n_unread)]) for each in requests]
        return self._forward([(text, _NO_TOKENS, block) for text, block in zip(texts, blocks, strict=True)])

    def _add_lattice(
        self, written: Sequence[WrittenDraft], after: Sequence[tuple[int, int, int]], ids: np.ndarray, scores: np.ndarray
    ) -> None:
        """Tell drafts the successors of candidates: by draft, place and previous token, tokens (m, k) with scores (m, k)."""
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        for (i, place, token), tokens, likely in zip(after, ids.tolist(), shares.tolist(), strict=True):
            lattice = written[i].lattice = written[i].lattice or {}
            best = sorted(zip(likely, tokens, strict=True), key=lambda each: (-each[0], each[1]))
            n = len(written[i].candidates[place])
            lattice[place, token] = [(other, p) for p, other in best[:n] if 0 <= other < self._n_vocab]

    def _selected(
        self, logits: Pass, rows: np.ndarray, hidden: np.ndarray, before: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The selected tokens (m, k) of rows, and their scores after tokens before; see `_after`."""
        further = self._further
        ids, likely = logits.top_k(rows, self._block.n_selected)
        if not len(ids):
            return ids, likely
        successors = further["successor"].hidden_of(np.maximum(ids, 0).reshape(-1)).reshape(*ids.shape, -1)
        factors = further["predecessor"].hidden_of(np.array(before, np.int32)) * further["selector"].rows(hidden)
        return ids, likely + np.einsum("mr,mkr->mk", factors, successors)

    def teacher_forced(self, slot: int, history: np.ndarray, n: int) -> np.ndarray | None:
        """None: each of the tokens would take a block of its own."""

    def _limit(self, request: DraftRequest) -> int:
        if not (self.is_fed(request) and self._can_follow(self._text(request.slot), request.history)):
            return 0
        room = min(self._block.size, self._n_ctx + 1 - len(request.history))  # for a block
        return min(request.limit, room - self._block.n_unread)

    def _after(
        self, logits: Pass, rows: np.ndarray, best: np.ndarray, hidden: np.ndarray, before: Sequence[int], step: int
    ) -> tuple[Pass, np.ndarray, np.ndarray | None]:
        """Rows (m,) of logits after the tokens before, (m,) best tokens, and their probabilities, if the head gives them.

        `best` are the best tokens of all rows; `hidden` (m, E) is there where a selector or confidence wants it; `step` is the
        place of all rows in their blocks.
        """
        further = self._further
        if not further:
            return logits, best[rows], None
        if "selector" in further:
            scores = np.full((len(rows), self.n_model_vocab), -np.inf, np.float32)
            ids, of_selected = self._selected(logits, rows, hidden, before)
            np.put_along_axis(scores, ids, of_selected, axis=1)
            judged = ArrayPass(scores)
            return judged, judged.argmax(), None
        added, states = self._transitions(rows, hidden, np.array(before, np.int32), step)
        judged = ArrayPass(np.stack([logits.row(row) for row in rows.tolist()]) + added)
        if "confidence" not in further:
            return judged, judged.argmax(), None
        scores = further["confidence"].rows(np.hstack([hidden, states]))[:, 0].astype(np.float64)
        return judged, judged.argmax(), _logistic(scores)

    def _transitions(
        self, rows: np.ndarray, hidden: np.ndarray, before: np.ndarray, step: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """What is added to rows of logits (m, V) after the tokens before (m,), and the hidden states (m, R) of these.

        Source: deepseek-ai/DeepSpec, `GatedMarkovHead` and `RNNHead`.
        """
        further = self._further
        if "gate" not in further:
            return further["transitions"].rows_of_tokens(before)
        if self._block.markov == "domino":
            return self._recurrent(rows, hidden, before, step)
        previous = further["previous"].hidden_of(before)
        if self._block.markov == "gated":
            gate = further["gate"].rows(np.hstack([hidden, previous]))
            return further["transitions"].rows(_logistic(gate) * previous), previous
        none = np.zeros_like(previous[0])
        state = np.stack([self._states.get(row - 1, none) for row in rows.tolist()])
        gate, candidate, made = np.split(further["gate"].rows(np.hstack([state, previous, hidden])), 3, axis=1)
        kept = _logistic(gate)
        state = kept * state + (1 - kept) * np.tanh(candidate)
        self._states |= zip(rows.tolist(), state, strict=True)
        return further["transitions"].rows(np.tanh(made)), previous

    def _recurrent(self, rows: np.ndarray, hidden: np.ndarray, before: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
        """What Domino adds, and the states (m, R) of its gated recurrent unit after the tokens before; see `_transitions`.

        Source: jianuo-huang/Domino, `dflash_generate`; the unit is PyTorch's `GRU`.
        """
        further, token = self._further, self._further["previous"].hidden_of(before)
        none = np.zeros(further["gate"].n_in - token.shape[1], np.float32)
        state = np.stack([self._states.get(row - 1, none) for row in rows.tolist()])
        reset, kept, of_token, of_state = np.split(further["gate"].rows(np.hstack([token, state])), 4, axis=1)
        kept = _logistic(kept)
        state = kept * state + (1 - kept) * np.tanh(of_token + _logistic(reset) * of_state)
        self._states |= zip(rows.tolist(), state, strict=True)
        if step < self._block.n_uncorrected:
            return np.zeros((1, 1), np.float32), state
        made = further["projection"].rows(np.hstack([hidden, state]))
        return further["transitions"].rows(made * _logistic(made)), state

    def _feeds(self, shares: Shares, n_rows: int, n_more: int) -> list[SlotInput]:
        """See `DraftRunner._feeds`; of a block the rows that predict are wanted."""
        feeds = super()._feeds(shares, n_rows, n_more)
        return [evolve(feed, rows=len(feed.draft) - self._block.n_unread) if len(feed.draft) else feed for feed in feeds]


def _logistic(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) of any x."""
    y: np.ndarray = x.dtype.type(0.5) + x.dtype.type(0.5) * np.tanh(x.dtype.type(0.5) * x)
    return y


class ParallelRunner(BlockRunner):
    """A head whose masks have a hidden state, as tokens have; it keeps keys and values of both together.

    All tokens of a text are given with the hidden state of the token before, the last one included; masks come after it.

    Source: P-EAGLE (see `augury.plugins.architectures.draft_heads`), as vLLM's proposer feeds it.
    """

    def __init__(self, context: Context, encoder: Encoder, mask: RowModel, *, n_vocab: int) -> None:
        """Take over a loaded head; `mask` makes the hidden state of masks."""
        super().__init__(context, encoder, n_vocab=n_vocab)
        self._of_mask, _ = mask.rows_of_tokens(np.zeros(1, np.int32))
        self._features = ()

    def teacher_forced(self, slot: int, history: np.ndarray, n: int) -> np.ndarray | None:
        """See `PartRunner.teacher_forced`: the first token of a draft needs no mask."""
        return PartRunner.teacher_forced(self, slot, history, n)

    def _pass(self, requests: Sequence[DraftRequest]) -> Pass:
        """See `BlockRunner._pass`; all but the masks stays until the target's own hidden states of it come."""
        shares = []
        for request in requests:
            text, tokens = self._text(request.slot), request.history[1:]
            self._cut(text, min(text.n, len(tokens) - 1))
            shares.append((text, tokens[text.n :], Draft([self._block.mask] * (request.limit - 1))))
        logits = self._forward(shares)
        for text, _, _ in shares:
            self._forget(text)
        return logits

    def _feeds(self, shares: Shares, n_rows: int, n_more: int) -> list[SlotInput]:
        """See `DraftRunner._feeds`; a draft's first row is that of the token before it."""
        feeds = super()._feeds(shares, n_rows, n_more)
        of_masks = [np.repeat(self._of_mask, len(feed.draft), 0) for feed in feeds]
        return [
            evolve(feed, rows=feed.rows + (len(rows) > 0), hidden=np.concatenate([feed.hidden, rows]))
            for feed, rows in zip(feeds, of_masks, strict=True)
        ]
