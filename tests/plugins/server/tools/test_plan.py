"""What a request with tools adds to a prompt: its messages, and the grammar of an answer that must call one."""

import json
from pathlib import Path

import pytest
from support.grammar_matching import TOKENIZER, follows

from augury.errors import OptionError
from augury.plugins.server.tools import ChatFormat
from augury.plugins.server.tools.delta import collect
from augury.plugins.server.tools.format import FORMATS
from augury.plugins.server.tools.grammar import AnswerGrammar
from augury.plugins.server.tools.parser import AnswerParser
from augury.text.chat_template import ChatPrompt, ChatTemplate
from augury.types import Token

TEMPLATES = Path(__file__).parents[3] / "data" / "templates"
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER, NOW = {"name": "weather", "parameters": CITY}, {"name": "now"}
TOOLS = [{"type": "function", "function": each} for each in (WEATHER, NOW)]
ASKED = [{"role": "user", "content": "Hm?"}]
JSON = [form for form in FORMATS.values() if form.keys is None]


def call_of(form, name="weather", arguments='{"city": "Oslo"}'):
    return f"{form.before_name}{name}{form.before_arguments}{arguments}{form.after_arguments}"


@pytest.mark.parametrize("form", JSON, ids=lambda form: form.name)
def test_the_grammar_of_a_required_call_holds_calls_that_fit_and_nothing_else(form):
    grammar = AnswerGrammar(form, TOKENIZER, None, is_reasoning=False).calls([WEATHER, NOW], is_single=False)
    one, two = ([call_of(form)] * n for n in (1, 2))
    assert follows(grammar, form.begin + form.between.join(one) + form.end)
    assert follows(grammar, form.begin + form.between.join(two) + form.end) == (form.n_most is None)
    assert follows(grammar, form.begin + call_of(form, "now", "{}") + form.end)
    for wrong in (call_of(form, "other"), call_of(form, arguments='{"city": "Bonn"}'), call_of(form, arguments='{"city": "Os')):
        assert not follows(grammar, form.begin + wrong + form.end)
    assert not follows(grammar, "No.")
    single = AnswerGrammar(form, TOKENIZER, None, is_reasoning=False).calls([WEATHER], is_single=True)
    assert follows(single, form.begin + one[0] + form.end)
    assert not follows(single, form.begin + form.between.join(two) + form.end)
    assert not follows(single, form.begin + call_of(form, "now", "{}") + form.end)


@pytest.mark.parametrize("form", [form for form in FORMATS.values() if form.keys is not None], ids=lambda form: form.name)
def test_a_required_call_of_a_described_form_has_arguments_one_by_one(form):
    grammar = AnswerGrammar(form, TOKENIZER, None, is_reasoning=False).calls([WEATHER, NOW], is_single=False)
    calls = [("weather", {"city": "Oslo"}), ("now", {})]
    for fitting in (calls[:1], calls, calls[::-1] * 2):
        text = form.written(fitting)
        assert follows(grammar, text)
        parser = AnswerParser(form, None, {"weather": CITY, "now": {}})
        found = collect(parser.push(text) + parser.flush()).calls
        assert [(each.name, json.loads(each.arguments)) for each in found] == fitting
    for wrong in ([("weather", {"city": "Bonn"})], [("weather", {})], [("other", {})]):
        assert not follows(grammar, form.written(wrong))
    assert not follows(grammar, "No.")
    single = AnswerGrammar(form, TOKENIZER, None, is_reasoning=False).calls([WEATHER, NOW], is_single=True)
    assert follows(single, form.written(calls[:1]))
    assert not follows(single, form.written(calls))


@pytest.mark.parametrize("form", JSON, ids=lambda form: form.name)
def test_a_call_that_is_not_required_fits_too_or_there_is_text(form):
    grammar = AnswerGrammar(form, TOKENIZER, None, is_reasoning=False)
    free = grammar.calls([WEATHER, NOW], is_single=False, is_required=False)
    final = "<|channel|>final<|message|>" if form.name == "harmony" else ""
    one, two = (form.begin + form.between.join([call_of(form)] * n) + form.end for n in (1, 2))
    for text in (f"{final}It is <b>.\n", one, *([] if form.n_most else [two])):
        assert follows(free, text)
    assert not follows(free, form.begin + call_of(form, arguments='{"city": "Bonn"}') + form.end)
    if (form.begin + form.before_name).startswith(form.triggers or "no"):
        assert follows(free, f"Look: {one}")
    either = grammar.calls([WEATHER], is_single=True, is_required=False, schema=CITY)
    assert follows(either, one)
    assert follows(either, final + '{"city": "Oslo"}')
    assert not follows(either, final + '{"city": "Bonn"}')


