"""Blocks that draft: inputs of layers that predict further tokens, and the parts of heads that draft a block in one pass."""

from __future__ import annotations

from attrs import frozen

from augury.blocks.block import Block
from augury.blocks.transformer import Attention, FeedForward
from augury.lowering.builder import Builder
from augury.lowering.operation import Value
from augury.lowering.operations import Add, ConvolveBlock, InitStreams, Join, LookUp, Multiply, ReadHidden
from augury.lowering.parts import BlockTensors, Linear, Norm, Vector


@frozen
class DraftBlock:
    """The tokens of a pass of such a model: the last token of a text, and masks in place of the tokens after it.

    Its attention sees keys and values of the text before, which are made of hidden states: a pass that is given these
    (`Batch.hidden`) keeps them in every layer, and computes nothing else; see `Injection`. Without `norm` they are made of
    tokens and hidden states together, and masks have the hidden state that the plan `mask` makes of its token 0.
    """

    size: int  # tokens of a block, at most
    mask: int  # the token that stands for others
    n_unread: int  # first tokens of a block that predict nothing; 0: even the text's last one predicts the one after it
    norm: Norm | None  # of hidden states
    has_transitions: bool = False  # whether the plan `transitions` adds to the logits after a token, by that token
    # how it does: "vanilla" by the token, "gated" by what `gate` makes of it and the place, "rnn" also of all before, and
    # "domino" by a state of all before and the place
    markov: str = "vanilla"
    n_uncorrected: int = 0  # so many first places do without
    n_selected: int = 0  # so many of the best tokens are judged anew, by the plans `predecessor`, `successor` and `selector`
    has_confidence: bool = False  # whether the plan `confidence` tells how sure the best token is


@frozen
class Injection(Block):
    """Keeps keys and values that an attention makes of norm(x), as if they were those of tokens, and adds nothing to x."""

    norm: Norm
    attention: Attention
    layer: int  # of the attention

    def tensors(self) -> tuple[BlockTensors, ...]:
        attention = self.attention
        parts = (self.norm, attention.k, attention.v, attention.k_norm, attention.v_norm)
        return tuple(part for part in parts if part is not None)

    def lower(self, build: Builder) -> None:
        n, attention = build.normalize(build.x, self.norm), self.attention
        made = build.add(Multiply, n, (attention.k, attention.v), "keys, values")
        attention.keep(build, made, source=self.layer)


@frozen
class Convolved(Block):
    """x += convolved(inner(convolved(norm(x)))), over the tokens of a block, from each back to the block's first.

    A convolution is y[c] at j = sum over t of (base[side, t, c] + w[side, t, c // group]) x[c] at j - t. The w are products of
    norm(x) at j; the side is 0 before the inner block, 1 after it.
    """

    inner: Attention | FeedForward
    weights: Linear  # E → 2 * n_taps * E / group
    base: Vector  # (2, n_taps, E)
    n_taps: int

    def cached(self) -> tuple[tuple[str, int, int], ...]:
        return self.inner.cached()

    def lower(self, build: Builder) -> None:
        n = build.normalize(build.x, self.inner.norm)
        (weights,) = build.add(Multiply, n, (self.weights,), "weights of convolutions")
        y = self.inner.output(build, build.add(ConvolveBlock, n, weights, self.base, self.n_taps, 0))
        build.add(Add, build.add(ConvolveBlock, y, weights, self.base, self.n_taps, 1), self.inner.post_norm)


@frozen
class MtpInput(Block):
    """The residual streams begin as projection(token_norm(x), hidden_norm(h)), both norms side by side.

    x is the token's embedding, h the row of `Batch.hidden`, of the token before it. Where h has a row (E,) for each stream,
    each begins as its own, and the norm may have weights for each; one row is the beginning of all.

    Source: DeepSeek-AI 2024, "DeepSeek-V3", section 2.2.
    """

    token_norm: Norm
    hidden_norm: Norm
    projection: Linear  # 2 E → E
    n_hidden: int  # values of h

    def lower(self, build: Builder) -> None:
        x, size = build.normalize(build.x, self.token_norm), self.hidden_norm.size
        hidden = build.normalize(build.add(ReadHidden, Value(self.n_hidden)), self.hidden_norm)
        joined = [build.add(Join, (x, row)) for row in hidden.split(*[size] * (self.n_hidden // size))]
        build.add(InitStreams, tuple(build.add(Multiply, each, (self.projection,), "mtp input")[0] for each in joined))


@frozen
class AssistantInput(Block):
    """The residual stream begins as projection(scale * W[token], h), both side by side.

    W, of shape (V, F), is the embedding of the model that is drafted for, h the row of `Batch.hidden`, of the token before.

    Source: llama.cpp's `gemma4-assistant`.
    """

    table: Linear  # F → V: W
    scale: float
    projection: Linear  # 2 F → E
    n_hidden: int  # F

    def lower(self, build: Builder) -> None:
        joined = build.add(Join, (build.add(LookUp, self.table, self.scale), build.add(ReadHidden, Value(self.n_hidden))))
        build.add(InitStreams, build.add(Multiply, joined, (self.projection,), "mtp input"))
