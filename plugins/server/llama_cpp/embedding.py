"""`/embedding`: texts as vectors, in llama.cpp's form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from anyio import to_thread
from pydantic import AliasChoices, Field
from starlette.requests import Request
from starlette.responses import Response

from augury.plugins.server.fields import RequestFields
from augury.plugins.server.generation import embed
from augury.plugins.server.json_route import api_router, long_answer, pieces_of
from augury.plugins.server.llama_cpp.prompts import Prompt, prompt_tokens
from augury.plugins.server.server import Serving

router = api_router()

_LARGEST = 32760.0  # llama.cpp scales the largest component to this, so that vectors may be kept as int16


class EmbeddingRequest(RequestFields):
    """Texts, or token ids."""

    content: Prompt = Field(validation_alias=AliasChoices("content", "input", "prompt"))
    embd_normalize: int = Field(2, ge=-1, lt=2**31, description="-1: not at all, 0: to the largest, p: to the p-norm 1")
    pooling: Literal["mean", "last", "cls", "none"] | None = Field(
        None, description="of the tokens; by default as the server's flag or the model's file says, or none"
    )


@router.post("/embedding", response_model=list[dict[str, Any]])
@router.post("/embeddings", include_in_schema=False)
async def embedding(body: EmbeddingRequest, http: Request, server: Serving) -> Response:
    """Embed texts; without pooling every token, as it is."""
    prompts = await to_thread.run_sync(prompt_tokens, body.content, server.engine.tokenizer, server.engine.config["n_ctx"])
    pooling = body.pooling or server.options.pooling or server.engine.info.pooling or "none"
    found = await embed(server, http, prompts, pooling=pooling, normalize=False)
    answer = [{"index": i, "embedding": _vectors(each, body.embd_normalize)} for i, each in enumerate(found)]
    return long_answer(pieces_of(answer))


def _vectors(found: np.ndarray, p: int) -> Iterator[list[float]]:
    """The scaled vector of a text, or those of its tokens as they are."""
    return (vector.tolist() for vector in (found if found.ndim > 1 else [normalized(found, p)]))


def normalized(vector: np.ndarray, p: int) -> np.ndarray:
    """A vector scaled as llama.cpp does; one of zeros stays as it is.

    Args:
        vector: (E,) float32.
        p: See `EmbeddingRequest.embd_normalize`.
    """
    if p < 0:
        return vector
    values = vector.astype(np.float64)
    largest = np.abs(values).max()
    if largest > 0:
        values /= largest  # so that no power overflows
        values *= _LARGEST if p == 0 else 1 / np.linalg.norm(values, p)
    return values.astype(np.float32)
