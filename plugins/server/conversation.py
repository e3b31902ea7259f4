"""Prompts and conversations of all interfaces: their tokens, their arguments for the engine, and how their answers are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from anyio import to_thread
from pydantic import Field

from augury.errors import OptionError, UnsupportedError
from augury.plugins.server.fields import EngineFields, Fields, TextPart, text_of
from augury.plugins.server.server import Server
from augury.plugins.server.tools import ChatPlan, Delta, ParsedAnswer
from augury.plugins.server.tools.delta import collect
from augury.text.tokenizer import Tokenizer
from augury.types import Result, Token

# Claude Code's first line, such as "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch=36ee5;"
_BILLING = re.compile(r"x-anthropic-billing-header:(?:[ \t]*cc\w*=[^;\n]*;?)*\s*")


async def plan_chat(
    body: EngineFields,
    server: Server,
    messages: Sequence[Mapping[str, Any]],
    *,
    reasoning: Literal["none", "deepseek", "auto"] | None = None,
    budget: int | None = None,
    effort: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **more: Any,
) -> tuple[ChatPlan, dict[str, Any]]:
    """How the answer to a conversation is to be read, and the arguments of `Engine.submit`.

    Args:
        body: The request; the flag of `budget` does not apply to one with a form for the whole output.
        server: Whose model is to answer.
        messages: The conversation, as OpenAI's clients send it.
        reasoning: See `ChatFormat.plan`; None for the server's flag.
        budget: How many tokens reasoning may take; None, or less than 0, for as many as the server's flag says.
        effort: How hard to think, a variable of chat templates that know it.
        kwargs: Other variables of the chat template, beside those of the server's flags.
        more: Further arguments of `ChatFormat.plan`.
    """
    of_effort = {} if effort is None else {"reasoning_effort": effort}
    names = {**server.options.chat_template_kwargs, **of_effort, **(kwargs or {})}
    if budget is None or budget < 0:
        budget = -1 if body.has_form else server.options.reasoning_budget
    plan = await to_thread.run_sync(
        partial(
            server.chat_format.plan,
            without_billing(messages),
            reasoning=reasoning or server.options.reasoning_format,
            kwargs=names,
            budget=budget if 0 <= budget < server.engine.config["n_ctx"] else None,  # the context is full before
            **more,
        )
    )
    return plan, dict(plan.params)


def without_billing(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Messages without Claude Code's line of bills: its hash is new each time, so that no slot would hold what follows."""
    first, others = messages[0] if messages else {}, messages[1:]
    text = first.get("content")
    if first.get("role") != "system" or not isinstance(text, str) or (found := _BILLING.match(text)) is None:
        return messages
    rest = text[found.end() :]
    return [{**first, "content": rest}, *others] if rest or not others else others


async def prompt_of(server: Server, params: Mapping[str, Any]) -> list[int]:
    """The tokens of a conversation, given the arguments of `Engine.submit`.

    Raises:
        AuguryError: As `ChatTemplate.encode` does.
    """
    template: Any = server.engine.chat_template  # of which the plan made the prompt
    return await to_thread.run_sync(partial(template.encode, params["prompt"], n_most=server.engine.config["n_ctx"]))


