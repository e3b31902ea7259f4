"""Facts of a loaded model that other parts may read, and the head of one that ranks documents."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import numpy as np
from attrs import Factory, field, frozen

from augury.errors import ModelFileError
from augury.part import Part
from augury.text.special_token import LiteralTexts

if TYPE_CHECKING:
    from augury.blocks import ModelPlan
    from augury.files.gguf import ModelFile
    from augury.text.tokenizer import Tokenizer


_WEIGHT, _BIAS = "cls.output.weight", "cls.output.bias"
_TEMPLATE = "tokenizer.chat_template.rerank"
_OF_CHANCES = ("qwen3", "qwen3vl", "qwen3vlmoe")  # whose first value is that of "yes", the second that of "no"


@frozen(eq=False)
class RankHead:
    """A linear map of the last token's embedding, whose first value is the score; of the Qwen 3 family softmax of its values.

    Source: llama.cpp's `build_pooling` and `format_prompt_rerank`.
    """

    weight: np.ndarray  # (n, E) float64
    bias: np.ndarray | float  # (n,) float64, or 0
    has_softmax: bool  # whether the values are chances
    template: str | None  # with `{query}` and `{document}`; None: both texts, begun and ended as the tokenizer says

    @classmethod
    def of(cls, file: ModelFile, n_embd: int) -> Self | None:
        """The head of a reranker's file, if it has one. Raises ModelFileError: it does not fit embeddings of that width."""
        if _WEIGHT not in file.tensors:
            return None
        weight = np.atleast_2d(file.tensor(_WEIGHT).floats().astype(np.float64))
        if weight.shape[1:] != (n_embd,):
            raise ModelFileError(f"{file.path}: tensor {_WEIGHT!r} has shape {weight.shape}, expected rows of {n_embd}")
        bias = file.tensor(_BIAS, (len(weight),)).floats().astype(np.float64) if _BIAS in file.tensors else 0.0
        template = file.get(_TEMPLATE, str, default=None)
        return cls(weight, bias, file.architecture in _OF_CHANCES, template)

    def scores(self, embeddings: np.ndarray) -> np.ndarray:
        """The scores (n,) float64 of embeddings (n, E), which are not scaled, computed in float64."""
        values = embeddings.astype(np.float64) @ self.weight.T + self.bias
        if self.has_softmax:
            powers = np.exp(values - values.max(axis=1, keepdims=True))
            values = powers / powers.sum(axis=1, keepdims=True)
        return values[:, 0]

    def tokens(self, tokenizer: Tokenizer, query: str, document: str) -> list[int]:
        """The tokens of a query and a document. The template's control tokens are read as such; in the two they are text."""
        if self.template is None:
            end = [tokenizer.eos] if tokenizer.add_eos and tokenizer.eos is not None else []
            begin = [tokenizer.bos] if tokenizer.add_bos and tokenizer.bos is not None else []
            parts = (tokenizer.encode(text, add_special=False, parse_special=False) for text in (query, document))
            return [*begin, *(token for part in parts for token in (*part, *end))]
        literal = LiteralTexts(tokenizer.control_texts)
        (query, document), separator = literal.marked([query, document], self.template)
        texts = {"query": query, "document": document}
        text = re.sub(r"\{(query|document)\}", lambda found: texts[found[1]], self.template)
        return tokenizer.encode(text, add_special=False, parse_special=True, separator=separator)


_POOLING = ("none", "mean", "cls", "last", "rank")  # by a file's `pooling_type`
_HEADS = {"qwen35": "cls.output", "gemma3": "dense_2", "lfm2": "dense_2", "lfm2moe": "dense_2"}  # of llama.cpp's src/models


@frozen
class ModelInfo:
    """Facts of a loaded model that other parts may read."""

    name: str  # of the file, without folder and suffix
    architecture: str
    n_vocab: int
    n_embd: int
    n_layers: int
    n_ctx_train: int
    n_bytes: int  # of the file
    digest: str = ""  # of its weights, see `ModelFile.digest`; empty of a model without a file
    pooling: str | None = None  # of embeddings, by llama.cpp's names; None: the file says nothing
    has_embedding_head: bool = False  # whether a head makes its embeddings of the last norm's output
    parts: Mapping[str, Part] = field(  # see `ModelPlan.parts`; unless said otherwise `main` alone
        default=Factory(
            lambda self: {"main": Part((0, self.n_layers), (), f"layer.{self.n_layers - 1}", self.n_embd)}, takes_self=True
        ),
        repr=False,
        hash=False,
    )
    rank_head: RankHead | None = field(default=None, repr=False)  # of a reranker
    form: str = ""  # see `ModelPlan.form`

    @property
    def heads(self) -> dict[str, Part]:
        """Its parts that predict further tokens, in order."""
        return {name: part for name, part in self.parts.items() if name not in {"main", "inject"}}

    @classmethod
    def of(cls, file: ModelFile, plan: ModelPlan) -> ModelInfo:
        """The facts of a file and its plan."""
        n_embd, stated = plan.embedding.n_embd, file.metadata.get(f"{file.architecture}.pooling_type")
        # of an unknown kind nothing is said: nothing but embeddings needs it
        pooling = _POOLING[stated] if type(stated) is int and 0 <= stated < len(_POOLING) else None
        return cls(
            name=file.path.stem,
            architecture=plan.architecture,
            n_vocab=plan.n_vocab,
            n_embd=n_embd,
            n_layers=len(plan.layers),
            n_ctx_train=plan.n_ctx_train,
            n_bytes=file.n_bytes,
            digest=file.digest,
            pooling=pooling,
            has_embedding_head=f"{_HEADS.get(file.architecture)}.weight" in file.tensors,
            parts=plan.parts,
            rank_head=RankHead.of(file, n_embd) if pooling == "rank" else None,
            form=plan.form,
        )
