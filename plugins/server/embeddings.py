"""Texts as vectors, in the forms of OpenAI, llama.cpp and Ollama, and how well texts answer a query: `/rerank` and `/score`."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any, Literal
from uuid import uuid4

import numpy as np
from anyio import to_thread
from pydantic import AliasChoices, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from augury.model_info import RankHead
from augury.plugins.server.conversation import MOST_TEXT, Prompt, mixed_tokens, needed, prompt_tokens
from augury.plugins.server.errors import RequestError
from augury.plugins.server.fields import Fields, RequestFields
from augury.plugins.server.generation import check_texts, unless_left
from augury.plugins.server.json_route import api_router, long_answer, pieces_of
from augury.plugins.server.ollama.answer import Clock, ModelRequest, Options, Serving as OllamaServing
from augury.plugins.server.openai.answer import head
from augury.plugins.server.server import Server, Serving
from augury.text.tokenizer import Tokenizer

router = api_router()
_POOLING = "of the tokens; by default as the server's flag or the model's file says"
_ADVICE = "start the server with --pooling mean, last or cls"
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
    ids, advice = await _tokens(body.input, server), "set pooling to mean, last or cls, or use /embedding"
    how: dict[str, Any] = {"asked": body.pooling, "advice": advice, "normalize": body.normalize}
    found = await _vectors(server, http, ids, n_dimensions=body.dimensions, **how)
    is_base64 = body.encoding_format == "base64"
    vectors = (b64encode(each.astype("<f4").tobytes()).decode() if is_base64 else each.tolist() for each in found)
    data = ({"object": "embedding", "index": i, "embedding": each} for i, each in enumerate(vectors))
    used = _usage(sum(map(len, ids)))
    return long_answer(pieces_of({"object": "list", "data": data, "model": server.name, "usage": used}))


@router.post("/embedding", response_model=list[dict[str, Any]])
@router.post("/embeddings", include_in_schema=False)
async def embedding(body: LlamaEmbeddingRequest, http: Request, server: Serving) -> Response:
    """Embed texts; without pooling every token, as it is."""
    pooling = body.pooling or server.options.pooling or server.engine.info.pooling or "none"
    found = await _embed(server, http, await _tokens(body.content, server), pooling=pooling, normalize=False)
    vectors = (each if each.ndim > 1 else [normalized(each, body.embd_normalize)] for each in found)  # of tokens, or of a text
    answer = [{"index": i, "embedding": (vector.tolist() for vector in each)} for i, each in enumerate(vectors)]
    return long_answer(pieces_of(answer))


async def _tokens(prompt: Prompt, server: Server) -> list[list[int]]:
    return await to_thread.run_sync(prompt_tokens, prompt, server.engine.tokenizer, server.engine.config["n_ctx"])


async def _vectors(
    server: Server,
    http: Request,
    texts: Sequence[Sequence[int]],
    *,
    normalize: bool,
    asked: str | None = None,
    advice: str = _ADVICE,
    n_dimensions: int | None = None,
) -> Iterator[np.ndarray]:
    """One vector for each text, pooled as the request, the flag or the file says, and of it so many of the first components."""
    pooling, n_embd = asked or server.options.pooling or server.engine.info.pooling, server.engine.info.n_embd
    if pooling == "none":
        message = "no pooling is asked for, by --pooling or the model's file, but answers here have one vector for each text"
        raise RequestError(400, f"{message}; {advice}", param="pooling")
    if n_dimensions is not None and n_dimensions > n_embd:
        message = f"dimensions is {n_dimensions}, this model's embeddings have {n_embd}"
        raise RequestError(400, message, param="dimensions")
    found = await _embed(server, http, texts, pooling=pooling, normalize=normalize) if texts else []
    return (each if n_dimensions is None else _shortened(each, n_dimensions, is_scaled=normalize) for each in found)


async def _embed(
    server: Server, http: Request, texts: Sequence[Sequence[int]], *, pooling: str | None, normalize: bool
) -> list[np.ndarray]:
    """Embed token ids as `Engine.embed` does, as many texts at once as slots are free."""
    check_texts(texts)
    n_slots, n_ctx = server.engine.config["n_slots"], server.engine.config["n_ctx"]
    if pooling == "none" and (n := sum(map(len, texts))) > n_slots * n_ctx:
        raise RequestError(400, f"there are {n} tokens, expected at most {n_slots * n_ctx} where each has an embedding")
    return list(
        await unless_left(server.options.timeout_s, http, server.engine.aembed(texts, pooling=pooling, normalize=normalize))
    )


def _shortened(vector: np.ndarray, n: int, *, is_scaled: bool) -> np.ndarray:
    """The first n components of a vector, scaled to length 1 again unless the whole is not."""
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


def _usage(n_tokens: int) -> dict[str, int]:
    """Tokens of a request that writes none, in OpenAI's form."""
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}


