"""Conversations of all interfaces: their arguments for the engine, and how their answers are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from anyio import to_thread

from augury.plugins.server.fields import EngineFields
from augury.plugins.server.server import Server
from augury.plugins.server.tools import ChatPlan, Delta
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

    @property
    def is_cut(self) -> bool:
        """Whether the answer ended within a call."""
        return self._parser is not None and self._parser.is_cut

    def read(self, piece: Token | Result) -> list[Delta]:
        """The deltas of a token, or of the answer's end."""
        if self._plan is None or self._parser is None:
            return [Delta(content=piece.text)] if isinstance(piece, Token) and piece.text else []
        if isinstance(piece, Result):
            return self._parser.flush()
        found = self._parser.push(self._plan.text(piece))
        if found:  # a token that adds nothing yet belongs to the text before it
            self._is_reasoning = bool(found[-1].reasoning)
        self.n_reasoning += self._is_reasoning
        return found

    def read_whole(self, result: Result) -> Iterator[Delta]:
        """All that an answer comes to."""
        for token in result.pieces:
            yield from self.read(token)
        yield from self.read(result)
