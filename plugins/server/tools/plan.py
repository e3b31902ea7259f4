"""`ChatFormat`: how a model's chats call tools and reason; `ChatPlan`: the same for one request."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from attrs import define, field, frozen

from augury.errors import AuguryError, CapacityError, OptionError, UnsupportedError
from augury.log import get_logger
from augury.plugins.server.tools.delta import Delta
from augury.plugins.server.tools.format import GENERIC, ToolFormat, frame_of, reasoning_at, reasoning_tags
from augury.plugins.server.tools.grammar import AnswerGrammar, control_tokens
from augury.plugins.server.tools.learning import learn, probe_tools
from augury.plugins.server.tools.parser import AnswerParser
from augury.text.template_habits import arguments_of, with_ids
from augury.types import Result, Token

if TYPE_CHECKING:
    from augury.text.chat_template import ChatTemplate
    from augury.text.tokenizer import Tokenizer

_NAME = re.compile(r"[\w.:/@-]{1,256}")  # which every format can write and read

_DESCRIPTION = """\
You may call these functions:
{tools}
To call some of them, answer with nothing but calls of this form: {form}
Otherwise answer in plain text."""

Message = Mapping[str, Any]


@frozen
class ChatPlan:
    """A request's additions to a prompt, and how its answer is read.

    Attributes:
        params: Arguments of `Engine.submit`: the prompt and the answer's constraint.
    """

    params: dict[str, Any]
    _format: ChatFormat
    _called: Mapping[str, Mapping[str, Any]]  # the parameters' schemas of the tools that may be called
    _is_reasoning: bool
    _tags: tuple[str, str] | None

    def parser(self) -> AnswerParser:
        """For one answer."""
        begun = self._format.tags[0] if self._tags is None and self._is_reasoning else ""
        frame = () if self._tags is None else self._format.frame
        return AnswerParser(
            self._format.tools, self._tags, self._called, is_reasoning=self._is_reasoning, begun=begun, frame=frame
        )

    def text(self, token: Token) -> str:
        """A token's text for the parser; of a control token that the format is written with its name."""
        return token.text or self._format.control.get(token.token, "")

    def found_in(self, thought: str, *, is_open: bool) -> list[Delta]:
        """What an answer says that is reasoning alone: the calls in it, or else, where it is not over, all of it.

        Models write calls within reasoning, and answers where the prompt has begun reasoning that they leave out.
        """
        parser = AnswerParser(self._format.tools, None, self._called)
        found = parser.push(thought) + parser.flush(is_ended=True)
        calls = [delta for delta in found if delta.call is not None]
        return calls or ([Delta(content=thought)] if is_open and self._is_reasoning else [])

    def is_ended(self, result: Result) -> bool:
        """Whether the model ended an answer by itself, by a token."""
        tokenizer = self._format.tokenizer
        if tokenizer is None or result.finish_reason != "stop" or not len(result.tokens):
            return False
        return result.tokens[-1] in tokenizer.eog


