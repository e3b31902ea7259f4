"""How models call tools and reason, in their templates' own forms: additions to a prompt, and how an answer is read.

One `ChatFormat` belongs to a model, one `ChatPlan` to a request, one `AnswerParser` to an answer::

    form = ChatFormat(engine.chat_template, engine.tokenizer)              # once
    plan = form.plan(messages, tools=..., tool_choice="required")         # in a thread: it renders the template
    running = engine.submit(**params, **plan.params)                      # the prompt and a constraint
    parser = plan.parser()
    for token in running:
        for delta in parser.push(plan.text(token)):                       # content, reasoning, or a piece of a call
            ...
    rest = parser.flush()
"""

from augury.plugins.server.tools.delta import Call, Delta, ParsedAnswer
from augury.plugins.server.tools.parser import AnswerParser
from augury.plugins.server.tools.plan import ChatFormat, ChatPlan

__all__ = ["AnswerParser", "Call", "ChatFormat", "ChatPlan", "Delta", "ParsedAnswer"]
