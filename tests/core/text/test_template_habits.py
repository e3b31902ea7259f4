"""Conversations are fitted to what a chat template takes, each of which has ideas of its own."""

import json

import pytest
from hypothesis import given, strategies as st

from augury.errors import OptionError
from augury.text.chat_template import ChatTemplate
from augury.text.template_habits import arguments_of

CALLS = (
    "{{% for m in messages %}}<{{{{ m.role }}}}>{content}{{% for c in m.tool_calls or [] %}}"
    "[{{{{ c.function.name }}}} {arguments}]{{% endfor %}}{{% endfor %}}"
)
CONTENTS = {
    "that must be text": "{{ m.content.strip() }}",
    "whose letters are looked at": "{% if 'a' in m.content %}{{ m.content }}{% else %}{{ m.content }}{% endif %}",
    "that is written as it is": "{{ m.content }}",
    "that may be absent": "{{ m.content or '' }}",
    "that calls only where it is none": "{% if m.content is not none %}{{ m.content }}{% endif %}",
}
ARGUMENTS = {
    "as objects": "{{ c.function.arguments | tojson }}",
    "as texts": "{{ '' + c.function.arguments }}",
    "as either": "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}",
    "key by key": "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }};{% endfor %}",
    "as Python writes them": "{{ c.function.arguments }}",
}
ASKED = {"role": "user", "content": "Q"}


def rendered(source, messages, **options):
    template = ChatTemplate(source)
    try:
        return template.render(messages, **options)
    finally:
        template.close()


def calling(arguments, **more):
    return {
        "role": "assistant",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}],
        **more,
    }


def test_an_answer_of_no_call_is_the_user_s_where_the_template_would_leave_it_out():
    """As Gemma 4's does, which writes answers with their calls."""
    source = (
        "{% for m in messages %}{% if m.role != 'tool' %}<{{ m.role }}>{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        "[{{ c.function.name }} {{ c.function.arguments | tojson }}]"
        "{% for a in messages if a.role == 'tool' %}={{ a.content }};{% endfor %}{% endfor %}{% endif %}{% endfor %}"
    )
    answer, more = {"role": "tool", "content": "sunny"}, {"role": "tool", "content": "warm"}
    how = {"add_generation_prompt": False}
    assert rendered(source, [ASKED, answer, more], **how) == "<user>Q<user>sunny<user>warm"
    assert rendered(source, [ASKED, {"role": "assistant", "content": ""}, answer], **how).endswith("<user>sunny")
    called = [ASKED, calling({}), answer, more]
    assert rendered(source, called, **how) == "<user>Q<assistant>[f {}]=sunny;=warm;"
    every = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    assert rendered(every, [ASKED, answer], **how) == "<user>Q<tool>sunny"


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_a_call_is_written_whatever_form_the_template_wants(content, arguments):
    template = ChatTemplate(CALLS.format(content=content, arguments=arguments))
    expected = "<user>Q<assistant>[f x=1;]" if "items" in arguments else '<user>Q<assistant>[f {"x": 1}]'
    try:
        for empty in ({}, {"content": None}, {"content": ""}):
            for said in ({"x": 1}, '{"x": 1}'):
                assert template.render([ASKED, calling(said, **empty)], add_generation_prompt=False) == expected
        assert "again[f" in template.render([ASKED, calling({}, content="again")], add_generation_prompt=False)
    finally:
        template.close()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (None, {}),
        ("", {}),
        ("null", {}),
        ("{}", {}),
        ({"a": None}, {"a": None}),
        ('{"a": "two\nlines"}', {"a": "two\nlines"}),
        ("[1]", {"arguments": [1]}),
        ("{'a': 1}", {"arguments": "{'a': 1}"}),
        ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
        ('{"a": ', {"arguments": '{"a": '}),
        (r'{"a": "\ud800"}', {"arguments": r'{"a": "\ud800"}'}),
        (r'{"\ud800": 1}', {"arguments": r'{"\ud800": 1}'}),
        ("[" * 9999, {"arguments": "[" * 9999}),
    ],
)
def test_arguments_that_are_no_object_of_json_are_one_all_the_same(said, expected):
    assert arguments_of({"function": {"name": "f", "arguments": said}}) == expected