@define
class ChatFormat:
    """How a model's chats call tools and reason, derived from its template.

    Attributes:
        tools: How it writes calls.
        knows_tools: Whether it tells the model of tools; otherwise a system message does.
        writes_calls: Whether it writes calls; otherwise they are text.
        tags: The text around its reasoning.
        may_reason: Whether its template knows of reasoning.
        frame: The marks around its content.
        control: The names of the control tokens that it writes calls and reasoning with.
    """

    template: ChatTemplate | None
    tokenizer: Tokenizer | None
    tools: ToolFormat = field(init=False)
    knows_tools: bool = field(init=False)
    writes_calls: bool = field(init=False)
    tags: tuple[str, str] = field(init=False)
    may_reason: bool = field(init=False)
    frame: tuple[str, ...] = field(init=False)
    control: dict[int, str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        source = "" if self.template is None else self.template.source + self.template.tool_source + self._thought()
        self.tools, self.tags = learn(self._rendered), reasoning_tags(source)
        self._ask_of_tools()
        self.may_reason, self.frame = self.tags[1] in source, frame_of(source)
        self.control = control_tokens(self.tokenizer, " ".join([*self.tools.texts, *self.tags, *self.frame]))

    def _ask_of_tools(self) -> None:
        """Find out what the template does with tools and calls."""
        self.knows_tools = self.writes_calls = self.tools is not GENERIC
        if self.template is None or self.tools is GENERIC:
            return
        name, question = probe_tools()[0]["function"]["name"], {"role": "user", "content": "?"}
        tools = probe_tools() if self.template.takes_tools else None
        call = {"id": f"functions.{name}:0", "type": "function", "function": {"name": name, "arguments": {}}}
        with suppress(AuguryError):
            told = self.template.render([question], tools=tools)
            self.knows_tools = told != self.template.render([question])
            called = self.template.render([question, {"role": "assistant", "tool_calls": [call]}, question], tools=tools)
            self.writes_calls = called.count(name) > told.count(name)

    def _thought(self) -> str:
        """What the template writes for an answer with reasoning, whose marks it may put together; nothing where it refuses."""
        answer = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm.", "reasoning": "Hm.", "thinking": "Hm."}
        try:
            return self._rendered([{"role": "user", "content": "?"}, answer], tools=None, add_generation_prompt=False)
        except CapacityError as error:
            get_logger("augury.server").warning("the form of tool calls cannot be found out", reason=str(error))
        except AuguryError:
            pass
        return ""

    def _rendered(self, messages: Sequence[Message], *, tools: Any, add_generation_prompt: bool) -> str:
        if self.template is None:
            raise UnsupportedError("this model has no chat template")
        told = tools if self.template.takes_tools else None
        return self.template.render(messages, tools=told, add_generation_prompt=add_generation_prompt, is_fitted=False)

    def plan(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] = "auto",
        is_parallel: bool = True,
        reasoning: Literal["none", "deepseek", "auto"] = "auto",
        kwargs: Mapping[str, Any] | None = None,
        json_schema: Mapping[str, Any] | None = None,
        budget: int | None = None,
        add_generation_prompt: bool = True,
    ) -> ChatPlan:
        """Plan a request. May take as long as a chat template does.

        Args:
            messages: The conversation, as OpenAI's clients send it.
            tools: As they send them: `{"type": "function", "function": {"name", "description", "parameters"}}`.
            tool_choice: `auto`, `none`, `required`, `{"type": "function", "function": {"name": ...}}`, or
                `{"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}`.
            is_parallel: Whether an answer may hold several calls; it is kept from that where its form is: with `required` or a
                name, and with functions that are `strict`, whose arguments fit their schema however they come to be called.
            reasoning: `none` leaves reasoning in the content.
            kwargs: Variables of the template.
            json_schema: The schema of the content, if there is any.
            budget: How many tokens reasoning may take; None for any number.
            add_generation_prompt: See `ChatTemplate.render`.

        Raises:
            OptionError: Tools, choice or messages are malformed.
        """
        described, tool_choice = _allowed([_described(tool) for tool in tools or ()], tool_choice)
        forced = _forced(described, tool_choice)
        names = {} if tool_choice == "none" else {each["name"]: each.get("parameters") or {} for each in described}
        if self.template is None:
            raise UnsupportedError("this model has no chat template; give a prompt instead of messages")
        told: list[Message] = [_for_template(message) for message in messages]
        if self.tools.has_ids:
            told = with_ids(told, lambda call, n: f"functions.{call['function']['name']}:{n}")
        if not self.writes_calls:
            told = [self._as_text(message) for message in told]
        told = told if not names or self.knows_tools else _with_tools(described, self.tools, told)
        of_tools = [tool for tool in tools or () if tool["function"]["name"] in names] if names and self.knows_tools else None
        prompt = self.template.prompt(told, tools=of_tools, kwargs=kwargs, add_generation_prompt=add_generation_prompt)
        is_continued = told[-1].get("role") == "assistant"
        reasoned = reasoning_at(str(prompt), self.tags, is_continued=is_continued) if self.may_reason else "to come"
        params: dict[str, Any] = {"prompt": prompt}
        is_reasoning = reasoned == "open"
        tags = self.tags if self.may_reason and reasoned != "over" else None
        grammar = AnswerGrammar(self.tools, self.tokenizer, tags, is_reasoning, self.frame)
        if forced:
            params["grammar"] = grammar.calls(forced, is_single=not is_parallel or isinstance(tool_choice, Mapping))
        elif names and (json_schema is not None or any(each.get("strict") for each in described)):
            loose = [each if each.get("strict") else {"name": each["name"]} for each in described]
            params["grammar"] = grammar.calls(loose, is_single=not is_parallel, is_required=False, schema=json_schema)
        elif json_schema is not None and (self.may_reason or self.tools.final):
            params["grammar"] = grammar.json(json_schema)
        elif json_schema is not None:
            params["json_schema"] = json_schema
        if budget is not None and (limits := self._limits(budget, is_reasoning=is_reasoning)) is not None:
            limits |= {"grammar": params.pop("grammar")} if "grammar" in params else {}
            params["constraint"] = {"reasoning-budget": limits}
        return ChatPlan(params, self, names, is_reasoning, None if reasoning == "none" else self.tags)

    def _as_text(self, message: Message) -> dict[str, Any]:
        """A message for a template that writes no calls: they are text, and so are results if it knows no tools."""
        if message.get("role") == "tool" and self.tools is GENERIC:
            return {"role": "user", "content": f"The function returned: {message.get('content') or ''}"}
        if calls := message.get("tool_calls"):
            made = self.tools.written([(call["function"]["name"], call["function"]["arguments"]) for call in calls])
            others = {key: value for key, value in message.items() if key != "tool_calls"}
            return {**others, "content": "\n".join(filter(None, (message.get("content"), made)))}
        return dict(message)

    def _limits(self, budget: int, *, is_reasoning: bool) -> dict[str, Any] | None:
        """Options of the constraint that keeps reasoning to a budget; None where there is no reasoning."""
        tags: tuple[str, str] | None = self.tags if self.may_reason else None
        if self.tools.analysis:
            tags = (self.tools.analysis, self.tools.message_end)
        if tags is None:
            return None
        return {"tokens": budget, "opening": tags[0], "closing": tags[1], "is_open": is_reasoning}


