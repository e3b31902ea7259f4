"""Layers of blocks, and the plan of a whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import Any, Literal

from attrs import evolve, frozen

from augury.blocks.block import AllStreams, Block, Connection
from augury.blocks.drafting import AssistantInput, Convolved, DraftBlock, Injection, MtpInput
from augury.blocks.latent import LatentAttention
from augury.blocks.transformer import Attention, Embedding, LayerInput, Output, SecondStream
from augury.errors import CapacityError, OptionError, UnsupportedError
from augury.lowering.parts import BlockTensors, Norm
from augury.part import Part

_Blocks = Block | tuple[Block, ...] | None


@frozen
class Layer:
    """x += mixer(x), then x += feed_forward(x). Each is a block, several one after the other, or missing.

    Afterwards `x *= scale`, and `x = norm(x)` where there is a norm.
    """

    mixer: Block | tuple[Block, ...] | None
    feed_forward: Block | tuple[Block, ...] | None = None
    norm: Norm | None = None
    scale: float = 1.0

    @property
    def parts(self) -> tuple[BlockTensors, ...]:
        """Its parts of the model file, block by block, then its own norm."""
        parts = tuple(part for block in self.blocks for part in block.tensors())
        return parts if self.norm is None else (*parts, self.norm)

    @property
    def mixers(self) -> tuple[Block, ...]:
        """The blocks that mix its tokens."""
        return _each(self.mixer)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Its blocks, in order."""
        return (*_each(self.mixer), *_each(self.feed_forward))

    @property
    def n_parallel(self) -> int:
        """How many of its blocks, from the first on, see x as it was before the layer."""
        return 1 + [*(block.is_parallel for block in self.blocks[1:]), False].index(False)

    def with_blocks(self, change: Callable[[Block], Block]) -> Layer:
        """The same layer with other blocks in place of its own."""
        return evolve(self, mixer=_changed(self.mixer, change), feed_forward=_changed(self.feed_forward, change))

    def connected(self, *connections: Connection) -> Layer:
        """The same layer, whose blocks read and write residual streams by these connections, in their order."""
        left = [*connections]
        return self.with_blocks(lambda block: evolve(block, connection=left.pop(0)))


def _each(blocks: _Blocks) -> tuple[Block, ...]:
    return blocks if isinstance(blocks, tuple) else () if blocks is None else (blocks,)


def _changed(blocks: _Blocks, change: Callable[[Block], Block]) -> _Blocks:
    return tuple(map(change, blocks)) if isinstance(blocks, tuple) else None if blocks is None else change(blocks)