@given(st.text())
def test_arguments_of_any_text_can_be_written_in_json(text):
    json.dumps(arguments_of({"function": {"arguments": text}}), allow_nan=False)


NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('none here') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize(
    "source", [NO_SYSTEM, "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"]
)
def test_a_system_message_that_a_template_has_no_place_for_begins_the_first_question(source):
    system = {"role": "system", "content": "S"}
    assert rendered(source, [system, ASKED]) == "[user]S\n\nQ"
    assert rendered(source, [system, {"role": "assistant", "content": "A"}, ASKED]) == "[assistant]A[user]S\n\nQ"
    assert (
        rendered(NO_SYSTEM, [system, {"role": "assistant", "content": "A"}], add_generation_prompt=False)
        == "[user]S[assistant]A"
    )


FIRST_ALONE = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('only first') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
IN_TURNS = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('in turns') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)


def test_what_a_template_refuses_is_tried_in_other_words():
    late = {"role": "system", "content": "S"}
    assert rendered(FIRST_ALONE, [late, ASKED, late]) == "[system]S[user]Q[user]S"
    assert rendered(IN_TURNS, [ASKED, ASKED, {"role": "assistant", "content": "A"}, ASKED]) == "[user]Q\n\nQ[assistant]A[user]Q"
    assert rendered(IN_TURNS, [late, ASKED, ASKED]) == "[user]S\n\nQ\n\nQ"


def turn(ids, names, answers, text=None):
    """A message that calls tools, and their answers."""
    calls = [
        ({} if name is None else {"id": name}) | {"type": "function", "function": {"name": called, "arguments": "{}"}}
        for name, called in zip(ids, names, strict=True)
    ]
    results = [
        {"role": "tool", "content": answer} | ({} if name is None else {"tool_call_id": name})
        for name, answer in zip(ids, answers, strict=True)
    ]
    return [{"role": "assistant", "content": text, "tool_calls": calls}, *results]


A = {"role": "assistant", "content": "A"}


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{% if loop.first or m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}",
        (
            "{% set ns = namespace(s='') %}{% for m in messages if m.role == 'system' %}{% set ns.s = m.content %}{% endfor %}"
            "[system]{{ ns.s }}{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        ),
    ],
    ids=["dropped", "in place of the first"],
)
def test_system_messages_that_a_template_would_not_write_are_the_user_s_or_one(source):
    first, late = ({"role": "system", "content": text} for text in ("S", "L"))
    assert rendered(source, [first, ASKED]) == "[system]S[user]Q"
    assert rendered(source, [first, ASKED, A, late]) == "[system]S[user]Q[assistant]A[user]L"
    assert rendered(source, [first, late, ASKED]) == "[system]S\n\nL[user]Q"


def test_calls_that_a_template_would_not_write_beside_text_follow_it():
    source = CALLS.format(content="{{ m.content or '' }}", arguments=ARGUMENTS["as objects"])
    source = source.replace("m.tool_calls or []", "(m.tool_calls if m.tool_calls and m.content is none else [])")
    talk = [ASKED, calling({"x": 1}, content="Look."), {"role": "tool", "tool_call_id": "1", "content": "42"}]
    expected = '<user>Q<assistant>{}[f {{"x": 1}}]<tool>42'
    assert rendered(source, talk, add_generation_prompt=False) == expected.format("Look.<assistant>")
    talk[1] = calling({"x": 1}, content="")
    assert rendered(source, talk, add_generation_prompt=False) == expected.format("")


STRICT = (
    "{% set ns = namespace(n=0) %}{% for m in messages %}[{{ m.role }}]{% if m.role == 'tool' %}"
    "{% if not (messages[loop.index0 - 1].tool_calls or messages[loop.index0 - 1].role == 'tool') %}"
    "{{ raise_exception('told unasked') }}{% endif %}"
    "{% elif m.role != 'system' and not m.tool_calls %}"
    "{% if (m.role == 'user') != (ns.n % 2 == 0) %}{{ raise_exception('in turns') }}{% endif %}"
    "{% if m.role == 'assistant' and not m.content %}{{ raise_exception('says nothing') }}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{% endif %}"
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endfor %}"
    "{% if not ns.n %}{{ raise_exception('nobody asks') }}{% endif %}"
)


