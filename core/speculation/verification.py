"""Acceptance rules: from a draft and the target's choices to the emitted tokens, by pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from attrs import frozen

from augury.errors import OptionError
from augury.types import Draft

Distribution = tuple[np.ndarray, np.ndarray]
"""Tokens (m,) and their probabilities (m,), which sum to 1; other tokens have none."""


class Accepted(NamedTuple):
    """The tokens that a round emits: the accepted draft tokens and one of the target's own after them.

    `path` says where in the draft the accepted ones stand; for a chain, at its beginning.
    """

    tokens: list[int]
    path: Sequence[int]


class TargetChoices(NamedTuple):
    """The target after each token of one draft. A node -1 is the history, and a depth its tokens of the draft so far."""

    choose: Callable[[int, int], int]  # of a node and its depth, whose ancestors were asked for before, the target's own token
    distribution: Callable[[int, int], Distribution]  # the target's there
    uniforms: Callable[[int], tuple[float, float]]  # two numbers in [0, 1) for a depth
    is_plain_argmax: bool  # the target's choices are simply its most probable tokens
    follows_text: bool  # the distributions depend on the text before them by more than its logits


@frozen
class Match:
    """Accept a draft while it equals the target's own choices: the output is that of plain decoding. See `match`."""

    name: ClassVar[Literal["match", "rejection", "synthetic"]] = "match"
    may_branch: ClassVar[bool] = True  # a draft may be a tree
    depends_on_draft: ClassVar[bool] = False  # other drafts lead to another output
    judges_by_text: ClassVar[bool] = True  # a token is right if the emitted text has it

    def accept(self, draft: Draft, target: TargetChoices) -> Accepted:
        """The tokens of a round."""
        tokens = draft.tokens.tolist()
        if draft.parents is None:
            return match(tokens, lambda i: target.choose(i - 1, i))
        return match_tree(tokens, draft.parents.tolist(), target.choose)


class Rejection(Match):
    """Keep the target's distribution, but not its choices. See `reject`."""

    name = "rejection"
    depends_on_draft = True

    def accept(self, draft: Draft, target: TargetChoices) -> Accepted:
        """The tokens of a round."""
        if target.is_plain_argmax:
            return super().accept(draft, target)
        n_block = 1 if target.follows_text else None
        parents = draft.above.tolist()
        return reject(draft.tokens.tolist(), parents, draft.probabilities, target.distribution, target.uniforms, n_block)


@frozen
class Synthetic(Match):
    """Accept by chance, for benchmarks: the output is not the target's. See `accept_by_chance`.

    >>> Synthetic.of(None, 4)
    Synthetic(rates=(0.8,))
    """

    rates: tuple[float, ...]
    name = "synthetic"
    may_branch = False
    judges_by_text = False

    @classmethod
    def of(cls, rates: Iterable[float] | None, length: float | None) -> Synthetic | None:
        """The rule that a user asked for; None where acceptance is real.

        Args:
            rates: The chance that a draft's token 1, 2, … is accepted where all before it were; the last holds for all after.
            length: Instead: how many tokens of an endless draft are accepted on average, with one chance for all of them.

        Raises:
            OptionError: Both are given, or one is out of range.
        """
        if rates is not None and length is not None:
            raise OptionError("spec_synth_rates and spec_synth_len say the same in two ways; give one of them")
        if length is not None:
            if not is_number(length) or not 0 <= length < math.inf:
                raise OptionError(f"spec_synth_len is {length!r}, expected a number of tokens, at least 0")
            return cls((length / (1 + length),))
        if rates is None:
            return None
        given: Any = rates  # a caller may pass anything
        found: tuple[Any, ...] = tuple(given) if isinstance(given, Iterable) else ()
        if not found or not all(is_number(rate) and 0 <= rate <= 1 for rate in found):
            raise OptionError(f"spec_synth_rates is {rates!r}, expected chances from 0 to 1, such as (0.9, 0.8)")
        return cls(tuple(float(rate) for rate in found))

    def accept(self, draft: Draft, target: TargetChoices) -> Accepted:
        """The tokens of a round."""
        return accept_by_chance(
            draft.tokens.tolist(), self.rates, lambda i: target.uniforms(i)[0], lambda i: target.choose(i - 1, i)
        )

    def truth(self, draft: Draft, emitted: list[int], chance: Callable[[int], float]) -> list[int]:
        """The tokens that a proposal is judged by, used or not: by the same chance; see `DraftedSequence.chance`."""
        if draft.parents is not None:
            return emitted
        k = min(len(draft), n := len(emitted))
        n_right = n_accepted_by_chance(k, self.rates, lambda i: chance(i - n))
        return [*draft.tokens[:n_right].tolist(), -1][:k] if len(draft) else emitted


