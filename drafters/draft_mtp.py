"""`draft-mtp`: the target's own layers that predict further tokens write ahead (multi-token prediction).

Files of some models have such layers. They are trained to predict the next token from the model's hidden state of one token
and from the token after it. A pass through one of them takes a small part of a pass through the model. Their keys and values
lie in the target's slots, so they are reused with a prompt that is taken up again. Drafts branch by the tokens that were
considered.

Source: Gloeckle et al. 2024, "Better & Faster Large Language Models via Multi-token Prediction" (arXiv 2404.19737); DeepSeek-AI
2024, "DeepSeek-V3" (arXiv 2412.19437), section 2.2; llama.cpp's `draft-mtp`, whose drafts these are.
"""

from __future__ import annotations

from attrs import evolve, frozen

from augury.drafters.model.model_drafter import FeatureDrafter, p_min_option, quant_option, vocab_option
from augury.drafters.model.mtp_runner import MtpRunner
from augury.errors import UnsupportedError
from augury.interfaces import Session


@frozen
class DraftMtpOptions:
    """Options of `draft-mtp`."""

    vocab: int | None = vocab_option()
    p_min: float = p_min_option("a draft ends where the best token is less probable than this, among the ten best")
    quant: str | None = quant_option()


class DraftMtp(FeatureDrafter):
    """Lets the target's layers that predict further tokens write ahead."""

    name = "draft-mtp"
    aliases = ("mtp",)
    options_class = DraftMtpOptions
    options: DraftMtpOptions
    traits = evolve(FeatureDrafter.traits, uses_mtp=True)
    runner: MtpRunner

    def __init__(self, options: DraftMtpOptions, session: Session) -> None:
        super().__init__(options, session)
        target, n_vocab = session.target, session.model.n_vocab
        if not target.heads:
            raise UnsupportedError(f"draft-mtp: {target.lack_of_heads}")
        self.traits = evolve(self.traits, features=next(iter(target.heads.values())).input)
        self.runner = session.shared(
            (self.name, options.vocab),
            lambda: MtpRunner(target, session.options.n_ctx, n_vocab=n_vocab, n_first=options.vocab),
        )
