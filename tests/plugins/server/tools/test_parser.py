"""What models write when they reason and call tools, as a whole and letter by letter."""

import json
from time import perf_counter

import pytest
from hypothesis import given, strategies as st

from augury.plugins.server.tools.delta import Call, collect
from augury.plugins.server.tools.format import FORMATS, ToolFormat
from augury.plugins.server.tools.parser import AnswerParser

ARGUMENTS = '{"city": "S\\u00e3o {Paulo}", "days": [1, 2], "at": {"x": "}]\\""}}'
THINK = ("<think>", "</think>")
JSON = [form for form in FORMATS.values() if form.keys is None]
FORMS = FORMATS | {
    "mistral": ToolFormat("mistral", '{"name": "', '", "arguments": ', "}", "[TOOL_CALLS][", ", ", "]"),
    "mistral-v11": ToolFormat("mistral-v11", "[TOOL_CALLS]", "[ARGS]", ""),
    "kimi": ToolFormat("kimi", "<|call_begin|>functions.", ":\x01<|args|>", "<|call_end|>", "<|calls|>", "", "<|calls_end|>"),
}
F, G = Call("f", "{}"), Call("g", "{}")


def written(form, calls):
    """Calls as the format's own template would write them."""
    made = [f"{form.before_name}{name}{form.before_arguments}{arguments}{form.after_arguments}" for name, arguments in calls]
    return form.begin + form.between.join(made) + form.end


def read(pieces, *how, **more):
    """An answer that arrives in pieces."""
    parser = AnswerParser(*how, **more)
    return collect([delta for piece in pieces for delta in parser.push(piece)] + parser.flush())


def both(text, *how, **more):
    """An answer as it is read whole, and letter by letter; what was told is never taken back."""
    whole = read([text], *how, **more)
    assert read(text, *how, **more) == whole
    return whole


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("form", JSON, ids=lambda form: form.name)
def test_calls_are_read_as_templates_write_them(form, n):
    calls = [("weather", ARGUMENTS), ("now", "{}")][: form.n_most or n]
    answer = both(written(form, calls), form, THINK)
    assert answer.calls == [Call(*call) for call in calls]
    assert answer.content == ""


@pytest.mark.parametrize(
    "form", [form for form in JSON if form.triggers and form.name != "harmony"], ids=lambda form: form.name
)
def test_reasoning_and_content_may_come_before_calls(form):
    body = written(form, [("now", "{}")])
    body = body if body.startswith(form.triggers) else form.triggers[0] + body
    answer = both(f"<think>\nA <tool_call>? No.\n</think>\n\nLook: {body}", form, THINK)
    assert (answer.reasoning, answer.content, answer.calls) == ("A <tool_call>? No.", "Look:", [Call("now", "{}")])


