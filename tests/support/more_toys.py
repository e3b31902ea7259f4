"""Toys that the kit does not need: a recurrent backend, a constraint, and heads that draft for the tiny target."""

from __future__ import annotations

import functools
import sys
import tempfile
from pathlib import Path

import numpy as np
from attrs import evolve, frozen

from augury.constraint import Constraint, ConstraintSession
from augury.files.gguf import ModelFile
from augury.files.gguf_writer import LlamaSizes, add_weights, gguf_file
from augury.hookspecs import hookimpl
from augury.interfaces import Progress, Source
from augury.options import option
from augury.testing import toys
from augury.testing.tiny_model import _SIZES
from augury.testing.toy_model import ToyRecurrentModel
from augury.testing.toys import TINY_TARGET, TinySource, ToyBackend

TINY_HEAD = "tiny:head"
TINY_DFLASH = "tiny:dflash"
TINY_DSPARK = "tiny:dspark"
HIDDEN = 0.3  # how much a head makes of a hidden state, beside the token's embedding
_FOCUS = 3.0  # of a head's attention on the token itself
_BLOCK_SIZE = 6  # tokens that a block head sees at once
_SUCCESSION = 8.0  # of the token before in a place of a block, beside the text's last token
_LOUDNESS = 1e4  # of a block head's attention output, beside the masks that it adds to
_fetched = TinySource.fetch  # in any test, also where it is replaced


def registry_with_toys():
    """All plugins that are installed, the kit's toys, and these."""
    registry = toys.registry_with_toys()
    registry.register(sys.modules[__name__], name="more-toys")
    return registry


@hookimpl
def augury_backends():
    return [ToyRecurrentBackend]


@hookimpl
def augury_constraints():
    return [ToyConstraint]


@hookimpl
def augury_sources():
    return [HeadSource]


@frozen
class ToyRecurrentOptions:
    keeps_aside: bool = option(True, help="drafted tokens stay out of the state")
    is_hybrid: bool = option(False, help="it has a KV cache as well")


class ToyRecurrentBackend(ToyBackend):
    """The toy with a recurrent state; texts repeat the token three tokens before."""

    name = "toy-recurrent"
    options_class = ToyRecurrentOptions

    def _model(self, plan, options, **more):
        n = {"n_vocab": plan.n_vocab, "n_slots": options.n_slots, "n_ctx": options.n_ctx}
        n |= {"can_keep_aside": self.options.keeps_aside, "is_hybrid": self.options.is_hybrid}
        return ToyRecurrentModel(**n, period=3, surprises=toys._SURPRISES, **more)


@frozen
class ToyOptions:
    """Options of `toy-residues`."""

    modulus: int = option(3, help="number of residue classes, which take turns", ge=1)
    stretch: int = option(4, help="tokens that are forced after a multiple of 5; 0: none", ge=0)
    length: int = option(0, help="tokens after which the text is complete; 0: never", ge=0)


class ToyConstraint(Constraint):
    """Token i of the output is of residue class i; after a multiple of 5 come its successors, which have no alternative."""

    name = "toy-residues"
    options_class = ToyOptions

    def __init__(self, options: ToyOptions, session: ConstraintSession) -> None:
        super().__init__(options, session)
        self._n = self._last = self._n_left = 0  # tokens of the output, its last, and those of a stretch that are to come
        self._mask = np.zeros(session.n_vocab, bool)
        self._tokens = np.setdiff1d(np.arange(session.n_vocab), list(session.end_tokens))

    def allowed(self) -> np.ndarray:
        """A residue class and the end tokens, or the one token that is forced."""
        self._mask[:] = False
        if self._n_left:
            self._mask[self.forced(1)] = True
        else:
            self._mask[self._n % self.options.modulus :: self.options.modulus] = True
            self._mask[list(self.session.end_tokens)] = True
        return self._mask

    def accept(self, token: int) -> None:
        self._n += 1
        self._last = token
        self._n_left = max(self._n_left - 1, 0) if self._n_left or token % 5 else self.options.stretch

    @property
    def is_complete(self) -> bool:
        """Whether it is long enough, and no stretch is begun."""
        return 0 < self.options.length <= self._n and not self._n_left

    def forced(self, limit: int) -> list[int]:
        first = np.searchsorted(self._tokens, self._last, side="right")
        return [int(self._tokens[(first + i) % len(self._tokens)]) for i in range(min(limit, self._n_left))]


class HeadSource(Source):
    """Writes heads when they are first wanted: an EAGLE-3 head, and two that draft blocks."""

    name = "tiny-heads"

    @classmethod
    def handles(cls, reference):
        return reference in (TINY_HEAD, TINY_DFLASH, TINY_DSPARK)

    @classmethod
    def fetch(cls, reference, folder, progress):  # the cache is the user's
        return _written(reference)


@functools.cache
def _written(reference):
    path = Path(_folder().name) / f"{reference.replace(':', '-')}.gguf"
    if reference == TINY_HEAD:
        write_tiny_head(path, n_layers=3)
        return path
    target = ModelFile.open(_fetched(TINY_TARGET, path.parent, Progress()))
    tensors = [target.tensor(name) for name in ("token_embd.weight", "output.weight")]
    embedding, output = (tensor.data.view(np.float32).reshape(tensor.shape) for tensor in tensors)
    write_tiny_block_head(path, embedding, output=output if reference == TINY_DSPARK else None, kind="draft-dspark")
    return path


