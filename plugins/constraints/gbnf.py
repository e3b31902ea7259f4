"""GBNF, the notation of llama.cpp's grammars, read into rules.

Source: `grammars/README.md` and `src/llama-grammar.cpp` of llama.cpp, which decide what a text means. Beyond them a line may
begin with `|` to go on with the rule above, and names of rules may have underscores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NoReturn

from attrs import field, frozen

from augury.errors import OptionError
from augury.options import nearest

Ranges = tuple[tuple[int, int], ...]  # of code points, both ends included, in ascending order

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_NUMBER = re.compile(r"[0-9]+")
_TOKEN = re.compile(r"<(?:\[([0-9]+)\]|([^\n>]*))>")
_BLANKS = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([tnr\\\"\[\]-]))")
_CONTROL = {"t": "\t", "n": "\n", "r": "\r"}
_N_MOST = 1_000_000
_LAST, _SURROGATES = 0x10FFFF, (0xD800, 0xDFFF)
ANY: Ranges = ((0, _SURROGATES[0] - 1), (_SURROGATES[1] + 1, _LAST))
_ANY_TOKEN: Ranges = ((0, 2**32),)


@frozen(eq=False)
class Characters:
    """One character of some, or one token.

    Attributes:
        ranges: The characters. The token i is among them as `_LAST` + 1 + i.
        token: The token in llguidance's notation, if it is one.
        repeats: Whether it stands directly in a repetition without an end, of which it may take many.
    """

    ranges: Ranges
    token: str | None = None
    repeats: bool = False


@frozen(eq=False)
class Reference:
    """A rule, by its name."""

    name: str
    place: int  # in the text


@frozen(eq=False)
class Sequence:
    """Parts one after another; without any the empty text."""

    parts: tuple[Node, ...]


@frozen(eq=False)
class Alternatives:
    """One of several."""

    options: tuple[Node, ...]


@frozen(eq=False)
class Repetition:
    """A part several times."""

    part: Node
    least: int
    most: int | None = field()  # None: without an end


Node = Characters | Reference | Sequence | Alternatives | Repetition


def children(node: Node) -> tuple[Node, ...]:
    """The nodes that a node is made of."""
    match node:
        case Sequence(nodes) | Alternatives(nodes):
            return nodes
        case Repetition(part):
            return (part,)
    return ()


def read_gbnf(text: str, token_id: Callable[[str], int], end_tokens: Iterable[int]) -> dict[str, Node]:
    """Read a grammar.

    Args:
        text: The grammar.
        token_id: The id of the token that a text is, or that a number names.
        end_tokens: Those that no part of the grammar stands for, because they end the output.

    Returns:
        The rules by their names; one of them is `root`, and all that they refer to are there. As in llama.cpp, the last
        rule of a name counts.

    Raises:
        OptionError: It is no GBNF. The message says where and what was expected.
        RecursionError: Parentheses are nested too deeply.
    """
    return _Reader(text, token_id, frozenset(end_tokens)).rules()


class _Reader:
    """Reads a text from the left to the right."""

    def __init__(self, text: str, token_id: Callable[[str], int], end_tokens: frozenset[int]) -> None:
        self._text, self._at = text, 0
        self._token_id, self._end_tokens = token_id, end_tokens
        self._references = list[Reference]()

    def rules(self) -> dict[str, Node]:
        rules = dict[str, Node]()
        self._skip(_BLANK_LINES)
        while self._at < len(self._text):
            if (name := _NAME.match(self._text, self._at)) is None:
                self._fail("the name of a rule")
            self._at = name.end()
            self._skip(_BLANKS)
            self._expect("::=")
            self._skip(_BLANK_LINES)
            rules[name[0]] = self._alternatives(within=False)
            if self._next() not in ("", "\r", "\n"):
                self._fail("an item, |, or the end of the line")
            self._skip(_BLANK_LINES)
        if "root" not in rules:
            raise OptionError(f"there is no rule root, where the text begins; the rules are {', '.join(rules)}")
        for reference in self._references:
            if reference.name not in rules:
                close = nearest(reference.name, rules)
                raise OptionError(f"{self._place(reference.place)}: rule {reference.name!r} is not defined{close}")
        return rules

    def _alternatives(self, *, within: bool) -> Node:
        """Alternatives, within parentheses or as the body of a rule."""
        options = [self._sequence(within=within)]
        while self._goes_on():
            self._at += 1
            self._skip(_BLANK_LINES)
            options.append(self._sequence(within=within))
        return options[0] if len(options) == 1 else Alternatives(tuple(options))

    def _goes_on(self) -> bool:
        """Whether | follows, perhaps on the next line; then that is next."""
        end = self._after(_BLANK_LINES)
        if not self._text.startswith("|", end):
            return False
        self._at = end
        return True

    def _sequence(self, *, within: bool) -> Node:
        parts, blanks = list[Node](), _BLANK_LINES if within else _BLANKS
        while (part := self._item()) is not None:
            self._skip(blanks)
            while self._next() and self._next() in "*+?{":
                part = self._repeated(part)
                self._skip(blanks)
            parts.append(part)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _item(self) -> Node | None:
        """The next item without what repeats it; None if there is none."""
        start, sign = self._at, self._next()
        if name := _NAME.match(self._text, start):
            self._at = name.end()
            self._references.append(Reference(name[0], start))
            return self._references[-1]
        match sign:
            case '"':
                return self._literal()
            case "[":
                return self._class()
            case "." | "(":
                self._at += 1
                return Characters(ANY) if sign == "." else self._group(start)
            case "<" | "!":
                return self._token()
            case "*" | "+" | "?" | "{":
                self._fail("an item before it, which is repeated")
        return None

    def _group(self, start: int) -> Node:
        self._skip(_BLANK_LINES)
        node = self._alternatives(within=True)
        self._expect(")", f"an item, | or ) for the ( at {self._place(start)}")
        return node

    def _literal(self) -> Node:
        start, parts = self._at, list[Node]()
        self._at += 1
        while self._next() != '"':
            parts.append(Characters(((code := self._character(start, '"'), code),)))
            if _SURROGATES[0] <= code <= _SURROGATES[1]:
                self._fail("a whole character: those beyond U+FFFF are written as \\U and eight digits", self._at - 6)
        self._at += 1
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _class(self) -> Node:
        start, ranges = self._at, list[tuple[int, int]]()
        self._at += 1
        is_negated = self._next() == "^"
        self._at += is_negated
        while self._next() != "]":
            place = self._at
            low = high = self._character(start, "]")
            if self._next() == "-" and not self._text.startswith("-]", self._at):
                self._at += 1
                high = self._character(start, "]")
            if low > high:
                self._fail("a range from the lower character to the higher", place)
            ranges.append((low, high))
        self._at += 1
        found = _clipped(_complement(ranges) if is_negated else ranges)
        if not ranges or not found:
            self._fail("at least one character in it", start)
        return Characters(found)

    def _character(self, start: int, end: str) -> int:
        """The code point of a character or its escape, of an item that began at `start` and goes on to `end`."""
        if not (sign := self._next()):
            self._fail(f"{end} for the {self._text[start]} at {self._place(start)}")
        if sign != "\\":
            self._at += 1
            return ord(sign)
        if (escape := _ESCAPE.match(self._text, self._at)) is None:
            self._fail(r"one of \n \r \t \\ \" \[ \] \- \xFF \uFFFF \U0010FFFF; digits are [0-9], and \s is [ \t\r\n]")
        digits = escape[1] or escape[2] or escape[3]
        code = int(digits, 16) if digits else ord(_CONTROL.get(escape[4], escape[4]))
        if code > _LAST:
            self._fail("a character of Unicode, up to \\U0010FFFF")
        self._at = escape.end()
        return code

    def _token(self) -> Node:
        start = self._at
        is_negated = self._next() == "!"
        self._at += is_negated
        if (found := _TOKEN.match(self._text, self._at)) is None:
            self._fail("a token, as <[1000]> or <think>")
        try:
            token = self._token_id(found[1] or found[0])
        except OptionError as error:
            raise OptionError(f"{self._place(start)}: {error}") from None
        if token in self._end_tokens and not is_negated:
            self._fail("no token that ends the output: the end may follow wherever the grammar ends", start)
        self._at = found.end()
        if is_negated:
            others = ",".join(map(str, sorted({token, *self._end_tokens})))
            return Characters(_ANY_TOKEN, f"<[^{others}]>")
        return Characters(((_LAST + 1 + token, _LAST + 1 + token),), f"<[{token}]>")

    def _repeated(self, part: Node) -> Node:
        start, sign = self._at, self._next()
        self._at += 1
        if sign != "{":
            return self._times(part, int(sign == "+"), 1 if sign == "?" else None, start)
        least = self._number("a number: {2}, {2,} and {0,3} are repetitions")
        most: int | None = least
        if self._next() == ",":
            self._at += 1
            self._skip(_BLANK_LINES)
            most = None if self._next() == "}" else self._number("a number or }")
        self._expect("}", "a comma or }" if most == least else "}")
        if most is not None and most < least:
            self._fail("the lower number first", start)
        return self._times(part, least, most, start)

    def _times(self, part: Node, least: int, most: int | None, place: int) -> Node:
        """A repetition; one of a repetition is joined with it, because `(x*){0,99}` can be read in too many ways."""
        if isinstance(part, Repetition) and part.least <= 1 and most != 0:
            is_endless = part.most != 0 and None in (part.most, most)
            least, most = part.least * least, None if is_endless else (part.most or 0) * (most or 0)
            part = part.part
        if max(least, most or 0) >= _N_MOST:
            self._fail(f"fewer than {_N_MOST} repetitions", place)
        return Repetition(part, least, most)

    def _number(self, expected: str) -> int:
        self._skip(_BLANK_LINES)
        if (number := _NUMBER.match(self._text, self._at)) is None:
            self._fail(expected)
        self._at = number.end()
        self._skip(_BLANK_LINES)
        return min(int(number[0][:9]), _N_MOST)

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, blanks: re.Pattern[str]) -> None:
        self._at = self._after(blanks)

    def _after(self, blanks: re.Pattern[str]) -> int:
        """Where blanks that may follow end."""
        found = blanks.match(self._text, self._at)
        return self._at if found is None else found.end()

    def _expect(self, sign: str, expected: str | None = None) -> None:
        if not self._text.startswith(sign, self._at):
            self._fail(expected or sign)
        self._at += len(sign)

    def _place(self, at: int) -> str:
        return f"line {self._text.count(chr(10), 0, at) + 1}, column {at - self._text.rfind(chr(10), 0, at)}"

    def _fail(self, expected: str, at: int | None = None) -> NoReturn:
        at = self._at if at is None else at
        found = self._text[at : at + 20].splitlines()
        what = repr(found[0]) if found and found[0] else "the end of the line" if found else "the end of the grammar"
        raise OptionError(f"{self._place(at)}: found {what}, expected {expected}")


def _complement(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    found, low = list[tuple[int, int]](), 0
    for first, last in sorted(ranges):
        if low < first:
            found.append((low, first - 1))
        low = max(low, last + 1)
    return [*found, (low, _LAST)] if low <= _LAST else found


def _clipped(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same characters in order, without surrogates, which no text has."""
    return tuple(_complement([*_complement(ranges), _SURROGATES]))