RULES: Mapping[str, Match] = {rule.name: rule() for rule in (Match, Rejection)}
"""The rules that `spec_verify` names."""


def acceptance_rule(verify: str = "match", rates: Iterable[float] | None = None, length: float | None = None) -> Match:
    """The rule that a user asked for by name, or by the chances of `Synthetic.of`.

    Raises:
        OptionError: There is none of that name, or both are given, or a chance is out of range.
    """
    if (rule := RULES.get(verify)) is None:
        raise OptionError(f"spec_verify is {verify!r}, expected one of {', '.join(RULES)}")
    if (synthetic := Synthetic.of(rates, length)) is not None and verify != "match":
        raise OptionError(f"synthetic acceptance takes the place of spec_verify {verify}; leave one of the two out")
    return synthetic or rule


def is_number(value: Any) -> bool:
    """Whether a caller gave a number."""
    return isinstance(value, int | float | np.floating) and not isinstance(value, bool)


def match(draft: Sequence[int], choose: Callable[[int], int]) -> Accepted:
    """Accept the draft while it equals the target's own choices.

    The target's choice at every position is made exactly as without a draft, so the emitted tokens are those of plain
    decoding, greedy or sampled, for any draft.

    Args:
        draft: k proposed tokens.
        choose: choose(i) is the target's own token after the first i draft tokens; called with i = 0, 1, … in order, only
            while the draft was right.

    Returns:
        1 to k + 1 tokens.

    >>> match([5, 6, 7], [5, 6, 9, 0].__getitem__).tokens
    [5, 6, 9]
    >>> match([5, 6], [5, 6, 7].__getitem__).tokens
    [5, 6, 7]
    >>> match([], [4].__getitem__).tokens
    [4]
    """
    emitted: list[int] = []
    for i, token in enumerate(draft):
        emitted.append(choose(i))
        if emitted[-1] != token:
            return Accepted(emitted, range(i))
    return Accepted([*emitted, choose(len(draft))], range(len(draft)))


def match_tree(draft: Sequence[int], parents: Sequence[int], choose: Callable[[int, int], int]) -> Accepted:
    """The same for a tree: go down from the history for as long as one of the next tokens is the target's choice.

    Args:
        draft: k proposed tokens.
        parents: (k,), token i follows parents[i] < i, or the history if that is -1.
        choose: choose(i, d) is the target's own token after draft token i, -1 for the history, which has d tokens of the draft
            before and including it.

    >>> follows = {-1: 5, 0: 1, 1: 8, 2: 9}
    >>> match_tree([4, 5, 7, 8], [-1, -1, 1, 1], lambda i, d: follows.get(i, 0))
    Accepted(tokens=[5, 8, 0], path=[1, 3])
    """
    emitted: list[int] = []
    path: list[int] = []
    node = -1
    while True:
        emitted.append(choose(node, len(path)))
        here = (i for i in range(node + 1, len(draft)) if parents[i] == node and draft[i] == emitted[-1])
        if (found := next(here, None)) is None:
            return Accepted(emitted, path)
        path.append(node := found)


