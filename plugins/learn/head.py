"""A head to be trained: its sizes, its first weights, and the GGUF file that it becomes.

The file is as llama.cpp's converter writes EAGLE-3 heads: one layer, norms before `fc` and of the residual, the target's
tokenizer, no embedding of its own, and an output of the `d2t` tokens alone. Matrices are Q4_0 if the target's weights have less
than 6.4 bits, else Q8_0, see `quant_like`.

Source: Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from attrs import evolve, frozen

from augury.errors import UnsupportedError
from augury.files.gguf import ModelFile
from augury.files.gguf_writer import LlamaSizes, add_value, add_weights, gguf_file
from augury.files.quantized import NO_QUANT, quant_like

if TYPE_CHECKING:
    from gguf import GGUFWriter

    from augury.blocks import ModelPlan

Weights = dict[str, np.ndarray]
"""By the tensors' names in the file; float32, matrices (n_out, n_in)."""

N_ROW = 256  # tokens of a row of texts: a head looks back at no more while it is trained, nor when it drafts
N_BATCH = 4  # rows that are learnt from at once
N_STEPS = 3  # tokens of a draft that heads are judged by, and EAGLE-3 heads are trained for, one more in each stage
_HEAD_DIMS = (128, 64, 32, 16, 8, 4, 2)
N_DRAFTED = 8192  # tokens that a head drafts unless told otherwise
_FF_BLOCK = 32  # weights of a block of Q8_0 and Q4_0, of which a row has whole ones


@frozen(eq=False)
class Sample:
    """Of some tokens n of texts what a head reads: features (n, 3 E) float32 of one root mean square, and ids (n,) int32."""

    features: np.ndarray
    tokens: np.ndarray

    @property
    def spread(self) -> np.ndarray:
        """(3 E,) float32, the root mean square of each feature."""
        return np.asarray(np.sqrt((self.features**2).mean(axis=0)))


