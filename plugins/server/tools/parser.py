"""`AnswerParser`: splits an answer, as it streams, into reasoning, content and calls of tools.

`parse` reads the beginning of an answer, however much of it there is, and says no more than what cannot change any more; a
stream is what each token adds to that. It reads what models write, which is seldom exactly what their templates write: white
space and the order of a call's keys may be otherwise. What cannot be read as a call is content.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from json import JSONDecoder

from attrs import Factory, define, frozen

from augury.plugins.server.tools.format import ToolFormat

__all__ = ["AnswerParser", "Call", "Delta", "ParsedAnswer", "collect", "parse"]

_KEY = re.compile(r'[\s,]*("(?:[^"\\]|\\.)*")\s*:\s*')
_MESSAGE = re.compile(  # of harmony
    r"(?P<header>.*?)<\|message\|>(?P<body>.*?)(?P<end><\|end\|>|<\|call\|>|<\|return\|>|(?=<\|start\|>)|(?=<\|channel\|>)|\Z)",
    re.DOTALL,
)
_MESSAGE_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_DECODER = JSONDecoder(strict=False)


@frozen
class Delta:
    """A piece of an answer: of its content, of its reasoning, or of one of its calls."""

    content: str = ""
    reasoning: str = ""
    call: int | None = None  # which call it belongs to, from 0
    name: str | None = None  # of the call's tool; with its first delta alone
    arguments: str = ""  # a piece of a call's arguments, which together are JSON


@define
class Call:
    """A call of a tool."""

    name: str
    arguments: str = ""  # JSON


@define
class ParsedAnswer:
    """An answer, or its beginning."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = Factory(list)


