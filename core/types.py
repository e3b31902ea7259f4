"""Frozen records that travel between the parts. Shape letters: n tokens in, k draft length, V vocabulary."""

from __future__ import annotations

import reprlib
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import Factory, field, frozen

from augury.devices import CPU, Placement, as_placement
from augury.errors import UnsupportedError
from augury.model_info import ModelInfo as ModelInfo  # noqa: PLC0414 - one of the names here

if TYPE_CHECKING:
    from augury.blocks import ModelPlan
    from augury.receipt import Receipt

_INT32 = np.dtype(np.int32)


def tokens_array(tokens: Any, what: str = "tokens are") -> np.ndarray:
    """A read-only (n,) int32 copy of a sequence of ints. Raises ValueError, which `what` begins: it is something else."""
    ints: Any
    try:
        if isinstance(tokens, np.ndarray) and tokens.dtype == _INT32 and tokens.ndim == 1:
            ints = tokens
        else:
            ints = array("i", tokens.tolist() if isinstance(tokens, np.ndarray) else [*tokens])
    except (TypeError, OverflowError):
        given = np.array(tokens)
        raise ValueError(f"{what} {given.dtype} of shape {given.shape}, expected a row of numbers of int32") from None
    return np.frombuffer(ints.tobytes(), _INT32)  # the bytes of an object that nobody can change


_chain = lru_cache(256)(lambda n: tokens_array(range(-1, n - 1)))  # parents; a round asks for some lengths often


def floats_array(values: Any, what: str) -> np.ndarray:
    """A read-only float32 view of numbers, or a copy where they have another type; else a ValueError that `what` begins."""
    given = np.asarray(values)
    if given.dtype.kind not in "fiu":
        raise ValueError(f"{what} {given.dtype} of shape {given.shape}, expected float32")
    return read_only(given.astype(np.float32, copy=False, order="C"))


def read_only(array: np.ndarray) -> np.ndarray:
    """A view of an array that cannot be made writable."""
    return np.asarray(array.data.toreadonly())


CACHE_TYPES = ("f16", "f32", "bf16", "q8_0", "q4_0")  # that keys and values can be kept as
CACHE_BLOCK = 32  # neighbouring components of a head that share a scale in the types q8_0 and q4_0


@frozen
class ModelOptions:
    """How a model is loaded."""

    n_slots: int = 1
    n_ctx: int = 4096  # positions of one slot; asked for as 0, as many as the model was trained for
    threads: int | None = None  # None: as many as there are physical cores
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    draft_max: int = 16  # drafted tokens of a slot in one pass, which models with a state per sequence have room to keep aside
    placement: Placement = field(default=None, converter=as_placement)
    quant: str | None = None  # of a draft model: what its matrices of floats are quantised to, see `files.quantized`
    window: int | None = None  # of a head: the last positions that its attention sees; 0: all; None: as its file says

    @property
    def slots_in_words(self) -> str:
        """The number and size of slots for messages, such as `1 slot of 4096 tokens`."""
        return f"{self.n_slots} slot{'s' * (self.n_slots > 1)} of {self.n_ctx} tokens"

    def check_cache_types(self, plan: ModelPlan) -> None:
        """Raise an UnsupportedError where cache types do not exist, or cannot hold heads of a plan's size."""
        for flag in ("cache_type_k", "cache_type_v"):
            if (found := getattr(self, flag)) not in CACHE_TYPES:
                raise UnsupportedError(f"{flag} is {found!r}, expected one of {', '.join(CACHE_TYPES)}")
            sizes = [size for block in plan.blocks() for option, _, size in block.cached() if option == flag]
            if found.startswith("q") and (odd := [size for size in sizes if size % CACHE_BLOCK]):
                kept = f"which keeps {CACHE_BLOCK} components together, but heads have {odd[0]}; choose f16, bf16 or f32"
                raise UnsupportedError(f"{flag} is {found!r}, {kept}")


@frozen
class StateSpec:
    """The sizes of a model's slots and states, for the memory manager."""

    n_slots: int
    n_ctx: int  # positions that one slot can hold
    n_bytes_per_position: int  # of one slot, over all layers: keys and values
    n_bytes_per_sequence: int = 0  # of one slot, over all layers: recurrent and convolution states, updated in place
    can_keep_aside: bool = True  # whether a pass can compute drafted tokens without taking them into the state of the sequence
    draft_max: int | None = None  # how many of a slot in one pass; None: any number


