"""`draft-model`: a second, smaller model with the same vocabulary writes ahead, greedily.

It follows the text with a KV cache of its own. The first of its passes feeds what it has missed, which is the token just
sampled and, after a draft that was right to the end, that draft's last; each further pass feeds the token just drafted. One
pass serves all slots. k drafted tokens take k passes.

Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", with greedy drafts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from augury.errors import OptionError
from augury.hookspecs import hookimpl
from augury.interfaces import Drafter
from augury.options import option
from augury.types import Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from augury.drafters.draft_runner import DraftRunner
    from augury.interfaces import Session
    from augury.types import Ask, ModelOptions

__all__ = ["DraftModel", "DraftModelOptions"]


@frozen
class DraftModelOptions:
    """Options of `draft-model`; what is not given is as the target has it."""

    model: str | None = option(None, help="the draft model: a name or a path", aliases=("md", "model-draft"))
    ctx: int | None = option(
        None, help="its context; longer texts go on without drafts", ge=1, aliases=("cd", "ctx-size-draft")
    )
    threads: int | None = option(None, help="its threads", ge=1, aliases=("td", "threads-draft"))
    cache_type_k: str | None = option(None, help="type of the keys in its KV cache", aliases=("ctkd", "cache-type-k-draft"))
    cache_type_v: str | None = option(None, help="type of the values", aliases=("ctvd", "cache-type-v-draft"))
    backend: str | None = option(None, help="what computes it", aliases=("backend-draft",))
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

    def __init__(self, options: DraftModelOptions, session: Session) -> None:
        super().__init__(options, session)
        if options.model is None:
            raise OptionError("draft-model needs a second model; pass -md MODEL or --spec-type draft-model:model=MODEL")
        reference, load_options = options.model, _load_options(options, session.options)

        def make() -> DraftRunner:
            return _runner(reference, load_options, options.backend, session)

        self._runner: DraftRunner = session.shared((self.name, reference, load_options, options.backend), make)

    def begin(self, history: np.ndarray, n_reused: int) -> None:  # noqa: ARG002 - the runner knows what it holds itself
        """Feed the prompt, as far as it is not what the draft model's slot holds anyway."""
        self._runner.begin(self.session.slot, history)

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        """Write ahead for one slot."""
        return Draft(self._runner.draft([self._wish(history, limit)])[0])

    @classmethod
    def draft_together(cls, asks: Sequence[Ask]) -> list[Draft]:
        """Write ahead for several slots; those that share a draft model share its passes."""
        drafts = [Draft() for _ in asks]
        indices: dict[DraftRunner, list[int]] = {}
        wishes = []
        for i, ask in enumerate(asks):
            assert isinstance(ask.drafter, DraftModel)
            indices.setdefault(ask.drafter._runner, []).append(i)  # noqa: SLF001 - of this class
            wishes.append(ask.drafter._wish(ask.history, ask.limit))  # noqa: SLF001
        for runner, mine in indices.items():
            for i, tokens in zip(mine, runner.draft([wishes[i] for i in mine]), strict=True):
                drafts[i] = Draft(tokens)
        return drafts

    def _wish(self, history: np.ndarray, limit: int) -> Wish:
        # read anew each time: a request may bring options of its own
        return Wish(self.session.slot, history, limit, self.options.p_min)


@frozen(eq=False)
class Wish:
    """What one slot wants drafted."""

    slot: int
    history: np.ndarray  # (h,) int32
    limit: int
    p_min: float


def _load_options(options: DraftModelOptions, target: ModelOptions) -> ModelOptions:
    own: dict[str, Any] = {
        "n_ctx": options.ctx,
        "threads": options.threads,
        "cache_type_k": options.cache_type_k,
        "cache_type_v": options.cache_type_v,
    }
    return attrs.evolve(target, **{name: value for name, value in own.items() if value is not None})


def _runner(reference: str, load_options: ModelOptions, backend: str | None, session: Session) -> DraftRunner:
    """The draft model, once it is known to speak the target's language."""
    from augury.drafters.draft_runner import DraftRunner
    from augury.drafters.vocabulary_match import check_sizes, check_tokenizers

    check_tokenizers(session.tokenizer, session.load_tokenizer(reference))  # before the weights, which take longer
    model = session.load(reference, load_options, backend)
    check_sizes(session.model.n_vocab, model.info.n_vocab)
    return DraftRunner(model, n_slots=load_options.n_slots, n_vocab=session.model.n_vocab)


@hookimpl
def augury_drafters() -> list[type[Drafter]]:
    """Offer `draft-model`."""
    return [DraftModel]
