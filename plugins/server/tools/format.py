"""`ToolFormat`: how a model writes calls of tools, learnt from its chat template (`learning`) or known; and how it reasons."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Literal

from attrs import evolve, frozen

INDEX, ID, KEY, TYPE, NAMED = "\x01", "\x02", "\x03", "\x04", "\x05"
"""Placeholders: a call's number, its id, an argument's key, its JSON type, and a call's name where that is written twice."""

IN_PYTHON = ("True", "False", "None")
Notation = Literal["json", "python", "own"]

NAME = r"[\w.:/@-]"
_LEXEME = re.compile(r"</?[^\s<>]*>?|\[/?[A-Z_]+\]|```\w*|\w+|\s+|.", re.DOTALL)
_MARK = re.compile(r"</?[^\s<>]+>|\[/?[A-Z_]+\]|```\w*|[\[\],;}]")
_AROUND = r"[\s,;\]]|```(?:json)?|</?(?:tool_call|tools|function_call)>|<\|python_tag\|>|\[TOOL_CALLS\]"  # JSON objects
_PLACEHOLDERS = {INDEX: r"\d+", ID: r"[\w.:-]+", TYPE: r"\w+", NAMED: rf"{NAME}+"}


def lexemes(text: str) -> list[str]:
    """The parts of which a format's texts consist: marks such as `<tool_call>`, words, white space, other characters.

    >>> lexemes('<tool_call>{"name')
    ['<tool_call>', '{', '"', 'name']
    """
    return _LEXEME.findall(text)


def endings(text: str) -> list[str]:
    """What is left of a text after each of its parts."""
    parts = lexemes(text)
    return ["".join(parts[at:]).strip() for at in range(len(parts))]


def flexible(text: str) -> str:
    """A regular expression of a text whose white space may differ."""
    found = "".join(r"\s*" if part.isspace() else re.escape(part) for part in lexemes(text))
    return re.sub(f"[{''.join(_PLACEHOLDERS)}]", lambda each: _PLACEHOLDERS[each[0]], found)


@frozen
class Keys:
    """How arguments are written one by one, and their values.

    Attributes:
        before_key: The text before a key.
        before_text, after_text: The text between a key and a string, and after the string.
        before_value, after_value: The same of other values.
        between: The text between arguments.
        quotes: The marks around strings, pairs of which the first are for those that could be taken for something else, as
            XML's `<![CDATA[` and `]]>`; ("", "") where there are none.
        is_raw: Whether strings know no escapes.
        words: What true, false and null are; nothing for null where arguments are left out that are null.
        arrays, objects: How these are written: as JSON, as a Python literal, or as all arguments.
        item: The key of the items of arrays, if arrays are written as arguments are.
        integer: The word for the type of integers, if types are written.
    """

    before_key: str
    before_text: str
    after_text: str
    before_value: str
    after_value: str
    between: str = ""
    quotes: tuple[tuple[str, str], ...] = (("", ""),)
    is_raw: bool = True
    words: tuple[str, str, str] = ("true", "false", "null")
    arrays: Notation = "json"
    objects: Notation = "json"
    item: str = ""
    integer: str = "integer"

    def written(self, arguments: Mapping[str, Any]) -> str:
        """Arguments one by one."""
        found = []
        for key, value in arguments.items():
            before, after = self.before_value, self.after_value
            text = repr(value) if self.words == IN_PYTHON else json.dumps(value)
            if isinstance(value, str):
                before, after, (opening, closing) = self.before_text, self.after_text, self.quotes[-1]
                quoted = json.dumps(value, ensure_ascii=False) if opening == '"' else text
                text = f"{opening}{value}{closing}" if self.is_raw else quoted
            found.append(f"{self.before_key}{key}{before}{text}{after}".replace(KEY, key).replace(TYPE, "object"))
        return self.between.join(found)

    @property
    def is_literal(self) -> bool:
        """Whether values tell their own end, as a programming language's do."""
        return bool(self.quotes[-1][0])


PYTHON = Keys("'", "': ", "", "': ", "", ", ", (("'", "'"),), False, IN_PYTHON, "python", "python")
"""How Python writes a dictionary."""


