"""Arguments that a template writes one by one, as its `Keys` say: read as they stream, and forced by a grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import Factory, define, evolve

from augury.plugins.constraints.schema import resolved
from augury.plugins.server.tools.endings import followed, marked, or_unmarked, up_to
from augury.plugins.server.tools.format import KEY, PYTHON, TYPE, Keys, flexible
from augury.plugins.server.tools.notation import TYPES, Pieces, Source, typed, types, value

_POSITIONAL = re.compile(r"""["'](?![\w.-]+["']\s*[=:])|[\d\[{-]|(?:True|False|None|true|false|null)\s*[,)]""")
_HALF_KEY = re.compile(r"""["']?[\w.-]*["']?\s*""")  # or a word, or a string
_N_FREE = 64  # arguments of a function that names none, and items of an array that does not tell
_ANY = "(?s:.*)"
_ESCAPES = {"\\": r"\\\\", "\n": r"\\n", "\r": r"\\r", "\t": r"\\t"}  # of Python's strings, as regular expressions
_ATOM = re.compile(  # one letter of a regular expression, or what is none
    r"\(\?(?:P?<\w+>|[a-zA-Z-]*:?)|\{[\d,]+\}|[()|*+?^$]|"
    r"(?P<atom>\[\^?\]?(?:\\.|[^\]\\])*\]|\\(?:[pP]\{\w+\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)|[^()|*+?^$])"
)


def arguments(
    source: Source,
    keys: Keys,
    schema: Any,
    end: str,
    root: Mapping[str, Any] | None = None,
    *,
    marks: Sequence[str] = (),
    is_array: bool = False,
) -> Pieces[bool]:
    """Read arguments, told as a JSON object. Returns whether they are complete.

    Args:
        source: The text from the first key on, from which they are taken.
        keys: How they are written.
        schema: Of all of them, which tells the types of values without quotes.
        end: The mark after them.
        root: The schema that holds this one, if it is another.
        marks: What may come after a value, beside another key and the end; the mark of its end is text before anything else.
        is_array: Whether they are items of an array.
    """
    root = root or schema
    yield "[" if is_array else "{"
    told, mark, between = list[str](), keys.before_key.strip().removesuffix('"'), keys.between.strip()
    while True:
        yield from source.spaces()
        if told and between and source.text.startswith(between):
            source.take(len(between))
            continue
        yield from source.may_be(end)
        if end and source.text.startswith(end if mark else end[0]):
            break
        yield from source.may_be(mark)
        left = [each for each in _resolved(schema, root).get("properties") or () if each not in told]
        if left and (yield from _is_positional(source, keys)):
            key, is_text = left[0], None
        elif source.text.startswith(mark) and (found := (yield from _key(source, keys, len(mark)))) is not None:
            key, is_text = found
        else:
            break
        yield ("," if told else "") + ("" if is_array else json.dumps(key, ensure_ascii=False) + ":")
        inner = _inner(schema, root, key, is_array=is_array)
        told.append(key)
        left = [each for each in left if each != key]
        if not (yield from _value(source, keys, key, inner, root, (end, *marks), left, is_text=is_text)):
            return False
    if source.text.startswith(end):
        source.take(len(end))
    elif source.is_ended and end.startswith(source.text.strip()):
        source.text = ""
    elif source.is_whole:
        return False
    for key in () if is_array else (key for key in _left_out(schema, root, keys) if key not in told):
        yield ("," if told else "") + json.dumps(key, ensure_ascii=False) + ":null"
        told.append(key)
    yield "]" if is_array else "}"
    return True


def _value(
    source: Source,
    keys: Keys,
    key: str,
    schema: Any,
    root: Mapping[str, Any],
    ends: Sequence[str],
    others: Sequence[str] = (),
    *,
    is_text: bool | None,
) -> Pieces[bool]:
    """Read a value, after which another argument or the end of all comes. Returns whether it ends.

    `others` are arguments that are still to come.
    """
    allowed = types(schema, root)
    is_text = allowed == {"string"} if is_text is None else is_text
    opening, closing = keys.quotes[0]
    after = (keys.after_text if is_text else keys.after_value).replace(KEY, key)
    if keys.is_literal:
        yield from source.spaces()
        if not (keys.is_raw and len(opening) == 1 and source.text.startswith(opening)):
            return (yield from value(source, opening))
    if keys.item and not is_text:
        yield from source.may_be(after.strip())
        yield from source.may_be(first := keys.before_key + keys.item + keys.before_text)
        if source.text.startswith(keys.before_key) and not source.text.startswith(after.strip()):
            is_array = source.text.startswith(first) and allowed != {"object"}
            return (yield from arguments(source, keys, schema, after.strip(), root, marks=ends, is_array=is_array))
    yield from source.may_be(opening)
    ending = marked(after, following := [keys.before_key.strip().removesuffix('"'), *ends])
    if after.strip() and keys.before_key.startswith("\n"):  # arguments have lines of their own
        before, equals = keys.before_key.strip(), keys.before_value.strip()
        ending = or_unmarked(ending, [f"\n{before}{name}{equals}" for name in others], ends)
    if opening and source.text.startswith(opening):
        source.take(len(opening))
        is_text, ending = True, followed(closing, keys, ends[0]) if keys.is_literal else marked(closing + after, following)
    if is_text:
        yield '"'
    held = yield from up_to(source, *ending, is_text=is_text)
    if held is not None and is_text:
        yield '"'
    elif held is not None:
        is_empty = keys.item and not held.strip()
        empty = "[]" if "array" in allowed else "{}" if "object" in allowed else '""'
        yield empty if is_empty else typed(held, schema, root)
    return held is not None


def _key(source: Source, keys: Keys, start: int) -> Pieces[tuple[str, bool | None] | None]:
    """A key, and whether its value is marked as a string; None for that where nothing tells."""
    as_text, as_value = ('"?' + flexible(text.rstrip("\n").removeprefix('"')) for text in (keys.before_text, keys.before_value))
    is_told = keys.before_text != keys.before_value
    marks = rf"(?P<text>{as_text})|(?P<value>{as_value})|(?P<untold>\"?>)" if is_told else as_value
    pattern = re.compile(rf"(?P<key>[^\n]*?)(?:{marks})")
    while (found := pattern.match(source.text, start)) is None or found.end() == len(source.text):
        if source.is_whole:
            return None
        yield None
    is_text = (found["text"] is not None) if is_told and found["untold"] is None else None
    source.take(found.end())
    if keys.before_text.endswith("\n"):
        source.text = source.text.removeprefix("\n")
    return found["key"].strip(" \"'"), is_text


def _is_positional(source: Source, keys: Keys) -> Pieces[bool]:
    """Whether a value without a key comes, as in a call in Python."""
    if not keys.is_literal or keys.before_key:
        return False
    while not source.is_whole and _HALF_KEY.fullmatch(source.text):
        yield None
    return _POSITIONAL.match(source.text) is not None


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    return resolved(schema, root) if isinstance(schema, Mapping) else {}


def _inner(schema: Any, root: Mapping[str, Any], key: str, *, is_array: bool = False) -> Any:
    """The schema of an argument, or of an item."""
    found = _resolved(schema, root)
    if is_array:
        return found.get("items")
    properties = found.get("properties")
    return properties[key] if isinstance(properties, Mapping) and key in properties else found.get("additionalProperties")


def _left_out(schema: Any, root: Mapping[str, Any], keys: Keys) -> list[str]:
    """The arguments that a schema wants, and that are absent if they are null."""
    wanted = [] if keys.words[2] else _resolved(schema, root).get("required") or []
    return [key for key in wanted if isinstance(key, str) and "null" in types(_inner(schema, root, key), root)]


@define
class ArgumentRules:
    """Writes the rules, in llguidance's Lark, of one function's arguments.

    Attributes:
        keys: How the template writes them.
        root: The schema of all of them, an object.
        name: The prefix of the rules' names.
        literal: Writes a text as a part of a rule.
        until: Writes a rule, of a name, of text that fits regular expressions up to the first of an end, that included.
        as_json: Writes a schema as a part of a rule.
        rules: The rules so far.
    """

    keys: Keys
    root: Mapping[str, Any]
    name: str
    literal: Callable[[str], str]
    until: Callable[[str, Sequence[str], str], str]
    as_json: Callable[[Mapping[str, Any]], str]
    rules: list[str] = Factory(list)
    _nested: dict[str, str] = Factory(dict)  # the rules of objects and arrays, by what they are of: schemas may be recursive

    def body(self) -> str:
        """The part of a rule that all arguments are: those of the schema, in its order, with what is between them."""
        return self._members(self.name, self.root, self.keys)

    def _members(self, name: str, schema: Mapping[str, Any], keys: Keys) -> str:
        found, separator = resolved(schema, self.root), self.literal(keys.between)
        properties: Mapping[str, Any] = found.get("properties") or {}
        if not properties and found.get("additionalProperties") is False:
            return '""'
        if not properties:
            one = self._one(f"{name}_any", KEY, found.get("additionalProperties"), keys)
            return f"({one} ({separator} {one}){{0,{_N_FREE}}})?"
        required = {*(found.get("required") or ())} - {*_left_out(found, self.root, keys)}
        first, later = '""', '""'
        for i, (key, each) in reversed(list(enumerate(properties.items()))):
            if not keys.words[2] and types(each, self.root) == {"null"}:
                continue
            one = self._one(f"{name}_{i}", key, each, keys)
            self.rules += [f"{name}_first_{i}: {one} {later}" + ("" if key in required else f" | {first}")]
            is_any = "" if key in required else "?"
            self.rules += [f"{name}_later_{i}: ({separator} {one}){is_any} {later}"]
            first, later = f"{name}_first_{i}", f"{name}_later_{i}"
        return first

    def _one(self, name: str, key: str, schema: Any, keys: Keys) -> str:
        """The rule of an argument or an item."""
        values = dict.fromkeys(self._values(name, key, schema, keys))
        self.rules.append(f"{name}: {self.literal(keys.before_key + key)} ({' | '.join(values)})")
        return name

    def _values(self, name: str, key: str, schema: Any, keys: Keys) -> Iterator[str]:
        """What may follow a key, for each alternative of its schema; text without a mark is read as whichever it fits."""
        alternatives = list(_alternatives(_resolved(schema, self.root), self.root))
        untold = TYPES if keys.is_literal or keys.item else {"string"}
        kinds = [types(each, self.root) or untold for each in alternatives]
        is_told, is_free = keys.before_text != keys.before_value or keys.is_literal, False
        for i, (each, allowed) in enumerate(zip(alternatives, kinds, strict=True)):
            if "string" in allowed:
                is_free |= not each.keys() & {"enum", "const"} and _expressions(each) == [_ANY]
                yield from self._strings(f"{name}_text_{i}", key, each, keys)
        after = self.literal(keys.after_value.replace(KEY, key))
        for each, allowed in zip(alternatives, kinds, strict=True):
            others = [] if is_free and not is_told else sorted(allowed - {"string"})
            for group in [[kind] for kind in others] if TYPE in keys.before_value else [others]:
                if written := self._others(each, group, keys):
                    word = keys.integer if group[0] == "integer" else group[0]
                    yield f"{self.literal(keys.before_value.replace(TYPE, word))} ({' | '.join(written)}) {after}"

    def _strings(self, name: str, key: str, schema: Mapping[str, Any], keys: Keys) -> Iterator[str]:
        """Strings, from the end of their key on."""
        before, end = self.literal(keys.before_text), keys.after_text.replace(KEY, key)
        choices, after = _choices(schema), self.literal(end)
        if not keys.is_raw and keys.quotes[0][0] == '"':
            yield f"{before} {self.as_json({**schema, 'type': 'string'})} {after}"
        elif choices is not None:
            for each in (each for each in choices if isinstance(each, str)):
                texts = [f"{one}{each}{other}" for one, other in keys.quotes] if keys.is_raw else [repr(each)]
                yield from (f"{before} {self.literal(text)} {after}" for text in texts)
        elif not keys.is_raw:
            self.rules.append(f"{name.upper()}: {_in_python(schema)}")
            yield f"{before} {name.upper()} {after}"
        else:
            expressions = _expressions(schema)
            for i, (opening, closing) in enumerate(keys.quotes):
                if i and expressions == [_ANY]:
                    expressions = [f"([^{keys.quotes[0][0][0]}]{_ANY})?"]
                self.rules.append(self.until(f"{name}_{i}", expressions, closing + end))
                yield f"{before} {self.literal(opening)} {name}_{i}"

    def _others(self, schema: Mapping[str, Any], kinds: Sequence[str], keys: Keys) -> list[str]:
        """Values that are no strings."""
        choices, found, as_json = _choices(schema), list[str](), list[str]()
        words: dict[str, dict[Any, str]] = {
            "boolean": {True: keys.words[0], False: keys.words[1]},
            "null": {None: keys.words[2]},
        }
        for kind in kinds:
            if kind in words:
                own = words[kind].items()
                found += [self.literal(word) for each, word in own if word and any(each is one for one in choices or (each,))]
            elif (style := keys.objects if kind == "object" else keys.arrays if kind == "array" else "json") != "json":
                found.append(self._nest(schema, kind, style))
            else:
                as_json.append(kind)
        if as_json:
            definitions = {key: self.root[key] for key in ("$defs", "definitions") if key in self.root}
            found.append(self.as_json({**definitions, **schema, "type": as_json}))
        return found

    def _nest(self, schema: Mapping[str, Any], kind: str, style: str) -> str:
        """The rule of an object or an array that is not written as JSON."""
        told = json.dumps([kind, schema, style], sort_keys=True)
        if (known := self._nested.get(told)) is not None:
            return known
        name, keys = f"{self.name}_own_{len(self._nested)}", PYTHON if style == "python" else self.keys
        self._nested[told] = name
        marks = ("{}" if kind == "object" else "[]") if keys.is_literal else ("", "")
        inner = self._members(name, schema, keys) if kind == "object" else self._items(name, schema, keys)
        self.rules.append(f"{name}: {self.literal(marks[0])} {inner} {self.literal(marks[1])}")
        return name

    def _items(self, name: str, schema: Mapping[str, Any], keys: Keys) -> str:
        separator = self.literal(keys.between)
        if keys.is_literal:
            keys = evolve(keys, before_key="", before_text="", before_value="", after_text="", after_value="")
        one = self._one(f"{name}_item", keys.item, schema.get("items"), keys)
        least, most = schema.get("minItems", 0), schema.get("maxItems", _N_FREE)
        if not most:
            return '""'
        return f"({one} ({separator} {one}){{{max(least - 1, 0)},{most - 1}}}){'' if least else '?'}"


def _alternatives(schema: Mapping[str, Any], root: Mapping[str, Any], n_refs: int = 8) -> Iterator[Mapping[str, Any]]:
    """The schemas of which a value fits one."""
    found = resolved(schema, root)
    key = next((key for key in ("anyOf", "oneOf") if isinstance(found.get(key), list) and found[key]), None)
    if key is None or not n_refs:
        yield found
        return
    rest = {name: each for name, each in found.items() if name != key}
    for each in found[key]:
        if isinstance(each, Mapping):
            yield from _alternatives({**rest, **each}, root, n_refs - 1)


def _choices(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that a schema names, if it does."""
    found = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return found if isinstance(found, list) else None


def _expressions(schema: Mapping[str, Any]) -> list[str]:
    """The regular expressions of a string of a schema, all of which it fits."""
    pattern, least, most = schema.get("pattern"), schema.get("minLength", 0), schema.get("maxLength", "")
    found = [f"(?s:.{{{least},{most}}})"] if least or most else []
    if isinstance(pattern, str):
        start = "" if pattern.startswith("^") else _ANY
        end = "" if pattern.endswith("$") else _ANY
        found.append(f"{start}({pattern.removeprefix('^').removesuffix('$')}){end}")
    return found or [_ANY]


def _in_python(schema: Mapping[str, Any]) -> str:
    """The terminal of a string of a schema, as Python's `repr` writes it."""
    n = f"{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}"
    found = []
    for quote, escapes in (("'", {**_ESCAPES, "'": r"\\'"}), ('"', _ESCAPES)):
        one = rf"([^{quote}\\\n]|{'|'.join(escapes.values())})"
        texts = [one + n]
        if isinstance(schema.get("pattern"), str):
            (expression,) = _expressions({"pattern": schema["pattern"]})
            parts = [_escaped(part, escapes) for part in expression.split(_ANY)]
            texts.append(f"{one}*".join(parts).replace("/", r"\/"))
        found.append(" & ".join(f"/{quote}{text}{quote}/" for text in texts))
    return f"({found[0]}) | ({found[1]} & /.*'.*/)"


def _escaped(expression: str, escapes: Mapping[str, str]) -> str:
    """A regular expression of the texts of another, in which some letters are written by escapes."""

    def written(found: re.Match[str]) -> str:
        atom = found["atom"] or ""
        own = [escape for letter, escape in escapes.items() if _fits(atom, letter)]
        inner = r"[^\n]" if atom == "." else atom
        rest = [rf"[{inner}&&[^{''.join(repr(each)[1:-1] for each in escapes)}]]"] if inner[-1:] in [*"sSWD]"] else []
        return f"(?:{'|'.join(rest + own)})" if own else found[0]

    return _ATOM.sub(written, expression)


def _fits(atom: str, letter: str) -> bool:
    """Whether a part of a regular expression is a letter; one that only the library can read is taken for others."""
    try:
        return re.fullmatch(atom, letter) is not None
    except re.error:
        return False
