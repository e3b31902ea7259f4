"""Chat templates: a conversation → the text that a model was trained to go on from.

Templates are Jinja2 programs that come with a model file, so they run as strangers' code, in a process of its own with limits.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from attrs import frozen

from augury.errors import CapacityError, ModelFileError, OptionError, UnsupportedError
from augury.log import get_logger
from augury.text.renderer import Failure, Refusal, Renderer
from augury.text.special_token import LiteralTexts
from augury.text.template_habits import TemplateHabits

if TYPE_CHECKING:
    from augury.text.tokenizer import Tokenizer

_KEY = "tokenizer.chat_template"
_OWN_NAMES = {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"}
_MAY_BE_SILENT = ("assistant", "tool")  # roles whose messages may have no text
_UNDEFINED = re.compile(r"'(\w+)' is undefined")
_MISSED: dict[str, Callable[[Mapping[str, Any], dt.datetime], str]] = {  # in place of `tools` and `strftime_now`
    "functions": lambda names, _: json.dumps(names["tools"], indent=2) if names.get("tools") else "",
    "datetime": lambda _, now: f"{now.astimezone(dt.UTC):%b %d %Y %H:%M:%S GMT}",
}
_ADVICE = "give a prompt instead of messages, or use another conversion of the model"


@frozen
class ChatPrompt:
    """What a chat template wrote for a conversation, for `ChatTemplate.encode`."""

    text: str
    separator: str | None = None  # a character that divides control tokens' texts in messages; None: these are tokens

    def __str__(self) -> str:
        return self.text if self.separator is None else self.text.replace(self.separator, "")


class ChatTemplate:
    """A model's chat template.

    Args:
        source: the Jinja2 template.
        tokenizer: of the same model; its texts of bos and eos are known to the template as `bos_token` and `eos_token`.
        tool_source: the template for conversations with tools; None for the same one.
        parse_special: read control tokens in messages as such; by default they are text, so that nobody can write a turn there.
        now: tells the time to templates that write the date.

    >>> template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    >>> template.render([{"role": "user", "content": "Hi"}])
    '<user>Hi'
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer | None = None,
        *,
        tool_source: str | None = None,
        parse_special: bool = False,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now().astimezone(),
    ) -> None:
        self.source, self.tool_source = source, source if tool_source is None else tool_source
        self._tokenizer = tokenizer
        self._literal = None if parse_special or tokenizer is None else LiteralTexts(tokenizer.control_texts)
        self._now = now
        self._renderer = Renderer()
        self._has_warned = False
        self._missed: list[str] = []  # names that it fails without
        self._habits = TemplateHabits(self._answered)

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, object], tokenizer: Tokenizer | None, *, parse_special: bool = False
    ) -> ChatTemplate | None:
        """The chat template of a model file, or None if it has none. Raises ModelFileError: the template is not text."""
        source = metadata.get(_KEY)
        if source is None:
            return None
        if not isinstance(source, str):
            raise ModelFileError(f"{_KEY} is of type {type(source).__name__}, expected a string")
        of_tools = metadata.get(f"{_KEY}.tool_use")
        tool_source = of_tools if isinstance(of_tools, str) else None
        return cls(source, tokenizer, tool_source=tool_source, parse_special=parse_special)

    @property
    def takes_tools(self) -> bool:
        """Whether it writes anything else where there are tools."""
        return self._habits.takes_tools

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        is_fitted: bool = True,
    ) -> str:
        """Write a conversation as the model expects it.

        Args:
            messages: mappings with `role` ("system", "user", "assistant" or another that the model knows) and `content`, text,
                which may be None or missing in messages of the assistant and of tools.
            add_generation_prompt: end with the beginning of the model's answer. Where the last message is the assistant's, it
                is the answer's beginning: the text ends with it, and nothing closes it.
            tools: descriptions of tools that the model may call, which the template knows as `tools`.
            kwargs: more names that the template knows, such as `enable_thinking`.
            is_fitted: fit the messages to what the template takes: the arguments of calls may be mappings or texts, a developer
                is the system, system messages that it has no place for are the user's, and what it refuses is tried in other
                words. Otherwise it gets them as they are.

        Raises:
            OptionError: an argument is malformed, or the template refuses the messages, or to have the last one continued; or
                it fails with them, but not with others.
            ModelFileError: the template is broken, does something forbidden, or takes too much time or memory.
            CapacityError: the process that renders cannot be started.
        """
        checked, names = _checked(messages), _names(tools, kwargs)
        if tools and not self._has_warned and not self.takes_tools:
            self._has_warned = True
            message, advice = "the model is not told of tools", "its chat template knows none; describe them in a message"
            get_logger("augury.chat_template").warning(message, reason=advice)
        if not add_generation_prompt or checked[-1]["role"] != "assistant":
            return self._write(checked, names, add_generation_prompt=add_generation_prompt, is_fitted=is_fitted)
        if "tool_calls" in checked[-1]:
            raise OptionError("the last message calls tools; let messages with their answers follow, of the role 'tool'")
        checked[-1]["content"] = checked[-1].get("content") or ""
        mark = "ContinuesHere0"  # where the last message ends, in the text
        while any(mark in (message.get("content") or "") for message in checked):
            mark += "0"
        before = self._write(checked[:-1], names, add_generation_prompt=False) if len(checked) > 1 else ""
        checked[-1]["content"] += mark
        text, *rest = self._write(checked, names, add_generation_prompt=False).split(mark)
        # some write a system prompt only before an answer
        if len(rest) != 1 or not text.startswith(before):
            raise OptionError(
                "the model's chat template does not write a last message of the assistant once, as it is, after the others, so "
                "it cannot be continued; end the messages with one of the user, or give a prompt instead"
            )
        return text

    def _write(
        self, messages: list[dict[str, Any]], names: dict[str, Any], *, add_generation_prompt: bool, is_fitted: bool = True
    ) -> str:
        try:
            return (self._fitted if is_fitted else self._rendered)(messages, names, add_generation_prompt=add_generation_prompt)
        except ValueError as error:
            raise OptionError(f"messages hold what JSON cannot write: {error}") from error
        except Refusal as error:
            raise OptionError(f"the model's chat template refuses these messages: {error}") from error
        except Failure as error:
            if self._answered([{"role": "user", "content": "?"}], None) is not None:
                message = "a plain question works, so check messages, tools and chat_template_kwargs"
                raise OptionError(f"the model's chat template {error}; {message}") from error
            raise ModelFileError(f"{_KEY} {error}; {_ADVICE}") from error

    def _fitted(self, messages: list[dict[str, Any]], names: dict[str, Any], *, add_generation_prompt: bool) -> str:
        """Render the first form of the messages that the template takes; the error is that of the first one."""
        refused: Failure | Refusal | None = None
        if "developer" not in self.source:  # OpenAI's newer word
            messages = [each | {"role": "system"} if each["role"] == "developer" else each for each in messages]
        for fitted, tools in self._habits.fitted(messages, names.get("tools")):
            told = names | ({"tools": tools} if tools else {})
            try:
                return self._rendered(fitted, told, add_generation_prompt=add_generation_prompt)
            except (Failure, Refusal) as error:
                refused = refused or error
        assert refused is not None
        raise refused

    def _answered(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str | None:
        """What the template writes for messages that it may refuse."""
        try:
            return self._rendered(messages, {"tools": tools} if tools else {}, add_generation_prompt=True)
        except (Failure, Refusal):
            return None

    def _rendered(self, messages: Sequence[Mapping[str, Any]], names: dict[str, Any], *, add_generation_prompt: bool) -> str:
        source, now = self.tool_source if names.get("tools") else self.source, self._now()
        names = names | {
            "messages": list(messages),
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self._special_text("bos"),
            "eos_token": self._special_text("eos"),
        }
        while True:
            try:
                return self._renderer.render(source, {each: _MISSED[each](names, now) for each in self._missed} | names, now)
            except OSError as error:
                raise CapacityError(f"the process that renders chat templates cannot be started: {error}") from error
            except Failure as error:
                found = _UNDEFINED.search(str(error))
                if found is None or found[1] in self._missed or found[1] not in _MISSED:
                    raise
                self._missed.append(found[1])

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Any = None, kwargs: Any = None, **options: Any
    ) -> ChatPrompt:
        """Write a conversation for `encode`. Arguments and errors are those of `render`."""
        if self._literal is None:
            return ChatPrompt(self.render(messages, tools=tools, kwargs=kwargs, **options))
        _checked(messages), _names(tools, kwargs)
        given = [list(messages), tools, kwargs]
        (marked, tools, kwargs), separator = self._literal.marked(given, self.source, self.tool_source)
        return ChatPrompt(self.render(marked, tools=tools, kwargs=kwargs, **options), separator)

    def close(self) -> None:
        """End the process that renders; the next rendering starts another. May be called twice."""
        self._renderer.close()

    def encode(
        self, messages: Sequence[Mapping[str, Any]] | ChatPrompt, *, n_most: int | None = None, **options: Any
    ) -> list[int]:
        """Encode a conversation, or what `prompt` wrote for one, with one bos where the model wants one.

        The template's control tokens are read as such; in messages, tools and variables they are text. Arguments and errors are
        those of `render`, and the `n_most` of `Tokenizer.encode`, with its `PromptTooLongError`. Raises UnsupportedError: the
        model has no tokenizer.
        """
        tokenizer = self._tokenizer
        if tokenizer is None:
            raise UnsupportedError("this model has no tokenizer, so a conversation cannot be encoded; give token ids instead")
        found = messages if isinstance(messages, ChatPrompt) else self.prompt(messages, **options)
        ids = tokenizer.encode(found.text, add_special=False, parse_special=True, n_most=n_most, separator=found.separator)
        if tokenizer.add_bos and tokenizer.bos is not None and ids[:1] != [tokenizer.bos]:
            ids.insert(0, tokenizer.bos)
        return ids

    def _special_text(self, name: Literal["bos", "eos"]) -> str:
        if self._tokenizer is None:
            return ""
        token = self._tokenizer.bos if name == "bos" else self._tokenizer.eos
        return "" if token is None else self._tokenizer.text(token)


