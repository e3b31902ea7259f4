"""`AnswerParser`: splits an answer, as it streams, into reasoning, content and calls of tools.

Models seldom write exactly the text of their templates: white space and the order of a call's keys may differ. Text that cannot
be read as a call is content. Text that could still change is held back and read again: the possible beginning of a tag, and
a call whose name is still to come.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterable, Sequence
from json import JSONDecoder
from typing import TypeVar

from attrs import Factory, define, frozen

from augury.plugins.server.tools.format import ToolFormat

_ARGUMENTS = ("arguments", "parameters")
_KEY = re.compile(r'[\s,]*("(?:[^"\\]|\\.)*")\s*:\s*')
_CLOSING = re.compile(r"[\s,]*\}")
_MARK = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)  # by which JSON tells where a value ends
_SCALAR = re.compile(r"[^\s,}\]]*")
_MESSAGE, _MESSAGE_ENDS = "<|message|>", ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")  # of harmony
_HEADER = re.compile(r"<\|\w+\|>(assistant|analysis|commentary|final)?")
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


_T = TypeVar("_T")
_Reading = Generator[Delta | None, None, _T]
"""Pieces of an answer; None where more of it must arrive before the next."""


class AnswerParser:
    """Reads one answer.

    Attributes:
        is_cut: Whether the answer ended within a call.

    >>> from augury.plugins.server.tools.format import FORMATS
    >>> parser = AnswerParser(FORMATS["hermes"], ("<think>", "</think>"))
    >>> text = '<think>Hm.</think>Look: <tool_call>{"name": "find", "arguments": {"x": 1}}</tool_call>'
    >>> answer = collect(parser.push(text) + parser.flush())
    >>> answer.calls
    [Call(name='find', arguments='{"x": 1}')]
    >>> answer.content, answer.reasoning
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
        """Begin to read.

        Args:
            tools: How the model writes calls.
            tags: The text around reasoning; None to leave it in the content.
            names: Of the tools: an unmarked call at the beginning of an answer is of one of these.
                None for any; without any no calls are looked for.
            is_reasoning: Whether the prompt ends within reasoning.
        """
        self.is_cut = False
        self._tools, self._tags, self._names, self._is_reasoning = tools, tags, names, is_reasoning
        self._has_tools = names is None or bool(names)
        self._text = ""  # that is not read yet, with control tokens
        self._is_whole = False
        self._n_calls = 0
        self._reading = self._messages() if tools.name == "harmony" else self._parts()

    def push(self, text: str) -> list[Delta]:
        """Read on; returns the events that are certain."""
        self._text += text
        return list(iter(lambda: next(self._reading, None), None))

    def flush(self) -> list[Delta]:
        """The rest, after the end of the answer."""
        self._is_whole = True
        return self.push("")

    def _parts(self) -> _Reading[None]:
        if self._tags is not None:
            yield from self._reasoning(*self._tags)
        if (yield from self._leads()) and (yield from self._calls(is_marked=False)):
            return
        triggers = self._tools.triggers if self._has_tools else ()
        while (yield from self._until("content", triggers)):
            if (yield from self._calls(is_marked=True)):
                return
            n_spaces = len(self._text) - len(self._text.lstrip())
            trigger = next(each for each in triggers if self._text.startswith(each, n_spaces))
            yield Delta(content=self._taken(n_spaces + len(trigger)))

    def _reasoning(self, opening: str, closing: str) -> _Reading[None]:
        while not self._is_whole and opening.startswith(self._text.lstrip()):
            yield None
        begun = self._text.lstrip()
        if self._is_reasoning or begun.startswith(opening):
            self._text = begun.removeprefix(opening)
            yield from self._spaces()
            if (yield from self._until("reasoning", (closing,))):
                self._text = self._text.lstrip().removeprefix(closing)
            yield from self._spaces()

    def _spaces(self) -> _Reading[None]:
        while not (rest := self._text.lstrip()) and not self._is_whole:
            yield None
        self._text = rest

    def _until(self, kind: str, marks: Sequence[str], *, keeps_spaces: bool = False) -> _Reading[bool]:
        """Text up to the first of some marks and the white space before it, which are left. Returns whether there is one."""
        call = self._n_calls if kind == "arguments" else None
        while True:
            found = [at for mark in marks if (at := self._text.find(mark)) >= 0]
            end = min(found, default=len(self._text))
            if not (found or self._is_whole):  # without text that may still become a mark
                end -= max((n for mark in marks for n in range(1, len(mark)) if self._text.endswith(mark[:n])), default=0)
            if marks and not keeps_spaces and (found or call is not None or not self._is_whole):
                end = len(self._text[:end].rstrip())
            if end:
                yield Delta(call=call, **{kind: self._taken(end)})
            if found or self._is_whole:
                return bool(found)
            yield None

    def _leads(self) -> _Reading[bool]:
        """Whether the text begins as calls do that nothing marks."""
        leads = self._tools.leads if self._has_tools else ()
        while True:
            squeezed = "".join(self._text.lstrip()[:200].split())  # JSON that is indented
            if any(squeezed.startswith(lead) for lead in leads):
                return True
            if self._is_whole or not any(lead.startswith(squeezed) for lead in leads):
                return False
            yield None

    def _calls(self, *, is_marked: bool) -> _Reading[bool]:
        """Calls, and the text after them. Returns whether there are any; otherwise nothing of the text is taken."""
        while True:
            head = self._tools.head.match(self._text)
            if head is None and "{" in self._text:
                break
            begun = (
                None
                if head is None
                else self._object(head.end())
                if self._tools.is_object
                else (head["name"], None, head.end())
            )
            if begun is None:
                if self._is_whole:
                    break
                yield None
                continue
            name, arguments, end = begun
            if name is None or not (is_marked or self._n_calls or self._names is None or name in self._names):
                break
            self._text = self._text[end:]
            yield Delta(call=self._n_calls, name=name, arguments=arguments or "")
            if self._tools.is_object:
                yield from self._rest_of_object(has_arguments=arguments is not None)
            else:
                yield from self._value()
            self._n_calls += 1
        if not self._n_calls:
            return False
        while not self._is_whole:
            yield None
        if rest := self._tools.tail.sub("", self._text, count=1).strip():
            yield Delta(content=rest)
        return True

    def _object(self, at: int) -> tuple[str | None, str | None, int] | None:
        """The call that a JSON object is: its name, arguments before that, and where that ends; None: not known yet."""
        arguments, at = None, at + 1
        while (key := _KEY.match(self._text, at)) is not None:
            known, _ = _decoded(key[1], 0)
            value, end = _decoded(self._text, key.end())
            if end is None:
                return None
            if known == "name" and self._text.startswith('"', key.end()):
                return value, arguments, end
            arguments, at = value if known in _ARGUMENTS else arguments, end
        return None if _CLOSING.match(self._text, at) is None else (None, None, at)

    def _rest_of_object(self, *, has_arguments: bool) -> _Reading[None]:
        while (closing := _CLOSING.match(self._text)) is None:
            if (key := _KEY.match(self._text)) is not None:
                self._text = self._text[key.end() :]
                is_read = not has_arguments and _decoded(key[1], 0)[0] in _ARGUMENTS
                yield from self._value(is_read=is_read)
                has_arguments |= is_read
            elif self._is_whole:
                self._text, self.is_cut = "", True
                return
            else:
                yield None
        self._text = self._text[closing.end() :]
        if not has_arguments:
            yield Delta(call=self._n_calls, arguments="{}")

    def _value(self, *, is_read: bool = True) -> _Reading[None]:
        """A JSON value, told as a call's arguments; of a text that holds JSON that, as soon as it is complete."""
        yield from self._spaces()
        is_text, is_scalar = self._text.startswith('"'), not self._text.startswith(('"', "{", "["))
        held, depth, is_string, is_over = "", 0, False, False
        while not is_over:
            end, is_over = len(self._text), self._is_whole
            if is_scalar and (scalar := _SCALAR.match(self._text)) is not None:
                is_over |= scalar.end() < end
                end = scalar.end() if is_over else 0
            for mark in () if is_scalar else _MARK.finditer(self._text):
                if mark[0] == "\\":  # the escaped character is still to come
                    end = end if self._is_whole else mark.start()
                elif mark[0] == '"':
                    is_string = not is_string
                elif not is_string:
                    depth += (mark[0] in "{[") - (mark[0] in "}]")
                if not (depth or is_string):
                    end, is_over = mark.end(), True
                    break
            piece = self._taken(end)
            held = held + piece if is_text else ""
            if piece and is_read and not is_text:
                yield Delta(call=self._n_calls, arguments=piece)
            if not is_over:
                yield None
        self.is_cut |= depth > 0  # a text ends within an object, whose end is missed, too
        if is_text and is_read:
            yield Delta(call=self._n_calls, arguments=_decoded(held, 0)[0])

    def _messages(self) -> _Reading[None]:
        """Harmony's; the end of one is read with the next one's header."""
        while True:
            while (at := self._text.find(_MESSAGE)) < 0:
                if not self._is_whole:
                    yield None
                    continue
                if rest := _HEADER.sub("", self._text).strip():
                    yield Delta(content=rest)
                return
            header = self._taken(at + len(_MESSAGE))
            recipient = _RECIPIENT.search(header) if self._has_tools else None
            if recipient is not None:
                yield Delta(call=self._n_calls, name=recipient[1])
                yield from self._spaces()
                yield from self._until("arguments", _MESSAGE_ENDS)
                self._n_calls += 1
            else:
                kind = "reasoning" if self._tags is not None and "analysis" in header else "content"
                yield from self._until(kind, _MESSAGE_ENDS, keeps_spaces=True)

    def _taken(self, n: int) -> str:
        taken, self._text = self._text[:n], self._text[n:]
        return taken


def _decoded(text: str, at: int) -> tuple[str, int | None]:
    """A JSON value, and where it ends; None where it does not. For a text that holds JSON, the inner value."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return "", None
    # half of a surrogate pair could not be sent
    return value.encode(errors="replace").decode() if isinstance(value, str) else text[at:end], end
