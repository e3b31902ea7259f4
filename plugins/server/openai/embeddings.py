"""`/v1/embeddings`: texts as vectors of the model that is served."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from anyio import to_thread
from fastapi import APIRouter
from pydantic import Field

from augury.errors import UnsupportedError
from augury.plugins.server.errors import RequestError
from augury.plugins.server.fields import RequestFields
from augury.plugins.server.server import Server, Serving

__all__ = ["EmbeddingRequest", "embed", "router"]

router = APIRouter()


class EmbeddingRequest(RequestFields):
    """Texts, or token ids."""

    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, description="the model's own number, if any")
    pooling: Literal["mean", "last", "cls"] | None = Field(
        None, description="of the tokens; by default as the model's file says"
    )
    normalize: bool = Field(default=True, description="scale to length 1")


@router.post("/v1/embeddings")
async def embeddings(body: EmbeddingRequest, server: Serving) -> dict[str, Any]:
    """Embed texts."""
    n_embd = server.engine.info.n_embd
    if body.dimensions not in {None, n_embd}:
        raise RequestError(400, f"dimensions is {body.dimensions}, this model's embeddings have {n_embd}", param="dimensions")
    is_several = isinstance(body.input, list) and bool(body.input) and not isinstance(body.input[0], int)
    inputs = body.input if is_several else [body.input]
    found, n_tokens = await to_thread.run_sync(embed, server, inputs, {"pooling": body.pooling, "normalize": body.normalize})
    data = [
        {"object": "embedding", "index": i, "embedding": _encoded(vector, body.encoding_format)}
        for i, vector in enumerate(found)
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "data": data, "model": server.options.names[0], "usage": usage}


def embed(server: Server, inputs: Sequence[Any], how: Mapping[str, Any]) -> tuple[list[np.ndarray], int]:
    """The embeddings of texts or token ids, and how many tokens these are together. It waits."""
    tokenizer = server.engine.tokenizer
    if tokenizer is None and any(isinstance(each, str) for each in inputs):
        raise UnsupportedError("this model has no tokenizer that augury can read; give token ids instead of text")
    ids = [tokenizer.encode(each, parse_special=True) if tokenizer and isinstance(each, str) else each for each in inputs]
    return list(server.engine.embed(ids, **how)), sum(map(len, ids))


def _encoded(vector: np.ndarray, encoding: str) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