def _described(tool: Any) -> Mapping[str, Any]:
    """The function that a tool is."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise OptionError(
            f'a tool is {tool!r}, expected {{"type": "function", "function": {{"name": ..., "parameters": ...}}}}'
        )
    if not _NAME.fullmatch(function["name"]):
        raise OptionError(f"a tool is named {function['name']!r}, expected letters, digits and any of _-.:/@, 256 at most")
    if not isinstance(function.get("parameters") or {}, Mapping):
        raise OptionError(f"the parameters of tool {function['name']!r} are no JSON schema")
    return function


def _allowed(
    described: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any]
) -> tuple[Sequence[Mapping[str, Any]], str | Mapping[str, Any]]:
    """The functions that the model is told of, and the choice among them; OpenAI's `allowed_tools` leaves out others."""
    if isinstance(choice, str) or choice.get("type") != "allowed_tools":
        return described, choice
    match choice.get("allowed_tools"):
        case {"mode": "auto" | "required" as mode, "tools": [*tools]}:
            names = [_described(tool)["name"] for tool in tools]
        case allowed:
            raise OptionError(f"allowed_tools is {allowed!r}, expected {{'mode': 'auto' or 'required', 'tools': [...]}}")
    if unknown := [name for name in names if name not in {each["name"] for each in described}]:
        raise OptionError(f"tool_choice allows {unknown[0]!r}, which is none of the tools; send it with them")
    return [each for each in described if each["name"] in names], mode


def _forced(described: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The functions of which one must be called; none where none must."""
    names = [each["name"] for each in described]
    if choice in ("auto", "none"):
        return []
    if choice == "required":
        if not names:
            raise OptionError("tool_choice is 'required', but there are no tools; send some")
        return list(described)
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        named = "{'type': 'function', 'function': {'name': ...}}"
        raise OptionError(f"tool_choice is {choice!r}, expected 'auto', 'none', 'required' or {named}")
    if name not in names:
        raise OptionError(f"tool_choice names {name!r}, expected one of the tools: {', '.join(names) or 'there are none'}")
    return [each for each in described if each["name"] == name]


def _for_template(message: Message) -> dict[str, Any]:
    """A message with its calls' arguments as mappings."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise OptionError(f"a tool call is {call!r}, expected a function with a name and arguments in JSON")
        calls.append({**call, "function": {**function, "arguments": arguments_of(call)}})
    return {**message, "tool_calls": calls} if calls else dict(message)


def _with_tools(described: Sequence[Mapping[str, Any]], form: ToolFormat, messages: Sequence[Message]) -> list[Message]:
    """The conversation for a template that knows no tools: a system message describes them."""
    example = form.written([("NAME", {"KEY": "VALUE"})])
    text = _DESCRIPTION.format(tools="\n".join(json.dumps(each) for each in described), form=example)
    if messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{messages[0].get('content') or ''}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