@pytest.mark.parametrize("tags", [("<think>", "</think>"), ("[THINK]", "[/THINK]")], ids=str)
def test_reasoning_may_come_before_what_is_required(tags):
    form, (opening, closing) = FORMATS["hermes"], tags
    for is_reasoning in (False, True):
        grammar = AnswerGrammar(form, TOKENIZER, tags, is_reasoning)
        before = f"{'' if is_reasoning else opening}\nHm </b> [x].\n{closing}\n\n"
        assert follows(grammar.calls([WEATHER], is_single=True), before + call_of(form))
        assert follows(grammar.json(CITY), before + '{"city": "Oslo"}')
        assert follows(grammar.json(CITY), '{"city": "Oslo"}') == (not is_reasoning)
        assert not follows(grammar.json(CITY), before + "{}")


def test_harmony_may_reason_in_its_channel():
    grammar = AnswerGrammar(FORMATS["harmony"], TOKENIZER, None, is_reasoning=False)
    before = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    assert follows(grammar.calls([WEATHER], is_single=True), before + call_of(FORMATS["harmony"]))
    assert follows(grammar.json(CITY), before + '<|channel|>final<|message|>{"city": "Oslo"}')


TOLD = "{% if tools %}<tool_call>{% endif %}"


def planned(source=TOLD, **asked):
    template = ChatTemplate(source)
    try:
        return ChatFormat(template, TOKENIZER).plan(asked.pop("messages", ASKED), **asked)
    finally:
        template.close()


def given(source=TOLD, **asked):
    """What a plan adds, with what the template is given in place of what it writes."""
    template = ChatTemplate(source)
    try:
        form, told = ChatFormat(template, TOKENIZER), {}
        template.prompt = lambda messages, *, tools, **_: told.update(messages=messages, tools=tools) or ChatPrompt("")
        params = form.plan(asked.pop("messages", ASKED), **asked).params
    finally:
        template.close()
    assert params["prompt"] == ChatPrompt("")
    return {key: each for key, each in (told | params).items() if key != "prompt" and each is not None}


def test_what_a_request_adds():
    assert given() == {"messages": ASKED}
    assert given(tools=TOOLS) == {"messages": ASKED, "tools": TOOLS}
    assert "grammar" in planned(tools=TOOLS, tool_choice="required").params
    strict = [{"type": "function", "function": WEATHER | {"strict": True}}, *TOOLS]
    assert given(tools=strict, tool_choice="none") == {"messages": ASKED}
    assert planned(tools=strict).params["grammar"].count("Rome") == 1
    assert "Rome" in planned(tools=TOOLS[1:], json_schema=CITY).params["grammar"]
    named = planned(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "now"}}).params["grammar"]
    assert "now" in named
    assert "weather" not in named
    assert planned(json_schema=CITY).params["json_schema"] == CITY
    assert "thought" in planned("</think>", json_schema=CITY).params["grammar"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (TOLD, None),
        ("<think></think>", {"opening": "<think>", "closing": "</think>", "is_open": False}),
        ("{# [/THINK] #}[THINK]", {"opening": "[THINK]", "closing": "[/THINK]", "is_open": True}),
        (
            (TEMPLATES / "gpt-oss.jinja").read_text(),
            {"opening": "<|channel|>analysis<|message|>", "closing": "<|end|>", "is_open": False},
        ),
    ],
)
def test_a_budget_is_kept_where_there_is_reasoning(source, expected):
    assert planned(source, budget=5).params.get("constraint") == (expected and {"reasoning-budget": {"tokens": 5} | expected})
    if expected is not None:
        both = planned(source, budget=5, json_schema=CITY).params
        grammar = planned(source, json_schema=CITY).params["grammar"]
        assert both["constraint"] == {"reasoning-budget": {"tokens": 5, "grammar": grammar} | expected}
        assert both.keys() == {"prompt", "constraint"}


@pytest.mark.parametrize(("choice", "n"), [("auto", 1), ("none", 0)])
def test_calls_are_read_unless_there_shall_be_none(choice, n):
    parser = planned(tools=TOOLS, tool_choice=choice).parser()
    assert len(collect(parser.push(call_of(FORMATS["hermes"])) + parser.flush()).calls) == n


