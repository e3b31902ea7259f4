"""Output of a form is the same with every drafter, on a model that has something to say: chains, trees, and what is forced."""

import json

import pytest

from augury import Engine

PEOPLE = {
    "type": "array",
    "minItems": 9,
    "items": {
        "type": "object",
        "properties": {"first_name": {"type": "string"}, "age": {"type": "integer"}, "city": {"enum": ["Rome", "Oslo"]}},
        "required": ["first_name", "age", "city"],
        "additionalProperties": False,
    },
}
FORMS = {
    "schema": {"json_schema": PEOPLE},
    "budget": {"constraint": {"reasoning-budget": {"tokens": 9, "is_open": True}}},
    "budget and grammar": {
        "constraint": {"reasoning-budget": {"tokens": 9, "is_open": True, "grammar": r'root ::= [^<]* "</think>" "yes "+'}}
    },
    "grammar": {"grammar": r'root ::= ("The " [a-z]+ " is " ("red" | "green") ". ")+'},
}
WAYS = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 0.9, "seed": 3}}
DRAFTERS = ("forced", "suffix", "ngram-simple", "recycle")
ASKED = {"prompt": "Two people and two things of the street:", "max_tokens": 28}


@pytest.fixture(scope="module", params=[True, False], ids=["fixed", "planned"])
def engine(request):
    drafters = "suffix;ngram-simple:n=2,m=6;recycle"
    with Engine.load("smollm2", spec_type=drafters, spec_fixed=request.param, n_ctx=128, threads=1) as loaded:
        yield loaded


@pytest.mark.sample(1, rest=8)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMS)
def test_tokens_are_those_of_plain_decoding_with_any_drafter(engine, form, way, request):
    is_fixed = request.node.callspec.params["engine"]
    asked = ASKED | FORMS[form] | WAYS[way]
    plain = engine.generate(**asked, speculative=False)
    for drafter in DRAFTERS:
        found = engine.generate(**asked, speculative={"type": drafter})
        assert found.tokens == plain.tokens, drafter
        stats = found.stats.drafters[drafter]
        assert stats.failed is None
        if drafter == "forced":
            assert stats.accepted == stats.drafted
            assert stats.drafted or not is_fixed  # a planner may decline the few occasions


def test_what_the_schema_dictates_is_not_paid_for(engine):
    result = engine.generate(**ASKED, json_schema=PEOPLE, temperature=0.0, speculative={"type": "forced"})
    assert result.stats.n_rounds < 0.7 * len(result.tokens)
    first, _ = json.JSONDecoder().raw_decode(result.text, 1)
    assert [*first] == ["first_name", "age", "city"]