class EmbedRequest(ModelRequest):
    """Texts."""

    input: str | list[str] = Field([], description="none loads the model")
    truncate: bool = Field(default=True, description="texts beyond the context are cut, or an error")
    dimensions: int | None = Field(None, ge=1, description="so many of the first components, scaled to length 1 again")
    options: Options = Options()


class EmbeddingsRequest(ModelRequest):
    """A text."""

    prompt: str
    options: Options = Options()


@router.post("/api/embed", response_model=dict[str, Any])
async def embed_texts(body: EmbedRequest, http: Request, server: OllamaServing) -> Response:
    """Embed texts, as vectors of length 1."""
    clock, texts = Clock(http), list(filter(None, [body.input])) if isinstance(body.input, str) else body.input
    if not texts:  # the model is only loaded, or unloaded
        return JSONResponse({"model": body.model, "embeddings": []} | clock.durations() | {"prompt_eval_count": 0})
    ids = await _text_tokens(server, texts, is_cut=body.truncate)
    found = await _vectors(server, http, ids, normalize=True, n_dimensions=body.dimensions)
    used = clock.durations() | {"prompt_eval_count": sum(map(len, ids))}
    return long_answer(pieces_of({"model": body.model, "embeddings": (each.tolist() for each in found), **used}))


@router.post("/api/embeddings", response_model=dict[str, Any])
async def embed_text(body: EmbeddingsRequest, http: Request, server: OllamaServing) -> Response:
    """Embed a text, as a vector that is not scaled."""
    ids = await _text_tokens(server, [body.prompt] if body.prompt else [], is_cut=True)
    found = [each.tolist() for each in await _vectors(server, http, ids, normalize=False)]
    return long_answer(pieces_of({"embedding": found[0] if found else []}))


async def _text_tokens(server: Server, texts: Sequence[str], *, is_cut: bool) -> list[list[int]]:
    """The tokens of texts, each of which is cut at the context's end, or may not be longer."""
    check_texts(texts)
    tokenizer, n_ctx = server.engine.tokenizer, server.engine.config["n_ctx"]
    how: dict[str, Any] = {"add_special": True, "parse_special": False, "n_most": None if is_cut else n_ctx}
    end = n_ctx if is_cut else None
    return await to_thread.run_sync(lambda: [mixed_tokens(text, tokenizer, **how)[:end] for text in texts])


class Document(Fields):
    """A document, as some clients write it."""

    text: str


class RerankRequest(RequestFields):
    """A query, and documents that may answer it; as `texts` in the form of TEI, which its answer has, too."""

    query: str
    documents: list[str | Document] | None = Field(None, min_length=1)
    texts: list[str] | None = Field(None, min_length=1)
    top_n: int | None = Field(None, ge=1, description="how many are told, the best first; by default all")
    return_documents: bool = False
    return_text: bool = Field(default=False, description="the same of texts")
    max_tokens_per_doc: int | None = Field(None, ge=1, description="a longer document is a 400")
    truncate: bool = Field(default=False, description="texts beyond the context are cut, or an error")


class ScoreRequest(RequestFields):
    """Pairs of texts: of one and each of the others, or of two lists of one length."""

    text_1: str | list[str] = Field(validation_alias=AliasChoices("text_1", "queries", "data_1"))
    text_2: str | list[str] = Field(validation_alias=AliasChoices("text_2", "documents", "data_2"))


