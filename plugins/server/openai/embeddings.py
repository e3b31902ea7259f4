"""`/v1/embeddings`: texts as vectors of the model that is served."""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Literal

import numpy as np
from anyio import to_thread
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from augury.plugins.server.errors import RequestError
from augury.plugins.server.fields import RequestFields
from augury.plugins.server.generation import embed, pooling_of
from augury.plugins.server.json_route import api_router, long_answer, pieces_of
from augury.plugins.server.llama_cpp.prompts import Prompt, prompt_tokens
from augury.plugins.server.server import Server, Serving

router = api_router()


class EmbeddingRequest(RequestFields):
    """Texts, or token ids, or both in one sequence."""

    input: Prompt
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, description="so many of the first components, scaled again")
    pooling: Literal["mean", "last", "cls"] | None = Field(
        None, description="of the tokens; by default as the server's flag or the model's file says"
    )
    normalize: bool = Field(default=True, description="scale to length 1")


@router.post("/v1/embeddings", response_model=dict[str, Any])
async def embeddings(body: EmbeddingRequest, http: Request, server: Serving) -> Response:
    """Embed texts."""
    pooling = pooling_of(server, body.pooling, "set pooling to mean, last or cls, or use /embedding")
    check_dimensions(server, body.dimensions)
    ids = await to_thread.run_sync(prompt_tokens, body.input, server.engine.tokenizer, server.engine.config["n_ctx"])
    whole = await embed(server, http, ids, pooling=pooling, normalize=body.normalize)
    found = (shortened(each, body.dimensions, is_scaled=body.normalize) for each in whole)
    n_tokens = sum(map(len, ids))
    is_base64 = body.encoding_format == "base64"
    vectors = (b64encode(each.astype("<f4").tobytes()).decode() if is_base64 else each.tolist() for each in found)
    data = ({"object": "embedding", "index": i, "embedding": each} for i, each in enumerate(vectors))
    used = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return long_answer(pieces_of({"object": "list", "data": data, "model": server.options.names[0], "usage": used}))


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
