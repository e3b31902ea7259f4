"""`draft-model`: a second, smaller model writes ahead, greedily.

It follows the text with a KV cache of its own. The first of its passes feeds what it has missed, which is the token just
sampled and, after a draft that was right to the end, that draft's last; each further pass feeds the token just drafted. One
pass serves all slots. k drafted tokens take k passes.

A draft model with another vocabulary drafts through text: see `augury.drafters.model.translation`. `tree` adds to a draft the
other tokens that the draft model considered: see `augury.drafters.model.draft_tree`. If drafts are verified by rejection, they
are drawn as the request draws, and handed over with the distributions that they were drawn from.

Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", with greedy drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from attrs import frozen

from augury.devices import Placement
from augury.drafters.model.draft_runner import DraftRequest, DraftRunner, WrittenDraft
from augury.drafters.model.draft_sampler import DraftSampler
from augury.drafters.model.draft_tree import TreeShape, branched
from augury.drafters.model.translation import Translation
from augury.drafters.model.vocabulary_match import size_difference, tokenizer_difference
from augury.errors import OptionError, UnsupportedError
from augury.hookspecs import hookimpl
from augury.interfaces import Ask, Drafter, Session
from augury.log import get_logger
from augury.options import option
from augury.types import Draft, ModelOptions

if TYPE_CHECKING:
    from augury.text.tokenizer import Tokenizer

__all__ = ["DraftModel", "DraftModelOptions"]

_N_CANDIDATES = 4  # for each place, where a planner takes those that pay


@frozen
class DraftModelOptions:
    """Options of `draft-model`; what is not given is as the target has it."""

    model: str | None = option(None, help="the draft model: a name or a path", aliases=("md", "model-draft"))
    ctx: int | None = option(
        None,
        help="its context, the target's unless given; 0: what it was trained for; longer texts go on without drafts",
        ge=0,
        aliases=("cd", "ctx-size-draft"),
    )
    threads: int | None = option(
        None,
        help="its threads, as many as the target's unless given",
        ge=1,
        aliases=("td", "threads-draft", "spec-draft-threads"),
    )
    cache_type_k: str | None = option(
        None,
        help="type of the keys in its KV cache, the target's unless given",
        aliases=("ctkd", "cache-type-k-draft", "spec-draft-type-k"),
    )
    cache_type_v: str | None = option(
        None,
        help="type of the values, the target's unless given",
        aliases=("ctvd", "cache-type-v-draft", "spec-draft-type-v"),
    )
    backend: str | None = option(None, help="what computes it, the target's backend unless given", aliases=("backend-draft",))
    device: str | None = option(
        None,
        help="the GPUs for it, such as CUDA1, or none, as --device for the target; the target's unless given",
        aliases=("devd", "device-draft", "spec-draft-device"),
    )
    gpu_layers: str | None = option(
        None,
        help="how many of its layers they compute: a number, all or auto, as -ngl for the target; unless given auto where -ngl "
        "or --device is given for the target",
        aliases=("ngld", "gpu-layers-draft", "n-gpu-layers-draft", "spec-draft-ngl"),
    )
    tree: str | None = option(None, help="WIDTHxDEPTH, such as 2x5: drafts branch, with so many candidates for each place")
    vocab: int | None = option(
        None,
        help="drafts are chosen among so many of its tokens, the first ones, and those that the text holds; 0: all; unless "
        "given a quarter, 16384 at least",
        ge=0,
        aliases=("draft-vocab",),
    )
    p_min: float = option(
        0.0,
        help="a draft ends where the draft model's best token is less probable than this",
        ge=0.0,
        le=1.0,
        aliases=("draft-p-min", "spec-draft-p-min"),
        per_request=True,
    )


class DraftModel(Drafter):
    """Lets a draft model write ahead."""

    name = "draft-model"
    aliases = ("draft-simple", "draft")
    scope = "request"  # it learns nothing; the KV cache, which outlives a request, changes no draft
    options_class = DraftModelOptions
    is_costly = True
    is_paced = True

    def __init__(self, options: DraftModelOptions, session: Session) -> None:
        super().__init__(options, session)
        if options.model is None:
            raise OptionError("draft-model needs a second model; pass -md MODEL or --spec-type draft-model:model=MODEL")
        self._tree = None if options.tree is None else TreeShape.of(options.tree, session.options.n_ctx)
        reference, load_options = options.model, _load_options(options, session.options)

        def make() -> LoadedDraftModel:
            return _load(reference, load_options, options, session)

        key = (self.name, reference, load_options, options.backend, options.vocab)
        loaded: LoadedDraftModel = session.shared(key, make)
        self._runner = loaded.runner
        self._sampler: DraftSampler | None = None  # of a request whose drafts are drawn
        self._translation = loaded.translation(session.tokenizer)
        if self._tree is not None and self._translation is not None:
            raise UnsupportedError("draft-model: tree needs a draft model with the target's vocabulary; leave it out")

    def begin(self, history: np.ndarray, n_reused: int) -> Iterator[None]:  # noqa: ARG002 - the runner knows what it holds
        """Feed the prompt in chunks, except for what the draft model's slot already holds."""
        if self._translation is not None:
            self._translation.begin()
            history = self._translation.follow(history)
        sampling = self.session.sampling
        self._sampler = None
        if self.session.verify == "rejection" and sampling.temperature > 0 and self._translation is None:
            self._sampler = DraftSampler(sampling, n_drawn=self._runner.n_model_vocab, n_vocab=self.session.model.n_vocab)
        is_plain = self._translation is None and self._tree is None and self._sampler is None
        self.drafts_ahead = is_plain and not self._runner.is_asynchronous  # on a device it might get in the target's way
        return self._runner.begin(self.session.slot, history)

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        """Write ahead for one slot."""
        return self._draft(self._runner.draft([self._request(Ask(self, history, limit))])[0], limit)

    def teacher_forced(self, history: np.ndarray, n: int) -> np.ndarray | None:
        """What it would have drafted for the last tokens; it skips what it missed before them."""
        return None if self._translation is not None else self._runner.teacher_forced(self.session.slot, history, n)

    def end(self) -> None:
        """Leave the cached text to other requests."""
        self._runner.end(self.session.slot)

    @classmethod
    def draft_together(cls, asks: Sequence[Ask]) -> list[Draft]:
        """Write ahead for several slots; those that share a draft model share its passes."""
        drafts = [Draft() for _ in asks]
        indices: dict[DraftRunner, list[int]] = {}
        requests = []
        for i, ask in enumerate(asks):
            assert isinstance(ask.drafter, DraftModel)
            indices.setdefault(ask.drafter._runner, []).append(i)  # noqa: SLF001 - of this class
            requests.append(ask.drafter._request(ask))  # noqa: SLF001
        for runner, mine in indices.items():
            for i, written in zip(mine, runner.draft([requests[i] for i in mine]), strict=True):
                drafts[i] = asks[i].drafter._draft(written, asks[i].limit)  # type: ignore[attr-defined] # noqa: SLF001
        return drafts

    def _request(self, ask: Ask) -> DraftRequest:
        history, limit, pace = ask.history, ask.limit, ask.pace
        if self._translation is not None:
            history = self._translation.follow(history)
            if self._translation.is_within_character or not len(history):
                limit = 0
        tree = self._tree
        n_candidates, depth = (1, limit) if tree is None else (tree.width, tree.depth)
        if pace is not None:
            depth = min(depth, pace.depth)
            if tree is None and self._translation is None:
                n_candidates = _N_CANDIDATES
        return DraftRequest(
            self.session.slot,
            history,
            min(limit, depth),
            self.options.p_min,  # read anew each time: a request may bring its own
            min(n_candidates, limit),  # of a tree of `limit` tokens no place has more
            self._sampler,
            ask.guess.tolist(),
            0.0 if pace is None else pace.least_reach,
        )

    def _draft(self, written: WrittenDraft, limit: int) -> Draft:
        if self._translation is not None:
            return Draft(self._translation.back(written.tokens)[:limit])
        if written.candidates:
            return branched(written, limit, self.options.p_min)
        return Draft(
            written.tokens,
            probabilities=np.stack(written.probabilities) if written.probabilities else None,
            confidence=np.array(written.confidence, np.float32) if written.confidence else None,
        )


