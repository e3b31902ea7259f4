"""Conversations of all interfaces, without a server."""

import json

import pytest
from support.grammar_matching import TOKENIZER

from augury.plugins.server.conversation import AnswerReader, without_billing
from augury.plugins.server.tools import ChatFormat
from augury.text.chat_template import ChatTemplate
from augury.types import Result, Summary, Token

USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("system", "rest"),
    [
        ("x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch=fa690;\nYou are", "You are"),
        ("x-anthropic-billing-header: cc_version=2.1; cch=fa690;a=b; and", "a=b; and"),
        ("x-anthropic-billing-header: cc_version=2.1; cch=fa690\n\nYou are", "You are"),
        ("x-anthropic-billing-header: cch=fa690;", None),
        ("You are x-anthropic-billing-header: cch=fa690;", "You are x-anthropic-billing-header: cch=fa690;"),
    ],
)
def test_the_line_of_bills_is_left_out_at_the_beginning_of_the_system_message_alone(system, rest):
    assert [*without_billing([{"role": "system", "content": system}])] == [{"role": "system", "content": rest or ""}]
    expected = [] if rest is None else [{"role": "system", "content": rest}]
    assert [*without_billing([{"role": "system", "content": system}, USER])] == [*expected, USER]


@pytest.mark.parametrize("content", ["x-anthropic-billing-header: cch=1;", None, [{"type": "text", "text": "x"}]])
def test_other_messages_are_as_they_were(content):
    assert without_billing([{"role": "user", "content": content}]) == [{"role": "user", "content": content}]


CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
THINKING = "{% for t in tools or [] %}<tool_call>{{ t | tojson }}{% endfor %}Hi{% if open %}<think>\n{% endif %}{# </think> #}"


@pytest.mark.parametrize(
    ("is_open", "text", "is_ended", "expected"),
    [
        (True, "It is noon.", True, ("It is noon.", "It is noon.", 0)),
        (True, "It is noon.", False, ("It is noon.", "", 0)),  # cut off while it thinks
        (True, "Hm.</think>Noon.", True, ("Hm.", "Noon.", 0)),
        (True, "Hm.</think>", True, ("Hm.", "", 0)),
        (False, "<think>Hm.", True, ("Hm.", "", 0)),
        (True, f"Hm.\n{CALL}\n</think>", True, (f"Hm.\n{CALL}", "", 1)),
        (False, f"<think>Hm.\n{CALL}{CALL}\n</think>\n\n", True, (f"Hm.\n{CALL}{CALL}", "", 2)),
        (True, f"Hm.\n{CALL}\n</think>", False, (f"Hm.\n{CALL}", "", 0)),
        (True, f"Say {CALL}?</think>Noon.", True, (f"Say {CALL}?", "Noon.", 0)),
    ],
)
def test_an_answer_that_is_reasoning_alone_says_what_is_in_it(is_open, text, is_ended, expected):
    template = ChatTemplate(THINKING)
    try:
        tools = [{"type": "function", "function": {"name": "now"}}]
        plan = ChatFormat(template, TOKENIZER).plan([USER], tools=tools, kwargs={"open": is_open})
    finally:
        template.close()
    pieces = tuple(Token(5, letter) for letter in text)
    end = next(iter(TOKENIZER.eog)) if is_ended else 5
    answer = AnswerReader(plan).read_whole(Result((5, end), text, "stop" if is_ended else "length", Summary(), pieces))
    assert (answer.reasoning, answer.content, len(answer.calls)) == expected
    assert all((call.name, json.loads(call.arguments)) == ("now", {}) for call in answer.calls)