@frozen
class ToolFormat:
    """How calls are written: `begin`, a call, `between`, the next one, ..., `end`.

    A call is one JSON object, or a name and then its arguments: as a JSON object, or by their `keys`.

    Attributes:
        name: The name of the family; of formats that were learnt, `template`.
        before_name, before_arguments, after_arguments: The parts of a call, beside its name and its arguments.
        begin, between, end: The text around calls.
        keys: How arguments are written, if not as a JSON object.
        name_key, arguments_key: The keys of a call that is an object.
        opened: The beginning of calls that the prompt ends with already.
        before_content: What an answer that is no call begins with then.
        has_ids: Whether a call is named by its id alone, `functions.NAME:INDEX`.
        n_most: Calls in one answer; None for any number.
        final, analysis: The headers of content and of reasoning, where each message has one that tells what it is.
        message_end, message_start: The text after a message that another follows, and before that one's header.
    """

    name: str
    before_name: str
    before_arguments: str
    after_arguments: str
    begin: str = ""
    between: str = ""
    end: str = ""
    keys: Keys | None = None
    name_key: str = "name"
    arguments_key: str = "arguments"
    opened: str = ""
    before_content: str = ""
    has_ids: bool = False
    n_most: int | None = None
    final: str = ""
    analysis: str = ""
    message_end: str = ""
    message_start: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """All that it writes beside names and arguments."""
        keys = self.keys
        more: tuple[str, ...] = ()
        if keys is not None:
            more = (
                keys.before_key,
                keys.before_text,
                keys.after_text,
                keys.before_value,
                keys.after_value,
                *sum(keys.quotes, ()),
            )
        around = (self.begin, self.before_name, self.before_arguments, self.after_arguments, self.between, self.end)
        headers = (self.final, self.analysis, self.message_end, self.message_start)
        return (*around, *more, *headers, *self.triggers)

    @property
    def is_object(self) -> bool:
        """Whether a call is one JSON object, which holds the name."""
        return self._object_at is not None

    @cached_property
    def _object_at(self) -> int | None:
        """Where in `before_name` the object begins."""
        found = re.search(rf'\{{[^{{}}]*"{re.escape(self.name_key)}"\s*:\s*"$', self.before_name)
        return None if found is None else found.start()

    @cached_property
    def lead(self) -> str:
        """The text right before a call's name, or before the object."""
        text = self.before_name[: self._object_at].rstrip()
        marks = [found.start() for found in re.finditer(r"<|\[(?=[A-Z])", text)]
        return text if not marks or self.is_object else text[marks[-1] :]

    @cached_property
    def triggers(self) -> tuple[str, ...]:
        """Texts or control tokens that begin calls, anywhere in an answer: the first mark and the last before a name."""
        if self.final:
            return ()
        whole = (self.begin + self.before_name[: self._object_at]).strip()
        marks = [mark for mark in re.findall(r"(?:^[^\w\s<]*)?<[^<>\s]+>|\[[A-Z_]+\]|<\S+|^>>>", whole) if ID not in mark]
        if not marks and self.is_object:
            text = re.split(r"[\[{]", whole, maxsplit=1)[0].strip()
            return (text or "<|python_tag|>",)
        lead = self.lead.strip() if self.lead.startswith("<") else ""
        return tuple(dict.fromkeys((*marks[:1], lead or marks[-1]))) if marks else ()

    @cached_property
    def leads(self) -> tuple[str, ...]:
        """Beginnings of calls that nothing marks, at the beginning of an answer alone, written without white space."""
        if not self.is_object:
            return ()
        begin = (self.begin.partition(":")[0] + ":",) if self.begin.startswith("{") else ()
        objects = [before + f'{{"{self.name_key}":' for before in ("", "[", "```json", "```", "<tools>", "<function_call>")]
        return (*begin, *objects, '{"type":"function"', '{"function":')

    @cached_property
    def around(self) -> str:
        """A regular expression of a piece of what stands around calls."""
        before = self.before_name[: self._object_at] if self.is_object else self.before_name.removesuffix(self.lead)
        after = "}" if self.is_object else ""
        chunks = {text.strip() for text in (self.begin, self.between, before, self.after_arguments.lstrip(after), self.end)}
        marks = {mark for text in (*chunks, self.after_arguments) for mark in _MARK.findall(text)}
        found = sorted(map(flexible, {*chunks, *marks} - {""}), key=len, reverse=True)
        return "|".join([r"\s", *found, *([_AROUND] if self.is_object else [])])

    @cached_property
    def head(self) -> re.Pattern[str]:
        """The text before a call, up to the object or the arguments, with the group `name` where the name stands in it."""
        if self.is_object:
            outer = r'|\[|\{\s*"tool_calls"\s*:' if self.begin.startswith("{") or not self.begin else r"|\["
            return re.compile(rf"(?:{self.around}{outer}|\{{(?=\s*\{{))*(?=\{{)")
        loose = r"|\s*(?:[<\[`][^{]*)?(?=\{)" if self.keys is None and self.before_arguments.strip() else ""
        end = rf"(?=(?!{NAME})(?s:.))" if not self.before_arguments.strip() else ""
        if self.keys is not None and self.keys.before_key.strip().startswith("<"):  # which text about calls does not have
            end = r"(?=\s*[<{])"
        lead, prefix, quote = re.fullmatch(r"(?s)(.*?)((?<=>)\w+[.:])?(\"?)", self.lead).groups(default="")  # type: ignore[union-attr]
        before = flexible(lead) + (rf"\s*(?:{re.escape(prefix)})?" if prefix else "") + r"\s*"
        after = flexible(
            self.before_arguments[len(quote) :] if self.before_arguments.startswith('"') else self.before_arguments
        )
        around = r"[\"']?" if lead.endswith("=") or quote else ""
        return re.compile(rf"(?:{self.around})*?{before}{around}(?P<name>{NAME}+?){around}(?:{after}{end}{loose})")

    @cached_property
    def next_head(self) -> str:
        """The text from the arguments of a call to those of the next one."""
        text = f"{self.between}{self.before_name}x{self.before_arguments}{{"
        return re.sub(f"[{INDEX}{ID}{NAMED}]", "0", text)

    def is_begun(self, text: str, rest: str) -> bool:
        """Whether an answer ends within a mark, or within a call before its name; `rest` is what is no call of its text."""
        if not (self.end.strip() and self.end.strip() in text):
            begun = self.next_head
            heads = (self.head.match(text + begun[at:]) for at in range(len(begun)))
            if any(found is not None and found.end() >= len(text.rstrip()) for found in heads):
                return True
        return any(part.startswith(rest) for each in self.texts for part in endings(each))

    def written(self, calls: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
        """Calls with their arguments, as an answer holds them."""
        found = []
        for i, (name, arguments) in enumerate(calls):
            before = f"{self.before_name}{NAMED if NAMED in self.before_name else name}{self.before_arguments}"
            body = json.dumps(arguments) if self.keys is None else self.keys.written(arguments)
            text = f"{before.replace(NAMED, name)}{body}{self.after_arguments}"
            found.append(text.replace(INDEX, str(i)).replace(ID, f"call{i:05}"))
        return self.begin + self.between.join(found) + self.end

    @cached_property
    def tail(self) -> re.Pattern[str]:
        """Text after the last call that is no content."""
        return re.compile(rf"(?:{self.around}{'|[}]' if self.is_object else ''})*")


HERMES = ToolFormat("hermes", '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", between="\n")
LLAMA_3 = ToolFormat("llama-3", '{"name": "', '", "parameters": ', "}", between="; ", arguments_key="parameters")
QWEN_XML = ToolFormat(
    "qwen-xml",
    "<tool_call>\n<function=",
    ">",
    "\n</function>\n</tool_call>",
    between="\n",
    keys=Keys("\n<parameter=", ">\n", "\n</parameter>", ">\n", "\n</parameter>"),
)
LFM2 = ToolFormat(
    "lfm2",
    "",
    "(",
    ")",
    begin="<|tool_call_start|>[",
    between=", ",
    end="]<|tool_call_end|>",
    keys=Keys("", "=", "", "=", "", ", ", (('"', '"'),), is_raw=False, words=IN_PYTHON, arrays="python"),
)
GRANITE = ToolFormat("granite", '{"name": "', '", "arguments": ', "}", begin="<|tool_call|>[", between=", ", end="]")
HARMONY = ToolFormat(
    "harmony",
    "<|channel|>commentary to=functions.",
    " <|constrain|>json<|message|>",
    "",
    n_most=1,  # the token <|call|> ends an answer
    final="<|channel|>final<|message|>",
    analysis="<|channel|>analysis<|message|>",
    message_end="<|end|>",
    message_start="<|start|>assistant",
)
GENERIC = ToolFormat("generic", '{"name": "', '", "arguments": ', "}", begin='{"tool_calls": [', between=", ", end="]}")

FORMATS = {each.name: each for each in (HERMES, LLAMA_3, QWEN_XML, LFM2, GRANITE, HARMONY, GENERIC)}
"""By name."""

_JSON = ToolFormat("json", '{"name": "', '", "arguments": ', "}")


def others(form: ToolFormat) -> tuple[ToolFormat, ...]:
    """The forms that models fall back to, whatever their template writes: JSON, or Qwen's and Python's where that is JSON.

    >>> [each.name for each in others(HERMES)]
    ['qwen-xml', 'lfm2']
    """
    if form.final or "{" in form.lead:  # such as Apertus', an object whose key is the name
        return ()
    begin, end = form.begin + form.before_name, form.after_arguments + form.end
    if not form.is_object:
        return (evolve(_JSON, begin=begin, end=end),)
    begin = begin[: -len(form.before_name)] + form.before_name.partition("{")[0]
    return evolve(QWEN_XML, begin=begin, end=end), evolve(LFM2, begin=f"{begin}[", end=f"]{end}")


_DESCRIBED = {  # what of a prompt with tools tells a form that the template does not write itself
    "<function=": QWEN_XML,
    "<|tool_call|>": GRANITE,
    "<|tool_list_start|>": LFM2,
    "List of tools: [": LFM2,
    "<tool_call>": HERMES,
    '"parameters": dictionary of argument name': LLAMA_3,
}


def described(prompt: str) -> ToolFormat:
    """The form in which a prompt that describes tools asks for calls.

    >>> described("Write <tool_call>{...}</tool_call>").name
    'hermes'
    """
    return next((form for mark, form in _DESCRIBED.items() if mark in prompt), GENERIC)


_TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<mm:think>", "</mm:think>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
)

CLOSINGS = tuple(closing for _, closing in _TAGS)
"""The marks that end reasoning, of all families."""

_FRAMES = {
    "<response>": ("<response>", "</response>"),
    "[BEGIN FINAL RESPONSE]": ("[END FINAL RESPONSE]",),
    "<|open|>response<|sep|>": ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
}


def reasoning_tags(template: str) -> tuple[str, str]:
    """The marks around reasoning in the answers of a chat template's model.

    >>> reasoning_tags("{{ '[THINK]' }}{{ '[/THINK]' }}")
    ('[THINK]', '[/THINK]')
    """
    return next((tags for tags in _TAGS if tags[1] in template), _TAGS[0])


def frame_of(template: str) -> tuple[str, ...]:
    """The marks that a model writes around what is not reasoning, as Granite and Apriel do."""
    return next((marks for known, marks in _FRAMES.items() if known in template), ())


def reasoning_at(prompt: str, tags: tuple[str, str], *, is_continued: bool = False) -> Literal["to come", "open", "over"]:
    r"""Where reasoning is at the end of a prompt, or of the beginning of an answer that is continued.

    >>> reasoning_at("Hi<think>\n", ("<think>", "</think>")), reasoning_at("Hi<think></think>", ("<think>", "</think>"))
    ('open', 'over')
    """
    opening, closing = tags
    _, found, begun = prompt.rpartition(opening.rstrip())
    if found and closing not in begun and (is_continued or not begun.strip()):
        return "open"
    is_over = closing in begun if is_continued else prompt.rstrip().endswith(closing)
    return "over" if found and is_over else "to come"
