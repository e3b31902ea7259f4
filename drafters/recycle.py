"""`recycle`: Token Recycling, a tree of the tokens that the target last found most probable after each token.

Every verified token comes with logits, of which all but one are thrown away. Here the most probable successors of every token
are kept in a table, a row for each token of the vocabulary, and a draft follows the table from the last token on, into several
branches at once::

    table    a → b c        draft after a    b ┬ d        ranks 0, 0 0 and 0 1
             b → d e                         │ └ e
             c → a f                         c ─ a        ranks 1 and 1 0

The rows begin with the tokens that most often follow each other in a text that ships, of short answers to common questions, or
in a file of the user's own. A row that the target filled takes the place of the text's.

Next to the successors of the last token stand its *runners-up*, the rest of the row that it was chosen from: a token that the
target nearly wrote is often the one that it writes next, above all after a token that has no row yet.

The tree has one shape for all texts: the nodes that are most likely to be right, going by how often successors and runners-up
of each rank were. A pass that computes a tree fills the rows of all of its tokens, wrong ones included. The rows are shared by
the slots and live as long as the engine. They need no text that repeats itself.

Sources: Luo et al. 2024, "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling"
(arXiv 2408.08696), section 3. The differences: rows begin with a text's successors, not with the target's own of earlier use,
and the tree's nodes are in the order of their chances, so that a part of it is the best tree of that size. Runners-up as the
next token are of Liu et al. 2025, "LogitSpec: Accelerating Retrieval-based Speculative Decoding via Next Next Token
Speculation" (arXiv 2507.01449).
"""

from __future__ import annotations

from functools import cache
from heapq import heapify, heappop, heappush
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from augury.errors import OptionError
from augury.hookspecs import hookimpl
from augury.interfaces import Drafter, Session
from augury.options import option
from augury.types import NO_DRAFT, Draft, Verdict

if TYPE_CHECKING:
    from augury.text.tokenizer import Tokenizer

__all__ = ["Recycle", "RecycleOptions"]

# By rank; docs/benchmarks.md has how they were measured
_CHANCES = (0.44, 0.096, 0.049, 0.036, 0.026, 0.015, 0.012, 0.01)
_RUNNER_UP_CHANCES = (0.046, 0.029, 0.024, 0.021, 0.022, 0.017, 0.015)
_TEXT_CHANCES = (0.25, 0.089, 0.05, 0.039, 0.023, 0.02, 0.015, 0.01)  # of rows that the target has not filled
_N_CHARACTERS = 8  # of text for each token of the vocabulary: more takes long to tokenize, and adds rare successors
_N_GROUNDS = len(_CHANCES) + len(_RUNNER_UP_CHANCES)  # before those


@frozen
class RecycleOptions:
    """Options of `recycle`."""

    n_successors: int = option(8, help="successors kept for each token of the vocabulary", ge=1, le=64)
    n_max: int = option(80, help="tokens of the tree at most", ge=1, le=1024, per_request=True)
    depth: int = option(6, help="length of the tree's longest branch", ge=1, le=64, per_request=True)
    text: str | None = option(
        None,
        help="UTF-8 file whose successors the table begins with, 8 characters for each token of the vocabulary; empty: none",
    )