@router.post("/rerank", response_model=dict[str, Any] | list[dict[str, Any]])
@router.post("/v1/rerank", response_model=dict[str, Any] | list[dict[str, Any]])
@router.post("/v2/rerank", response_model=dict[str, Any] | list[dict[str, Any]])
@router.post("/reranking", include_in_schema=False)
@router.post("/v1/reranking", include_in_schema=False)
async def rerank(body: RerankRequest, http: Request, server: Serving) -> Any:
    """Order documents by how well they answer a query."""
    if (body.documents is None) == (body.texts is None):
        raise RequestError(400, "expected either documents or texts, a list of them", param="documents")
    texts = body.texts or [each if isinstance(each, str) else each.text for each in body.documents or ()]
    queries, n_most = [body.query] * len(texts), body.max_tokens_per_doc
    scores, n_tokens = await _scored(server, http, queries, texts, n_most, is_cut=body.truncate)
    best = sorted(enumerate(scores), key=lambda each: -each[1])[: body.top_n]
    if body.texts is not None:
        return [{"index": i, "score": score} | ({"text": texts[i]} if body.return_text else {}) for i, score in best]
    results = [
        {"index": i, "relevance_score": score} | ({"document": {"text": texts[i]}} if body.return_documents else {})
        for i, score in best
    ]
    meta = {"api_version": {"version": "2"}, "tokens": {"input_tokens": n_tokens}}  # Cohere's
    begun = {"id": f"rerank-{uuid4().hex}", "object": "list", "model": server.name}
    return begun | {"results": results, "scored_by": _way(server), "meta": meta, "usage": _usage(n_tokens)}


@router.post("/score", response_model=dict[str, Any])
@router.post("/v1/score", response_model=dict[str, Any])
async def score(body: ScoreRequest, http: Request, server: Serving) -> Any:
    """Tell how well the second text of each pair answers the first."""
    queries, texts = ([each] if isinstance(each, str) else each for each in (body.text_1, body.text_2))
    if len(queries) == 1:
        queries = queries * len(texts)
    if len(queries) != len(texts) or not texts:
        message = f"text_1 has {len(queries)} texts and text_2 {len(texts)}, expected one, or as many as there are in text_2"
        raise RequestError(400, message, param="text_1")
    scores, n_tokens = await _scored(server, http, queries, texts)
    data = [{"index": i, "object": "score", "score": each} for i, each in enumerate(scores)]
    return head(server, "list", "score") | {"data": data, "scored_by": _way(server), "usage": _usage(n_tokens)}


async def _scored(
    server: Server,
    http: Request,
    queries: Sequence[str],
    texts: Sequence[str],
    n_most: int | None = None,
    *,
    is_cut: bool = False,
) -> tuple[list[float], int]:
    """The scores of pairs, and how many tokens were read: by the model's rank head, or as cosines of embeddings."""
    check_texts(texts)
    if (n := sum(map(len, {*queries})) + sum(map(len, texts))) > MOST_TEXT:
        raise RequestError(400, f"there are {n} characters of text, expected {MOST_TEXT} at most")
    tokenizer, made = needed(server.engine.tokenizer), server.engine.info.rank_head
    if n_most is not None:
        lengths = await to_thread.run_sync(lambda: [len(tokenizer.encode(text, add_special=False)) for text in texts])
        if max(lengths) > n_most:
            message = f"a document has {max(lengths)} tokens, max_tokens_per_doc is {n_most}"
            raise RequestError(400, message, param="documents")
    if made is None:
        unlike = list(dict.fromkeys((*queries, *texts)))
        ids = await _text_tokens(server, unlike, is_cut=is_cut)
        of = dict(zip(unlike, await _vectors(server, http, ids, normalize=True), strict=True))
        return [float(of[query] @ of[text]) for query, text in zip(queries, texts, strict=True)], sum(map(len, ids))
    n_ctx, pairs = server.engine.config["n_ctx"] if is_cut else None, zip(queries, texts, strict=True)
    ids = await to_thread.run_sync(lambda: [_pair(made, tokenizer, *pair, n_ctx) for pair in pairs])
    found = (await unless_left(server.options.timeout_s, http, server.engine.arank(ids))).tolist()
    return found, sum(map(len, ids))


def _pair(head: RankHead, tokenizer: Tokenizer, query: str, text: str, n_most: int | None) -> list[int]:
    """The tokens of a pair; with `n_most` of as much of the text's beginning as there is room for."""
    found, kept = head.tokens(tokenizer, query, text), None
    while n_most is not None and (surplus := len(found) - n_most) > 0 and kept != []:
        kept = (tokenizer.encode(text, add_special=False, parse_special=False) if kept is None else kept)[:-surplus]
        found = head.tokens(tokenizer, query, tokenizer.decode(kept, skip_special=False))  # it may be cut within a letter
    return found


def _way(server: Server) -> str:
    return "embeddings" if server.engine.info.rank_head is None else "rank head"
