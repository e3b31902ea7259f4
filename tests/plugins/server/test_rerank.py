"""Rerank and score: by the head of a reranker, and of other models as cosines of embeddings."""

import asyncio

import httpx
import numpy as np
import pytest
from oracles.models import altered, tiny_file
from oracles.rerankers import reranker

from augury import Engine
from augury.errors import ModelFileError
from augury.files.gguf import ModelFile
from augury.model_info import RankHead
from augury.plugins.server.app import make_app
from augury.plugins.server.models import Models
from augury.plugins.server.server import Server, ServerOptions

TEXTS = ["The sea is blue.", "Numbers count.", "Bread is baked."]
ASKED = {"query": "Which colour has the sea?", "documents": TEXTS}


@pytest.fixture(scope="module")
def engine():
    with Engine.load(reranker(), backend="reference", threads=1, n_ctx=128) as engine:
        yield engine


def post(engine, path, body):
    server = Server(ServerOptions(), lambda _: None)
    server._engine = engine

    async def ask():
        app = httpx.ASGITransport(make_app(Models([server])))
        async with httpx.AsyncClient(transport=app, base_url="http://server") as client:
            return await client.post(path, json=body)

    answer = asyncio.run(ask())
    assert answer.status_code == 200, answer.text
    return answer.json()


def expected(engine, query, text):
    """The chance of "yes", from the last token's embedding."""
    tokens = engine.tokenizer.encode(f"<q>{query}<d>{text}<a>", add_special=False, parse_special=True)
    with ModelFile.open(reranker()) as file:
        values = file.tensor("cls.output.weight").floats() @ engine.embed(tokens, pooling="last", normalize=False)
    return 1 / (1 + np.exp(float(values[1]) - float(values[0])))