def _checked(messages: object) -> list[dict[str, Any]]:
    """Check a conversation, and copy it so that a template cannot change the caller's."""
    expected = 'expected a list of {"role": ..., "content": ...}'
    if not isinstance(messages, list | tuple):
        raise OptionError(f"messages is {type(messages).__name__}, {expected}")
    if not messages:
        raise OptionError(f"messages is empty, {expected} with at least one message")
    checked = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise OptionError(f"messages[{index}] is {type(message).__name__}, {expected}")
        calls = message.get("tool_calls")
        if calls is not None and not _are_objects(calls):
            raise OptionError(f"messages[{index}]['tool_calls'] is {reprlib.repr(calls)}, expected a list of objects")
        for key in ("role", "content"):
            if key == "content" and message.get(key) is None and message.get("role") in _MAY_BE_SILENT:
                continue
            if key not in message:
                raise OptionError(f"messages[{index}] has no {key!r}, {expected}")
            if not isinstance(message[key], str):
                hint = "; parts such as images are not read" if isinstance(message[key], list) else ""
                raise OptionError(f"messages[{index}][{key!r}] is {type(message[key]).__name__}, expected text{hint}")
        checked.append({key: value for key, value in message.items() if key != "tool_calls" or value})
    return checked


def _names(tools: object, kwargs: object) -> dict[str, Any]:
    if tools is not None and not _are_objects(tools):
        raise OptionError(f"tools is {reprlib.repr(tools)}, expected a list of descriptions of tools, each an object")
    if kwargs is not None and not (isinstance(kwargs, Mapping) and all(isinstance(key, str) for key in kwargs)):
        raise OptionError(f"chat_template_kwargs is {reprlib.repr(kwargs)}, expected an object")
    if taken := _OWN_NAMES & set(kwargs or ()):
        raise OptionError(f"chat_template_kwargs holds {min(taken)!r}, which the engine gives the template; leave it out")
    for name, value in (("tools", tools), ("chat_template_kwargs", kwargs)):
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(f"{name} holds what JSON cannot write: {error}") from error
    return dict(kwargs or {}) | ({"tools": tools} if tools else {})