def reject(
    draft: Sequence[int],
    parents: Sequence[int],
    probabilities: np.ndarray | None,
    target: Callable[[int, int], Distribution],
    uniform: Callable[[int], tuple[float, float]],
    n_block: int | None = None,
) -> Accepted:
    """Accept drawn tokens block by block; draw from the residual of p where the rest of a block is rejected.

    A block is a path of drawn tokens. After i of them it has the weight w(i), of at most 1, and p is the target's distribution
    of the token that follows, q the distribution of the block's next drawn token::

        w(0) = 1,  w(i+1) = min(1, w(i) p/q)    the chance that more than i tokens are accepted, where the next one is known
        left(i)  = max(0, w(i) p - q)           by token; its sum is L(i)
        h(i) = L(i) / (L(i) + 1 - w(i))         the chance that i tokens are accepted if more are not

    A token follows the first i with weight min(w(i) p, q), as the next of the block, and with left(i), as one drawn from the
    residual: together w(i) p. So after any i accepted tokens the next one is distributed as by the target. A ratio p/q above 1
    makes up for one below 1 before it, so w(i) is never less than the product of min(1, p/q), which is the chance of a block's
    tokens to be accepted one by one, as blocks of one token.

    If the token drawn from the residual is another one of the draft in the same place, it is accepted as well, and another
    block may follow it. The output has the target's distribution, but not the same tokens for a seed.

    Args:
        draft: k proposed tokens.
        parents: (k,), token i follows parents[i] < i, or the history if that is -1. At most one of the tokens after one parent
            was drawn. Tokens before it may decide whether it is there; leaving out a drawn token because of its id would be a
            bias.
        probabilities: (k, V), q: the distribution of each draw; a row of zeros, or None for all, where it was certain.
        target: target(i, d) is p, the target's distribution after draft token i, -1 for the history, which has d tokens of the
            draft before and including it; called for a token's parent first, and never after an impossible one.
        uniform: uniform(d) gives two numbers in [0, 1) for depth d: one to accept a block by that begins there, one to draw by.
            A later round must be given others: rounds that take the numbers of their tokens' places never share one.
        n_block: Tokens of a block at most; of 1 the target is asked for nothing after a refused token.

    Source: Sun et al. 2024, "Block Verification Accelerates Speculative Decoding" (arXiv 2403.10444), algorithm 2; of single
    tokens Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", section 2.3; of several
    candidates Miao et al. 2023, "SpecInfer" (arXiv 2305.09781), section 4.3, where only one was drawn.
    """
    emitted: list[int] = []
    path: list[int] = []
    node = -1
    while True:
        block = [] if probabilities is None else _drawn_path(draft, parents, probabilities, node)[:n_block]
        left, chances, weight = list[Distribution](), list[float](), 1.0
        for before, i in zip([node, *block], block, strict=False):
            ids, p = target(before, len(path) + len(left))
            q = probabilities[i]  # type: ignore[index] # there is no block without them
            rest = np.maximum(weight * p - q[ids], 0.0)
            sum_left = float(rest.sum())
            left.append((ids, rest) if sum_left > 0 else (ids, p))  # nothing is left where rounding alone refused
            chances.append(sum_left / (sum_left + (1.0 - weight)) if sum_left > 0 else 0.0)
            weight = min(weight * float(p[ids == draft[i]].sum()) / float(q[draft[i]]), 1.0)
            if not weight:
                break
        n_accepted = _n_accepted([*chances, weight], uniform(len(path))[0])
        for node in block[:n_accepted]:
            emitted.append(int(draft[node]))
            path.append(node)
        if block and n_accepted == len(block):
            continue
        ids, p = left[n_accepted] if block else target(node, len(path))
        emitted.append(_drawn(ids, p, uniform(len(path))[1]))
        here = (i for i in range(node + 1, len(draft)) if parents[i] == node and draft[i] == emitted[-1])
        if (found := next(here, None)) is None:
            return Accepted(emitted, path)
        path.append(node := found)


def _drawn_path(draft: Sequence[int], parents: Sequence[int], probabilities: np.ndarray, node: int) -> list[int]:
    """The drawn tokens that follow a node one after another."""
    later = range(node + 1, len(draft))
    return [node := i for i in later if parents[i] == node and probabilities[i, draft[i]] > 0]


def _n_accepted(chances: Sequence[float], uniform: float) -> int:
    """The last place of a block that is accepted, each with its chance, the first at any rate; one number decides for all."""
    refused = 1.0
    for n in range(len(chances) - 1, 0, -1):
        refused *= 1.0 - chances[n]
        if uniform < 1.0 - refused:
            return n
    return 0


def accept_by_chance(
    draft: Sequence[int], rates: Sequence[float], uniform: Callable[[int], float], choose: Callable[[int], int]
) -> Accepted:
    """Accept each drafted token with a given chance, without asking the target: for benchmarks.

    It costs the same as verification, but the output is not the target's text. Token i is accepted with the chance rates[i]
    where all before it were; the last rate holds for all after it. `uniform`(i) is a number in [0, 1), `choose`(i) the target's
    own token after the first i; it is called once.

    >>> accept_by_chance([5, 6, 7], [0.9, 0.5], [0.8, 0.4, 0.6].__getitem__, lambda i: 0)
    Accepted(tokens=[5, 6, 0], path=range(0, 2))
    """
    n = n_accepted_by_chance(len(draft), rates, uniform)
    return Accepted([*draft[:n], choose(n)], range(n))


def n_accepted_by_chance(k: int, rates: Sequence[float], uniform: Callable[[int], float]) -> int:
    """How many of k drafted tokens `accept_by_chance` accepts."""
    return next((i for i in range(k) if uniform(i) >= rates[min(i, len(rates) - 1)]), k)


def _drawn(ids: np.ndarray, weights: np.ndarray, uniform: float) -> int:
    """The token that a number in [0, 1) falls on."""
    sums = np.cumsum(weights)
    return int(ids[min(int(np.searchsorted(sums, uniform * sums[-1], side="right")), len(ids) - 1)])