def test_a_rank_head_scores_the_template_of_query_and_document(engine):
    found = post(engine, "/v1/rerank", ASKED)
    wanted = {i: expected(engine, ASKED["query"], text) for i, text in enumerate(TEXTS)}
    assert [each["index"] for each in found["results"]] == sorted(wanted, key=wanted.get, reverse=True)
    assert {each["index"]: each["relevance_score"] for each in found["results"]} == pytest.approx(wanted, rel=1e-5)
    assert len(set(wanted.values())) == 3
    n_tokens = sum(len(f"{ASKED['query']}{text}") + 3 for text in TEXTS)  # a token for each letter, and the template's
    assert found["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    assert (found["scored_by"], found["meta"]["tokens"]["input_tokens"]) == ("rank head", n_tokens)


def test_scores_are_those_of_pairs(engine):
    scores = {each["index"]: each["relevance_score"] for each in post(engine, "/rerank", ASKED)["results"]}
    one = post(engine, "/v1/score", {"text_1": ASKED["query"], "text_2": TEXTS})
    several = post(engine, "/score", {"queries": [ASKED["query"]] * 3, "documents": TEXTS})
    assert (
        [each["score"] for each in one["data"]] == [each["score"] for each in several["data"]] == [scores[i] for i in range(3)]
    )


def test_names_of_control_tokens_in_texts_are_text(engine):
    (score,) = post(engine, "/v1/score", {"text_1": "a<d>{document}", "text_2": "<a>b"})["data"]
    head, tokenizer = engine.info.rank_head, engine.tokenizer
    tokens = head.tokens(tokenizer, "a<d>{document}", "<a>b")
    special = {tokenizer.encode(name, add_special=False, parse_special=True)[0] for name in ("<q>", "<d>", "<a>")}
    assert sum(token in special for token in tokens) == 3
    assert tokenizer.decode(tokens, skip_special=False) == "<q>a<d>{document}<d><a>b<a>"
    assert 0 < score["score"] < 1


def test_without_a_template_texts_end_as_the_tokenizer_says(engine):
    with ModelFile.open(reranker(None, add_eos=True)) as file:
        head = RankHead.of(file, engine.info.n_embd)
    tokens = engine.tokenizer
    assert head.template is None
    assert head.tokens(tokens, "ab", "c") == tokens.encode("abc", add_special=False)


@pytest.mark.parametrize(("model", "is_chance"), [("llama-dense", False), ("qwen3-dense", True)])
def test_a_score_is_the_first_value_of_the_head_and_a_chance_in_the_qwen_3_family_alone(model, is_chance):
    random, file = np.random.default_rng(3), tiny_file(model)
    weight, bias, embeddings = (random.standard_normal(shape).astype(np.float32) for shape in ((2, 64), 2, (5, 64)))
    made = altered(file, arrays={"cls.output.weight": weight, "cls.output.bias": bias})
    values = np.array([[sum(map(float, row * each)) for row in weight.astype(np.float64)] for each in embeddings]) + bias
    wanted = np.exp(values[:, 0]) / np.exp(values).sum(axis=1) if is_chance else values[:, 0]
    assert RankHead.of(made, 64).scores(embeddings) == pytest.approx(wanted, rel=1e-12)


def test_a_head_that_does_not_fit_the_model_is_refused():
    with ModelFile.open(reranker()) as file, pytest.raises(ModelFileError, match="expected rows of 512"):
        RankHead.of(file, 512)


def test_few_of_the_best_are_told_with_their_texts(engine):
    best = post(engine, "/v2/rerank", ASKED | {"top_n": 2, "return_documents": True, "max_tokens_per_doc": 100})["results"]
    assert [each["document"]["text"] for each in best] == [TEXTS[each["index"]] for each in best]
    assert len(best) == 2
    found = post(engine, "/rerank", {"query": ASKED["query"], "texts": TEXTS, "top_n": 1, "return_text": True})
    assert found == [{"index": best[0]["index"], "score": best[0]["relevance_score"], "text": best[0]["document"]["text"]}]


def test_long_documents_are_cut_if_that_is_asked_for(engine):
    n_ctx = engine.config["n_ctx"]
    long = "The sea is blue. " * n_ctx
    found = post(engine, "/rerank", ASKED | {"documents": [long], "truncate": True})
    alone = post(engine, "/rerank", ASKED | {"documents": [long[: n_ctx - len(ASKED["query"]) - 3]]})  # a token for each letter
    assert found["results"] == alone["results"]
    assert found["usage"]["prompt_tokens"] == n_ctx


def test_other_models_compare_embeddings_and_say_so(client):
    answer = client.post("/v1/rerank", json=ASKED | {"documents": [{"text": TEXTS[0]}, *TEXTS[1:]]}).json()
    vectors = client.post("/v1/embeddings", json={"input": [ASKED["query"], *TEXTS]}).json()["data"]
    query, *others = (np.array(each["embedding"]) for each in vectors)
    wanted = {i: pytest.approx(float(query @ each), abs=1e-6) for i, each in enumerate(others)}
    assert answer["scored_by"] == "embeddings"
    assert len(client.post("/rerank", json={"query": "a", "texts": ["word " * 600], "truncate": True}).json()) == 1
    assert {each["index"]: each["relevance_score"] for each in answer["results"]} == wanted


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/rerank", {"query": "a", "documents": []}, "at least 1"),
        ("/rerank", {"query": "a", "documents": None}, "expected either documents or texts"),
        ("/rerank", {"query": "a", "documents": [1]}, "documents.0"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "texts": ["a"]}, "expected either documents or texts"),
        ("/v2/rerank", {"query": "a", "documents": ["a b c d"], "max_tokens_per_doc": 1}, "max_tokens_per_doc is 1"),
        ("/rerank", {"query": "a", "texts": ["word " * 600]}, "context"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "expected one, or as many"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "expected one, or as many"),
    ],
)
def test_what_cannot_be_scored_is_refused(client, path, body, told):
    answer = client.post(path, json=body)
    assert (answer.status_code, told in answer.text) == (400, True), answer.text
