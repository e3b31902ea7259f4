"""The common parts of drafters that write ahead with a model: their options, and one runner for the asks of all slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import numpy as np
from attrs import frozen

from augury.devices import Placement
from augury.drafters.model.part_runner import Encoder, PartRunner
from augury.drafters.model.translation import size_difference
from augury.drafters.model.written_draft import DraftRequest, DraftSampler, WrittenDraft, branched
from augury.errors import OptionError, UnsupportedError
from augury.interfaces import Ask, Drafter, DrafterTraits
from augury.options import option
from augury.types import Draft, ModelOptions

if TYPE_CHECKING:
    from augury.drafters.model.draft_runner import DraftRunner
    from augury.drafters.model.mtp_runner import MtpRunner
    from augury.files.gguf import ModelFile
    from augury.interfaces import Session
    from augury.passes import Context
    from augury.types import ModelInfo


def p_min_option(text: str, default: float = 0.0) -> Any:
    """The least probability of a drafted token, an option that a request may bring; `text` is its help."""
    return option(default, help=text, ge=0.0, le=1.0, aliases=("draft-p-min", "spec-draft-p-min"), per_request=True)


def vocab_option(where: str = "") -> Any:
    """The size of a `DraftVocabulary`; `where` says in which mode it counts."""
    return option(
        None,
        help=f"{where}drafts are chosen among so many first tokens, and the tokens of the text; 0: all; unless given a "
        "quarter, 16384 at least",
        ge=0,
        aliases=("draft-vocab",),
    )


def quant_option() -> Any:
    """The type that a draft model, or layers from a folder, are quantised to."""
    return option(
        None,
        help="what its matrices of floats are quantised to: q4_0, q4_1, q5_0, q5_1, q8_0 or none; unless given as the target's "
        "where it is a folder of safetensors, else none",
        aliases=("spec-draft-quant",),
    )


@frozen
class LoadOptions:
    """Options of a draft model; options that are not given are the target's."""

    model: str | None = option(None, help="the draft model: a name or a path", aliases=("md", "model-draft"))
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
        None, help="type of the values, the target's unless given", aliases=("ctvd", "cache-type-v-draft", "spec-draft-type-v")
    )
    quant: str | None = quant_option()
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
    p_min: float = p_min_option(
        "a draft ends where its best token is less probable than this; of a head, among its ten best or by its confidence"
    )

    def of_target(self, target: ModelOptions, **others: Any) -> ModelOptions:
        """How the model is loaded beside a target; `others` are further fields that are not None."""
        own = {name: getattr(self, name) for name in ("threads", "cache_type_k", "cache_type_v", "quant")} | others
        placement = target.placement if self.backend is None else Placement()
        if self.device is not None or self.gpu_layers is not None:
            placement = Placement(placement.devices if self.device is None else self.device, self.gpu_layers)
        return attrs.evolve(target, placement=placement, **{name: each for name, each in own.items() if each is not None})


@frozen
class HeadOptions(LoadOptions):
    """Options of a head; omitted ones are as the target's, or as its file says."""

    window: int | None = option(
        None,
        help="its attention sees so many last tokens of the text; 0: all; unless given as its file says",
        ge=0,
        aliases=("spec-draft-window",),
    )


_N_CANDIDATES = 4  # for each place, of which a planner takes those worth their time


def drafter_for(draft_model: ModelInfo) -> str:
    """The name of the drafter that a draft model is for."""
    if not (main := draft_model.parts["main"]).input:
        return "draft-model"
    block = main.block
    return "draft-dspark" if block is not None and block.has_transitions else f"draft-{draft_model.architecture}"


def traits_of(traits: DrafterTraits, runner: DraftRunner) -> DrafterTraits:
    """The traits of a drafter by where its runner's model is: on another machine a draft is one trip, which nothing ends."""
    return attrs.evolve(traits, is_paced=False, trip_s=runner.trip_s) if runner.trip_s else traits


