"""What models write that differs from their templates, as users of several engines report: calls come back all the same."""

import json

import pytest
from support.templates import format_of

from augury.plugins.server.tools.delta import collect
from augury.plugins.server.tools.parser import AnswerParser

TOOLS = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "where": {"type": "object"}},
    },
    "now": {"type": "object", "properties": {}},
}
ROME, NOW = ("get_weather", {"city": "Rome"}), ("now", {})
XML = "<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>"
JSON = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
KIMI = "<|tool_calls_section_begin|><|tool_call_begin|>"
DSML = '<|DSML|function_calls>\n<|DSML|invoke name="get_weather">\n<|DSML|parameter name="city">Rome</|DSML|parameter>\n'
DSML = (DSML + "</|DSML|invoke>\n</|DSML|function_calls>").replace("|", "\uff5c")


def both(template, text, *, is_ended=True, **more):
    """An answer as it is read letter by letter, and as a whole."""
    form, tags = format_of(template)
    found = []
    for n in (1, len(text)):
        parser = AnswerParser(form, tags, TOOLS, **more)
        deltas = [delta for at in range(0, len(text), n) for delta in parser.push(text[at : at + n])]
        found.append((collect(deltas + parser.flush(is_ended=is_ended)), parser.is_cut))
    assert found[0] == found[1]
    answer, is_cut = found[0]
    return answer, is_cut


def calls(template, text, content="", **more):
    answer, is_cut = both(template, text, **more)
    assert (answer.content, is_cut) == (content, False)
    return [(call.name, json.loads(call.arguments)) for call in answer.calls]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("qwen-xml", f"<tool_call>\n{JSON}\n</tool_call>"),
        ("qwen-xml", f"```json\n{JSON}\n```"),
        ("mistral-small", f"[TOOL_CALLS][{JSON}]"),
        ("mistral-small", f"[TOOL_CALLS]{JSON}"),
        ("devstral", f'[TOOL_CALLS][{JSON[:-1]}, "id": "abc123456"}}]'),
        ("lfm2", f"<|tool_call_start|>[{JSON}]<|tool_call_end|>"),
        ("lfm25", '[get_weather(city="Rome")]'),
        ("hermes", f"<tool_call>\n{XML}\n</tool_call>"),
        ("hermes", XML),
        ("llama-3", '<function=get_weather>{"city": "Rome"}</function>'),
        ("llama-4", '[get_weather(city="Rome")]'),
        ("llama-4", '<|python_start|>[get_weather(city="Rome")]<|python_end|>'),
        ("granite", f"<tool_call>[{JSON}]"),
        ("granite", f"[{JSON}]"),
    ],
)
def test_calls_in_the_form_of_another_template_are_read(template, text):
    assert calls(template, text) == [ROME]


def test_text_in_another_form_is_content_where_it_calls_no_tool():
    for text in ('{"name": "Bob", "age": 3}', '[other(city="Rome")]', "a <function= b"):
        for template in ("qwen-xml", "hermes", "lfm2", "kimi-k2"):
            assert calls(template, text, text) == []
    assert calls("hermes", text := "<function=other>x</function>", text) == []
    for template in ("hermes", "qwen-xml"):
        assert calls(template, text := "Write `<function=get_weather>`, like so.", text) == []


@pytest.mark.parametrize(
    "rest",
    [
        "\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        "\n<parameter=days>\n2\n</function>\n</tool_call>",
        "\n<parameter=days>2</parameter>\n</function>\n</tool_call>",
        "\n<parameter=days>\n2\n</function>",
        "\n</parameter>\n<parameter=days>\n2\n</function>\n</tool_call>",
    ],
)
@pytest.mark.parametrize("city", ["Rome", "a\n<parameter=b>\nc", "a\n</function> b", "a </function>\n</tool_call>"])
def test_the_mark_after_a_value_may_be_absent_before_another_argument_and_the_end(rest, city):
    text = f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{city}{rest}"
    assert calls("qwen-xml", text) == [("get_weather", {"city": city, "days": 2})]


