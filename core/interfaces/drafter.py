"""The class that a drafter implements, and the engine's offers to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from attrs import field, frozen
from attrs.validators import and_, deep_iterable, ge, in_, instance_of, le

from augury.interfaces.compiled import CompiledDraft
from augury.interfaces.plugin import Plugin
from augury.passes import Context, Target
from augury.sampling import SamplingParams
from augury.types import Draft, ModelInfo, ModelOptions, Verdict, tokens_array

if TYPE_CHECKING:
    from augury.files.gguf import ModelFile
    from augury.text.tokenizer import Tokenizer

_NO_TOKENS = tokens_array(())


class Session(ABC):
    """The engine's offers to the drafter of one slot; attributes with a default are the request's, and set before `begin`."""

    slot: int
    n_slots: int
    model: ModelInfo
    target: Target  # the same for all slots
    options: ModelOptions  # how the target was loaded
    tokenizer: Tokenizer | None
    sampling: SamplingParams = SamplingParams(temperature=0.0)
    forced: Callable[[int], Sequence[int]] = staticmethod(lambda limit: ())  # noqa: ARG005 - see `augury.constraint`
    cache_prompt: bool = True  # whether later requests may reuse what is kept of the text
    prediction: np.ndarray | None = None  # (p,) int32: a text that the answer is expected to resemble
    # "rejection" makes use of `Draft.probabilities`; after "synthetic", by chance, the text is no text to learn from
    verify: Literal["match", "rejection", "synthetic"] = "match"

    @abstractmethod
    def load(self, reference: str, options: ModelOptions, backend: str | None = None, plan: str = "main") -> Context:
        """Load a second model, by a name or a path, with slots and memory of its own; the same arguments load once.

        `backend` is the name of another one than the target's, `plan` one of the plans that the file's architecture offers.
        """

    @abstractmethod
    def load_tokenizer(self, reference: str) -> Tokenizer | None:
        """The tokenizer of a second model's file, without loading its weights."""

    @abstractmethod
    def drafters(self, text: str) -> list[Drafter]:
        """New drafters for this slot, as `--spec-type` names them: for a drafter that wraps others."""

    @abstractmethod
    def shared(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The object that all slots share under `key`, made by the first that asks; the engine calls its `close()`, if any."""


@frozen
class DrafterTraits:
    """The facts about a drafter that the engine goes by. They are read when it is loaded, `drafts_ahead` before every such ask.

    Attributes:
        scope: How long its knowledge of texts lives, and so which requests it may affect: the `request`, the `slot` with its
            further requests, or the `process`, all slots together and files for the next process.
        serves: A parameter of requests that it drafts from. Such a drafter needs no naming. It is loaded beside the named
            ones, and serves the requests that have the parameter, before all others. Set it on the class.
        is_costly: Whether every token drafted takes time that matters, as with a model. The planner then settles the length
            before it asks; the others it asks every round, and takes the parts of their drafts that promise to pay.
        is_certain: Whether its drafts are right by construction. The planner trusts them from the first one on.
        is_paced: Whether `draft_together` follows `Ask.pace`. A costly drafter without it is asked for as many tokens as pay on
            average; one with it ends each draft where the next token would not pay. Any drafter may fill the rest of the limit
            with alternatives, of which the planner takes the ones that pay.
        drafts_ahead: Whether `draft_together` takes asks with a `guess`. A costly drafter may then be asked while the target,
            on a device of its own, verifies a draft: for the target's token after the draft's likeliest path, and the tokens
            after that. If the text goes on that way the rest becomes the next draft, otherwise it is thrown away. A later ask
            may have any history. It is false for drafters that make passes of the `target`, which is busy then, and for
            drafters that draw at random, which would draw other drafts without such asks.
        drafts_at_once: Whether a draft of any length takes a costly drafter the same time, such as a block of one pass. The
            planner then counts that time once; otherwise for each token.
        trip_s: Seconds that each draft takes beside those of its tokens, such as the way to another machine and back.
        evidence_chances: The prior chances of tokens by `Draft.evidence`: [e] is the chance that a token proposed on bucket e
            is right where its parent is. The engine learns on from there, for each bucket, over all requests and in each.
            Without evidence tokens are judged by their confidence, or else by how many the drafter had right in a row.
        n_top: How many of the target's most probable tokens it wants to be told of, after every token that a round verified:
            `Verdict.top_ids` and `top_logits`. 0: none, which costs nothing.
        features: The features of every token that it wants to be fed, by names in the target's `Model.features`. A target that
            has no such features is refused when the engine is loaded, and so is a drafter that has no `feed` to take them.
        uses_mtp: Whether it drafts with the target's own layers that predict further tokens, by `Target.forward_part`. These
            are loaded if such a drafter, or one that wraps it, is named; with `auto`, it is one to choose from where the file
            has them. Set it on the class.
        memory_options: Options that the target's memory manager is given, where it has them and the user does not set them.
            Set them on the class.
        kernels: A module of functions that `augury.drafter.compiled` compiles, which its constructor imports. At a first start
            another process compiles them in time. Set it on the class.
    """

    scope: Literal["request", "slot", "process"] = field(default="slot", validator=in_(("request", "slot", "process")))
    serves: Literal["constraint", "prediction"] | None = None
    is_costly: bool = False
    is_certain: bool = False
    is_paced: bool = False
    drafts_ahead: bool = False
    drafts_at_once: bool = False
    trip_s: float = field(default=0.0, validator=ge(0))
    evidence_chances: Sequence[float] = field(default=(), validator=deep_iterable(and_(ge(0), le(1))))
    n_top: int = field(default=0, validator=[instance_of(int), ge(0)])
    features: tuple[str, ...] = field(default=(), validator=instance_of(tuple))
    uses_mtp: bool = False
    memory_options: Mapping[str, str] = MappingProxyType({})
    kernels: str | None = None


class Drafter(Plugin, ABC):
    """Guesses the next tokens. One instance serves one slot and sees its requests one after another.

    `history` is a read-only (h,) int32 view of prompt and output so far. Its last token was just sampled and is not yet in the
    target's memory. A drafter never writes into it and may keep no reference beyond the request. One that fails in a method, by
    an exception or by a wrong result, is left out of the rest of the request.
    """

    traits: DrafterTraits = DrafterTraits()
    """Set on the class, or by `__init__` where they depend on options or on the target."""

    def __init__(self, options: Any, session: Session) -> None:
        self.options = options
        self.session = session

    @classmethod
    def wrapped(cls, options: Any) -> str:  # noqa: ARG003 - for subclasses that wrap others
        """The drafters that it gets from `Session.drafters` with these options, as `--spec-type` names them; by default none.

        What these need is loaded, such as layers that predict further tokens.
        """
        return ""

    @classmethod
    def wrapping(cls, drafters: str) -> Mapping[str, str]:  # noqa: ARG003 - for subclasses that wrap what users name
        """The options with which it wraps these drafters, for one of them that is given a draft model; by default it cannot."""
        return {}

    @classmethod
    def drafts_with(cls, file: ModelFile) -> bool:  # noqa: ARG003 - for subclasses that can
        """Whether a file that is given as the draft model is of a kind that this drafter is for, and others are not.

        Asked of drafters with an option `model` where the user names none; by default it is not.
        """
        return False

    @abstractmethod
    def draft(self, history: np.ndarray, limit: int) -> Draft:
        """Propose at most `limit` tokens that follow `history`; further ones are cut off. An empty draft declines."""

    def teacher_forced(self, history: np.ndarray, n: int) -> np.ndarray | None:  # noqa: ARG002 - for subclasses that can
        """The tokens that it would have drafted in place of each of the last n of `history`, from the text before that token.

        Asked of a costly drafter that was long unused, for some sixteen tokens, before it is trusted to draft again. It should
        take little time after any pause: tokens further back may be left out, of this answer and of later drafts.

        Returns:
            (n,) int32 tokens, -1 where it would have drafted nothing. None, as by default: it can never say, and is tried by
            short drafts instead.
        """
        return None

    def feed(self, start: int, tokens: np.ndarray, features: Mapping[str, np.ndarray]) -> None:
        """The target has computed tokens that the text keeps. Called for drafters with `features`, once for every such token.

        The chunks of a prompt come before its `begin`, the tokens of a round before its `accept`. The token that was sampled
        last is not among them: it is computed by the next pass. A prefix that was reused is not either; see `n_held`.

        Args:
            start: The position of the tokens in the text; states fed from there on before belong to another text.
            tokens: (m,) int32.
            features: (m, F) float32 by name, read-only, the drafter's to keep.
        """

    def n_held(self, history: np.ndarray) -> int:
        """How many of the first tokens of a new request's prompt it can do without: by default all.

        Asked where the slot holds some of them from an earlier request. No more are reused; the rest is computed again.
        """
        return len(history)

    def begin(self, history: np.ndarray, n_reused: int) -> Iterator[None] | None:  # noqa: ARG002 - for subclasses that want it
        """A request's prompt was processed; its first `n_reused` tokens the slot held from an earlier request, or were copied.

        Where a long prompt takes long, as the prefill of a second model does, it returns an iterator over the rest of the work,
        else None. The engine takes a step of it with every round, so that other slots go on in between, and asks for no draft
        before its end. A request that is cancelled meanwhile ends without the rest. There may be 1000 steps and one more for
        each token of the text; a step that waits for something blocks, for to yield until then takes too many.
        """
        return None

    def accept(self, history: np.ndarray, verdict: Verdict) -> None:
        """A round is over; `history` ends with the token that the target chose. Called after rounds without a draft, too.

        While the planner asks none of a slot's drafters they rest. They hear of these rounds together before the next ask, or
        before `end`, by one verdict whose `n_emitted` counts all of their tokens.
        """

    def end(self) -> None:
        """The request is over, finished or cancelled; of one that was cancelled early, if it was fed."""

    def close(self) -> None:
        """The slot is over; release its resources."""

    def compiled_draft(
        self,
        ask: Ask,  # noqa: ARG002 - of those that have some
        n_more: int,  # noqa: ARG002
        features: Mapping[str, np.ndarray],  # noqa: ARG002
    ) -> CompiledDraft | None:
        """Functions that answer an ask, and the same ask in further rounds without Python in between.

        The text grows by `n_more` tokens at most. None, the default: the drafter has none.

        Args:
            ask: That of the first round.
            n_more: See above.
            features: (n_more, F) float32 by name, where those of the history's last token and of those after it will stand
                before a draft is asked for; they are fed afterwards, as always.
        """
        return None

    @classmethod
    def draft_together(cls, asks: Sequence[Ask]) -> list[Draft]:
        """Draft for several slots at once, in the order of `asks`; a drafter with a model does it in one pass."""
        return [ask.drafter.draft(ask.history, ask.limit) for ask in asks]


class Ask(NamedTuple):
    """The ask of one slot, where several are drafted for together."""

    drafter: Drafter
    history: np.ndarray  # (h,) int32, read-only; the last token is not yet in the target's memory
    limit: int  # at most so many tokens; further ones are cut off
    guess: np.ndarray = _NO_TOKENS  # (g,) int32: tokens that may follow, after which to draft; none unless it `drafts_ahead`
    pace: Pace | None = None  # how deep it pays to draft; None unless it `is_paced` and a planner asks


class Pace(NamedTuple):
    """How deep a draft pays, measured where the drafter is asked.

    Attributes:
        depth: Tokens one after another, at most.
        min_path_probability: Nothing needs to follow a token whose path is less probable than this. A path's
            probability is the product of the confidences on it.
    """

    depth: int
    min_path_probability: float = 0.0