@pytest.mark.parametrize(
    ("talk", "expected"),
    [
        ([ASKED, *turn("a", "f", ["42"]), ASKED], "[user]Q[assistant]f[tool]42[assistant]Done.[user]Q"),
        ([ASKED, turn("a", "f", [""])[0], ASKED], "[user]Q[assistant]f[assistant]Done.[user]Q"),
        ([ASKED, *turn("a", "f", ["42"]), A, ASKED], "[user]Q[assistant]f[tool]42[assistant]A[user]Q"),
        ([{"role": "tool", "tool_call_id": "a", "content": "42"}, ASKED], "[user]42\n\nQ"),
        ([A, ASKED], "[user][assistant]A[user]Q"),
        ([ASKED, {"role": "assistant", "content": ""}, ASKED], "[user]Q\n\nQ"),
        ([{"role": "system", "content": "S"}], "[system]S[user]"),
        (
            [ASKED, *turn("a", "f", ["42"]), {"role": "system", "content": "S"}, ASKED],
            "[user]Q[assistant]f[tool]42[assistant]Done.[user]S\n\nQ",
        ),
    ],
)
def test_conversations_are_brought_into_the_turns_that_a_template_demands(talk, expected):
    assert rendered(STRICT, talk) == expected


def test_ids_are_short_where_a_template_demands_it():
    source = (
        "{% for m in messages %}[{{ m.role }}]{% for c in m.tool_calls or [] %}"
        "{% if c.id | length != 9 %}{{ raise_exception('nine, please') }}{% endif %}{{ c.function.name }}{{ c.id }}{% endfor %}"
        "{{ m.tool_call_id }}{{ m.content or '' }}{% endfor %}"
    )
    call = {"id": "call_0123456789abcdef", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    talk = [ASKED, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": call["id"], "content": "42"}]
    assert rendered(source, talk) == "[user]Q[assistant]fcall00000[tool]call0000042"
    call["id"] = "abcdefghi"  # as it is
    talk[2]["tool_call_id"] = "abcdefghi"
    assert rendered(source, talk) == "[user]Q[assistant]fabcdefghi[tool]abcdefghi42"


ONE_CALL = (
    "{% for m in messages %}[{{ m.role }}]"
    "{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{{ m.content or '' }}{% endfor %}"
)


@pytest.mark.parametrize("ids", [("a", "b"), (None, None)], ids=["repeated", "missing"])
def test_calls_that_are_written_one_by_one_keep_the_answers_of_their_own_turn(ids):
    talk = [ASKED, *turn(ids, "fg", ["one", "two"], "Look."), *turn(ids, "hk", ["three", "four"]), ASKED]
    assert rendered(ONE_CALL, talk) == (
        "[user]Q[assistant]fLook.[tool]one[assistant]g[tool]two[assistant]h[tool]three[assistant]k[tool]four[user]Q"
    )


def test_answers_in_another_order_or_of_no_call_are_kept():
    called, one, two = turn(("a", "b"), "fg", ["one", "two"])
    stray = {"role": "tool", "tool_call_id": "z", "content": "stray"}
    assert rendered(ONE_CALL, [ASKED, called, two, stray, one]) == (
        "[user]Q[assistant]f[tool]one[assistant]g[tool]two[tool]stray"
    )


@pytest.mark.parametrize("ids", [("call_1", "call_2"), (None, None)], ids=["repeated", "missing"])
def test_short_ids_tell_calls_apart_and_answers_have_those_of_their_own(ids):
    source = (
        "{% for m in messages %}[{{ m.role }}]{% for c in m.tool_calls or [] %}"
        "{% if (c.id or '') | length != 9 %}{{ raise_exception('nine, please') }}{% endif %}{{ c.function.name }}={{ c.id }};"
        "{% endfor %}{% if m.role == 'tool' %}{{ m.tool_call_id }}:{% endif %}{{ m.content or '' }}{% endfor %}"
    )
    talk = [ASKED, *turn(ids, "fg", ["one", "two"]), *turn(ids, "hk", ["three", "four"])]
    assert rendered(source, talk) == (
        "[user]Q[assistant]f=call00000;g=call00001;[tool]call00000:one[tool]call00001:two"
        "[assistant]h=call00002;k=call00003;[tool]call00002:three[tool]call00003:four"
    )


def test_a_template_for_tools_is_taken_where_there_are_some():
    metadata = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "with {{ tools | length }}"}
    template = ChatTemplate.from_metadata(metadata, None)
    try:
        assert [template.render([ASKED], tools=tools) for tools in (None, [{"function": {"name": "f"}}])] == ["plain", "with 1"]
    finally:
        template.close()


def test_the_error_of_what_no_form_suits_is_that_of_the_first():
    with pytest.raises(OptionError, match="refuses these messages: never 2"):
        rendered("{{ raise_exception('never ' + (messages | length | string)) }}", [ASKED, ASKED])


def test_tools_lack_nothing_that_a_template_asks_for():
    source = (
        "{% for t in tools %}{{ t.function.name + t.function.description }}"
        "{% for k, p in t.function.parameters.properties.items() %}{{ k + p.type + p.description }}{% endfor %}{% endfor %}"
    )
    tools = [{"function": {"name": "f"}}, {"function": {"name": "g", "parameters": {"properties": {"x": {"type": "integer"}}}}}]
    assert rendered(source, [ASKED], tools=tools) == "fgxinteger"


def test_types_are_told_in_one_word_to_macros_that_read_letter_by_letter_or_ask_for_further_properties():
    source = (
        "{% macro name(s) %}{% if s.type == 'string' %}str{% elif s.type == 'object' %}of {{ name(s.additionalProperties) }}"
        "{% elif s.type is iterable %}{% for t in s.type %}{{ name({'type': t}) }} {% endfor %}{% endif %}{% endmacro %}"
        "{% for t in tools %}{% for k, p in t.function.parameters.properties.items() %}{{ k }}: {{ name(p) }};"
        "{% endfor %}{% endfor %}"
    )
    properties = {
        "a": {"type": ["string", "null"]},
        "b": {"type": "object", "properties": {"c": {"type": "string"}}},
        "d": {"type": "array", "items": {"type": ["null", "string"]}},
    }
    tools = [{"function": {"name": "f", "parameters": {"type": "object", "properties": properties}}}]
    with pytest.raises(OptionError, match="RecursionError"):
        rendered(source, [ASKED], tools=tools)  # of the letters of "array" nothing can be told
    del properties["d"]
    assert rendered(source, [ASKED], tools=tools) == "a: str;b: of ;"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_alone_is_a_message(name):
    source = "{% for m in messages %}<{{ m.role }}>{{ m['" + name + "'] }}{{ m.content }}{% endfor %}"
    assert rendered(source, [ASKED, {"role": "assistant", "content": None, name: "Hm."}, ASKED]).endswith(
        "<assistant>Hm.<user>Q"
    )
    with pytest.raises(OptionError, match=r"messages\[0\]\['content'\] is NoneType, expected text"):
        rendered(source, [{"role": "user", "content": None}, ASKED])


@pytest.mark.parametrize("role", ["assistant", "tool"])
@pytest.mark.parametrize("message", [{}, {"content": None}])
def test_an_answer_of_nothing_is_an_empty_one(role, message):
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content.strip() }}{% endfor %}"
    assert rendered(source, [ASKED, {"role": role, **message}, ASKED]).startswith(f"<user>Q<{role}><user>")


def test_a_template_that_takes_no_text_beside_calls_at_the_end_alone_is_given_an_empty_one_before():
    source = (
        "{% for m in messages %}<{{ m.role }}>{% if not loop.last %}{{ m.content.split('x')[-1] }}{% endif %}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}
    messages = [ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "a"}]
    assert rendered(source, messages).endswith("<assistant>f{}<tool>")


def test_a_template_is_asked_once(monkeypatch):
    template, n = ChatTemplate(CALLS.format(content="{{ m.content }}", arguments="{{ '' + c.function.arguments }}")), []
    render = template._renderer.render
    monkeypatch.setattr(template._renderer, "render", lambda *words: n.append(words) or render(*words))
    for _ in range(2):
        template.render([{"role": "system", "content": "S"}, ASKED, calling({})], add_generation_prompt=False)
    assert len(n) <= 10
    n.clear()
    template.render([{"role": "system", "content": "S"}, ASKED, calling({})], add_generation_prompt=False)
    assert len(n) == 1
    template.close()