def collect(deltas: Iterable[Delta]) -> ParsedAnswer:
    """What deltas come to.

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


class AnswerParser:
    """Reads one answer.

    >>> from augury.plugins.server.tools.format import FORMATS
    >>> parser = AnswerParser(FORMATS["hermes"], ("<think>", "</think>"))
    >>> answer = '<think>Hm.</think>Look: <tool_call>{"name": "find", "arguments": {"x": 1}}</tool_call>'
    >>> collect(parser.push(answer) + parser.flush()).calls
    [Call(name='find', arguments='{"x": 1}')]
    >>> parser.answer.content, parser.answer.reasoning
    ('Look:', 'Hm.')
    """

    def __init__(
        self,
        tools: ToolFormat,
        tags: tuple[str, str] | None,
        names: Collection[str] | None = None,
        *,
        is_reasoning: bool = False,
    ) -> None:
        """Begin to read; arguments are those of `parse`."""
        self.answer = ParsedAnswer()
        self._how = tools, tags, names, is_reasoning
        self._text = ""

    def push(self, text: str) -> list[Delta]:
        """Read on; returns what is certain by now."""
        self._text += text
        return self._deltas(is_whole=False)

    def flush(self) -> list[Delta]:
        """The rest, after the end of the answer."""
        return self._deltas(is_whole=True)

    def _deltas(self, *, is_whole: bool) -> list[Delta]:
        before = self.answer
        self.answer = after = parse(self._text, *self._how, is_whole=is_whole)
        deltas = [
            Delta(reasoning=after.reasoning[len(before.reasoning) :]),
            Delta(content=after.content[len(before.content) :]),
        ]
        for i, call in enumerate(after.calls):
            known = before.calls[i].arguments if i < len(before.calls) else ""
            deltas.append(
                Delta(call=i, name=None if i < len(before.calls) else call.name, arguments=call.arguments[len(known) :])
            )
        return [each for each in deltas if each.content or each.reasoning or each.name is not None or each.arguments]


def parse(
    text: str,
    tools: ToolFormat,
    tags: tuple[str, str] | None,
    names: Collection[str] | None = None,
    is_reasoning: bool = False,  # noqa: FBT001, FBT002
    *,
    is_whole: bool = True,
) -> ParsedAnswer:
    """Read an answer, or its beginning; of a longer beginning every part is as long or longer.

    Args:
        text: The answer, with control tokens.
        tools: How the model writes calls.
        tags: What stands around reasoning; None to leave it in the content.
        names: Of the tools that there are: what begins an answer and is marked by nothing is a call of one of these alone.
            None for any; without any no calls are looked for.
        is_reasoning: Whether the prompt ends within reasoning.
        is_whole: Whether nothing follows.
    """
    if tools.name == "harmony":
        return _parse_messages(text, splits=tags is not None, has_tools=names is None or bool(names), is_whole=is_whole)
    answer = ParsedAnswer()
    if tags is not None:
        opening, closing = tags
        begun = text.lstrip()
        if not is_whole and opening.startswith(begun):
            return answer
        if is_reasoning or begun.startswith(opening):
            body = begun.removeprefix(opening).lstrip()
            at = body.find(closing)
            answer.reasoning = _certain(body, (closing,), is_whole=is_whole) if at < 0 else body[:at].strip()
            if at < 0:
                return answer
            text = body[at + len(closing) :].lstrip()
    if names is not None and not names:
        answer.content = text
        return answer
    start, is_undecided = _start_of_calls(text, tools)
    calls, end = ([], 0) if start is None else _calls(text, start, tools)
    is_marked = start is not None and text.startswith(tools.triggers, start)
    if start is None or (calls and not is_marked and names is not None and calls[0].name not in names):
        answer.content = "" if is_undecided and not is_whole else _certain(text, tools.triggers, is_whole=is_whole)
        return answer
    answer.content, answer.calls = text[:start].rstrip(), calls
    if is_whole:
        answer.content = answer.content + tools.tail.sub("", text[end:], count=1).strip() if answer.calls else text
    return answer


def _start_of_calls(text: str, tools: ToolFormat) -> tuple[int | None, bool]:
    """Where calls begin, and whether that cannot be told yet."""
    found = [at for trigger in tools.triggers if (at := text.find(trigger)) >= 0]
    squeezed = "".join(text[:200].split())  # JSON that is indented
    if any(squeezed.startswith(lead) for lead in tools.leads):
        return 0, False
    is_undecided = not found and any(lead.startswith(squeezed) for lead in tools.leads)
    return min(found, default=None), is_undecided


def _certain(text: str, marks: Sequence[str], *, is_whole: bool) -> str:
    """A text without what may still become a mark at its end, and without white space before that."""
    if is_whole:
        return text
    at = max((n for mark in marks for n in range(1, len(mark)) if text.endswith(mark[:n])), default=0)
    return text[: len(text) - at].rstrip() if marks else text


def _calls(text: str, at: int, tools: ToolFormat) -> tuple[list[Call], int]:
    """The calls from a place on whose names are known, and where they end."""
    calls = list[Call]()
    while (head := tools.head.match(text, at)) is not None:
        if tools.is_object:
            call, end = _object(text, head.end())
        else:
            arguments, end = _value(text, head.end())
            call = Call(head["name"], arguments)
        if call is None:
            break
        calls.append(call)
        if end is None:
            return calls, len(text)
        at = end
    return calls, at


def _object(text: str, at: int) -> tuple[Call | None, int | None]:
    """A call that is a JSON object, as far as it is there, and where it ends."""
    name: str | None = None
    arguments, at = None, at + 1
    while (key := _KEY.match(text, at)) is not None:
        known, _ = _value(key[1], 0)
        value, end = _value(text, key.end())
        if known in ("arguments", "parameters"):
            arguments = value
        if end is None:
            return None if name is None else Call(name, arguments or ""), None
        if known == "name":
            name = value if text.startswith('"', key.end()) else None
        at = end
    closing = re.compile(r"[\s,]*\}").match(text, at)
    if name is None:
        return None, None if closing is None else closing.end()
    if closing is None:
        return Call(name, arguments or ""), None
    return Call(name, "{}" if arguments is None else arguments), closing.end()


def _value(text: str, at: int) -> tuple[str, int | None]:
    """A JSON value, as far as it is there, and where it ends; of a text that holds JSON that."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return "" if text.startswith('"', at) else text[at:], None
    # half of a surrogate pair could not be sent
    return value.encode(errors="replace").decode() if isinstance(value, str) else text[at:end], end


def _parse_messages(text: str, *, splits: bool, has_tools: bool, is_whole: bool) -> ParsedAnswer:
    """Read harmony's messages."""
    answer, at = ParsedAnswer(), 0
    while (message := _MESSAGE.match(text, at)) is not None:
        header, body, at = message["header"], message["body"], message.end()
        if not message["end"] and at == len(text):
            body = _certain(body, _MESSAGE_ENDS, is_whole=is_whole)
        recipient = _RECIPIENT.search(header)
        if has_tools and recipient is not None:
            answer.calls.append(Call(recipient[1], body.strip()))
        elif splits and "analysis" in header:
            answer.reasoning += body
        else:
            answer.content += body
    if is_whole and (rest := re.sub(r"<\|\w+\|>(assistant|analysis|commentary|final)?", "", text[at:]).strip()):
        answer.content += rest
    return answer
