"""`draft-model`: a second, smaller model writes ahead, greedily.

It follows the text with a KV cache of its own. The first of its passes feeds the missed tokens, which are the token just
sampled and, after a draft that was right to the end, that draft's last; each further pass feeds the token just drafted. One
pass serves all slots. k drafted tokens take k passes.

A draft model with another vocabulary drafts through text: see `augury.drafters.model.translation`. `tree` adds to a draft the
other tokens that the draft model considered: see `augury.drafters.model.written_draft`. If drafts are verified by rejection,
they are drawn as the request draws, and handed over with the distributions that they were drawn from.

Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", with greedy drafts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve, frozen

from augury.drafters.model.draft_runner import DraftRunner
from augury.drafters.model.model_drafter import LoadOptions, ModelDrafter, drafter_for, traits_of, vocab_option
from augury.drafters.model.translation import Translation, size_difference, tokenizer_difference
from augury.drafters.model.written_draft import DraftRequest, TreeShape, WrittenDraft
from augury.errors import OptionError, UnsupportedError
from augury.interfaces import Ask, Session
from augury.log import get_logger
from augury.options import option
from augury.types import Draft, ModelOptions

if TYPE_CHECKING:
    from augury.text.tokenizer import Tokenizer


@frozen
class DraftModelOptions(LoadOptions):
    """Options of `draft-model`; omitted ones are as the target's."""

    ctx: int | None = option(
        None,
        help="its context, the target's unless given; 0: what it was trained for; longer texts go on without drafts",
        ge=0,
        aliases=("cd", "ctx-size-draft"),
    )
    tree: str | None = option(None, help="WIDTHxDEPTH, such as 2x5: drafts branch, with so many candidates for each place")
    vocab: int | None = vocab_option()

    def __attrs_post_init__(self) -> None:
        if self.tree is not None:
            TreeShape.of(self.tree)  # a mistake is told before the target is loaded


class DraftModel(ModelDrafter):
    """Lets a draft model write ahead."""

    name = "draft-model"
    aliases = ("draft-simple", "draft")
    options_class = DraftModelOptions
    options: DraftModelOptions
    runner: DraftRunner

    def __init__(self, options: DraftModelOptions, session: Session) -> None:
        super().__init__(options, session)
        if options.model is None:
            raise OptionError("draft-model needs a second model; pass -md MODEL or --spec-type draft-model:model=MODEL")
        self._tree = None if options.tree is None else TreeShape.of(options.tree)
        if self._tree is not None:
            self._tree.check(session.options.n_ctx)
        reference, load_options = options.model, options.of_target(session.options, n_ctx=options.ctx)
        key = (self.name, reference, load_options, options.backend, options.vocab)
        self.runner, translated = session.shared(key, lambda: _load(reference, load_options, options, session))
        self.traits = traits_of(self.traits, self.runner)
        self._translation = None if translated is None else Translation(*translated)
        if self._tree is not None and self._translation is not None:
            raise UnsupportedError("draft-model: tree needs a draft model with the target's vocabulary; leave it out")

    def begin(self, history: np.ndarray, n_reused: int) -> Iterator[None]:  # noqa: ARG002 - the runner knows its slots
        """Feed the prompt in chunks, except for the part that the draft model's slot already holds."""
        if self._translation is None:
            self.begin_sampling()
        else:
            self._translation.begin()
            history = self._translation.follow(history)
        is_plain = self._translation is None and self._tree is None and self.sampler is None
        drafts_ahead = is_plain and not self.runner.is_asynchronous  # on a device it might get in the target's way
        self.traits = evolve(self.traits, drafts_ahead=drafts_ahead)
        return self.runner.begin(self.session.slot, history)

    def teacher_forced(self, history: np.ndarray, n: int) -> np.ndarray | None:
        """The tokens that it would have drafted for the last ones; it skips the missed ones before them."""
        return None if self._translation is not None else self.runner.teacher_forced(self.session.slot, history, n)

    def request(self, ask: Ask) -> DraftRequest:
        """See `ModelDrafter.request`: of a text that is translated, or of a tree that was asked for, too."""
        request, tree = super().request(ask), self._tree
        if tree is not None:
            return evolve(request, limit=min(request.limit, tree.depth), n_candidates=min(tree.width, ask.limit))
        if self._translation is None:
            return request
        history = self._translation.follow(ask.history)
        is_open = self._translation.is_within_character or not len(history)
        return evolve(request, history=history, limit=0 if is_open else request.limit, n_candidates=1)

    def made_of(self, written: WrittenDraft, limit: int) -> Draft:
        if self._translation is not None:
            return Draft(self._translation.back(written.tokens)[:limit])
        return super().made_of(written, limit)


def _load(
    reference: str, load_options: ModelOptions, options: DraftModelOptions, session: Session
) -> tuple[DraftRunner, tuple[Tokenizer, Tokenizer] | None]:
    """The draft model for all slots, and if its vocabulary is not the target's, the tokenizers of both.

    Raises:
        UnsupportedError: It is not, and one of the two has no tokenizer to translate with.
    """
    log, target, draft = get_logger("augury.drafters.draft_model"), session.tokenizer, session.load_tokenizer(reference)
    difference = None if target is None or draft is None else tokenizer_difference(target, draft)
    context = session.load(reference, load_options, options.backend)
    if (meant := drafter_for(context.info)) != DraftModel.name:
        raise UnsupportedError(f"{reference} drafts from hidden states of its target; use {meant}")
    difference = difference or size_difference(session.model.n_vocab, context.info.n_vocab)
    if difference is None:
        log.info("the draft model has the target's vocabulary and drafts in its tokens", model=reference)
        return DraftRunner(context, n_vocab=session.model.n_vocab, n_first=options.vocab), None
    if target is None or draft is None:
        raise UnsupportedError(
            f"{difference}; without a tokenizer of both the draft model cannot be spoken to by text: "
            "choose one of the target's family"
        )
    log.warning("the draft model has another vocabulary; drafts go through text", model=reference, difference=difference)
    return DraftRunner(context, n_vocab=draft.n_vocab, n_first=options.vocab), (target, draft)
