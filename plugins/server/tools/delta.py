"""`Delta`: a piece of an answer that was read, and what pieces come to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from attrs import Factory, define, frozen
from pydantic_core import from_json


@frozen
class Delta:
    """A piece of an answer: of its content, of its reasoning, or of one of its calls."""

    content: str = ""
    reasoning: str = ""
    call: int | None = None  # which call it belongs to, from 0
    name: str | None = None  # of the call's tool; with its first delta alone
    arguments: str = ""  # a piece of a call's arguments, which together are a JSON object

    @property
    def kind(self) -> Literal["content", "reasoning", "call"]:
        """What it is a piece of."""
        return "call" if self.call is not None else "reasoning" if self.reasoning else "content"

    @property
    def text(self) -> str:
        """The piece."""
        return self.content + self.reasoning + self.arguments


@define
class Call:
    """A call of a tool."""

    name: str
    arguments: str = ""  # JSON

    @property
    def given(self) -> dict[str, Any]:
        """The arguments that they are; of a call that was cut off, none."""
        try:
            found = from_json(self.arguments)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


@define
class ParsedAnswer:
    """An answer, or its beginning."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = Factory(list)


def collect(deltas: Iterable[Delta]) -> ParsedAnswer:
    """The whole answer that deltas come to.

    >>> collect([Delta(content="a"), Delta(call=0, name="f"), Delta(call=0, arguments="{}")]).calls
    [Call(name='f', arguments='{}')]
    """
    answer = ParsedAnswer()
    for delta in deltas:
        answer.content += delta.content
        answer.reasoning += delta.reasoning
        if delta.name is not None:
            answer.calls.append(Call(delta.name))
        if delta.call is not None:
            answer.calls[delta.call].arguments += delta.arguments
    return answer