@functools.cache
def _folder():
    return tempfile.TemporaryDirectory(prefix="augury-heads-")


def write_tiny_head(
    path: Path,
    *,
    n_embd: int = _SIZES.n_embd,
    head_dim: int = _SIZES.head_dim,
    n_layers: int = 1,
    output: np.ndarray | None = None,
) -> None:
    """Write an EAGLE-3 head that borrows its target's embedding and output: it predicts by a token's embedding.

    Its attention looks at the token itself, whose embedding it passes on, with some of the target's hidden states.

    Args:
        path: Where to.
        n_embd: E of the target.
        head_dim: D, of which E is a multiple.
        n_layers: Of the target, of which the first three, or the last one more than once, tell hidden states.
        output: In place of the target's, (V, E) float32.
    """
    n_heads = n_embd // head_dim
    heads = {"head_dim": head_dim, "n_rot": head_dim, "n_heads": n_heads, "n_kv_heads": n_heads}
    sizes = evolve(_SIZES, n_embd=n_embd, n_layers=1, **heads)
    own, nothing = np.eye(n_embd, dtype=np.float32), np.zeros((n_embd, n_embd), np.float32)
    looking = np.float32(_FOCUS / head_dim**0.25) * own
    with gguf_file(path, "eagle3") as writer:
        sizes.describe(writer)
        writer.add_array("eagle3.target_layers", [min(i, n_layers) for i in (1, 2, 3)])
        writer.add_uint32("eagle3.target_hidden_size", n_embd)
        writer.add_bool("eagle3.norm_before_residual", val=True)
        weights = _empty_layer(sizes) | {"fc.weight": np.hstack([own, own, own]), "blk.0.attn_output.weight": own}
        weights["blk.0.attn_norm_2.weight"] = np.full(n_embd, HIDDEN, np.float32)
        for name, values in {"attn_q": looking, "attn_k": looking, "attn_v": own}.items():
            weights[f"blk.0.{name}.weight"] = np.hstack([values, nothing])
        if output is not None:
            weights["output.weight"] = output
        add_weights(writer, weights)


def write_tiny_block_head(
    path: Path,
    embedding: np.ndarray,
    *,
    output: np.ndarray | None = None,
    head_dim: int = _SIZES.head_dim,
    kind: str = "draft-dflash",
    own: np.ndarray | None = None,
) -> None:
    """Write a DFlash head that borrows its target's embedding and output: it predicts by the last token's embedding alone.

    It predicts in every place the successor of that token, and so is right in the first, and seldom in others. Its attention
    sees all of a block alike, of which it passes on all but the masks; hidden states of the target change nothing.

    Args:
        path: Where to.
        embedding: The embedding of the target, (V, E) float32; its last token is the mask.
        output: Of the target, (V, E): the head then predicts in each place the successor of the token before.
        head_dim: D, of which E is a multiple.
        kind: With an output: a drafter, of whose kind the head is. One of `draft-dflash` is a DFlash2 head.
        own: The head's output in place of the target's.
    """
    n_vocab, n_embd = embedding.shape
    n_heads = n_embd // head_dim
    heads = {"head_dim": head_dim, "n_rot": head_dim, "n_heads": n_heads, "n_kv_heads": n_heads}
    sizes = evolve(_SIZES, n_embd=n_embd, n_layers=1, **heads)
    same, mask = np.eye(n_embd, dtype=np.float32), embedding[-1] / np.linalg.norm(embedding[-1])
    lengths = np.sqrt(np.mean(embedding**2, axis=1, keepdims=True))
    with gguf_file(path, "dflash") as writer:
        sizes.describe(writer)
        writer.add_array("dflash.target_layers", [1])
        writer.add_uint32("dflash.block_size", _BLOCK_SIZE)
        writer.add_mask_token_id(n_vocab - 1)
        weights = _empty_layer(sizes) | {"fc.weight": 0 * same, "enc.output_norm.weight": np.ones(n_embd)}
        weights |= {f"blk.0.attn_{name}_norm.weight": np.ones(head_dim) for name in "qk"}
        weights |= {"blk.0.attn_k.weight": same, "blk.0.attn_v.weight": same - np.outer(mask, mask)}
        weights["blk.0.attn_output.weight"] = _LOUDNESS * same
        if own is not None:
            weights["output.weight"] = own
        if output is not None and kind == "draft-dspark":
            weights |= {"markov_w1.weight": embedding / lengths, "markov_w2.weight": _SUCCESSION * output}
            weights |= {"conf_proj.weight": np.zeros((1, 2 * n_embd)), "conf_proj.bias": np.ones(1)}
        elif output is not None:
            writer.add_uint32("dflash.selector_top_k", n_vocab)
            weights |= {"selector_predecessor.weight": embedding / lengths, "selector_successor.weight": _SUCCESSION * output}
            weights |= {"selector_hidden.weight": np.zeros((n_embd, n_embd)), "selector_hidden.bias": np.ones(n_embd)}
        add_weights(writer, {name: values.astype(np.float32) for name, values in weights.items()})


def _empty_layer(sizes: LlamaSizes) -> dict[str, np.ndarray]:
    """Tensors of a head of one layer, of which only norms let anything through; it lacks an embedding."""
    shapes = {name: shape for name, shape in sizes.shapes.items() if name != "token_embd.weight"}
    return {name: np.full(shape, len(shape) == 1, np.float32) for name, shape in shapes.items()}