def test_reasoning_begins_where_the_template_opens_it():
    source = "{{ messages[0].content }}{% if on %}<think>\n{% endif %}{# </think> #}"
    for on, reasoning, content in ((True, "a", "b"), (False, "", "a</think>b")):
        parser = planned(source, kwargs={"on": on}).parser()
        answer = collect(parser.push("a</think>b") + parser.flush())
        assert (answer.reasoning, answer.content) == (reasoning, content)
    whole = planned(source, kwargs={"on": False}, reasoning="none").parser()
    assert collect(whole.push("<think>a</think>b")).content == "<think>a</think>b"
    assert whole.flush() == []


SWITCHED = (
    "{% for t in tools or [] %}<tool_call>{{ t.function | tojson }}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if tools %}<think></think>"
    "{% elif messages[-1].content.endswith('/fast') %}<think></think>{% elif add_generation_prompt %}<think>\n{% endif %}"
)


@pytest.mark.parametrize(
    ("asked", "is_open"),
    [
        ({}, True),
        ({"messages": [{"role": "user", "content": "Hi /fast"}]}, False),
        ({"tools": TOOLS}, False),
        ({"tools": TOOLS, "tool_choice": "none"}, True),
        ({"messages": [*ASKED, {"role": "assistant", "content": "Well"}]}, False),
        ({"messages": [*ASKED, {"role": "assistant", "content": "<think>So"}]}, True),
        ({"messages": [*ASKED, {"role": "assistant", "content": "<think>So</think>Well"}]}, False),
        ({"messages": [{"role": "user", "content": "What does <think> mean? <think>"}]}, True),
    ],
)
def test_whether_an_answer_begins_in_reasoning_is_read_from_this_prompt(asked, is_open):
    plan = planned(SWITCHED, **asked)
    answer = collect((parser := plan.parser()).push("Hm.") + parser.flush())
    assert (answer.reasoning, answer.content) == (("Hm.", "") if is_open else ("", "Hm."))
    of_json = planned(SWITCHED, **asked | {"tools": None, "tool_choice": "auto", "json_schema": CITY}).params["grammar"]
    is_open_without = is_open or asked.get("tools") is not None
    assert follows(of_json, '{"city": "Oslo"}') != is_open_without
    assert follows(of_json, 'Hm.</think>{"city": "Oslo"}') == is_open_without
    is_over = "</think>" in str(asked) or "/fast" in str(asked)  # which is not begun again
    assert follows(of_json, '<think>Hm.</think>{"city": "Oslo"}') != is_over
    limits = planned(SWITCHED, **asked | {"budget": 5}).params["constraint"]["reasoning-budget"]
    assert limits["is_open"] == is_open


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("{# <|channel>thought <channel|> #}", "<|channel>thought\nHm.<channel|>Well."),
        ("{# <|END_THINKING|> #}", "<|START_THINKING|>Hm.<|END_THINKING|>Well."),
        ("{# [BEGIN FINAL RESPONSE] #}", "Here are my reasoning steps:\nHm.\n[BEGIN FINAL RESPONSE]\nWell."),
        ("{# <think></think><response> #}", "<think>Hm.</think>\n<response>\nWell.</response>"),
        (
            "{# [BEGIN FINAL RESPONSE] #}",
            "Here are my reasoning steps:\nHm.\n[BEGIN FINAL RESPONSE]\nWell.\n[END FINAL RESPONSE]",
        ),
        ("{# </seed:think> #}", "<seed:think>Hm.</seed:think>Well."),
    ],
)
def test_reasoning_is_read_in_the_marks_of_every_family(source, answer):
    plan = planned(source)
    for n in range(len(answer)):
        parser = plan.parser()
        read = collect(parser.push(answer[:n]) + parser.push(answer[n:]) + parser.flush())
        assert (read.reasoning, read.content) == ("Hm.", "Well.")


def test_a_template_without_a_system_role_is_told_of_tools_in_the_first_question():
    refusal = "{% if m.role == 'system' %}{{ raise_exception('none') }}{% endif %}"
    source = f"{{% for m in messages %}}{refusal}[{{{{ m.role }}}}]{{{{ m.content }}}}{{% endfor %}}"
    template = ChatTemplate(source)
    prompt = str(ChatFormat(template, TOKENIZER).plan(ASKED, tools=TOOLS).params["prompt"])
    template.close()
    assert prompt.startswith("[user]You may call these functions:")
    assert prompt.endswith("Hm?")