class AnswerReader:
    """Reads one answer, piece by piece.

    Attributes:
        n_reasoning: How many of its tokens were reasoning.
    """

    def __init__(self, plan: ChatPlan | None) -> None:
        """Begin to read; without a plan the answer's text stands as it is."""
        self.n_reasoning = 0
        self._plan = plan
        self._parser = None if plan is None else plan.parser()
        self._is_reasoning = False
        self._thought, self._has_said = "", False

    @property
    def is_cut(self) -> bool:
        """Whether the answer ended within a call."""
        return self._parser is not None and self._parser.is_cut

    def read(self, piece: Token | Result) -> list[Delta]:
        """The deltas of a token, or of the answer's end."""
        if self._plan is None or self._parser is None:
            return [Delta(content=piece.text)] if isinstance(piece, Token) and piece.text else []
        if isinstance(piece, Result):
            is_ended = self._plan.is_ended(piece)
            found = self._noted(self._parser.flush(is_ended=is_ended))
            if is_ended and self._thought and not self._has_said:
                found += self._plan.found_in(self._thought, is_open=self._parser.is_open)
            return found
        found = self._noted(self._parser.push(self._plan.text(piece)))
        if found:  # a token that adds nothing yet belongs to the text before it
            self._is_reasoning = bool(found[-1].reasoning)
        self.n_reasoning += self._is_reasoning
        return found

    def _noted(self, found: list[Delta]) -> list[Delta]:
        self._thought += "".join(delta.reasoning for delta in found)
        self._has_said |= any(delta.call is not None or delta.content.strip() for delta in found)
        return found

    def deltas(self, result: Result) -> Iterator[Delta]:
        """Those of an answer that is whole."""
        for token in result.pieces:
            yield from self.read(token)
        yield from self.read(result)

    def read_whole(self, result: Result) -> ParsedAnswer:
        """All that an answer comes to."""
        return collect(self.deltas(result))


class PromptObject(Fields):
    """A text, where other servers take pictures beside it."""

    prompt_string: str


class PromptParts(Fields):
    """The same in parts, as in a message."""

    content: list[TextPart] = Field(min_length=1)

    @property
    def prompt_string(self) -> str:
        """The parts, one after the other."""
        return text_of(self.content)


MOST_TEXT = 1 << 20
"""Characters of text that is encoded and is no prompt: to encode takes some 230 bytes of memory for each."""

Prompt = str | PromptObject | PromptParts | list[int | str | PromptObject | PromptParts | list[int | str]]
"""A text; an object with one or its parts; tokens, or tokens and texts in one sequence; or several of all these."""


def prompt_tokens(prompt: Prompt, tokenizer: Tokenizer | None, n_ctx: int) -> list[list[int]]:
    """The tokens of every prompt; a list without a number is several prompts.

    Raises:
        PromptTooLongError: A text has more than `n_ctx` tokens for certain; it is not encoded.
        OptionError: There is no prompt, or a list holds tokens and whole prompts.
        UnsupportedError: There is a text, but no tokenizer.
    """
    is_several = isinstance(prompt, list) and not any(isinstance(each, int) for each in prompt)
    prompts: list[Any] = prompt if is_several else [prompt]  # type: ignore[assignment]
    if not prompts:
        raise OptionError("prompt is an empty list, expected at least one prompt")
    return [mixed_tokens(each, tokenizer, add_special=True, n_most=n_ctx) for each in prompts]


def mixed_tokens(
    prompt: Any, tokenizer: Tokenizer | None, *, add_special: bool, parse_special: bool = True, n_most: int | None = None
) -> list[int]:
    """The tokens of one prompt; the model's beginning token is added if the prompt begins with a text.

    Raises:
        OptionError: A list holds tokens and whole prompts, or its texts are longer than `MOST_TEXT`.
        PromptTooLongError: As `Tokenizer.encode` does.
        UnsupportedError: There is a text, but no tokenizer.
    """
    parts = prompt if isinstance(prompt, list) else [prompt]
    parts = [part.prompt_string if isinstance(part, PromptObject | PromptParts) else part for part in parts]
    if n_most is None and (n := sum(len(text) for text in parts if isinstance(text, str))) > MOST_TEXT:
        raise OptionError(f"there are {n} characters of text, expected {MOST_TEXT} at most; send them in parts")
    found: list[int] = []
    for i, text in enumerate(parts):
        if isinstance(text, int):
            found.append(text)
        elif not isinstance(text, str):
            raise OptionError("prompt holds tokens beside whole prompts; put the tokens into a list of their own")
        else:
            found += needed(tokenizer).encode(
                text, add_special=add_special and i == 0, parse_special=parse_special, n_most=n_most
            )
    return found


def needed(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer, where there is a text. Raises UnsupportedError: the model has none."""
    if tokenizer is None:
        raise UnsupportedError("this model has no tokenizer that augury can read; give token ids instead of text")
    return tokenizer