def _are_objects(found: object) -> bool:
    return isinstance(found, list | tuple) and all(isinstance(each, dict) for each in found)


def prompt_ids(
    prompt: Any,
    messages: Any,
    tokenizer: Tokenizer | None,
    template: ChatTemplate | None,
    *,
    tools: Any,
    kwargs: Any,
    n_ctx: int | None = None,
    why: str | None = None,
) -> Any:
    """The token ids of a request's prompt: a text, ids as they are, a `ChatPrompt`, or messages for a chat template.

    A text that has more than `n_ctx` tokens for certain is not encoded. `why` says why there is no tokenizer, if the model's
    file has one. Errors are those of `ChatTemplate.encode`; an OptionError also if both a prompt and messages are given, or
    none, or tools without messages, an UnsupportedError if there is no template.
    """
    if (prompt is None) == (messages is None):
        found = "neither a prompt nor messages are" if prompt is None else "a prompt and messages are both"
        raise OptionError(f"{found} given; give either a prompt or messages")
    if messages is None and (tools is not None or kwargs is not None):
        raise OptionError("tools and chat_template_kwargs are for chat templates; give messages instead of a prompt")
    if messages is None and not isinstance(prompt, str | ChatPrompt):
        return prompt
    if tokenizer is None:
        reason = f": {why}" if why else "; give token ids instead of text"
        raise UnsupportedError(f"this model has no tokenizer that augury can read{reason}")
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, add_special=True, parse_special=True, n_most=n_ctx)
    if template is None:
        raise UnsupportedError("this model has no chat template; give a prompt instead of messages")
    more = {} if messages is None else {"tools": tools, "kwargs": kwargs}
    return template.encode(prompt if messages is None else messages, n_most=n_ctx, **more)