@frozen
class HeadSizes(LlamaSizes):
    """The size of a head, and its features; width, vocabulary and context are the target's."""

    layers: tuple[int, ...]  # the numbers of the target's layers whose inputs it reads
    n_drafted: int  # V_d, how many tokens it drafts
    rope_base: float = 10000.0

    architecture = "eagle3"
    drafter = "draft-eagle3"
    title = "EAGLE-3 head"
    flags: ClassVar[Mapping[str, bool]] = {"norm_before_residual": True, "norm_before_fc": True, "norm_output": False}
    """What a file says of heads of this kind; what it does not say is false."""
    n_stages = N_STEPS

    @property
    def rate(self) -> float:
        """The learning rate at its highest, less for wide heads: 0.001 was best for 576 values, 0.0005 does for 1,536.

        EAGLE-3's batches are larger, and its rate is 5e-5.
        """
        return min(1e-3, 5e-4 * 1536 / self.n_embd)

    @classmethod
    def for_target(cls, file: ModelFile, plan: ModelPlan, name: str, n_drafted: int) -> Self:
        """The sizes of a head for a target that people call `name`: an early, a middle and a late layer, as EAGLE-3 reads them.

        Raises:
            UnsupportedError: Its layers tell no hidden states.
        """
        n_embd, n = plan.embedding.n_embd, len(plan.layers)
        if "layer.0" not in plan.features or plan.output.weight is None:
            raise UnsupportedError(f"{name}: its layers tell no hidden states, which a head reads; learn for another model")
        head_dim = next((d for d in _HEAD_DIMS if n_embd % d == 0 and n_embd // d > 1), n_embd)
        n_heads = n_embd // head_dim
        n_ff = -(-3 * n_embd // _FF_BLOCK) * _FF_BLOCK
        return cls(
            *(plan.n_vocab, n_embd, n_ff, n_heads, n_heads),
            head_dim=head_dim,
            n_rot=head_dim,
            n_layers=1,
            n_ctx=plan.n_ctx_train,
            layers=_layers_of(n),
            n_drafted=min(n_drafted, plan.n_vocab),
            **cls._further(file),
        )

    @classmethod
    def _further(cls, file: ModelFile) -> dict[str, int]:  # noqa: ARG003 - as above
        """Sizes of further kinds, from the target's file."""
        return {}

    def of_head(self, head: ModelFile, target: ModelFile, plan: ModelPlan) -> Self:
        """The sizes of a head that is there, for the same target.

        Raises:
            UnsupportedError: It is of another kind than heads that are trained here, or for another target.
        """
        keys, n_embd = f"{self.architecture}.{{}}".format, self.n_embd

        def check(what: str, found: object, expected: object) -> None:
            if found != expected:
                raise UnsupportedError(f"{head.path}: {what} is {found}, expected {expected} to go on from this head")

        check("the architecture", head.architecture, self.architecture)
        check("the number of layers", head.get(keys("block_count"), int), self.n_layers)
        for key in ("embedding_length", "target_hidden_size"):
            check(key, head.get(keys(key), int, n_embd), n_embd)
        for key, wanted in self.flags.items():
            check(key, head.get(keys(key), bool, default=False), wanted)
        check("rope.scaling.type", head.get(keys("rope.scaling.type"), str, "none"), "none")
        own, tokens = (file.get("tokenizer.ggml.tokens", list[str], []) for file in (head, target))
        check("the size of the vocabulary", head.get(keys("vocab_size"), int, len(own)), self.n_vocab)
        check("the first other token", next((a for a, b in zip(own, tokens, strict=False) if a != b), "none"), "none")
        layers = tuple(head.get(keys("target_layers"), list[int], list(self.layers)))
        check("the number of hidden states", len(layers), len(self.layers))
        sizes = evolve(
            self,
            layers=layers,
            n_ff=head.get(keys("feed_forward_length"), int),
            n_heads=head.get(keys("attention.head_count"), int),
            n_kv_heads=head.get(keys("attention.head_count_kv"), int),
            head_dim=(head_dim := head.get(keys("attention.key_length"), int)),
            n_rot=head_dim,
            rope_base=head.get(keys("rope.freq_base"), float, 10000.0),
            **self._further_of(head),
        )
        untold = next((name for name in sizes.features if name not in plan.features), None)
        check("a hidden state that the model has not", untold, None)
        further = head.tensors.keys() - sizes.stored_shapes.keys() - {"d2t", "output.weight", "token_embd.weight"}
        check("a further tensor", min(further, default=None), None)
        for name, shape in sizes.stored_shapes.items():
            check(f"the shape of {name}", head.tensor(name).shape, shape)
        return sizes

    def _further_of(self, head: ModelFile) -> dict[str, int]:  # noqa: ARG002 - as above
        """Sizes of further kinds, from a head's file."""
        return {}

    @property
    def n_steps(self) -> int:
        """How many tokens its drafts are judged by."""
        return N_STEPS

    @property
    def features(self) -> tuple[str, ...]:
        """The names of its features."""
        return _features_of(self.layers)

    @property
    def columns(self) -> tuple[str, ...]:
        """The hidden states that it is trained on, of each token: its features, and the target's output."""
        return (*self.features, "output")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the trained weights except the output: attention reads a token beside a feature."""
        e, q, kv = self.n_embd, self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        return self._shapes_of_layers | {
            "fc.weight": (e, len(self.layers) * e),
            "enc.output_norm.weight": (len(self.layers) * e,),
            "blk.0.attn_norm_2.weight": (e,),
            "blk.0.attn_q.weight": (q, 2 * e),
            "blk.0.attn_k.weight": (kv, 2 * e),
            "blk.0.attn_v.weight": (kv, 2 * e),
        }

    def first_weights(self, target: TargetTensors, sample: Sample, seed: int) -> Weights:
        """The weights that training starts from.

        The late layer's feature goes straight to the output. Features are brought to one scale. Each position attends to itself
        at first, because its keys are its queries, or the head would be told hardly anything of the token that it goes on from.
        """
        weights, n_embd = self._drawn(seed), self.n_embd
        for name in ("fc.weight", "blk.0.attn_output.weight", "blk.0.ffn_down.weight"):
            weights[name] *= np.float32(0.1)
        weights["enc.output_norm.weight"] = 1 / np.maximum(sample.spread, np.float32(1e-4))
        weights["fc.weight"][:, -n_embd:] += np.eye(n_embd, dtype=np.float32)
        weights["blk.0.attn_k.weight"][:, :n_embd] *= np.float32(2**0.5)  # it reads the token alone, half of the columns
        weights["blk.0.attn_k.weight"][:, n_embd:] = 0
        weights["blk.0.attn_q.weight"] = weights["blk.0.attn_k.weight"].copy()
        weights["output_norm.weight"] = target.norm.copy()
        return weights

    def _drawn(self, seed: int) -> Weights:
        """Random matrices that keep the size of what they multiply, and vectors of ones."""
        rng, weights = np.random.default_rng(seed), Weights()
        for name, shape in self.shapes.items():
            if len(shape) == 1:
                weights[name] = np.ones(shape, np.float32)
            else:
                weights[name] = rng.standard_normal(shape, np.float32) / np.float32(shape[1] ** 0.5)
        return weights

    def describe(self, writer: GGUFWriter) -> None:
        self._describe_head(writer)
        writer.add_uint32("eagle3.target_hidden_size", self.n_embd)

    def _describe_head(self, writer: GGUFWriter) -> None:
        super().describe(writer)
        writer.add_rope_freq_base(self.rope_base)
        writer.add_sliding_window(N_ROW)
        writer.add_array(f"{self.architecture}.target_layers", list(self.layers))
        for key, value in self.flags.items():
            if value:
                writer.add_bool(f"{self.architecture}.{key}", value)

    @property
    def stored_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors of its file, except the output."""
        return self.shapes

    def weights_of(self, head: ModelFile, first: Weights, target: TargetTensors) -> Weights:  # noqa: ARG002 - as above
        """The weights of a head of these sizes, in place of first ones."""
        return {name: head.tensor(name).floats().copy() for name in self.shapes}

    def stored(self, weights: Weights, target: TargetTensors) -> Weights:  # noqa: ARG002 - other heads need it
        """The weights as the file has them: its tensors by name, but for the output."""
        return weights

    @property
    def _shapes_of_layers(self) -> dict[str, tuple[int, ...]]:
        """Those of a llama model without an embedding."""
        return {name: shape for name, shape in super().shapes.items() if name != "token_embd.weight"}

    @property
    def n_weights(self) -> int:
        """How many numbers are trained."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())


def columns_of(n_layers: int) -> tuple[str, ...]:
    """The columns of a head for a target of so many layers, which may tell none of them."""
    return (*_features_of(_layers_of(n_layers)), "output")


def _layers_of(n: int) -> tuple[int, ...]:
    """An early, a middle and a late one of n layers."""
    return (2, n // 2, n - 3) if n > 5 else (1 % n, n // 2, n - 1)


def _features_of(layers: Iterable[int]) -> tuple[str, ...]:
    return tuple(f"layer.{number - 1}" if number else "embedding" for number in layers)


class TargetTensors:
    """Rows of the target's embedding and output, as numbers."""

    def __init__(self, file: ModelFile, plan: ModelPlan) -> None:
        assert plan.output.weight is not None
        assert plan.embedding.weight is not None
        self._file, self._output = file, plan.output.weight
        self.n_vocab = plan.n_vocab
        self._embedding, self.softcap = plan.embedding.weight, plan.output.softcap
        norm = file.tensors.get("output_norm.weight")
        is_alike = norm is not None and norm.shape == (plan.embedding.n_embd,)
        self.norm = self.values(file, "output_norm.weight") if is_alike else np.ones(plan.embedding.n_embd, np.float32)

    def embedding(self, tokens: np.ndarray) -> np.ndarray:
        """Rows (..., E) float32 of tokens (...) int32, as they are stored."""
        return self.values(self._file, self._embedding, tokens)

    def output(self, tokens: np.ndarray) -> np.ndarray:
        """Rows (m, E) float32 whose products with the feature `output` are the logits of tokens (m,)."""
        return self.values(self._file, self._output.weight, tokens) * np.float32(self._output.scale)

    @staticmethod
    def values(file: ModelFile, name: str, rows: Any = slice(None)) -> np.ndarray:
        """Some rows of a file's tensor, float32, or all of it."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        tensor = file.tensor(name)
        stored = tensor.data.reshape(*tensor.shape[:-1], -1)[rows]
        values: np.ndarray = dequantize(np.ascontiguousarray(stored), GGMLQuantizationType(tensor.type)).astype(np.float32)
        return values


def draft_vocabulary(texts: Iterable[np.ndarray], n_vocab: int, n_drafted: int) -> np.ndarray:
    """The most frequent tokens of texts, (n_drafted,) int32, rising; of equally frequent ones those of lower ids."""
    counts = np.zeros(n_vocab, np.int64)
    for text in texts:
        counts += np.bincount(text, minlength=n_vocab)
    best = np.argsort(-counts, kind="stable")[:n_drafted]
    return np.sort(best).astype(np.int32)


def write_first_head(path: Path, target: ModelFile, plan: ModelPlan, name: str) -> None:
    """Write a head that has learnt nothing, for the target `name`. Raises UnsupportedError: there can be no head for it."""
    sizes, tensors = HeadSizes.for_target(target, plan, name, N_DRAFTED), TargetTensors(target, plan)
    tokens = np.arange(sizes.n_drafted, dtype=np.int32)
    sample = Sample(np.ones((1, len(sizes.layers) * sizes.n_embd), np.float32), tokens[:1])
    weights = sizes.first_weights(tensors, sample, seed=1)
    write_head(path, sizes, target, tokens, weights, tensors.output(tokens))


def write_head(
    path: Path, sizes: HeadSizes, target: ModelFile, tokens: np.ndarray, weights: Mapping[str, np.ndarray], output: np.ndarray
) -> None:
    """Write a head that drafts `tokens` (V_d,) int32 as a GGUF file, whole or not at all; `output` is (V_d, E) float32.

    The file repeats the target's tokenizer, as llama.cpp expects it.
    """
    with gguf_file(path, sizes.architecture, is_durable=True) as writer:
        writer.add_name(f"{sizes.title} for {target.get('general.name', str, target.path.stem)}")
        sizes.describe(writer)
        for key, value in target.metadata.items():
            if key.startswith("tokenizer.") and key not in ("tokenizer.chat_template", "tokenizer.ggml.mask_token_id"):
                add_value(writer, key, value)
        writer.add_tensor("d2t", tokens.astype(np.int64))
        quant = quant_like(target)
        kind = ("q8_0" if quant == NO_QUANT else quant).upper()
        add_weights(writer, {**weights, "output.weight": output}, kind)