CITY, DAYS = "<arg_key>city</arg_key>\n<arg_value>Rome\n", "<arg_key>days</arg_key>\n<arg_value>2\n"
IN_LINES = {
    "glm": f"<tool_call>get_weather\n{CITY}{DAYS}</tool_call>",
    "seed-oss": "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Rome\n<parameter=days>2\n</function>\n"
    "</seed:tool_call>",
}


@pytest.mark.parametrize("template", IN_LINES)
def test_so_it_may_in_other_forms_with_lines_for_arguments(template):
    assert calls(template, IN_LINES[template]) == [("get_weather", {"city": "Rome", "days": 2})]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('"Rome"', {"city": "Rome"}),
        ("'Rome', 2", {"city": "Rome", "days": 2}),
        ('"Rome", days=2', {"city": "Rome", "days": 2}),
        ('"a, b) = c\\"", 2, {"x": [None]}', {"city": 'a, b) = c"', "days": 2, "where": {"x": [None]}}),
        ('days=2, city="Rome"', {"city": "Rome", "days": 2}),
        ("True", {"city": True}),
        ("", {}),
    ],
)
def test_arguments_in_python_may_lack_their_names(written, expected):
    for template, text in (("llama-4", "[{}]"), ("lfm2", "<|tool_call_start|>[{}]<|tool_call_end|>")):
        assert calls(template, text.format(f"get_weather({written})")) == [("get_weather", expected)]
    two = f"[get_weather({written}), now()]"
    assert calls("llama-4", two) == [("get_weather", expected), NOW]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "get_weather", "city": "Rome", "days": 2}',
        '{"name": "get_weather", "id": "x", "city": "Rome", "note": [1], "days": 2}',
        '{"name": "get_weather", "city": "Rome", "days": 2',
        '{"name": "get_weather", "city": "Paris", "arguments": {"city": "Rome", "days": 2}}',
    ],
)
@pytest.mark.parametrize("end", ["\n</tool_call>", ""])
def test_arguments_may_stand_beside_the_name(text, end):
    expected = [("get_weather", {"city": "Rome", "days": 2})]
    assert calls("hermes", f"Look: <tool_call>\n{text}{end if text.endswith('}') else ''}", "Look:") == expected


def test_arguments_beside_a_name_that_are_cut_are_told_as_cut():
    for text in ('{"name": "get_weather", "city": "Ro', '{"name": "get_weather", "city": "Rome"'):
        assert both("hermes", f"<tool_call>\n{text}", is_ended=False)[1]


