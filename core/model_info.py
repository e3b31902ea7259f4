"""Facts of a loaded model that other parts may read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import Factory, field, frozen

if TYPE_CHECKING:
    from augury.blocks import DraftBlock, ModelPlan
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
    # the features that its layers which predict further tokens are given, one by one; empty unless such layers are loaded
    mtp_features: tuple[str, ...] = field(default=(), repr=False)
    mtp_layers: tuple[tuple[int, int], ...] = field(  # see `ModelPlan.mtp_layers`; unless said otherwise one each
        default=Factory(
            lambda self: tuple((i, i + 1) for i, _ in enumerate(self.mtp_features, self.n_layers)), takes_self=True
        ),
        repr=False,
    )
    mtp_keeps: bool = field(default=True, repr=False)  # see `ModelPlan.mtp_keeps`
    hidden_of: tuple[str, ...] = field(default=(), repr=False)  # see `ModelPlan.hidden_of`; of heads of other models alone
    block: DraftBlock | None = field(default=None, repr=False)  # of heads that draft several tokens with one pass

    @classmethod
    def of(cls, file: ModelFile, plan: ModelPlan) -> ModelInfo:
        """The facts of a file and its plan."""
        return cls(
            name=file.path.stem,
            architecture=plan.architecture,
            n_vocab=plan.n_vocab,
            n_embd=plan.embedding.n_embd,
            n_layers=len(plan.layers),
            n_ctx_train=plan.n_ctx_train,
            n_bytes=file.n_bytes,
            digest=file.digest,
            pooling=_pooling_of(file),
            has_embedding_head=f"{_HEADS.get(file.architecture)}.weight" in file.tensors,
            mtp_features=plan.mtp_features,
            mtp_layers=plan.mtp_layers,
            mtp_keeps=plan.mtp_keeps,
            hidden_of=plan.hidden_of,
            block=plan.block,
        )


def _pooling_of(file: ModelFile) -> str | None:
    """The pooling that a file states, where it is a known one: nothing but embeddings needs it."""
    stated = file.metadata.get(f"{file.architecture}.pooling_type")
    return _POOLING[stated] if type(stated) is int and 0 <= stated < len(_POOLING) else None