class Recycle(Drafter):
    """Learns successors into the engine's table and drafts from it."""

    name = "recycle"
    scope = "process"
    options_class = RecycleOptions
    evidence_chances = (*_CHANCES, *_RUNNER_UP_CHANCES, *_TEXT_CHANCES)

    def __init__(self, options: RecycleOptions, session: Session) -> None:
        super().__init__(options, session)
        n_vocab = session.model.n_vocab
        self.n_top = n = min(options.n_successors, n_vocab)
        self._table, self._first_ground = session.shared(
            (self.name, n, options.text),
            lambda: (
                _successors(_tokens(options.text, session.tokenizer, n_vocab), n_vocab, n),
                np.full(n_vocab, _N_GROUNDS, np.int8),
            ),
        )

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        """Follow the table from the last token and its runners-up."""
        before, last, n = int(history[-2:][0]), int(history[-1]), self.n_top
        row = self._table[last].tolist()  # lists, for NumPy's calls take longer
        others = () if self._first_ground[before] else self._table[before].tolist()
        runners_up = [token for token in others if token != last][: n - 1]
        runners_up += [-1] * (n - 1 - len(runners_up))
        shape = _tree_shape(min(self.options.n_max, limit), self.options.depth, n, has_row=row[0] >= 0)
        successors = {-1: row + [-1 if token in row else token for token in runners_up]}  # by node of the draft
        first_grounds = {-1: int(self._first_ground[last])}
        tokens: list[int] = []
        parents: list[int] = []
        evidence: list[int] = []
        places = {-1: -1}  # by node of the shape: where it is in the draft, which has those that are known
        for node, (parent, rank, ground) in enumerate(shape):
            if (at := places.get(parent)) is None:
                continue
            if at not in successors:
                successors[at] = self._table[tokens[at]].tolist()
                first_grounds[at] = int(self._first_ground[tokens[at]])
            if (token := successors[at][rank]) >= 0:
                places[node] = len(tokens)
                tokens.append(token)
                parents.append(at)
                evidence.append(ground if rank >= n else first_grounds[at] + ground)
        return Draft(tokens, parents, evidence=evidence) if tokens else NO_DRAFT

    def accept(self, history: np.ndarray, verdict: Verdict) -> None:  # noqa: ARG002 - the interface's
        """Keep the successors of every token that was verified."""
        if verdict.top_after is not None and verdict.top_ids is not None:
            for token, ids in zip(verdict.top_after.tolist(), verdict.top_ids, strict=True):
                if ids[0] >= 0:  # -1: its row is not finite
                    self._table[token] = ids
                    self._first_ground[token] = 0


def _tokens(path: str | None, tokenizer: Tokenizer | None, n_vocab: int) -> np.ndarray:
    """The tokens of a text's beginning, (t,) int32, those below n_vocab; none without a tokenizer, or of an empty path."""
    if path == "" or tokenizer is None:
        return np.empty(0, np.int32)
    source = files("augury.drafters").joinpath("common_text.txt") if path is None else Path(path).expanduser()
    try:
        with source.open(encoding="utf-8") as file:
            text = file.read(_N_CHARACTERS * n_vocab)
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"recycle: text {path} could not be read: {error}; name a file of UTF-8 text") from error
    tokens = np.array(tokenizer.encode(text, add_special=False), np.int32)
    return tokens[tokens < n_vocab]


def _successors(tokens: np.ndarray, n_vocab: int, n: int) -> np.ndarray:
    """The n most frequent successors of each token in a text, (n_vocab, n) int32; -1 where there are fewer."""
    table = np.full((n_vocab, n), -1, np.int32)
    pairs, counts = np.unique(tokens[:-1].astype(np.int64) * n_vocab + tokens[1:], return_counts=True)
    befores, afters = np.divmod(pairs, n_vocab)
    order = np.lexsort((-counts, befores))
    befores, afters = befores[order], afters[order]
    ranks = np.arange(len(order)) - np.searchsorted(befores, befores)
    is_kept = ranks < n
    table[befores[is_kept], ranks[is_kept]] = afters[is_kept]
    return table


@cache
def _tree_shape(n: int, depth: int, n_successors: int, *, has_row: bool) -> list[tuple[int, int, int]]:
    """The n nodes that are most likely to be right, `depth` deep at most, with up to `n_successors` children each.

    The last token has one runner-up less than that, and successors only if it `has_row`. All rows count as the target's.

    Returns:
        Of each node its parent, -1 for the last token, which of that one's successors it is, and after these which of its
        runners-up, and its place in `Recycle.evidence_chances`.
    """
    grounds = [min(rank, len(_CHANCES) - 1) for rank in range(n_successors)]  # by rank
    grounds += [len(_CHANCES) + min(rank, len(_RUNNER_UP_CHANCES) - 1) for rank in range(n_successors - 1)]
    chances = [Recycle.evidence_chances[ground] for ground in grounds]
    found: list[tuple[int, int, int]] = []
    ranks = range(0 if has_row else n_successors, len(chances))
    open_nodes = [(-chances[rank], rank, -1, rank, 0) for rank in ranks]  # chance of the path, order, parent, rank, depth
    heapify(open_nodes)
    n_seen = len(chances)
    while open_nodes and len(found) < n:
        path, _, parent, rank, level = heappop(open_nodes)
        found.append((parent, rank, grounds[rank]))
        for successor in range(n_successors if level + 1 < depth else 0):
            heappush(open_nodes, (path * chances[successor], n_seen + successor, len(found) - 1, successor, level + 1))
        n_seen += n_successors
    return found


@hookimpl
def augury_drafters() -> list[type[Drafter]]:
    """Offer `recycle`."""
    return [Recycle]