@pytest.mark.parametrize(
    ("name", "text", "calls"),
    [
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', [Call("f", '{"a": 1}')]),
        ("hermes", '<tool_call>\n{\n "name": "f",\n "arguments": {\n "a": 1}\n}\n</tool_call>\n', [Call("f", '{\n "a": 1}')]),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [Call("f", '{"a": 1}')]),
        ("hermes", '<tool_call>{"id": 3, "name": "f"}</tool_call>', [F]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": [1', [Call("f", '{"a": [1')]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}\n{"name": "g", "arguments": {}}</tool_call>', [F, G]),
        ("hermes", '```json\n{\n  "name": "f",\n  "arguments": {}\n}\n```', [F]),
        ("hermes", '{"name": "f", "arguments": {}}\n{"name": "g", "arguments": {}}', [F, G]),
        ("llama-3", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', [Call("f", '{"a": 1}')]),
        ("llama-3", '{\n "type": "function", "name": "f", "parameters": {}}\n{"name": "g", "parameters": {}}', [F, G]),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abcdefghi"}]', [F]),
        ("mistral-v11", "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}", [F]),
        ("mistral-v11", "[TOOL_CALLS]f{}[TOOL_CALLS]g{}", [F, G]),
        ("mistral-v11", "[TOOL_CALLS]f[ARGS]\n{}", [F]),
        ("kimi", "<|call_begin|>functions.f:12<|args|>{}<|call_end|>", [F]),
        ("kimi", "<|calls|><|call_begin|>functions.f<|args|>{}<|call_end|>\n<|calls_end|>", [F]),
        ("granite", '<|tool_call|>[{"arguments": {}, "name": "f"}]', [F]),
        ("lfm2", "<|tool_call_start|>[f(), g( )]<|tool_call_end|>", [F, G]),
        ("lfm2", "<|tool_call_start|>[f(a='it\\'s', b=None)]<|tool_call_end|>", [Call("f", '{"a":"it\'s","b":null}')]),
        ("qwen-xml", "<function=f>\n<parameter=a>\n[1]\n</parameter>\n</function>", [Call("f", '{"a":[1]}')]),
        ("qwen-xml", '<tool_call><function=f>{"a": 1}</function></tool_call>', [Call("f", '{"a": 1}')]),
    ],
)
def test_calls_are_read_as_models_write_them(name, text, calls):
    answer = both(text, FORMS[name], THINK)
    assert answer.calls == calls
    assert answer.content == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "A <tool> is not {a} call."),
        ("hermes", "Ends in <tool_"),
        ("hermes", "Look: <tool_call>none"),
        ("hermes", 'Look: <tool_call>{"no": "name"}'),
        ("llama-3", '{"names": []} and more'),
        ("llama-3", "{"),
        ("llama-3", r'{"na\qme": "f"} and {"name": 1}'),
        ("hermes", r'<tool_call>{"name": "f\q", "x": 1}'),
        ("generic", '{"a": 1}'),
        ("mistral", "[TOOL"),
        ("harmony", "Just text."),
    ],
)
def test_what_is_no_call_is_content(name, text):
    answer = both(text, FORMS[name], THINK)
    assert (answer.content.replace(" ", ""), answer.calls, answer.reasoning) == (text.replace(" ", ""), [], "")


def test_calls_that_cannot_be_sent_as_they_are_written_are_read_all_the_same():
    half = r'<tool_call>{"name": "f\ud800", "arguments": "\udfff"}</tool_call>'
    assert both(half, FORMATS["hermes"], THINK).calls == [Call("f?", "{}")]
    deep = "[" * 3000
    answer = both('<tool_call>{"name": "f", "arguments": {"x": ' + deep, FORMATS["hermes"], THINK)
    assert answer.calls == [Call("f", '{"x": ' + deep)]


def test_a_mark_that_begins_no_call_is_content():
    answer = both('Use <tool_call>: <tool_call>{"name": "f", "arguments": {}}</tool_call>', FORMATS["hermes"], THINK)
    assert (answer.content, answer.calls) == ("Use <tool_call>:", [F])
    answer = both('{"name": 1} <tool_call>{"name": "f", "arguments": {}}</tool_call>', FORMATS["hermes"], THINK)
    assert (answer.content, answer.calls) == ('{"name": 1}', [F])


@pytest.mark.parametrize(
    ("text", "is_cut"),
    [
        ('{"a": 1}}', False),
        ('{"a": 1', True),
        ('{"a": "1', True),
        ('"{', True),
        ('{"a": 1}', True),
        ("{}}</tool_call> So", False),
    ],
)
def test_whether_an_answer_ends_within_a_call_is_told(text, is_cut):
    parser = AnswerParser(FORMATS["hermes"], THINK)
    parser.push('<tool_call>{"name": "f", "arguments": ' + text)
    parser.flush()
    assert parser.is_cut == is_cut