@frozen
class MtpLayer:
    """Predicts the token after the next one, from the output of the layers before for a token, and from the next token.

    `hidden` names the feature that it reads, and gives on for one more token: the input of the output's matrix, or all residual
    streams; see `Model.features`. An assistant is a small model of this kind: it has several layers, of a width of its own,
    that attend to the caches of the model's layers.
    """

    embedding: Embedding
    input: MtpInput | AssistantInput
    layers: tuple[Layer, ...]
    output: Output
    hidden: Literal["output", "layer"] = "output"

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Its blocks, in order."""
        return (self.embedding, self.input, *(block for layer in self.layers for block in layer.blocks), self.output)


@frozen
class ModelPlan:
    """A whole model, in the order in which it is computed.

    Layers that predict further tokens, `mtp`, are numbered on from the others, and have their caches in the same slots. They
    are parts of their own, see `parts`.
    """

    architecture: str
    embedding: Embedding
    layers: tuple[Layer, ...]
    output: Output
    n_ctx_train: int  # positions the model was trained for
    mtp: tuple[MtpLayer, ...] = ()
    # of a model that drafts for another one: the features that its hidden states are made of, side by side; empty names: zeros
    hidden_of: tuple[str, ...] = ()
    block: DraftBlock | None = None  # of a model that drafts several tokens with one pass
    span: tuple[int, int] | None = None  # of a stage: which layers of the whole model, as `stage` was asked for them
    form: str = ""  # what `for_context` chose, where slots of other lengths have other states for the same text
    n_adapters: int = 0  # that its products have, see `with_adapters`

    @property
    def n_vocab(self) -> int:
        """V, how many logits a row has; 0 of a stage without the output."""
        if self.output.tokens is not None:
            return self.embedding.n_vocab
        return 0 if self.output.weight is None else self.output.weight.n_out

    @property
    def keeps_embedded(self) -> bool:
        """Whether layers make use of the embedding's output."""
        return any(block.reads_embedding for layer in self.every_layer for block in layer.blocks)

    @property
    def injections(self) -> tuple[Injection, ...]:
        """By layer, the block that a pass with hidden states computes in place of it; nothing where no block keeps these."""
        if self.block is None or (norm := self.block.norm) is None:
            return ()
        mixers = [(i, mixer) for i, layer in enumerate(self.layers) for mixer in layer.mixers]
        inner = [(i, mixer.inner if isinstance(mixer, Convolved) else mixer) for i, mixer in mixers]
        return tuple(Injection(norm, each, i) for i, each in inner if isinstance(each, Attention))

    @property
    def mixers(self) -> tuple[Block, ...]:
        """The blocks that mix tokens, layer by layer."""
        return tuple(mixer for layer in self.every_layer for mixer in layer.mixers)

    @property
    def every_layer(self) -> tuple[Layer, ...]:
        """The layers, and after them the layers that predict further tokens."""
        return (*self.layers, *(layer for each in self.mtp for layer in each.layers))

    @property
    def heads(self) -> dict[str, MtpLayer]:
        """Its layers that predict further tokens, by the name of their part."""
        return {"assistant" if isinstance(each.input, AssistantInput) else f"mtp.{i}": each for i, each in enumerate(self.mtp)}

    @property
    def parts(self) -> dict[str, Part]:
        """What passes go through by itself, by the name in `Batch.part`.

        `main` are all layers but those that predict further tokens, of which each `mtp.0`, `mtp.1`, ... is one, or `assistant`
        are all. `inject` keeps keys and values of hidden states in the layers of `main`, see `DraftBlock`.
        """
        n = len(self.layers)
        main = Part((0, n), self.hidden_of, f"layer.{n - 1}", self.n_hidden, True, self.embedding.weight is None, self.block)
        parts = {"main": main}
        if self.injections:
            parts["inject"] = evolve(main, output="", needs_hidden=True, block=None)
        ends = accumulate((len(each.layers) for each in self.mtp), initial=n)
        for (name, each), (first, end) in zip(self.heads.items(), pairwise(ends), strict=True):
            given, made = ("output",) * 2 if each.hidden == "output" else (f"layer.{first - 1}", f"layer.{end - 1}")
            caches = any(block.cached() or block.states() for layer in each.layers for block in layer.blocks)
            parts[name] = Part((first, end), (given,), made, each.input.n_hidden, caches, needs_hidden=True)
        return parts

    def without_mtp(self) -> ModelPlan:
        """The same without layers that predict further tokens."""
        return evolve(self, mtp=())

    def with_window(self, n: int) -> ModelPlan:
        """The same with attention to the last n positions that a token sees, or to all where n is 0."""
        return self.with_blocks(lambda block: _windowed(block, n or None))

    def with_blocks(self, change: Callable[[Block], Block]) -> ModelPlan:
        """The same with other blocks in its layers, those that predict further tokens included."""
        layers = tuple(layer.with_blocks(change) for layer in self.layers)
        mtp = tuple(evolve(each, layers=tuple(layer.with_blocks(change) for layer in each.layers)) for each in self.mtp)
        return evolve(self, layers=layers, mtp=mtp)

    @property
    def features(self) -> dict[str, int]:
        """The features of every token beside logits, and their widths; see `Model.features`.

        Layers and the embedding give all of their residual streams, one after the other. Models whose layers begin or trade
        streams give none. A pass gives the features of the layers that it goes through.
        """
        of_output = {} if self.output.weight is None else {"output": self.embedding.n_embd}
        if self._changes_streams:
            return of_output
        of_embedding = {} if self.embedding.weight is None else {"embedding": self.n_hidden}
        n_streams, widths = self.embedding.n_streams, [self.n_hidden] * len(self.layers)
        widths += [n_streams * each.embedding.n_embd for each in self.mtp for _ in each.layers]
        return of_embedding | {f"layer.{i}": width for i, width in enumerate(widths)} | of_output

    @property
    def n_hidden(self) -> int:
        """How many values each token has between two layers, in all residual streams that the embedding begins."""
        return self.embedding.n_streams * self.embedding.n_embd

    @property
    def widest(self) -> int:
        """How many values x has at most. Layers that predict further tokens may have a width of their own."""
        return max(self.embedding.n_embd, *(each.embedding.n_embd for each in self.mtp), 0)

    def n_seen(self, block: Block) -> int:
        """How many values of a token a block sees: x, or all residual streams."""
        if isinstance(block.connection, AllStreams):
            return self.n_hidden
        of_mtp = (each.embedding.n_embd for each in self.mtp if any(block is own for own in each.blocks))
        return next(of_mtp, self.embedding.n_embd)

    @property
    def _changes_streams(self) -> bool:
        """Whether layers begin residual streams, or trade two of them."""
        blocks = [block for layer in self.layers for block in layer.blocks]
        swaps = any(isinstance(block, SecondStream) and block.swaps for block in blocks)
        return swaps or (self.embedding.n_streams == 1 and any(block.connection for block in blocks))

    def blocks(self) -> Iterator[Block]:
        """All blocks in order."""
        yield self.embedding
        for layer in self.layers:
            yield from layer.blocks
        yield from (self.output, *self.injections)
        for each in self.mtp:
            yield from each.blocks

    @property
    def connections(self) -> list[Connection]:
        """How its blocks read and write residual streams, where they are connected."""
        return [block.connection for block in self.blocks() if block.connection is not None]

    def tensors(self) -> Iterator[BlockTensors]:
        """All of its tensors of the model file, in order."""
        yield from self.embedding.tensors()
        for layer in self.layers:
            yield from layer.parts
        for block in (self.output, *self.injections):
            yield from block.tensors()
        for each in self.mtp:
            yield from (*each.embedding.tensors(), *each.input.tensors())
            yield from (part for layer in each.layers for part in layer.parts)
            yield from each.output.tensors()

    def for_context(self, n_ctx: int) -> ModelPlan:
        """The same for slots of `n_ctx` positions, which ropes may depend on, and without indexers that would choose all.

        Raises CapacityError: the model has learned fewer positions.
        """
        if (positions := self.embedding.positions) is not None and n_ctx > positions.n_out:
            raise CapacityError(
                f"{self.architecture}: a context of {n_ctx} positions, but the model has learned {positions.n_out}; ask for "
                "at most that many"
            )
        chooses, forms = False, set[str]()

        def fitted(block: Block) -> Block:
            nonlocal chooses
            fitting: Any = _with_rope_for(block, n_ctx)
            if fitting is not block:
                forms.add("long" if n_ctx > block.rope.n_ctx_short else "short")  # type: ignore[attr-defined] # it has one
            if (indexer := getattr(fitting, "indexer", None)) is not None:
                chooses = n_ctx > indexer.reach
                forms.add("choosing" if chooses else "whole")
                return fitting if chooses else evolve(fitting, indexer=None)
            if isinstance(fitting, LatentAttention) and fitting.reuses_choice and not chooses:
                return evolve(fitting, reuses_choice=0)
            return fitting

        plan = self.with_blocks(fitted)
        return evolve(plan, form=self.form or " ".join(sorted(forms)))

    def cuts(self) -> tuple[int, ...]:
        """Before which layers it can be cut into stages, the number of layers included, which is before the output.

        A stage is handed the residual streams and nothing else: all of them begin as the embedding, and no layer may read an
        earlier stage's caches. Layers that predict further tokens are of the last stage.
        """
        if self._changes_streams or self.block is not None:
            return ()
        return tuple(cut for cut in range(1, len(self.layers) + 1) if self._is_cut(cut))

    def _is_cut(self, cut: int) -> bool:
        mixers = [mixer for layer in self.every_layer[cut:] for mixer in layer.mixers]
        sources = [mixer.source for mixer in mixers if isinstance(mixer, Attention) and mixer.source is not None]
        latent = [mixer for mixer in mixers if isinstance(mixer, LatentAttention) and (mixer.indexer or mixer.reuses_choice)]
        return min(sources, default=cut) >= cut and not (latent and latent[0].reuses_choice)

    def stage(self, first: int, end: int) -> ModelPlan:
        """Layers from `first` to before `end`, two `cuts` or ends, as a model of their own; the last layer is the output.

        The first stage embeds tokens; later ones are given hidden states, see `Batch.hidden`, and embed besides if their layers
        make use of that. Those without the output give the feature of their last layer. Raises UnsupportedError: it cannot be
        cut there.
        """
        cuts, n_layers = self.cuts(), len(self.layers)
        if odd := {first, end} - {0, *cuts, n_layers + 1}:
            known = f"one of {', '.join(map(str, cuts))}" if cuts else "none"
            raise UnsupportedError(
                f"a stage of layers {first} to {end}, but a model of architecture {self.architecture!r} cannot be cut before "
                f"layer {min(odd)}, expected {known}; see ModelPlan.cuts"
            )
        layers, embedding, output = self.layers[first:end], self.embedding, self.output
        reads = any(isinstance(block, LayerInput) or block.reads_embedding for layer in layers for block in layer.blocks)
        if first and not reads:
            embedding = Embedding(None, embedding.n_vocab, embedding.n_embd, n_streams=embedding.n_streams)
        if end <= n_layers:
            output = Output(None, None)
        part = evolve(
            self, embedding=embedding, layers=layers, output=output, mtp=self.mtp if end > n_layers else (), span=(first, end)
        )
        return part.with_blocks(lambda block: _moved(block, first))

    def check_start(self, first: int) -> None:
        """Raise an OptionError if a pass from a layer on would attend to an earlier layer's choice of positions."""
        for mixer in (mixer for layer in self.layers[first:] if first for mixer in layer.mixers):
            if isinstance(mixer, LatentAttention):
                if mixer.indexer is not None:
                    return
                if mixer.reuses_choice:
                    raise OptionError(
                        f"a pass from layer {first} on, but what it attends to an earlier layer chooses; begin there"
                    )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """All tensors of the file that it uses by name, and their shapes."""
        return {name: shape for part in self.tensors() for name, shape in part.shapes.items()}


def _windowed(block: Any, window: int | None) -> Any:
    if isinstance(block, Convolved):
        return evolve(block, inner=_windowed(block.inner, window))
    return evolve(block, window=window) if isinstance(block, Attention) else block


def _with_rope_for(block: Any, n_ctx: int) -> Block:
    rope = getattr(block, "rope", None)
    if rope is None or rope.long_frequencies is None:
        return block
    chosen = rope.long_frequencies if n_ctx > rope.n_ctx_short else rope.frequencies
    return evolve(block, rope=evolve(rope, frequencies=chosen, long_frequencies=None, n_ctx_short=0))


def _moved(block: Block, first: int) -> Block:
    """A block of a model that begins with this layer of another."""
    if not (isinstance(block, Attention) and block.source is not None):
        return block
    return evolve(block, source=block.source - first)
