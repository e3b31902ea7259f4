"""`/v1/embeddings` and llama.cpp's `/embedding`: texts as vectors of the model that is served."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from anyio import to_thread
from pydantic import AliasChoices, Field
from starlette.requests import Request
from starlette.responses import Response

from augury.plugins.server.errors import RequestError
from augury.plugins.server.fields import RequestFields
from augury.plugins.server.generation import check_texts, unless_left
from augury.plugins.server.json_route import api_router, long_answer, pieces_of
from augury.plugins.server.llama_cpp.prompts import Prompt, prompt_tokens
from augury.plugins.server.server import Server, Serving

router = api_router()
_POOLING = "of the tokens; by default as the server's flag or the model's file says"
_LARGEST = 32760.0  # llama.cpp scales the largest component to this, so that vectors may be kept as int16


class EmbeddingRequest(RequestFields):
    """Texts, or token ids, or both in one sequence."""

    input: Prompt
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, description="so many of the first components, scaled again")
    pooling: Literal["mean", "last", "cls"] | None = Field(None, description=_POOLING)
    normalize: bool = Field(default=True, description="scale to length 1")


class LlamaEmbeddingRequest(RequestFields):
    """Texts, or token ids."""

    content: Prompt = Field(validation_alias=AliasChoices("content", "input", "prompt"))
    embd_normalize: int = Field(2, ge=-1, lt=2**31, description="-1: not at all, 0: to the largest, p: to the p-norm 1")
    pooling: Literal["mean", "last", "cls", "none"] | None = Field(None, description=f"{_POOLING}, or none")


@router.post("/v1/embeddings", response_model=dict[str, Any])
async def embeddings(body: EmbeddingRequest, http: Request, server: Serving) -> Response:
    """Embed texts."""
    pooling = pooling_of(server, body.pooling, "set pooling to mean, last or cls, or use /embedding")
    check_dimensions(server, body.dimensions)
    ids = await _tokens(body.input, server)
    whole = await embed(server, http, ids, pooling=pooling, normalize=body.normalize)
    found = (shortened(each, body.dimensions, is_scaled=body.normalize) for each in whole)
    is_base64 = body.encoding_format == "base64"
    vectors = (b64encode(each.astype("<f4").tobytes()).decode() if is_base64 else each.tolist() for each in found)
    data = ({"object": "embedding", "index": i, "embedding": each} for i, each in enumerate(vectors))
    used = usage(sum(map(len, ids)))
    return long_answer(pieces_of({"object": "list", "data": data, "model": server.name, "usage": used}))


@router.post("/embedding", response_model=list[dict[str, Any]])
@router.post("/embeddings", include_in_schema=False)
async def embedding(body: LlamaEmbeddingRequest, http: Request, server: Serving) -> Response:
    """Embed texts; without pooling every token, as it is."""
    pooling = body.pooling or server.options.pooling or server.engine.info.pooling or "none"
    found = await embed(server, http, await _tokens(body.content, server), pooling=pooling, normalize=False)
    vectors = (each if each.ndim > 1 else [normalized(each, body.embd_normalize)] for each in found)  # of tokens, or of a text
    answer = [{"index": i, "embedding": (vector.tolist() for vector in each)} for i, each in enumerate(vectors)]
    return long_answer(pieces_of(answer))


async def _tokens(prompt: Prompt, server: Server) -> list[list[int]]:
    return await to_thread.run_sync(prompt_tokens, prompt, server.engine.tokenizer, server.engine.config["n_ctx"])


def pooling_of(server: Server, asked: str | None, advice: str) -> str | None:
    """The pooling with which texts have one vector each, as the request, the flag or the file says; None: none of them does.

    Raises:
        RequestError: There is to be none; the message ends with the advice.
    """
    pooling = asked or server.options.pooling or server.engine.info.pooling
    if pooling == "none":
        message = "no pooling is asked for, by --pooling or the model's file, but answers here have one vector for each text"
        raise RequestError(400, f"{message}; {advice}", param="pooling")
    return pooling


async def embed(
    server: Server, http: Request, texts: Sequence[Sequence[int]], *, pooling: str | None, normalize: bool
) -> list[np.ndarray]:
    """Embed token ids as `Engine.embed` does, as many texts at once as slots are free. There is at least one text.

    Raises:
        AuguryError: As `Engine.embed` does.
        RequestError: There are too many, or the time is up.
    """
    check_texts(texts)
    n_slots, n_ctx = server.engine.config["n_slots"], server.engine.config["n_ctx"]
    if pooling == "none" and (n := sum(map(len, texts))) > n_slots * n_ctx:
        raise RequestError(400, f"there are {n} tokens, expected at most {n_slots * n_ctx} where each has an embedding")
    return list(
        await unless_left(server.options.timeout_s, http, server.engine.aembed(texts, pooling=pooling, normalize=normalize))
    )


def check_dimensions(server: Server, n: int | None) -> None:
    """Raises RequestError where the model's embeddings have fewer components than that."""
    if n is not None and n > (n_embd := server.engine.info.n_embd):
        raise RequestError(400, f"dimensions is {n}, this model's embeddings have {n_embd}", param="dimensions")


def shortened(vector: np.ndarray, n: int | None, *, is_scaled: bool = True) -> np.ndarray:
    """The first n components of a vector, scaled to length 1 again unless the whole is not."""
    if n is None:
        return vector
    part = vector[:n].astype(np.float64)
    length = np.linalg.norm(part)
    return part / length if is_scaled and length > 0 else part


def normalized(vector: np.ndarray, p: int) -> np.ndarray:
    """A vector scaled as llama.cpp does; one of zeros stays as it is.

    Args:
        vector: (E,) float32.
        p: See `LlamaEmbeddingRequest.embd_normalize`.
    """
    if p < 0:
        return vector
    values = vector.astype(np.float64)
    largest = np.abs(values).max()
    if largest > 0:
        values /= largest  # so that no power overflows
        values *= _LARGEST if p == 0 else 1 / np.linalg.norm(values, p)
    return values.astype(np.float32)


def usage(n_tokens: int) -> dict[str, int]:
    """Tokens of a request that writes none, in OpenAI's form."""
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