@pytest.mark.parametrize(
    ("form", "arguments"),
    [
        (form, arguments)
        for form in JSON
        for arguments in ("{}", '"{}"')
        if form.name != "harmony" and (form.is_object or arguments == "{}")
    ],
    ids=lambda each: getattr(each, "name", None),
)
def test_of_every_format_arguments_that_end_too_early_are_told_as_cut(form, arguments):
    parsers = [AnswerParser(form, THINK) for _ in range(2)]
    for parser, text in zip(parsers, (arguments, arguments[:-1]), strict=True):
        parser.push(written(form, [("f", text)]) if text == arguments else written(form, [("f", "@")]).partition("@")[0] + text)
        parser.flush()
    assert [parser.is_cut for parser in parsers] == [False, True]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{'a': [1, None]}", {"a": [1, None]}),
        ('{"a": "two\nlines\t"}', {"a": "two\nlines\t"}),
        (r'{"path": "C:\dir", "at": "\u12"}', {"path": "C:\\dir", "at": "\\u12"}),
        ("{a: True, b: [1, 2,],}", {"a": True, "b": [1, 2]}),
        ('{"a": 1 "b": NaN}', {"a": 1, "b": None}),
        ('{"a": [1}', {"a": [1]}),
        ("null", {}),
        ('"null"', {}),
        ('""', {}),
        ("[1]", {}),
        (r'"{\"a\": \"x\ny\"}"', {"a": "x\ny"}),
    ],
)
def test_arguments_are_json_however_they_are_written(written, expected):
    answer = both(f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call> Done.', FORMATS["hermes"], THINK)
    assert answer.content in ("Done.", "")
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [("f", expected)]


@given(st.text(alphabet="{}[]\"\\,:='au1 \nN.", max_size=20))
def test_whatever_arguments_are_they_are_told_as_an_object(written):
    answer = both(f'<tool_call>{{"name": "f", "arguments": {{{written}', FORMATS["hermes"], THINK)
    parser = AnswerParser(FORMATS["hermes"], THINK)
    told = collect(parser.push(f'<tool_call>{{"name": "f", "arguments": {{{written}') + parser.flush())
    assert told == answer
    if not parser.is_cut:
        assert isinstance(json.loads(told.calls[0].arguments), dict)


@pytest.mark.parametrize("rest", ["", "\n", "\n<tool_", "\n<tool_call>", '\n<tool_call>\n{"na', "\n</tool_"])
def test_an_answer_that_is_cut_between_calls_leaves_no_half_mark(rest):
    answer = both(written(FORMATS["hermes"], [("f", "{}")]).removesuffix("\n</tool_call>") + rest, FORMATS["hermes"], THINK)
    assert (answer.content, answer.calls) == ("", [F])


@pytest.mark.parametrize(
    ("schema", "written", "expected"),
    [
        ({"type": "string"}, "75001", "75001"),
        ({"type": "string"}, ' "a"\n', ' "a"\n'),
        ({"type": "integer"}, "75001", 75001),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "boolean"}, "True", True),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "3", 3),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "3", "3"),
        ({"$ref": "#/$defs/code"}, "3", "3"),
        ({"enum": ["3", "4"]}, "3", "3"),
        ({"type": "object"}, "{'a': None}", {"a": None}),
        ({"type": "array"}, '["a",]', ["a"]),
        ({}, "3", 3),
        ({}, "three", "three"),
        ({"type": "integer"}, "three", "three"),
    ],
)
def test_values_without_quotes_have_the_type_that_their_schema_says(schema, written, expected):
    root = {"properties": {"x": schema}, "$defs": {"code": {"type": "string"}}}
    text = f"<tool_call>\n<function=f>\n<parameter=x>\n{written}\n</parameter>\n</function>\n</tool_call>"
    (call,) = both(text, FORMATS["qwen-xml"], THINK, {"f": root}).calls
    assert json.loads(call.arguments) == {"x": expected}


@pytest.mark.parametrize("is_open", [True, False])
def test_a_call_within_reasoning_that_never_ends_is_one(is_open):
    text = 'I need it.\n<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    begun = "" if is_open else "<think>"
    answer = both(begun + text, FORMATS["hermes"], THINK, is_reasoning=is_open)
    assert (answer.reasoning, answer.content, answer.calls) == ("I need it.", "", [F])
    answer = both(f"{begun}{text} No.</think>Yes.", FORMATS["hermes"], THINK, is_reasoning=is_open)
    assert (answer.reasoning, answer.content, answer.calls) == (f"{text} No.", "Yes.", [])
    answer = both(f"{begun}A <tool_call>?", FORMATS["hermes"], THINK, is_reasoning=is_open)
    assert (answer.reasoning, answer.calls) == ("A <tool_call>?", [])


def test_content_may_begin_in_the_prompt():
    assert (
        both("Hm.</think>Hi.", FORMATS["hermes"], None, is_reasoning=True, begun="<think>").content == "<think>Hm.</think>Hi."
    )


