"""Conversations of all interfaces, without a server."""

import pytest

from augury.plugins.server.conversation import without_billing

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