def test_an_end_of_reasoning_that_the_prompt_has_already_is_no_content():
    for text in ("</think>\n\nHi.", "\n</think>Hi.", "</think>Hi."):
        assert calls("hermes", text, "Hi.") == []
    assert calls("hermes", f"</think>\n<tool_call>\n{JSON}\n</tool_call>") == [ROME]
    assert calls("hermes", "</thin Hi.", "</thin Hi.") == []


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("llama-3", f'{{"type": "function", "function": {JSON}}}'),
        ("hermes", f'<tool_call>\n{{"type": "function", "function": {JSON}}}\n</tool_call>'),
        ("llama-3", '{"type": "function", "function": "get_weather", "parameters": {"city": "Rome"}}'),
        ("hermes", f"<tool_call>\n{{{JSON}}}\n</tool_call>"),
        ("hermes", "<tool_call>\n" + JSON.replace('"', "'") + "\n</tool_call>"),
        ("llama-3", JSON.replace('"', "'")),
    ],
)
def test_objects_that_hold_a_call_in_other_words_are_read(template, text):
    assert calls(template, text) == [ROME]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("qwen-xml", f"<tool_call>\n{XML}\n</tool_call>".replace("=get_weather", '="get_weather"').replace("=city", '="city"')),
        (
            "minimax-m2",
            "<minimax:tool_call><invoke name=get_weather><parameter name=city>Rome</parameter></invoke></minimax:tool_call>",
        ),
        ("deepseek-dsml", DSML),
        ("gemma-4", '<|tool_call>call:get_weather{"city": "Rome"}<tool_call|>'),
        ("gemma-4", '<|tool_call>get_weather{city:<|"|>Rome<|"|>}<tool_call|>'),
        *(
            (
                "kimi-k2",
                KIMI + f'{name}<|tool_call_argument_begin|>{{"city": "Rome"}}<|tool_call_end|>',
            )
            for name in ("get_weather:0", "get_weather", "functions.get_weather", " functions.get_weather:0")
        ),
    ],
)
def test_names_and_keys_may_have_other_quotes_and_prefixes(template, text):
    assert calls(template, text) == [ROME]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (
            "kimi-k2",
            "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|><|tool_call_end|><|tool_calls_section_end|>",
        ),
        ("devstral", "[TOOL_CALLS]now[ARGS]"),
        ("hermes", '<tool_call>\n{"name": "now"'),
    ],
)
def test_a_call_may_lack_its_arguments(template, text):
    answer, _ = both(template, text)
    assert [(call.name, call.given) for call in answer.calls] == [NOW]
    assert answer.content == ""


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("glm", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>"),
        ("glm", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool"),
        ("gemma-4", '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>}'),
        ("qwen-xml", "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>"),
        ("minimax-m2", '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Rome</parameter>\n</inv'),
        ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"'),
        ("devstral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"'),
    ],
)
def test_what_ends_a_call_may_be_absent_where_the_model_ended_the_answer(template, text):
    assert calls(template, text) == [ROME]
    answer, is_cut = both(template, text, is_ended=False)
    assert is_cut
    assert "</" not in answer.calls[0].arguments


@pytest.mark.parametrize("template", ["hermes", "llama-3", "qwen-xml", "lfm2"])
def test_an_object_that_names_a_tool_is_a_call_by_its_arguments(template):
    for text in ('{"name": "get_weather", "description": "of a city"}', '{"name": "now", "price": 3}'):
        assert calls(template, text, text) == []
    assert calls(template, '{"name": "get_weather", "id": "a1", "arguments": {"city": "Rome"}}') == [ROME]
    assert calls(template, '{"name": "now"}') == [NOW]


def test_a_call_in_another_form_that_is_cut_is_no_whole_one():
    for end in range(len(JSON) - 1):
        answer, is_cut = both("qwen-xml", f"<tool_call>\n{JSON[:end]}", is_ended=False)
        assert is_cut == bool(answer.calls)
    answer, is_cut = both("qwen-xml", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ro')
    assert (answer.calls[0].arguments, is_cut) == ('{"city": "Ro', True)


@pytest.mark.parametrize(
    ("template", "call"), [("hermes", f"<tool_call>{JSON}</tool_call>"), ("qwen-xml", f"<tool_call>{XML}</tool_call>")]
)
def test_calls_after_text_after_calls_are_calls(template, call):
    assert calls(template, f"One.\n{call}\nTwo.\n{call}{call}\nThree.", "One.Two.Three.") == [ROME] * 3


POM = "<a>\n  <parameter>x</parameter>\n  <parameter>y</parameter></a>"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (
            "qwen-xml",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\n{}\n</parameter>\n<parameter=days>\n3\n</parameter>\n",
        ),
        ("qwen-xml", "<tool_call>\n<function=get_weather>\n<parameter=city>{}</parameter>\n<parameter=days>3</parameter>\n"),
        (
            "minimax-m2",
            '<invoke name="get_weather"><parameter name="city">{}</parameter><parameter name="days">3</parameter></invoke>',
        ),
    ],
)
@pytest.mark.parametrize("value", [POM, 'return "</parameter>"', "</parameter> x"])
def test_a_value_may_hold_the_mark_that_ends_values(template, text, value):
    assert calls(template, text.replace("{}", value)) == [("get_weather", {"city": value, "days": 3})]


def test_a_thought_may_follow_a_thought():
    answer, _ = both("hermes", f"<think>\nHm.\n</think>\n<think>\nWell.</think>\n<tool_call>{JSON}</tool_call>")
    assert (answer.reasoning, answer.content, len(answer.calls)) == ("Hm.\nWell.", "", 1)