def test_a_template_without_tools_is_told_of_them_in_a_system_message():
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}}
    talk = [*ASKED, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1", "content": "noon"}]
    params = given("<|im_start|>", messages=talk, tools=TOOLS)
    system, asked, called, result = params["messages"]
    assert system["role"] == "system"
    assert json.dumps(WEATHER) in system["content"]
    assert asked == ASKED[0]
    parser = AnswerParser(FORMATS["generic"], None)
    assert collect(parser.push(called["content"])).calls[0].arguments == '{"a": 1}'
    assert result == {"role": "user", "content": "The function returned: noon"}
    assert "tools" not in params
    for none in ({}, {"tools": TOOLS, "tool_choice": "none"}):  # what was called before is text all the same
        assert given("<|im_start|>", messages=talk, **none)["messages"] == [asked, called, result]
    briefed = given("", messages=[{"role": "system", "content": "Be short."}, *ASKED], tools=TOOLS)["messages"]
    assert briefed[0]["content"].startswith("Be short.\n\nYou may call")


def test_a_form_that_cannot_be_found_out_is_told_with_the_reason(monkeypatch, caplog):
    template = ChatTemplate((TEMPLATES / "hermes.jinja").read_text())
    monkeypatch.setattr(template._renderer, "render", lambda *_: (_ for _ in ()).throw(OSError("no more processes")))
    assert ChatFormat(template, None).tools is FORMATS["generic"]
    assert caplog.text.count("no more processes") == 1


@pytest.mark.parametrize("name", ["granite", "described"])
def test_calls_are_text_for_a_template_that_tells_of_tools_and_writes_no_calls(name):
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo", "days": 3}'}}
    said = {"role": "assistant", "content": "Hear!", "tool_calls": [call, call]}
    template = ChatTemplate((TEMPLATES / f"{name}.jinja").read_text())
    form = ChatFormat(template, None)
    prompt = str(
        form.plan([*ASKED, said, {"role": "tool", "tool_call_id": "1", "content": "sunny"}], tools=TOOLS).params["prompt"]
    )
    template.close()
    text = prompt.partition("Hear!\n")[2].partition("sunny")[0]
    parser = AnswerParser(form.tools, None, {"weather": {"type": "object", "properties": {"days": {"type": "integer"}}}})
    assert [json.loads(each.arguments) for each in collect(parser.push(text) + parser.flush()).calls] == [
        {"city": "Oslo", "days": 3}
    ] * 2


def test_a_template_that_writes_calls_and_tells_of_no_tools_is_told_of_them_in_its_own_form():
    source = (TEMPLATES / "hermes.jinja").read_text()
    source = source[source.index("{%- for m") :]
    template = ChatTemplate(source)
    plan = ChatFormat(template, None).plan(ASKED, tools=TOOLS)
    template.close()
    system, _, rest = str(plan.params["prompt"]).partition("Otherwise answer in plain text.")
    assert json.dumps(WEATHER) in system
    assert '<tool_call>\n{"name": "NAME", "arguments": {"KEY": "VALUE"}}\n</tool_call>' in system
    assert "Hm?" in rest


def test_arguments_reach_templates_as_mappings():
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}}
    source = (TEMPLATES / "hermes.jinja").read_text()
    made = given(source, messages=[{"role": "assistant", "tool_calls": [call]}, *ASKED])["messages"][0]
    assert made["tool_calls"][0]["function"] == {"name": "now", "arguments": {"a": 1}}


def test_control_tokens_are_text_to_the_parser_where_the_format_is_written_with_them():
    writing = (TEMPLATES / "devstral.jinja").read_text()
    (control,) = TOKENIZER.encode("[TOOL_CALLS]", add_special=False, parse_special=True)
    texts = [planned(source).text(Token(control, "")) for source in (writing, TOLD)]
    assert texts == ["[TOOL_CALLS]", ""]
    assert [planned().text(Token(token, "")) for token in TOKENIZER.eog] == [""] * len(TOKENIZER.eog)
    assert planned().text(Token(5, "x")) == "x"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"tools": [{"name": "f"}]}, "a tool is .*expected"),
        *(({"tools": [{"function": {"name": name}}]}, "a tool is named") for name in ("", 'a"b', "a b", "a\n", "f" * 257)),
        ({"tools": [{"function": {"name": "files/größe:v1.2@x-y_z"}}]}, None),
        ({"tools": [{"function": {"name": "f", "parameters": []}}], "tool_choice": "none"}, None),
        ({"tools": [{"function": {"name": "f", "parameters": [1]}}]}, "the parameters of tool 'f' are no JSON schema"),
        *(
            ({"tools": [{"function": {"name": "f", "parameters": schema}}], "tool_choice": "required"}, told)
            for schema, told in (
                ({"type": "objekt"}, "cannot keep an answer to the parameters of tool 'f': Invalid type: objekt; change"),
                ({"not": {}}, r"^augury cannot .* tool 'f': keywords that are not supported: \[.not.\]; change the schema$"),
            )
        ),
        ({"tool_choice": "required"}, "tool_choice is 'required', but there are no tools"),
        ({"tool_choice": "maybe"}, "tool_choice is 'maybe', expected 'auto'"),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "x"}}}, "names 'x', expected one of the tools: weather, now"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}]}, "a tool call is"),
    ],
)
def test_what_is_malformed_is_an_error(asked, told):
    if told is None:
        planned(**asked)
        return
    with pytest.raises(OptionError, match=told):
        planned(**asked)