@frozen
class Allocation:
    """A line of the memory table: its use ("weights", "KV cache", "scratch") and its size."""

    purpose: str
    n_bytes: int
    device: str = CPU  # in whose memory


@frozen(eq=False, init=False)
class Draft:
    """k proposed tokens that would follow the history; k = 0 declines.

    `parents` makes it a tree: token i follows token parents[i], which is less than i, or the history where it is -1.
    """

    tokens: np.ndarray  # (k,) int32
    parents: np.ndarray | None  # (k,) int32
    probabilities: np.ndarray | None  # (k, V) float32: the distribution of each draw; None, or a row of zeros: it was certain
    confidence: np.ndarray | None  # (k,) float32: how probable it takes each token, if its parent is right, 0 to 1
    evidence: np.ndarray | None  # (k,) int32: the bucket of each proposed token, a place in `DrafterTraits.evidence_chances`

    def __init__(
        self, tokens: Any = (), parents: Any = None, probabilities: Any = None, confidence: Any = None, evidence: Any = None
    ) -> None:
        """Take sequences of numbers: integers are copied, floats of another type, too. Raises ValueError: one has others."""
        self.__attrs_init__(
            tokens_array(tokens),
            None if parents is None else tokens_array(parents, "parents are"),
            None if probabilities is None else floats_array(probabilities, "probabilities are"),
            None if confidence is None else floats_array(confidence, "confidence is"),
            None if evidence is None else tokens_array(evidence, "evidence is"),
        )

    @classmethod
    def of_table(cls, table: np.ndarray) -> Draft:
        """A copy of a tree's tokens, parents and evidence, (3, k) int32, in less time than of three rows."""
        rows = np.frombuffer(table.tobytes(), _INT32).reshape(table.shape)
        (made := cls.__new__(cls)).__attrs_init__(rows[0], rows[1], None, None, rows[2])
        return made

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def above(self) -> np.ndarray:
        """`parents`, of a chain as well."""
        return _chain(len(self.tokens)) if self.parents is None else self.parents

    @property
    def depth(self) -> int:
        """How many of the tokens can be accepted at most; of a chain all."""
        if self.parents is None:
            return len(self.tokens)
        depths = [0] * (len(self.tokens) + 1)  # of each token, and last of the history
        for i, parent in enumerate(self.parents.tolist()):
            depths[i] = depths[parent] + 1
        return max(depths)

    def trunk(self) -> tuple[Draft, np.ndarray]:
        """The first path of a tree, as a chain, and the places (m,) of these tokens in the tree, rising."""
        path: list[int] = []
        for i, parent in enumerate(self.above.tolist()):
            if parent == (path[-1] if path else -1):
                path.append(i)
        return self._at(np.array(path, np.int64), None), np.array(path, np.int64)

    def only(self, nodes: np.ndarray) -> Draft:
        """Only these tokens of it, rising; in a tree with their parents, in a chain the first ones."""
        before = self.above[nodes]
        parents = np.where(before < 0, -1, np.searchsorted(nodes, before))
        return self._at(nodes, None if self.parents is None else parents)

    def cut(self, k: int) -> Draft:
        """The first k tokens of it."""
        return self if k >= len(self) else self._at(slice(k), None if self.parents is None else self.parents[:k])

    def _at(self, places: np.ndarray | slice, parents: np.ndarray | None) -> Draft:
        others = (self.probabilities, self.confidence, self.evidence)
        return Draft(self.tokens[places], parents, *(None if array is None else array[places] for array in others))


NO_DRAFT = Draft()  # declines


