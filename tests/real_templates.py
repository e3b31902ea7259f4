"""Tries the chat templates of a folder: are calls read back as each template writes them, or else as the server tells them?

`python tests/real_templates.py FOLDER` tells of each template (`*.jinja`) the form that was found. It exits with 1 if the calls
of one do not come back equal, or if it writes calls in a form that was not learnt.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from augury.errors import AuguryError
from augury.plugins.server.tools import ChatFormat
from augury.plugins.server.tools.delta import collect
from augury.plugins.server.tools.format import GENERIC, HARMONY
from augury.plugins.server.tools.parser import AnswerParser
from augury.text.chat_template import ChatTemplate

NAMES = ("get_weather", "files.find")
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "code": {"type": "string"},
        "note": {"type": ["string", "null"]},
        "days": {"type": "integer"},
        "share": {"type": "number"},
        "is_metric": {"type": "boolean"},
        "path": {"type": "array", "items": {"type": "string"}},
        "where": {"type": "object", "properties": {"x": {"type": "number"}}},
    },
    "required": ["city"],
}
TOOLS = [{"type": "function", "function": {"name": name, "description": "Does.", "parameters": PARAMETERS}} for name in NAMES]
CALLS: tuple[tuple[dict[str, Any], ...], ...] = (
    ({"city": "Rome"},),
    ({"code": "75001", "city": "true"}, {"city": "null"}),
    ({"note": 'One.\nTwo: it\'s "quoted" & <b>bold</b>.\n\nThree, [4] {5}', "city": "São Paulo"}, {"days": -3, "city": "x"}),
    ({"share": 0.25, "is_metric": True, "city": ""}, {"is_metric": False, "city": " padded "}),
    ({"path": ["a", "b, c"], "where": {"x": 1.5}, "city": "\\n is no line break"}, {"city": "C:\\dir"}),
)
"""The arguments of a first call and perhaps of a second one."""

TEXT = "Let me look."
CONTENTS = ("", None, TEXT)


def conversation(calls: tuple[dict[str, Any], ...], form: Any, how: tuple[bool, str | None]) -> list[dict[str, Any]]:
    """A question, calls, and perhaps text before them."""
    is_text, content = how
    made = [
        {
            "id": f"functions.{name}:{i}" if form.has_ids else f"callid00{i}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments) if is_text else arguments},
        }
        for i, (name, arguments) in enumerate(zip(NAMES, calls, strict=False))
    ]
    return [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": content, "tool_calls": made}]


def written(template: ChatTemplate, form: Any, calls: tuple[dict[str, Any], ...], content: str | None) -> str:
    """What the assistant says in the template's own words. Raises `AuguryError` where the template refuses."""
    error: AuguryError | None = None
    tools = TOOLS if template.takes_tools else None
    for how in ((False, content), (True, content)):
        try:
            text = template.render(conversation(calls, form, how), tools=tools, add_generation_prompt=False)
        except AuguryError as refused:
            error = refused
            continue
        asked = template.render([{"role": "user", "content": "Where?"}], tools=tools, add_generation_prompt=True)
        answer = text.rpartition("Where?")[2]
        prompt = asked.rpartition("Where?")[2]
        return answer.removeprefix(prompt) if answer.startswith(prompt) else answer
    raise error or AuguryError("nothing is written")


def read(form: Any, text: str, n: int) -> list[tuple[str, Any]]:
    """The calls in an answer that arrives in pieces of so many letters."""
    parser = AnswerParser(form, None, dict.fromkeys(NAMES, PARAMETERS))
    deltas = [delta for at in range(0, len(text), n) for delta in parser.push(text[at : at + n])]
    return [(call.name, json.loads(call.arguments)) for call in collect(deltas + parser.flush()).calls]


def faults(template: ChatTemplate, form: Any) -> Iterator[str]:
    """What does not come back."""
    for calls in CALLS:
        chosen = calls[:1] if form.n_most == 1 else calls
        expected, refused = list(zip(NAMES, chosen, strict=False)), list[AuguryError]()
        for content in CONTENTS:
            try:
                text = written(template, form, chosen, content)
            except AuguryError as error:
                refused.append(error)
                text = ""
            if NAMES[0] not in text:  # then calls are text
                text = form.written(expected)
            for n in (1, 7, len(text)):
                try:
                    found: Any = read(form, text, n)
                except ValueError as error:
                    found = error
                if found != expected:
                    yield f"{text!r} is read as {found!r}"
                    return
        if len(refused) == len(CONTENTS) and form is not GENERIC:
            yield f"it writes no calls: {refused[0]}"
            return


def tried(path: Path, tell: Callable[[str], object] = print) -> bool:
    """Whether a template's calls come back."""
    template = ChatTemplate(path.read_text(encoding="utf-8"))
    try:
        form = ChatFormat(template, None).tools
        fault = next(faults(template, form), "")
    finally:
        template.close()
    kind = "one by one" if form.keys else "an object" if form.is_object else "JSON after the name"
    tell(f"{path.name}: {form.name}, {'its own' if form is HARMONY else kind}{': ' + fault if fault else ''}")
    return not fault


if __name__ == "__main__":
    sys.exit(not all(list(map(tried, sorted(Path(sys.argv[1]).glob("*.jinja"))))))
