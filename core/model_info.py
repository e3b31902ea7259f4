"""Facts of a loaded model that other parts may read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import Factory, field, frozen

from augury.part import Part
from augury.rank_head import RankHead

if TYPE_CHECKING:
    from augury.blocks import ModelPlan
    from augury.files.gguf import ModelFile

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
        pooling, n_embd = _pooling_of(file), plan.embedding.n_embd
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


def _pooling_of(file: ModelFile) -> str | None:
    """The pooling that a file states, where it is a known one: nothing but embeddings needs it."""
    stated = file.metadata.get(f"{file.architecture}.pooling_type")
    return _POOLING[stated] if type(stated) is int and 0 <= stated < len(_POOLING) else None