@frozen
class Verdict:
    """The fate of a drafter's proposal in a round, of which the tokens that promised to pay were verified.

    A token that was not verified, or was cut off by a stop, is not rejected. A token that several proposed counts for each.

    Attributes:
        n_offered: Tokens of this drafter's proposal that were verified; 0 where it proposed nothing or none was chosen.
        n_accepted: How many of them the target agreed with and emitted.
        n_emitted: Tokens that were added to the history since the verdict before: accepted ones and the target's own.
        is_used: Whether any of this drafter's tokens was verified.
        n_proposed: Tokens that the drafter proposed; more than `n_offered` where the proposal was cut or only scored.
        path: Which of the proposed tokens were accepted, rising; of a chain the first `n_accepted`.
        top_after: (m,) int32, the history's last token, then all verified tokens, right or wrong, of all drafters. None unless
            the drafter has an `n_top` and was asked in the round, like the next three.
        top_parents: (m,) int32, which of `top_after` each of them follows; -1 of the first.
        top_ids, top_logits: (m, n_top) int32 and float32, the most probable tokens after each, best first; id -1: not finite.
    """

    n_offered: int
    n_accepted: int
    n_emitted: int
    is_used: bool
    n_proposed: int = field(default=Factory(lambda self: self.n_offered, takes_self=True))
    path: Sequence[int] = field(default=Factory(lambda self: range(self.n_accepted), takes_self=True))
    top_after: np.ndarray | None = field(default=None, eq=False)
    top_parents: np.ndarray | None = field(default=None, eq=False)
    top_ids: np.ndarray | None = field(default=None, eq=False)
    top_logits: np.ndarray | None = field(default=None, eq=False)

    @property
    def n_cut(self) -> int:
        """How many tokens of the proposal were not verified, though others of it were."""
        return self.n_proposed - self.n_offered if self.is_used else 0


# Requests and results


@frozen
class TokenLogprob:
    """How probable a token was, under the model's own distribution, and its own text."""

    token: int
    logprob: float  # natural logarithm
    bytes: bytes | None = None  # one token may hold a part of a character; of a control token its name; None: no tokenizer

    @property
    def text(self) -> str:
        """Its bytes as text, with U+FFFD for bytes that are not UTF-8."""
        return (self.bytes or b"").decode(errors="replace")


@frozen
class Token:
    """One emitted token, as a stream yields it.

    `text` became printable with it (characters are never split, so it may be empty or hold more than one token's
    text). `drafter` is the name of the drafter that proposed the token, or None where the target chose it alone. `n_drafted` is
    given of the first token of each round: how many drafted tokens the round verified; of the others it is None.
    """

    token: int
    text: str
    drafter: str | None = None
    n_drafted: int | None = None
    logprob: float | None = None  # natural logarithm, under the model's own distribution; None unless asked for
    bytes: bytes | None = None  # its own text; None unless logprobs are asked for
    top_logprobs: tuple[TokenLogprob, ...] = ()  # the n most probable tokens, best first


@frozen
class Timings:
    """Seconds of one request. `prompt_s` counts drafters' work on it, and no waiting; of shared passes its share, by tokens."""

    prompt_s: float = 0.0  # of its prompt's passes and of its drafters' beginning
    predict_s: float = 0.0  # from its first token, or the end of its drafters' beginning, to its last
    n_prompt: int = 0  # tokens processed in prompt_s, reused ones not counted
    n_predicted: int = 0  # tokens emitted in predict_s: all but the first
    # of a round of one token alone, uninterrupted, as the planner knew it at the end; None without a planner
    plain_s: float | None = None
    plain_range_s: tuple[float, float] | None = None  # the middle half of the last of these; None of few, or if they differ
    queue_s: float = 0.0  # from its submission until it had a slot
    first_s: float = 0.0  # from its submission to its first token
    whole_s: float = 0.0  # from its submission to its last token
    round_s: tuple[float, ...] = ()  # of each round after the first token, from the token before to its own

    @property
    def prompt_per_second(self) -> float:
        """Prompt tokens per second; 0 where nothing had to be processed."""
        return self.n_prompt / self.prompt_s if self.prompt_s > 0 else 0.0

    @property
    def predicted_per_second(self) -> float:
        """Generated tokens per second, the first token not counted; 0 where there was only one."""
        return self.n_predicted / self.predict_s if self.predict_s > 0 else 0.0

    @property
    def plain_per_second(self) -> float | None:
        """Tokens per second without drafts, as the planner expects them; None without a planner."""
        return None if self.plain_s is None else 1 / self.plain_s