@frozen(eq=False)
class LoadedDraftModel:
    """A draft model for all slots."""

    runner: DraftRunner
    tokenizer: Tokenizer | None  # of a draft model that drafts through text; None: ids mean the same

    def translation(self, target: Tokenizer | None) -> Translation | None:
        """What one slot needs to use it."""
        return Translation(target, self.tokenizer) if target is not None and self.tokenizer is not None else None


def _load_options(options: DraftModelOptions, target: ModelOptions) -> ModelOptions:
    own: dict[str, Any] = {
        "n_ctx": options.ctx,
        "threads": options.threads,
        "cache_type_k": options.cache_type_k,
        "cache_type_v": options.cache_type_v,
    }
    placement = target.placement if options.backend is None else Placement()
    if options.device is not None or options.gpu_layers is not None:
        placement = Placement(placement.devices if options.device is None else options.device, options.gpu_layers)
    return attrs.evolve(target, placement=placement, **{name: value for name, value in own.items() if value is not None})


def _load(reference: str, load_options: ModelOptions, options: DraftModelOptions, session: Session) -> LoadedDraftModel:
    """The draft model, and what translates if its vocabulary is not the target's.

    Raises:
        UnsupportedError: It is not, and one of the two has no tokenizer to translate with.
    """
    target, draft = session.tokenizer, session.load_tokenizer(reference)
    difference = None if target is None or draft is None else tokenizer_difference(target, draft)
    context = session.load(reference, load_options, options.backend)
    difference = difference or size_difference(session.model.n_vocab, context.info.n_vocab)
    if difference is not None and (target is None or draft is None):
        raise UnsupportedError(
            f"{difference}; without a tokenizer of both the draft model cannot be spoken to by text: "
            "choose one of the target's family"
        )
    log = get_logger("augury.drafters.draft_model")
    if difference is None or draft is None:
        log.info("the draft model has the target's vocabulary and drafts in its tokens", model=reference)
        return LoadedDraftModel(DraftRunner(context, n_vocab=session.model.n_vocab, n_first=options.vocab), None)
    log.warning("the draft model has another vocabulary; drafts go through text", model=reference, difference=difference)
    return LoadedDraftModel(DraftRunner(context, n_vocab=draft.n_vocab, n_first=options.vocab), draft)


@hookimpl
def augury_drafters() -> list[type[Drafter]]:
    """Offer `draft-model`."""
    return [DraftModel]


@hookimpl(trylast=True)
def augury_choose(kind: str, names: Sequence[str]) -> str | None:
    """Recommend `draft-model`."""
    return "draft-model" if kind == "drafter" and "draft-model" in names else None
