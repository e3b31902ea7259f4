"""`/rerank` and `/score`: how well texts answer a query, in the forms of Jina, Cohere, TEI and vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from anyio import to_thread
from pydantic import AliasChoices, Field
from starlette.requests import Request

from augury.plugins.server.embeddings import embed, pooling_of, usage
from augury.plugins.server.errors import RequestError
from augury.plugins.server.fields import Fields, RequestFields
from augury.plugins.server.generation import check_texts, unless_left
from augury.plugins.server.json_route import api_router
from augury.plugins.server.llama_cpp.prompts import MOST_TEXT, mixed_tokens, needed
from augury.plugins.server.openai.answer import head
from augury.plugins.server.server import Server, Serving
from augury.rank_head import RankHead
from augury.text.tokenizer import Tokenizer

router = api_router()
_ADVICE = "start the server with --pooling mean, last or cls"


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
    return begun | {"results": results, "scored_by": _way(server), "meta": meta, "usage": usage(n_tokens)}


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
    return head(server, "list", "score") | {"data": data, "scored_by": _way(server), "usage": usage(n_tokens)}


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
    n_ctx = server.engine.config["n_ctx"] if is_cut else None

    def encoded() -> list[list[int]]:
        if n_most is not None and (longest := max(len(tokenizer.encode(text, add_special=False)) for text in texts)) > n_most:
            raise RequestError(400, f"a document has {longest} tokens, max_tokens_per_doc is {n_most}", param="documents")
        if made is not None:
            return [_pair(made, tokenizer, *pair, n_ctx) for pair in zip(queries, texts, strict=True)]
        return [
            mixed_tokens(each, tokenizer, add_special=True, parse_special=False)[:n_ctx]
            for each in dict.fromkeys((*queries, *texts))
        ]

    ids = await to_thread.run_sync(encoded)
    if made is not None:
        found = (await unless_left(server.options.timeout_s, http, server.engine.arank(ids))).tolist()
    else:
        vectors = await embed(server, http, ids, pooling=pooling_of(server, None, _ADVICE), normalize=True)
        of = dict(zip(dict.fromkeys((*queries, *texts)), vectors, strict=True))
        found = [float(of[query] @ of[text]) for query, text in zip(queries, texts, strict=True)]
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
