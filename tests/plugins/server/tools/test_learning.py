"""The form of calls that is found in each template, and that it reads, and forces, what the template writes."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import real_templates
from hypothesis import given, settings, strategies as st
from support.grammar_matching import TOKENIZER, follows

from augury.plugins.server.tools import ChatFormat
from augury.plugins.server.tools.delta import collect
from augury.plugins.server.tools.format import FORMATS
from augury.plugins.server.tools.grammar import AnswerGrammar
from augury.plugins.server.tools.learning import learn
from augury.plugins.server.tools.parser import AnswerParser
from augury.text.chat_template import ChatTemplate

FOLDER = Path(__file__).parents[3] / "data" / "templates"
PATHS = sorted(FOLDER.glob("*.jinja"))
NAME, OTHER = real_templates.NAMES


@pytest.fixture(scope="module")
def learnt():
    """The templates and their formats, by name."""
    found = {}
    for path in PATHS:
        template = ChatTemplate(path.read_text(encoding="utf-8"))
        found[path.stem] = template, ChatFormat(template, None).tools
        template.close()
    yield found
    for template, _ in found.values():
        template.close()


named = pytest.mark.parametrize("name", [path.stem for path in PATHS])
writing = pytest.mark.parametrize("name", sorted({path.stem for path in PATHS} - {"toolless", "described", "granite"}))


@named
def test_calls_come_back_as_the_template_writes_them(learnt, name):
    template, form = learnt[name]
    assert list(real_templates.faults(template, form)) == []


@pytest.mark.parametrize(
    ("name", "known"), [("toolless", "generic"), ("described", "qwen-xml"), ("granite", "granite"), ("gpt-oss", "harmony")]
)
def test_a_template_that_writes_no_calls_may_tell_their_form(learnt, name, known):
    assert learnt[name][1] is FORMATS[known]


@writing
def test_the_form_of_a_template_that_writes_calls_is_its_own(learnt, name):
    assert learnt[name][1].name == ("harmony" if name == "gpt-oss" else "template")


def test_learning_renders_few_texts():
    template = ChatTemplate((FOLDER / "qwen-xml.jinja").read_text(encoding="utf-8"))
    seen = []

    def render(messages, **more):
        seen.append(messages)
        return template.render(messages, **more)

    learn(render)
    template.close()
    assert len(seen) <= 12


TEXTS = st.text(st.sampled_from("ab 1\n\"'<>/{}[]\\=,:é"), max_size=12)
VALUES = st.fixed_dictionaries({"city": TEXTS}, optional={"days": st.integers(-9, 99), "is_metric": st.booleans()})


LIKELY = ["hermes", "qwen-xml", "glm", "seed-oss", "deepseek-dsml", "gemma-4", "kimi-k2", "command-r"]


@pytest.mark.parametrize("name", [*LIKELY, "kimi-k3", "minimax-m3", "cdata", "addressed"])
@settings(max_examples=15)
@given(arguments=VALUES, cuts=st.lists(st.integers(1, 200), max_size=4))
def test_any_argument_comes_back_however_it_streams(learnt, name, arguments, cuts):
    template, form = learnt[name]
    text = real_templates.written(template, form, (arguments,), "")
    parser = AnswerParser(form, None, {NAME: real_templates.PARAMETERS})
    ends = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    deltas = [delta for one, other in pairwise(ends) for delta in parser.push(text[one:other])]
    (call,) = collect(deltas + parser.flush()).calls
    assert (call.name, json.loads(call.arguments)) == (NAME, arguments)


@writing
def test_a_required_call_has_the_template_s_own_form(learnt, name):
    template, form = learnt[name]
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
    tools = [{"name": each, "parameters": schema} for each in (NAME, OTHER)]
    grammar = AnswerGrammar(form, TOKENIZER, None, is_reasoning=False).calls(tools, is_single=False)
    calls = ({"city": "Rome <b>", "days": 3}, {"city": "75001"})[: form.n_most or 2]
    text = _answer(template, form, calls)
    assert follows(grammar, text)
    assert not follows(grammar, text.replace(NAME, "other"))
    assert not follows(grammar, text.replace("city", "town"))
    assert not follows(grammar, _answer(template, form, ({"days": 3},)))
    assert not follows(grammar, "No.")
    assert AnswerParser(form, None).push(text)


@writing
def test_an_answer_that_is_cut_after_a_call_leaves_nothing_of_the_next_one(learnt, name):
    template, form = learnt[name]
    text = _answer(template, form, ({"city": "Rome"}, {"days": 3})[: form.n_most or 2])
    for end in range(len(text)):
        parser = AnswerParser(form, None, dict.fromkeys((NAME, OTHER), real_templates.PARAMETERS))
        answer = collect(parser.push(text[:end]) + parser.flush())
        assert not answer.calls or answer.content == "", text[:end]


def test_no_text_is_forced_that_would_be_read_as_its_end(learnt):
    grammar = _forced(learnt["qwen-xml"][1], {"city": {"type": "string"}})
    text = _answer(*learnt["qwen-xml"], ({"city": "Rome"},))
    assert follows(grammar, text)
    assert not follows(grammar, text.replace("Rome", "Rome</parameter>\n"))


def _forced(form, properties, **more):
    """The grammar of a required call whose arguments have these schemas."""
    schema = {"type": "object", "properties": properties, "required": list(properties), **more}
    tools = [{"name": NAME, "parameters": schema}]
    return AnswerGrammar(form, TOKENIZER, None, is_reasoning=False).calls(tools, is_single=True)


NESTED = {
    "path": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    "where": {"type": "object", "properties": {"x": {"type": "number"}, "on": {"$ref": "#/$defs/on"}}, "required": ["x"]},
}
ON = {"$defs": {"on": {"type": "object", "properties": {"days": {"type": "array", "items": {"enum": [1, "now"]}}}}}}


@pytest.mark.parametrize("name", ["gemma-4", "minimax-m3", "kimi-k3", "qwen-xml"])
def test_required_objects_and_arrays_have_the_template_s_own_form(learnt, name):
    template, form = learnt[name]
    grammar = _forced(form, NESTED, **ON)
    for where in ({"x": 1.5}, {"x": 0, "on": {"days": [1, "now", 1]}}):
        assert follows(grammar, _answer(template, form, ({"path": ["a", "b, c"], "where": where},)))
    for where in ({"x": "far"}, {"on": {}}, {"x": 1, "on": {"days": [2]}}):
        assert not follows(grammar, _answer(template, form, ({"path": ["a"], "where": where},)))
    assert not follows(grammar, _answer(template, form, ({"path": [], "where": {"x": 1}},)))


@pytest.mark.parametrize("name", ["gemma-4", "minimax-m3"])
def test_required_arguments_of_any_name_have_the_template_s_own_form(learnt, name):
    template, form = learnt[name]
    grammar = _forced(form, {"where": {"type": "object", "additionalProperties": {"type": "integer"}}})
    assert follows(grammar, _answer(template, form, ({"where": {"x": 1, "y": 23}},)))
    assert not follows(grammar, _answer(template, form, ({"where": {"x": "far"}},)))


@pytest.mark.parametrize("name", ["gemma-4", "minimax-m3"])
def test_a_recursive_schema_is_forced_in_the_template_s_own_form(learnt, name):
    template, form = learnt[name]
    more = {"$defs": {"tree": {"type": "object", "properties": {"n": {"type": "integer"}, "then": {"$ref": "#/$defs/tree"}}}}}
    grammar = _forced(form, {"where": {"$ref": "#/$defs/tree"}}, **more)
    assert follows(grammar, _answer(template, form, ({"where": {"n": 1, "then": {"n": 2, "then": {"then": {}}}}},)))
    assert not follows(grammar, _answer(template, form, ({"where": {"then": {"n": "x"}}},)))


@pytest.mark.parametrize("name", ["qwen-xml", "kimi-k3", "cdata", "minimax-m3", "gemma-4", "lfm25"])
def test_each_alternative_of_a_required_argument_is_kept(learnt, name):
    template, form = learnt[name]
    grammar = _forced(form, {"city": {"anyOf": [{"enum": ["Rome", "<Oslo>"]}, {"type": "integer", "minimum": 3}]}})
    for fitting in ("Rome", 3):
        assert follows(grammar, _answer(template, form, ({"city": fitting},)))
    for other in ("Bonn", 2, 3.5):
        assert not follows(grammar, _answer(template, form, ({"city": other},)))
    grammar = _forced(form, {"city": {"anyOf": [{"type": "string"}, {"type": "null"}]}})
    assert follows(grammar, _answer(template, form, ({"city": "2 or\n3"},)))


MIXED = {
    "path": {"type": "array", "items": {"type": ["string", "boolean", "null", "object"]}},
    "where": {"type": "object", "properties": {"on": {"type": "boolean"}, "x": {"type": "array"}}},
    "days": {"type": "integer"},
    "is_metric": {"type": "boolean"},
    "note": {"type": ["string", "null"]},
}
KEYED = sorted(
    {path.stem for path in PATHS} & {*LIKELY, "cdata", "kimi-k3", "lfm2", "lfm25", "minimax-m2", "minimax-m3", "nemotron"}
)


@pytest.mark.parametrize("name", KEYED)
def test_required_values_of_all_kinds_are_written_as_the_template_writes_them_and_come_back(learnt, name):
    template, form = learnt[name]
    schema = {"type": "object", "properties": MIXED, "required": [*MIXED]}
    for path in (["a", "it's", 'say "no"', "b\\c"], [True, False, {"k": "v"}], []):
        arguments = {"path": path, "where": {"on": True, "x": [1]}, "days": -3, "is_metric": False, "note": None}
        text = _answer(template, form, (arguments,))
        assert follows(_forced(form, MIXED), text)
        (call,) = collect((parser := AnswerParser(form, None, {NAME: schema})).push(text) + parser.flush()).calls
        assert json.loads(call.arguments) == arguments


@pytest.mark.parametrize(
    ("name", "own", "other"),
    [
        ("lfm25", "path=['a', True, None]", 'path=["a", true, null]'),
        ("lfm25", 'where={"on": true}', "where={'on': True}"),
        ("lfm2", 'path=["a", true, null]', "path=['a', True, None]"),
        ("cdata", "{'on': True}", '{"on": true}'),
        ("cdata", "['a', True, None]", '["a", true, null]'),
        ("gemma-4", ",None]", ",null]"),
    ],
)
def test_no_other_notation_is_forced(learnt, name, own, other):
    template, form = learnt[name]
    grammar = _forced(form, {"path": MIXED["path"], "where": MIXED["where"]})
    text = _answer(template, form, ({"path": ["a", True, None], "where": {"on": True}},))
    assert own in text
    assert follows(grammar, text)
    assert not follows(grammar, text.replace(own, other))


@pytest.mark.parametrize(
    ("more", "fitting", "others"),
    [
        ({"enum": ["it's", "b"]}, "it's", ["c"]),
        ({"maxLength": 3}, "a\n'", ["abcd"]),
        ({"pattern": "^a+/$"}, "aa/", ["ab/", "a"]),
        ({"pattern": "^[^x]+$"}, "it's\n\\ \t\"", ["x", "a'x", ""]),
        ({"pattern": "^(?:.|\\s){3}$"}, "\\\n'", ["\\\n", "\\\n''"]),
        ({"pattern": "'"}, "it's\\n", ["its", '"']),
        ({"pattern": r"^\w+'?\\$"}, "a'\\", ["a'\\\\", "a", "'\\"]),
        ({"pattern": "^[a-z\\\\]+$", "maxLength": 3}, "a\\b", ["a\\bc", "a\nb"]),
    ],
)
def test_strings_within_python_s_lists_fit_their_schema(learnt, more, fitting, others):
    for name in ("lfm25", "cdata"):
        template, form = learnt[name]
        grammar = _forced(form, {"path": {"type": "array", "items": {"type": "string", **more}}})
        assert follows(grammar, _answer(template, form, ({"path": [fitting, fitting]},)))
        for other in others:
            assert not follows(grammar, _answer(template, form, ({"path": [other]},)))


@pytest.mark.parametrize("name", ["qwen-xml", "gemma-4", "seed-oss", "cdata"])
def test_a_pattern_beside_a_length_is_kept_where_strings_have_no_escapes(learnt, name):
    template, form = learnt[name]
    grammar = _forced(form, {"city": {"type": "string", "pattern": "^[a-z]+-?[a-z]*$", "minLength": 3, "maxLength": 5}})
    assert follows(grammar, _answer(template, form, ({"city": "ab-cd"},)))
    for other in ("ab", "abcdef", "a1c"):
        assert not follows(grammar, _answer(template, form, ({"city": other},)))


def test_an_argument_that_is_null_is_left_out_where_the_template_leaves_it_out(learnt):
    template, form = learnt["minimax-m3"]
    properties = {"city": {"type": "string"}, "note": {"type": ["string", "null"]}, "share": {"type": "null"}}
    text = _answer(template, form, ({"city": "Rome", "note": None, "share": None},))
    assert "note" not in text
    for required in (["city", "note", "share"], ["city"]):
        schema = {"type": "object", "properties": properties, "required": required}
        tools = [{"name": NAME, "parameters": schema}]
        assert follows(AnswerGrammar(form, TOKENIZER, None, is_reasoning=False).calls(tools, is_single=True), text)
        (call,) = collect((parser := AnswerParser(form, None, {NAME: schema})).push(text) + parser.flush()).calls
        assert json.loads(call.arguments) == {"city": "Rome"} | dict.fromkeys(required[1:])


def test_messages_with_headers_are_told_apart(learnt):
    template, form = learnt["addressed"]
    asked = {"role": "user", "content": "Where?"}
    told = {"role": "assistant", "content": "Rome.", "reasoning_content": "Hm."}
    text = template.render([asked, told], add_generation_prompt=False).partition("<|start|>assistant")[2]
    answer = collect((parser := AnswerParser(form, ("<think>", "</think>"))).push(text) + parser.flush())
    assert (answer.reasoning, answer.content, answer.calls) == ("Hm.", "Rome.", [])
    grammar = AnswerGrammar(form, TOKENIZER, None, is_reasoning=False).json({"type": "string"})
    assert follows(grammar, text.removesuffix("<|eot|>").replace("Rome.", '"Rome."'))


def _answer(template, form, calls):
    """Calls in the template's own words, without the end of the turn and of thinking."""
    if form.name == "harmony":
        return form.before_name + NAME + form.before_arguments + json.dumps(calls[0])
    text = real_templates.written(template, form, calls, "")
    plain = template.render(
        [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "@"}], add_generation_prompt=False
    )
    before = re.split("[\x01-\x05]", form.begin or form.before_name)[0]
    start = 0 if form.opened else text.find(before or NAME)
    end = plain.rpartition("@")[2]
    text = text[start:]
    return (
        text.removesuffix(end)
        if text.endswith(end)
        else text[: text.rfind(form.end or form.after_arguments)] + (form.end or form.after_arguments)
    )
