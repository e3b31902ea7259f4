"""`/api/embed` and, older, `/api/embeddings`: texts as vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from anyio import to_thread
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from augury.plugins.server.embeddings import check_dimensions, embed, pooling_of, shortened
from augury.plugins.server.generation import check_texts
from augury.plugins.server.json_route import api_router, long_answer, pieces_of
from augury.plugins.server.llama_cpp.prompts import mixed_tokens
from augury.plugins.server.ollama.answer import Clock, ModelRequest, Options, Serving
from augury.plugins.server.server import Server

router = api_router(ignores_type=True)


class EmbedRequest(ModelRequest):
    """Texts."""

    input: str | list[str]
    truncate: bool = Field(default=True, description="texts beyond the context are cut, or an error")
    dimensions: int | None = Field(None, ge=1, description="so many of the first components, scaled to length 1 again")
    options: Options = Options()


class EmbeddingsRequest(ModelRequest):
    """A text."""

    prompt: str
    options: Options = Options()


@router.post("/api/embed", response_model=dict[str, Any])
async def embed_texts(body: EmbedRequest, http: Request, server: Serving) -> Response:
    """Embed texts, as vectors of length 1."""
    clock, model = Clock(http), body.model
    texts = [body.input] if isinstance(body.input, str) else body.input
    found, n_tokens = await _embedded(server, http, texts, is_cut=body.truncate, normalize=True)
    check_dimensions(server, body.dimensions)
    vectors = (shortened(each, body.dimensions).tolist() for each in found)
    used = clock.durations() | {"prompt_eval_count": n_tokens}
    return long_answer(pieces_of({"model": model, "embeddings": vectors, **used}))


@router.post("/api/embeddings", response_model=dict[str, Any])
async def embeddings(body: EmbeddingsRequest, http: Request, server: Serving) -> Response:
    """Embed a text, as a vector that is not scaled."""
    found, _ = await _embedded(server, http, [body.prompt] if body.prompt else [], is_cut=True, normalize=False)
    return long_answer(pieces_of({"embedding": found[0].tolist() if found else []}))


async def _embedded(
    server: Server, http: Request, texts: list[str], *, is_cut: bool, normalize: bool
) -> tuple[list[np.ndarray], int]:
    """The vectors of texts, and how many tokens they have; of no text none."""
    check_texts(texts)
    ids = await to_thread.run_sync(lambda: [_tokens(server, each, is_cut=is_cut) for each in texts])
    pooling = pooling_of(server, None, "start the server with --pooling mean, last or cls")
    found = await embed(server, http, ids, pooling=pooling, normalize=normalize) if ids else []
    return found, sum(map(len, ids))


def _tokens(server: Server, text: str, *, is_cut: bool) -> list[int]:
    tokenizer, n_ctx = server.engine.tokenizer, server.engine.config["n_ctx"]
    n_most = None if is_cut else n_ctx
    found = mixed_tokens(text, tokenizer, add_special=True, parse_special=False, n_most=n_most)
    return found[:n_ctx] if is_cut else found