@pytest.mark.parametrize(
    "begun", ["", "<think>", '<tool_call>{"name": "f", "arguments": {"x": "', "<|message|>", "to=f <|message|>"]
)
def test_a_piece_costs_the_same_however_much_came_before(begun):
    def least_s(n):
        parser, pieces = AnswerParser(FORMATS["harmony" if "|" in begun else "hermes"], THINK), []
        parser.push(begun + " word" * n)
        for _ in range(50):
            start = perf_counter()
            parser.push(" word")
            pieces.append(perf_counter() - start)
        return min(pieces)

    assert least_s(200_000) < 20 * least_s(10)


def test_json_with_a_name_is_a_call_if_it_is_that_of_a_tool():
    text = '```json\n{"name": "Ada", "arguments": {"a": 1}}\n``` is JSON.'
    for form in (FORMATS["hermes"], FORMATS["llama-3"]):
        assert both(text.strip("`json\n"), form, THINK, {"f": {}}).calls == []
    assert both(text, FORMATS["hermes"], THINK, {"f": {}}).content == text
    assert both(text, FORMATS["hermes"], THINK, {"f": {}, "Ada": {}}).calls == [Call("Ada", '{"a": 1}')]
    assert both(f"<tool_call>{text[8:]}", FORMATS["hermes"], THINK, {"f": {}}).calls == [Call("Ada", '{"a": 1}')]


def test_without_tools_and_tags_the_answer_is_content_to_the_letter():
    for text in ("<think>a</think> \n", '<tool_call>{"name": "f", "arguments": {}}</tool_call>', ' {"name":'):
        for form in ("hermes", "llama-3", "generic"):
            assert both(text, FORMATS[form], None, {}).content == text


def test_reasoning_goes_on_from_the_prompt_and_may_be_cut_short():
    assert both("Hm.\n</think>\n\nSo.", FORMATS["hermes"], THINK, is_reasoning=True).reasoning == "Hm."
    assert both("Hm. </thi", FORMATS["hermes"], THINK, is_reasoning=True).reasoning == "Hm. </thi"
    assert both("<think></think>So.", FORMATS["hermes"], THINK).content == "So."
    assert both("I <think> so.</think>", FORMATS["hermes"], THINK).content == "I <think> so.</think>"


@pytest.mark.parametrize("is_told_apart", [True, False])
def test_harmony_has_channels(is_told_apart):
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Look: <|end|><|start|>"
    call = "assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>" + ARGUMENTS
    answer = both(text + call, FORMATS["harmony"], THINK if is_told_apart else None)
    assert answer.calls == [Call("f", ARGUMENTS)]
    assert (answer.reasoning, answer.content) == (("Hm.", "Look: ") if is_told_apart else ("", "Hm.Look: "))
    assert both("<|channel|>final<|message|>Yes.", FORMATS["harmony"], THINK).content == "Yes."


FRAGMENTS = (
    *("a", " ", "\n", "<", "<think>", "</think>", "{", "}", "[", "]", '"', ":", ",", ";", "```json\n", "\n```", "\\"),
    *('{"name": "f", "arguments": {"a": 1}}', '{"name": "f"', ', "parameters": {', '"x": "y"', '{"tool_calls": ['),
    *(
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "f",
        "<function=",
        "<parameter=a>",
    ),
    *(
        "</parameter>",
        "</function>",
        "<|tool_call_start|>[f(a=",
        "<|channel|>",
        "analysis",
        "final",
        "<|message|>",
    ),
    *("<|end|>", "<|start|>", "assistant", " to=functions.f", "<|constrain|>json"),
)


@given(
    st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join),
    st.sampled_from(sorted(FORMS)),
    st.sampled_from([THINK, None]),
    st.sampled_from([None, {}, {"f": {}}, {"g": {}}]),
    st.booleans(),
)
def test_whatever_is_written_a_stream_takes_nothing_back(text, name, tags, names, is_reasoning):
    both(text, FORMS[name], tags, names, is_reasoning=is_reasoning)


def test_pieces_come_as_soon_as_they_are_certain():
    parser = AnswerParser(FORMATS["hermes"], THINK)
    assert collect(parser.push("Well <")).content == "Well"
    assert collect(parser.push("b> ")).content == " <b>"
    assert parser.push('<tool_call>{"name": "f", ')[0].name == "f"
    assert parser.push('"arguments": {"a"')[0].arguments == '{"a"'
    assert json.loads('{"a"' + parser.push(": 1}}")[0].arguments) == {"a": 1}