class ModelDrafter(Drafter):
    """Lets a model write ahead. Its options have a `p_min`, which a request may bring."""

    # it learns nothing; its cache outlives a request and changes no draft
    traits = DrafterTraits(scope="request", is_costly=True, is_paced=True)
    runner: DraftRunner | MtpRunner
    sampler: DraftSampler | None = None  # of a request whose drafts are drawn

    def begin_sampling(self) -> None:
        """Draw this request's drafts if they are verified by rejection."""
        sampling, self.sampler = self.session.sampling, None
        if self.session.verify == "rejection" and sampling.temperature > 0:
            self.sampler = DraftSampler(sampling, n_drawn=self.runner.n_model_vocab, n_vocab=self.session.model.n_vocab)

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        return self.made_of(self.runner.draft([self.request(Ask(self, history, limit))])[0], limit)

    def end(self) -> None:
        """Leave the cached text to other requests, if they may have it."""
        self.runner.end(self.session.slot, is_private=not self.session.cache_prompt)

    @classmethod
    def draft_together(cls, asks: Sequence[Ask]) -> list[Draft]:
        drafts = [Draft() for _ in asks]
        indices: dict[DraftRunner | MtpRunner, list[int]] = {}
        drafters, requests = [], []
        for i, ask in enumerate(asks):
            assert isinstance(ask.drafter, ModelDrafter)
            indices.setdefault(ask.drafter.runner, []).append(i)
            drafters.append(ask.drafter)
            requests.append(ask.drafter.request(ask))
        for runner, mine in indices.items():
            for i, written in zip(mine, runner.draft([requests[i] for i in mine]), strict=True):
                drafts[i] = drafters[i].made_of(written, asks[i].limit)
        return drafts

    def request(self, ask: Ask) -> DraftRequest:
        """The request to the runner: for a chain, and where a planner asks, candidates for each place."""
        depth, n_candidates, min_path_probability = ask.limit, 1, 0.0
        if ask.pace is not None:
            depth, n_candidates, min_path_probability = min(depth, ask.pace.depth), _N_CANDIDATES, ask.pace.min_path_probability
        return DraftRequest(
            self.session.slot,
            ask.history,
            limit=depth,
            p_min=self.options.p_min,  # read anew each time: a request may bring its own
            n_candidates=min(n_candidates, ask.limit),  # of a tree of `limit` tokens no place has more
            sampler=self.sampler,
            guess=ask.guess.tolist(),
            min_path_probability=min_path_probability,
        )

    def made_of(self, written: WrittenDraft, limit: int) -> Draft:
        """The draft of the written tokens."""
        if written.candidates:
            return branched(written, limit, self.options.p_min)
        return Draft(
            written.tokens,
            probabilities=np.stack(written.probabilities) if written.probabilities else None,
            confidence=np.array(written.confidence, np.float32) if written.confidence else None,
        )


class FeatureDrafter(ModelDrafter):
    """Lets a model write ahead from hidden states of the target, `DrafterTraits.features`."""

    runner: PartRunner | MtpRunner

    def n_held(self, history: np.ndarray) -> int:
        return self.runner.n_held(self.session.slot, history)

    def feed(self, start: int, tokens: np.ndarray, features: Mapping[str, np.ndarray]) -> None:
        """Take note of hidden states, and process a long prompt as it comes."""
        self.runner.feed(self.session.slot, start, tokens, features)

    def begin(self, history: np.ndarray, n_reused: int) -> Iterator[None]:  # noqa: ARG002 - the runner knows its slots
        self.begin_sampling()
        return self.runner.begin(self.session.slot, history)

    def teacher_forced(self, history: np.ndarray, n: int) -> np.ndarray | None:
        return self.runner.teacher_forced(self.session.slot, history, n)


_N_AT_ONCE = 256  # tokens of which hidden states are made at once


class HeadDrafter(FeatureDrafter):
    """Lets a head write ahead; unless `runner_of` says otherwise, a head of one layer."""

    architecture: ClassVar[str]
    """The architectures of heads' files."""
    options_class = HeadOptions
    options: HeadOptions
    runner: PartRunner

    def __init__(self, options: HeadOptions, session: Session) -> None:
        super().__init__(options, session)
        if (reference := options.model) is None:
            raise OptionError(f"{self.name} needs a head; pass -md HEAD or --spec-type {self.name}:model=HEAD")
        key = (self.name, reference, attrs.evolve(options, p_min=0.0))
        self.runner = session.shared(key, lambda: self._load(reference))
        names = tuple(dict.fromkeys(filter(None, self.runner.encoder.names)))
        self.traits = attrs.evolve(traits_of(self.traits, self.runner), features=names)

    @classmethod
    def drafts_with(cls, file: ModelFile) -> bool:
        return file.architecture == cls.architecture

    @classmethod
    def runner_of(
        cls,
        context: Context,
        encoder: Encoder,
        load: Callable[[str], Context],  # noqa: ARG003 - the encoder is all that a head of one layer has besides
        n_vocab: int,
    ) -> PartRunner:
        """The runner of a head with the encoder of its hidden states; `load` loads another plan of its file, without layers."""
        return PartRunner(context, encoder, n_vocab=n_vocab)

    def _load(self, reference: str) -> PartRunner:
        """The head, for all slots. Raises UnsupportedError: the file is no head, or one of another target."""
        options, session = self.options, self.session
        load_options = options.of_target(session.options, window=options.window)
        context = session.load(reference, load_options, options.backend)
        names, target = context.info.parts["main"].input, session.model
        if context.info.architecture != self.architecture:
            raise UnsupportedError(
                f"{reference} is a model of architecture {context.info.architecture!r}, {self.name} takes heads of "
                f"{self.architecture!r}; use {drafter_for(context.info)}"
            )
        of_rows = attrs.evolve(load_options, n_slots=1, n_ctx=min(load_options.n_ctx, _N_AT_ONCE))

        def load(plan: str) -> Context:
            return session.load(reference, of_rows, options.backend, plan)

        difference = size_difference(target.n_vocab, context.info.n_vocab)
        encoder = Encoder(load("encoder"), names)
        for width in {session.target.features.get(name, 0) for name in names}:
            if width % encoder.width:
                difference = f"the target's hidden states have {width} values, the head reads {encoder.width}"
        if difference is not None:
            raise UnsupportedError(f"{reference}: {difference}; use a head that was trained for {target.name}")
        return self.runner_of(context, encoder, load, target.n_vocab)