@frozen
class DrafterStats:
    """A drafter's figures in one request. A token that several drafters proposed counts for each of them.

    Positions count from 0, the first token of its own; in a tree they are depths.
    """

    calls: int = 0  # of draft
    drafts: int = 0  # calls that proposed something
    used: int = 0  # drafts that were verified
    drafted: int = 0  # tokens verified
    accepted: int = 0
    offered_by_position: tuple[int, ...] = ()  # [i]: drafts that were verified as far as position i
    accepted_by_position: tuple[int, ...] = ()  # [i]: drafts whose token i was accepted
    begin_s: float = 0.0
    draft_s: float = 0.0
    accept_s: float = 0.0
    ahead: int = 0  # tokens drafted while a pass was computed, in case all of its draft was accepted
    ahead_used: int = 0  # of these, tokens verified; the others were thrown away
    hidden_s: float = 0.0  # of that drafting: as long as the pass took anyway; not in draft_s
    failed: str | None = None  # the method and its error, after which the request went on without the drafter


@frozen
class Summary:
    """A finished request in figures. `n_emitted == n_rounds + n_accepted` holds exactly.

    The prompt's last pass counts as a round; a token after a stop counts as not accepted.
    """

    id: str = ""  # of the request
    slot: int | None = None  # that it had; None of one that ended before it got one
    n_prompt: int = 0
    n_reused: int = 0  # prompt tokens that the slot still held, or that were copied from another
    n_recomputed: int = 0  # prompt tokens that a slot shared with the prompt, and that were computed again all the same
    n_restores: int = 0  # passes that began by setting the recurrent state back, after a rejected draft
    n_replayed: int = 0  # accepted tokens that were computed again because of that
    n_shifts: int = 0  # times that the context was full and the text was cut, to be processed again
    n_discarded: int = 0  # tokens that were left out then
    n_restarts: int = 0  # times that a lost device was back, and prompt and output were processed again
    n_emitted: int = 0
    n_rounds: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    accepted_by_position: tuple[int, ...] = ()  # [i]: drafts whose token i was accepted, of all drafters
    draft_lengths: tuple[int, ...] = ()  # tokens verified in each round after the prompt's
    drafters: Mapping[str, DrafterStats] = Factory(dict)
    timings: Timings = Timings()
    effective: Mapping[str, Any] = Factory(dict)  # the speculative options in force

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the verified draft tokens; 0 where none were drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted else 0.0

    @property
    def mean_accepted_length(self) -> float:
        """Tokens emitted per round."""
        return self.n_emitted / self.n_rounds if self.n_rounds else 0.0


@frozen(eq=False)
class Result:
    """The result of a request."""

    tokens: tuple[int, ...] = field(repr=reprlib.repr)  # the first six
    text: str
    finish_reason: str  # "stop" (end token or stop text), "length" (max_tokens), "context" (it is full) or "cancelled"
    stats: Summary = field(repr=False)
    pieces: tuple[Token, ...] = field(default=(), repr=False)
    prompt: tuple[int, ...] | None = field(default=None, repr=reprlib.repr)  # its tokens, with `echo`
    prompt_text: str | None = None  # the text that was given, or that of the tokens, control tokens included; with `echo`
    receipt: Receipt | None = field(default=None, repr=False)  # with `receipt`

    @property
    def id(self) -> str:
        """The id of the request."""
        return self.stats.id

    @property
    def logprobs(self) -> tuple[float, ...]:
        """The log-probability of each token, see `Token`; empty unless asked for."""
        return tuple(piece.logprob for piece in self.pieces if piece.logprob is not None)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from augury.notebook import coloured_text

        pieces = [(piece.text if self.text else f"{piece.token} ", piece.drafter) for piece in self.pieces]
        below = f"{len(self.tokens)} tokens, {self.stats.n_accepted} of them drafted, {self.finish_reason}"
        return {"text/plain": repr(self), "text/html": coloured_text(pieces, below)}


@frozen
class Round:
    """One pass, or a chain of passes with a token of each sequence in every one, for observers."""

    n_sequences: int  # that took part, prompts in progress included
    n_tokens: int  # new ones in the pass; replayed ones are not counted
    n_drafted: int
    n_accepted: int
    n_emitted: int
    draft_s: float
    forward_s: float
    ids: tuple[str, ...] = ()  # of the requests that took part; none where texts are only read, as for embeddings
