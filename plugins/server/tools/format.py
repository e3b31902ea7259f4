"""`ToolFormat`: how a family of models writes calls of tools, derived from its chat template."""

from __future__ import annotations

import re

from attrs import evolve, frozen

_AROUND = r"[\s,;\]]|```(?:json)?|</?(?:tool_call|tools|function_call)>|<\|python_tag\|>|\[TOOL_CALLS\]"  # JSON objects
_OBJECT_HEAD = re.compile(rf"(?:{_AROUND}|\[|\{{\s*\"tool_calls\"\s*:)*(?=\{{)")
_OBJECT_TAIL = re.compile(rf"(?:{_AROUND}|\}})*")
_MISTRAL_HEAD = re.compile(r"\s*\[TOOL_CALLS\]\s*(?P<name>[^\[{\s]+)(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)")
_DEEPSEEK_HEAD = re.compile(  # the vertical line is not the ASCII one
    r"(?:\s|```|<｜tool▁calls▁begin｜>|<｜tool▁call▁end｜>)*<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?"  # noqa: RUF001
    r"\s*(?P<name>[^<`\n]+?)\s*(?:<｜tool▁sep｜>)?\s*(?:```json)?\s*(?=\{)"  # noqa: RUF001
)
_DEEPSEEK_TAIL = re.compile(r"(?:\s|```|<｜tool▁calls?▁(?:begin|end)｜>)*")  # noqa: RUF001


@frozen
class ToolFormat:
    """How calls are written: `begin`, a call, `between`, the next one, ..., `end`. A call is one JSON object, or a name first.

    Attributes:
        name: The name of the family.
        before_name, before_arguments, after_arguments: The parts of a call, beside its name and its arguments.
        begin, between, end: The text around calls.
        triggers: Texts or control tokens that begin calls, anywhere in an answer.
        leads: The same at the beginning of an answer alone, written without white space.
        head: The text before a call, up to its JSON, with the group `name` where the name stands in it.
        tail: Text after the last call that is no content.
        ignored: Further fields of models' calls.
        n_most: Calls in one answer; None for any number.
    """

    name: str
    before_name: str
    before_arguments: str
    after_arguments: str
    begin: str = ""
    between: str = ""
    end: str = ""
    triggers: tuple[str, ...] = ()
    leads: tuple[str, ...] = ()
    head: re.Pattern[str] = _OBJECT_HEAD
    tail: re.Pattern[str] = _OBJECT_TAIL
    ignored: tuple[str, ...] = ()
    n_most: int | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """All that it writes beside names and arguments."""
        parts = (self.begin, self.before_name, self.before_arguments, self.after_arguments, self.between, self.end)
        return (*parts, *self.triggers, *self.ignored)

    @property
    def is_object(self) -> bool:
        """Whether a call is one JSON object, which holds the name."""
        return self.before_name.endswith('{"name": "')


HERMES = ToolFormat(
    "hermes",
    '<tool_call>\n{"name": "',
    '", "arguments": ',
    "}\n</tool_call>",
    between="\n",
    triggers=("<tool_call>",),
    leads=tuple(before + '{"name":' for before in ("", "```json", "```", "<tools>", "<function_call>")),  # of small models
)
LLAMA_3 = ToolFormat(
    "llama-3",
    '{"name": "',
    '", "parameters": ',
    "}",
    between="; ",
    triggers=("<|python_tag|>",),
    leads=('{"name":', '{"type":"function"'),
)
MISTRAL = ToolFormat(
    "mistral",
    '{"name": "',
    '", "arguments": ',
    "}",
    begin="[TOOL_CALLS][",
    between=", ",
    end="]",
    triggers=("[TOOL_CALLS]",),
)
MISTRAL_11 = ToolFormat(
    "mistral-v11", "[TOOL_CALLS]", "[ARGS]", "", triggers=("[TOOL_CALLS]",), head=_MISTRAL_HEAD, ignored=("[CALL_ID]",)
)
DEEPSEEK = ToolFormat(
    "deepseek",
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",  # noqa: RUF001 - its vertical line is not the ASCII one
    "\n```json\n",
    "\n```<｜tool▁call▁end｜>",  # noqa: RUF001
    begin="<｜tool▁calls▁begin｜>",  # noqa: RUF001
    between="\n",
    end="<｜tool▁calls▁end｜>",  # noqa: RUF001
    triggers=("<｜tool▁calls▁begin｜>",),  # noqa: RUF001
    head=_DEEPSEEK_HEAD,
    tail=_DEEPSEEK_TAIL,
)
DEEPSEEK_3_1 = evolve(
    DEEPSEEK,
    name="deepseek-v3.1",
    before_name="<｜tool▁call▁begin｜>",  # noqa: RUF001
    before_arguments="<｜tool▁sep｜>",  # noqa: RUF001
    after_arguments="<｜tool▁call▁end｜>",  # noqa: RUF001
    between="",
)
HARMONY = ToolFormat(
    "harmony",
    "<|channel|>commentary to=functions.",
    " <|constrain|>json<|message|>",
    "",
    n_most=1,  # the token <|call|> ends an answer
)
GENERIC = ToolFormat(
    "generic",
    '{"name": "',
    '", "arguments": ',
    "}",
    begin='{"tool_calls": [',
    between=", ",
    end="]}",
    leads=('{"tool_calls":',),
)

FORMATS = {each.name: each for each in (HERMES, LLAMA_3, MISTRAL, MISTRAL_11, DEEPSEEK, DEEPSEEK_3_1, HARMONY, GENERIC)}
"""By name."""

REASONING_TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))
"""The marks around the reasoning of models that write it into their answers; harmony has a channel for it."""

CHANNEL_TAGS = ("<|channel|>analysis<|message|>", "<|end|>")
"""The marks around the reasoning of harmony."""


def tool_format(template: str) -> ToolFormat:
    """The format that a chat template writes calls in.

    >>> tool_format("{{ '<tool_call>' }}").name
    'hermes'
    """
    if "<|channel|>" in template and "<|start|>" in template:
        return HARMONY
    if "<｜tool▁calls▁begin｜>" in template:  # noqa: RUF001
        return DEEPSEEK if "```json" in template else DEEPSEEK_3_1
    if "[TOOL_CALLS]" in template:
        return MISTRAL_11 if "[ARGS]" in template else MISTRAL
    if "<tool_call>" in template:
        return HERMES
    if "tools" in template and "<|start_header_id|>" in template:
        return LLAMA_3
    return GENERIC


def reasoning_tags(template: str) -> tuple[str, str]:
    """The marks around reasoning in the answers of a chat template's model."""
    return next((tags for tags in REASONING_TAGS if tags[1] in template), REASONING_TAGS[0])
