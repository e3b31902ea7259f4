"""What a chat template takes: each has an idea of its own of system messages, absent text, and the arguments of calls.

Templates are asked: a conversation with words that occur nowhere else is rendered, and the words are looked for.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from attrs import frozen

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None

_ASKED, _SYSTEM, _KEY, _VALUE = "Xasked", "Xsystem", "xkey", "xvalue"
_NAMES = ("xname", "xother")
_PARAMETERS = {"type": "object", "properties": {_KEY: {"type": "string", "description": "Any."}}}
_TOOLS = [{"type": "function", "function": {"name": name, "description": "Any.", "parameters": _PARAMETERS}} for name in _NAMES]
_ABSENT = object()
_STRANGE = (f"'{_KEY}'", f'\\"{_KEY}')  # of Python's form of a mapping, and of a text within a text
_BETWEEN = "\n\n"
_ANSWERED = "Done."  # what the assistant says where the user speaks right after a tool
_TALK = (("user", _ASKED), ("system", _SYSTEM), ("system", "Xlater"))


@frozen
class _CallHabits:
    """How a message that calls tools is given to a template."""

    takes_text: bool  # arguments are a text that holds JSON, or else a mapping
    empty: Any  # its content, where there is none; `_ABSENT` for no such field


class TemplateHabits:
    """Fits conversations to a template; `write` renders messages with tools, None where the template fails or refuses."""

    def __init__(self, write: Callable[[Messages, Tools], str | None]) -> None:
        self._write = write

    @cached_property
    def takes_system(self) -> bool:
        """Whether system messages are written."""
        asked = {"role": "user", "content": _ASKED}
        return _SYSTEM in (self._write([{"role": "system", "content": _SYSTEM}, asked], None) or "")

    @cached_property
    def takes_tools(self) -> bool:
        """Whether anything else is written where there are tools."""
        asked = [{"role": "user", "content": _ASKED}]
        return self._write(asked, _TOOLS) != self._write(asked, None)

    @cached_property
    def _of_calls(self) -> _CallHabits:
        usual = (self._write([{"role": "user", "content": _ASKED}], _TOOLS) or "").count("None")
        rendered = []
        for takes_text in (False, True):
            for empty in (None, "", _ABSENT):
                text = self._write(_called(_CallHabits(takes_text, empty), _NAMES[:1]), _TOOLS)
                if text is not None and text.count("None") <= usual:
                    if _NAMES[0] in text and _VALUE in text and not any(each in text for each in _STRANGE):
                        return _CallHabits(takes_text, empty)
                    rendered.append(_CallHabits(takes_text, empty))
        return rendered[0] if rendered else _CallHabits(takes_text=False, empty="")

    @cached_property
    def _takes_several(self) -> bool:
        """Whether a message may call several tools, all of which are written if one is."""
        one, both = (self._write(_called(self._of_calls, names), _TOOLS) for names in (_NAMES[:1], _NAMES))
        told = (self._write([{"role": "user", "content": _ASKED}], _TOOLS) or "").count(_NAMES[1])
        return one is None or (both is not None and both.count(_NAMES[1]) > told) or one.count(_NAMES[0]) == told

    @cached_property
    def _takes_later_system(self) -> bool:
        """Whether a system message is written that comes after others, and does not take the place of the first."""
        asked, first, later = ({"role": role, "content": text} for role, text in _TALK)
        text = self._write([first, asked, later, asked], None)
        return text is None or all(said in text for _, said in _TALK)

    @cached_property
    def _tells_calls_beside_text(self) -> bool:
        """Whether calls are written that have text beside them, if they are without."""
        asked, call = _called(self._of_calls, _NAMES[:1])
        alone, beside = (self._write([asked, each], _TOOLS) for each in (call, {**call, "content": _SYSTEM}))
        return alone is None or beside is None or _VALUE not in alone or _VALUE in beside

    @cached_property
    def _tells_lone_answers(self) -> bool:
        """Whether an answer of a tool that no call comes before is written."""
        text = self._write([{"role": "user", "content": _ASKED}, {"role": "tool", "content": _VALUE}], _TOOLS)
        return text is None or _VALUE in text

    def fitted(self, messages: Messages, tools: Tools) -> Iterator[tuple[list[Mapping[str, Any]], Tools]]:
        """The conversation as the template takes it, and further forms of it for a template that refuses."""
        found = [each for message in messages for each in self._message(message)]
        if any(message["role"] == "system" for message in found[1:]) and not self._takes_later_system:
            found = _with_one_system(found)
        if found[0]["role"] == "system" and len(found) > 1 and not self.takes_system:
            first, *rest = _with_one_system(found)
            found = _into_first(first["content"], rest)
        if any(len(message.get("tool_calls") or ()) > 1 for message in found) and not self._takes_several:
            found = _one_by_one(found)
        if (said := _with_lone_answers_as_user(found)) != found and not self._tells_lone_answers:
            found = said
        yield found, tools
        if any(message.get("content") is None for message in found):
            found = [{**message, "content": message.get("content") or ""} for message in found]
            yield found, tools
        if any(message["role"] == "system" for message in found[1:]):
            found = _with_one_system(found)
            yield found, tools
        if tools and (whole := [_completed(tool) for tool in tools]) != list(tools):
            tools = whole
            yield found, tools
        if tools and (simplified := [_simplified(tool) for tool in tools]) != list(tools):
            tools = simplified
            yield found, tools
        if any(message.get("tool_calls") for message in found):
            found = with_ids(found, lambda _, n: f"call{n:05}")  # nine characters, which Mistral's templates demand
            yield found, tools
        if len(joined := _joined(found)) < len(found):
            yield joined, tools
        if (in_turns := _joined(_in_turns(found))) != joined:
            yield in_turns, tools

    def _message(self, message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        calls, content = message.get("tool_calls"), message.get("content")
        if not calls:
            yield message if content is not None else {**message, "content": ""}
            return
        takes_text = self._of_calls.takes_text
        message = {**message, "tool_calls": [_call(call, takes_text=takes_text) for call in calls]}
        if content and not self._tells_calls_beside_text:
            yield {key: value for key, value in message.items() if key != "tool_calls"}
            message = {"role": message["role"], "tool_calls": message["tool_calls"]}
            content = None
        yield message if content else _with_content(message, self._of_calls.empty)


def _called(habits: _CallHabits, names: Sequence[str]) -> Messages:
    arguments = {_KEY: _VALUE}
    said = json.dumps(arguments) if habits.takes_text else arguments
    calls = [
        {"id": f"callidxx{i}", "type": "function", "function": {"name": name, "arguments": said}}
        for i, name in enumerate(names)
    ]
    return [{"role": "user", "content": _ASKED}, _with_content({"role": "assistant", "tool_calls": calls}, habits.empty)]


def arguments_of(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a call, whatever form they were sent in: a model may have written what is no JSON object.

    >>> arguments_of({"function": {"name": "f", "arguments": '{"x": 1}'}})
    {'x': 1}
    >>> arguments_of({"function": {"name": "f", "arguments": "x = 1"}})
    {'arguments': 'x = 1'}
    """
    function = call.get("function")
    said = function.get("arguments") if isinstance(function, Mapping) else None
    if isinstance(said, str) and said.strip():
        try:
            read = json.loads(said, strict=False, parse_constant=_refused)
            json.dumps(read, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        except (ValueError, RecursionError):
            return {"arguments": said}
        said = read
    if isinstance(said, Mapping):
        return said
    return {} if said in (None, "") or (isinstance(said, str) and not said.strip()) else {"arguments": said}


def _refused(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _call(call: Mapping[str, Any], *, takes_text: bool) -> Mapping[str, Any]:
    if not isinstance(call.get("function"), Mapping):
        return call
    arguments: Any = arguments_of(call)
    if takes_text:
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _with_content(message: Mapping[str, Any], content: Any) -> Mapping[str, Any]:
    if content is _ABSENT:
        return {key: value for key, value in message.items() if key != "content"}
    return {**message, "content": content}


def _with_one_system(messages: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages whose first system messages are one, and whose later ones are the user's."""
    n = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    first = [{**messages[0], "content": _BETWEEN.join(message["content"] for message in messages[:n])}] if n else []
    return first + [{**each, "role": "user"} if each["role"] == "system" else each for each in messages[n:]]


def _with_lone_answers_as_user(messages: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages of which answers of no call are the user's, as where a client has cut off what went before."""
    found, is_called = list[Mapping[str, Any]](), False
    for message in messages:
        is_lone = message["role"] == "tool" and not is_called
        found.append({"role": "user", "content": message.get("content") or ""} if is_lone else message)
        if message["role"] != "assistant" or message.get("content") or message.get("tool_calls"):
            is_called = bool(message.get("tool_calls")) or (message["role"] == "tool" and is_called)
    return found


def _in_turns(messages: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages that the user begins, in which the assistant answers what tools have told before the user goes on.

    Empty answers, as of an assistant that was interrupted at once, are left out.
    """
    found: list[Mapping[str, Any]] = []
    for message in _with_lone_answers_as_user(messages):
        if message["role"] == "assistant" and not (message.get("content") or message.get("tool_calls")):
            continue
        before = found[-1] if found else {"role": "system"}
        if message["role"] == "user" and (before["role"] == "tool" or before.get("tool_calls")):
            found.append({"role": "assistant", "content": _ANSWERED})
        elif message["role"] == "assistant" and before["role"] == "system":
            found.append({"role": "user", "content": ""})
        found.append(message)
    return found if found and found[-1]["role"] != "system" else [*found, {"role": "user", "content": ""}]


def _into_first(text: str, messages: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages of which the user's first begins with a text; if there is none, the text is one."""
    first = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": text}, *messages]
    begun = {**messages[first], "content": f"{text}{_BETWEEN}{messages[first].get('content') or ''}"}
    return [*messages[:first], begun, *messages[first + 1 :]]


def _one_by_one(messages: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages that call one tool each, with its answer after it; what else they say is said once."""
    found: list[Mapping[str, Any]] = []
    rest = deque(messages)
    while rest:
        message = rest.popleft()
        if len(calls := message.get("tool_calls") or ()) < 2:
            found.append(message)
            continue
        answers = []  # those of this message: ids may be the same in each turn, or missing
        while rest and rest[0]["role"] == "tool":
            answers.append(rest.popleft())
        for i, call in enumerate(calls):
            said = {"role": message["role"], "content": ""} if i else message
            found.append({**said, "tool_calls": [call]})
            if (answer := next((each for each in answers if each.get("tool_call_id") == call.get("id")), None)) is not None:
                answers.remove(answer)
                found.append(answer)
        found += answers
    return found


def with_ids(messages: Messages, named: Callable[[Mapping[str, Any], int], str]) -> list[Mapping[str, Any]]:
    """Messages whose calls have ids of their own, each by the call and its number; their answers have the same ones."""
    found: list[Mapping[str, Any]] = []
    waiting: list[tuple[Mapping[str, Any], str]] = []  # the last calls that have no answer yet, and their ids
    n = 0
    for message in messages:
        if calls := message.get("tool_calls"):
            waiting = [(call, named(call, n + i)) for i, call in enumerate(calls)]
            n += len(waiting)
            found.append({**message, "tool_calls": [{**call, "id": each} for call, each in waiting]})
        elif message["role"] == "tool" and (answered := _answered(message, waiting)):
            waiting.remove(answered)
            found.append({**message, "tool_call_id": answered[1]})
        else:
            found.append(message)
    return found


def _answered(
    message: Mapping[str, Any], calls: Sequence[tuple[Mapping[str, Any], str]]
) -> tuple[Mapping[str, Any], str] | None:
    """The call that a message answers: the first of its id; where it has none, of its tool, or else the first one."""
    if said := message.get("tool_call_id"):
        return next((each for each in calls if said in (each[0].get("id"), each[1])), None)
    fitting = [each for each in calls if message.get("name") in {None, _name(each[0])}]
    return next(iter(fitting or calls), None)


def _name(call: Mapping[str, Any]) -> Any:
    function = call.get("function")
    return function.get("name") if isinstance(function, Mapping) else None


def _joined(messages: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages of which those of one role in a row are one, where they are text alone."""
    found: list[Mapping[str, Any]] = []
    for (role, is_text), group in groupby(messages, lambda each: (each["role"], each.keys() <= {"role", "content"})):
        alike = list(group)
        if is_text and len(alike) > 1:
            alike = [{"role": role, "content": _BETWEEN.join(each["content"] for each in alike)}]
        found += alike
    return found


def _completed(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool with all that templates ask for."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return tool
    parameters = {"type": "object", "properties": {}, **(function.get("parameters") or {})}
    properties = parameters["properties"]
    if isinstance(properties, Mapping):
        of_each = {"type": "string", "description": ""}
        parameters["properties"] = {
            name: {**of_each, **each} if isinstance(each, Mapping) else each for name, each in properties.items()
        }
    return {"type": "function", **tool, "function": {"description": "", **function, "parameters": parameters}}


def _simplified(value: Any) -> Any:
    """A schema, or a tool, for macros that read a type as one word, and of an object what further properties are."""
    if isinstance(value, list | tuple):
        return [_simplified(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    value = {key: _simplified(each) for key, each in value.items()}
    if isinstance(value.get("type"), list) and (types := [each for each in value["type"] if each != "null"]):
        value["type"] = types[0] if len(types) == 1 else types
    return {"additionalProperties": {}, **value} if value.get("type") == "object" else value
