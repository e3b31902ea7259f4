"""The common part of drafters that write ahead with a model: one runner for all slots, to which asks become requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from augury.drafters.model.draft_runner import DraftRequest, DraftRunner, WrittenDraft
from augury.drafters.model.draft_sampler import DraftSampler
from augury.drafters.model.draft_tree import branched
from augury.interfaces import Ask, Drafter, DrafterTraits
from augury.types import Draft

if TYPE_CHECKING:
    from augury.drafters.model.mtp_runner import MtpRunner
    from augury.drafters.model.part_runner import PartRunner
    from augury.types import ModelInfo

_N_CANDIDATES = 4  # for each place, of which a planner takes those worth their time


def drafter_for(draft_model: ModelInfo) -> str:
    """The name of the drafter that a draft model is for."""
    if not (main := draft_model.parts["main"]).input:
        return "draft-model"
    block = main.block
    return "draft-dspark" if block is not None and block.has_transitions else f"draft-{draft_model.architecture}"


class ModelDrafter(Drafter):
    """Lets a model write ahead. Its options have a `p_min`, which a request may bring.

    Attributes:
        runner: Of the model.
        sampler: Of a request whose drafts are drawn.
    """

    # it learns nothing; its cache outlives a request and changes no draft
    traits = DrafterTraits(scope="request", is_costly=True, is_paced=True)
    runner: DraftRunner | MtpRunner
    sampler: DraftSampler | None = None

    def begin_sampling(self) -> None:
        """Draw this request's drafts if they are verified by rejection."""
        sampling, self.sampler = self.session.sampling, None
        if self.session.verify == "rejection" and sampling.temperature > 0:
            self.sampler = DraftSampler(sampling, n_drawn=self.runner.n_model_vocab, n_vocab=self.session.model.n_vocab)

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        """Write ahead for one slot."""
        return self.made_of(self.runner.draft([self.request(Ask(self, history, limit))])[0], limit)

    def end(self) -> None:
        """Leave the cached text to other requests, if they may have it."""
        self.runner.end(self.session.slot, is_private=not self.session.cache_prompt)

    @classmethod
    def draft_together(cls, asks: Sequence[Ask]) -> list[Draft]:
        """Write ahead for several slots; slots that share a model share its passes."""
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
        """As far as the runner keeps something of the text in the slot."""
        return self.runner.n_held(self.session.slot, history)

    def feed(self, start: int, tokens: np.ndarray, features: Mapping[str, np.ndarray]) -> None:
        """Take note of hidden states, and process a long prompt as it comes."""
        self.runner.feed(self.session.slot, start, tokens, features)

    def begin(self, history: np.ndarray, n_reused: int) -> Iterator[None]:  # noqa: ARG002 - the runner knows its slots
        """Process the rest of the prompt."""
        self.begin_sampling()
        return self.runner.begin(self.session.slot, history)

    def teacher_forced(self, history: np.ndarray, n: int) -> np.ndarray | None:
        """Its drafts for the last tokens, by teacher forcing."""
        return self.runner.teacher_forced(self.session.slot, history, n)