def test_calls_have_the_ids_that_a_template_writes_in_place_of_names():
    source = (Path(__file__).parents[3] / "data/templates/kimi-k2-ids.jinja").read_text("utf-8")
    calls = [{"id": f"call_{i}", "type": "function", "function": {"name": "now", "arguments": "{}"}} for i in range(2)]
    answers = [{"role": "tool", "tool_call_id": call["id"], "content": "noon"} for call in calls]
    turn = [{"role": "assistant", "content": None, "tool_calls": calls}, *answers]
    messages = given(source, messages=[*ASKED, *turn, *turn], tools=TOOLS)["messages"]
    made = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert made == [f"functions.now:{i}" for i in range(4)]
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == made


@pytest.mark.parametrize(
    "schema",
    [{}, {"properties": {"x": {"type": "string"}}}, {"$schema": "http://json-schema.org/draft-07/schema#"}, {"title": "X"}],
)
def test_arguments_are_an_object_where_the_schema_does_not_say_so(schema):
    form = FORMATS["hermes"]
    grammar = AnswerGrammar(form, TOKENIZER, None, is_reasoning=False).calls(
        [{"name": "f", "parameters": schema}], is_single=True
    )
    assert follows(grammar, form.begin + call_of(form, "f", '{"x": "a"}') + form.end)
    for wrong in ("[12, 5.3]", "[0]", "1", '"a"', "null"):
        assert not follows(grammar, form.begin + call_of(form, "f", wrong) + form.end)


@pytest.mark.parametrize("schema", [{"type": "array"}, {"type": "string"}, {"type": ["string", "null"]}])
def test_a_schema_of_arguments_that_are_no_object_is_an_error(schema):
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    with pytest.raises(OptionError, match="'f'"):
        planned(tools=tools, tool_choice="required")


def test_marks_that_a_template_puts_together_are_those_of_reasoning_and_content():
    plan = planned((TEMPLATES / "kimi-k3.jinja").read_text(), tools=TOOLS)
    parser = plan.parser()
    text = "Hm.<|close|>think<|sep|><|open|>response<|sep|>Hello.<|close|>response<|sep|><|close|>message<|sep|>"
    answer = collect(parser.push(text) + parser.flush())
    assert (answer.reasoning, answer.content, answer.calls) == ("Hm.", "Hello.", [])


def test_the_marks_around_content_may_come_before_a_required_call():
    template = (TEMPLATES / "kimi-k3.jinja").read_text()
    grammar = planned(template, tools=TOOLS, tool_choice="required").params["grammar"]
    frame, call = "<|open|>response<|sep|><|close|>response<|sep|>", '<|open|>tools<|sep|><|open|>call tool="now" index="1"'
    end = "<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"
    for before in ("", frame):
        assert follows(grammar, f"Hm.<|close|>think<|sep|>{before}{call}{end}")
    assert not follows(grammar, f"Hm.<|close|>think<|sep|>{frame}")


def test_a_prompt_is_rendered_once(monkeypatch):
    template = ChatTemplate((TEMPLATES / "kimi-k3.jinja").read_text(), TOKENIZER)
    form, rendered, n = ChatFormat(template, TOKENIZER), template._renderer.render, []
    monkeypatch.setattr(template._renderer, "render", lambda *asked: n.append(1) or rendered(*asked))
    asked = [{"role": "user", "content": "Write <|message|> and </think>."}]
    template.encode(asked, tools=TOOLS)  # which finds out what the template takes
    n.clear()
    plan = form.plan(asked, tools=TOOLS)
    found = template.encode(plan.params["prompt"])
    assert len(n) == 1
    assert found == template.encode(asked, tools=TOOLS)
    assert plan._is_reasoning
    template.close()
