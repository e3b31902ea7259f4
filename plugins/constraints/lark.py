"""Rules of GBNF as a grammar of llguidance, whose notation is Lark's.

The library cuts a text into the longest terminals that may stand there, so that `[a-z]* "b"` as two of them fits nothing. A
grammar without recursion is one terminal. In others a terminal is one character, which is never too long, but a mask over a
large vocabulary then takes 10 to 20 ms where many characters are allowed. So repeated characters become one terminal where
nothing else that may follow there begins with one of them: then the longest is the only one, and a mask takes 0.1 ms.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import or_

from attrs import define

from augury.errors import OptionError
from augury.plugins.constraints.gbnf import Alternatives, Characters, Node, Ranges, Reference, Repetition, Sequence, children
from augury.plugins.constraints.guided import NO_FORCING
from augury.plugins.constraints.loops import Loops, has_end, is_empty, least, size, without_recursion_at_ends

_DEPTH = 1500  # the library follows references on the stack, which a chain of rules may overflow
_N_NODES = 1500  # of a grammar whose repeated characters are looked at: C's has 700
_N_STEPS = 300_000  # pairs of positions that are looked at: a second at most; a more ambiguous grammar keeps its characters


def to_lark(rules: Mapping[str, Node]) -> str:
    """Write rules, with `root` among them, for llguidance.

    Raises:
        OptionError: A rule refers to itself before anything else, in all of its alternatives.
    """
    if (depth := sum(map(_depth, rules.values()))) > _DEPTH:
        raise OptionError(
            f"{len(rules)} rules nest {depth} levels together, expected {_DEPTH} at most; make the grammar smaller"
        )
    empty = least(rules, is_empty)
    begun = least(rules, lambda node, known: _begins(node, known, empty))
    if (name := next((name for name in rules if name not in empty | begun), None)) is not None:
        raise OptionError(
            f"rule {name!r} fits no text, because it needs itself first; give it an alternative that begins otherwise"
        )
    rules = without_recursion_at_ends(rules)
    if len(least(rules, _is_regular)) == len(rules):
        names = {name: f"R{i}" for i, name in enumerate(rules)}
        return _lines(names, rules, set())
    loops = Loops(rules)
    prepared = {name: loops.prepared(node) for name, node in rules.items()}
    names = {name: f"r{i}" for i, name in enumerate(rules)}
    is_small = sum(map(size, prepared.values())) <= _N_NODES  # in others it takes too long to find repeated characters
    lines = _lines(names, prepared, _Positions(prepared).lonely() if is_small else set())
    do_end = len(least(rules, has_end)) == len(rules)
    return lines if do_end else f"{NO_FORCING}\n{lines}"  # the library would force endless text on and on


def _lines(names: Mapping[str, str], rules: Mapping[str, Node], lonely: set[Characters]) -> str:
    writer = _Writer(names, lonely)
    return "\n".join([f"start: {names['root']}", *(f"{names[name]}: {writer.written(rules[name])}" for name in rules)])


def _depth(node: Node) -> int:
    return 1 + max(map(_depth, children(node)), default=0)


def _is_regular(node: Node, known: set[str]) -> bool:
    """Whether a regular expression says the same as a node: it has no tokens, and no rule that needs itself."""
    match node:
        case Characters():
            return node.token is None
        case Reference(name):
            return name in known
    return all(_is_regular(part, known) for part in children(node))


def _begins(node: Node, known: set[str], empty: set[str]) -> bool:
    """Whether a node may begin with a character."""
    match node:
        case Reference(name):
            return name in known
        case Sequence(parts):
            return any(_begins(part, known, empty) for part in _until_full(parts, empty))
        case Alternatives(options):
            return any(_begins(option, known, empty) for option in options)
        case Repetition(part, _, most):
            return most != 0 and _begins(part, known, empty)
    return True


def _until_full(parts: Iterable[Node], empty: set[str]) -> Iterator[Node]:
    """The first parts, as far as all before them may be empty."""
    for part in parts:
        yield part
        if not is_empty(part, empty):
            return


@define
class _Ends:
    """Which positions a node begins and ends with, as bits, and whether it may be empty."""

    first: int = 0
    last: int = 0
    is_empty: bool = False


class _Positions:
    """Places of characters in rules, and which of them may stand at one place of a text.

    Rules are taken for what may follow what, whoever refers to them: so a few more positions seem to meet than do.
    """

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._rules = rules
        self._found = list[Characters]()
        self._numbers = dict[Characters, int]()
        self._ends = {name: _Ends() for name in rules}
        self._following = list[int]()
        self._again = set[int]()  # positions that follow themselves, other than by their own repetition
        while self._grew():
            pass

    def lonely(self) -> set[Characters]:
        """The repeated characters with which nothing else shares a character where they stand."""
        overlaps = self._overlaps()
        beside = [0] * len(self._found)
        waiting = [(self._ends["root"].first, self._ends["root"].first)]
        n_steps = 0
        while waiting:
            firsts, seconds = waiting.pop()
            for p in _bits(firsts):
                n_steps += 1
                new = seconds & ~beside[p]
                beside[p] |= new
                for q in _bits(new & overlaps[p]):
                    waiting.append((self._following[p], self._following[q]))
                    waiting.append((self._following[q], self._following[p]))
            if n_steps > _N_STEPS:
                return set()
        return {
            each
            for p, each in enumerate(self._found)
            if each.repeats and p not in self._again and not beside[p] & overlaps[p] & ~(1 << p)
        }

    def _overlaps(self) -> list[int]:
        """Which positions share a character with each."""
        kinds = dict[Ranges, int]()
        for p, each in enumerate(self._found):
            kinds[each.ranges] = kinds.get(each.ranges, 0) | 1 << p
        sharing = {
            ranges: sum(positions for other, positions in kinds.items() if _do_overlap(ranges, other)) for ranges in kinds
        }
        return [sharing[each.ranges] for each in self._found]

    def _grew(self) -> bool:
        """Find what follows what, as far as the ends of the rules are known; whether they are known better then."""
        before = dict(self._ends)
        for name, node in self._rules.items():
            self._ends[name] = self._ends_of(node)
        return self._ends != before

    def _ends_of(self, node: Node) -> _Ends:
        match node:
            case Characters():
                return self._ends_of_one(node)
            case Reference(name):
                return self._ends[name]
            case Alternatives(options):
                each = [self._ends_of(option) for option in options]
                first, last = (reduce(or_, (getattr(ends, name) for ends in each), 0) for name in ("first", "last"))
                return _Ends(first, last, any(ends.is_empty for ends in each))
            case Sequence(parts):
                return self._ends_of_all(parts)
            case Repetition(part, least, most):
                ends = self._ends_of(part)
                if most == 0:
                    return _Ends(is_empty=True)
                if most != 1:
                    own = part.options[0] if isinstance(part, Alternatives) else part
                    is_own = isinstance(own, Characters) and own.repeats
                    self._follow(ends.last, ends.first, self._numbers[own] if is_own else None)  # type: ignore[index]
                return _Ends(ends.first, ends.last, ends.is_empty or least == 0)

    def _ends_of_one(self, node: Characters) -> _Ends:
        if node not in self._numbers:
            self._numbers[node] = len(self._found)
            self._found.append(node)
            self._following.append(0)
        bit = 1 << self._numbers[node]
        return _Ends(bit, bit)

    def _ends_of_all(self, parts: Iterable[Node]) -> _Ends:
        found = _Ends(is_empty=True)
        for part in parts:
            ends = self._ends_of(part)
            self._follow(found.last, ends.first)
            found.first |= ends.first if found.is_empty else 0
            found.last = ends.last | (found.last if ends.is_empty else 0)
            found.is_empty &= ends.is_empty
        return found

    def _follow(self, last: int, first: int, own: int | None = None) -> None:
        """Note that positions may follow others; `own` follows itself by its own repetition."""
        for p in _bits(last):
            self._following[p] |= first
            if first >> p & 1 and p != own:
                self._again.add(p)


class _Writer:
    """Writes nodes.

    Attributes:
        names: Rules' names in the grammar, by the user's.
        lonely: Repeated characters of which a terminal may take many.
    """

    def __init__(self, names: Mapping[str, str], lonely: set[Characters]) -> None:
        self.names, self.lonely = names, lonely

    def written(self, node: Node) -> str:
        match node:
            case Characters():
                return self._character(node)
            case Reference(name):
                return self.names[name]
            case Alternatives(options):
                return f"({' | '.join(map(self.written, options))})"
            case Repetition(part, least, most) if most != 0:
                return f"({self.written(part)}){{{least},{'' if most is None else most}}}"
            case Sequence((_, *_) as parts):
                return f"({' '.join(map(self.written, parts))})"
        return '""'

    def _character(self, node: Characters) -> str:
        if node.token is not None:
            return node.token
        (low, high), *more = node.ranges
        if not more and low == high and 0x20 <= low < 0x7F and not node.repeats:
            return json.dumps(chr(low))
        ranges = "".join(f"\\x{{{first:X}}}-\\x{{{last:X}}}" for first, last in node.ranges)
        return f"/[{ranges}]{'+' if node in self.lonely else ''}/"


def _do_overlap(one: Ranges, other: Ranges) -> bool:
    return any(low <= last and first <= high for low, high in one for first, last in other)


def _bits(number: int) -> Iterator[int]:
    """The places of a number's ones."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
