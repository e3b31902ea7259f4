"""Recursion at an end of a rule as repetition, and what is repeated as few alternatives.

An Earley parser keeps an item for each place where a text may have begun a rule that ends here: `list ::= item "," list | item`
and `sum ::= sum "+" sum | term` cost as much for a letter as the text is long. With repetitions they cost the same everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice

from attrs import evolve

from augury.plugins.constraints.gbnf import Alternatives, Characters, Node, Reference, Repetition, Sequence, children

# Times that a character is written out, such as those of "\\\\u" [0-9a-f]{4}: a place follows itself in a repetition.
_N_UNROLLED = 16
_N_OPTIONS = 40  # of a rule, with those of the rules that end it: an automaton written as rules may have 2**n
_N_MORE = 100  # nodes of a rule without recursion than twice those with it: many rules that end with each other grow fast

Rules = Mapping[str, Node]


def size(node: Node) -> int:
    """The number of a tree's nodes."""
    return 1 + sum(map(size, children(node)))


def least(rules: Rules, holds: Callable[[Node, set[str]], bool]) -> set[str]:
    """The rules of which something holds, given those of which it holds."""
    known, order = set[str](), [*rules]
    while found := [name for name in order if name not in known and holds(rules[name], known) and not known.add(name)]:  # type: ignore[func-returns-value]
        order = [name for name in reversed(order) if name not in found]
    return known


def _has_text(node: Node, known: set[str], *, is_character: bool) -> bool:
    """Whether a node has a text of given parts: rules, and characters or none."""
    match node:
        case Reference(name):
            return name in known
        case Sequence(parts):
            return all(_has_text(part, known, is_character=is_character) for part in parts)
        case Alternatives(options):
            return any(_has_text(option, known, is_character=is_character) for option in options)
        case Repetition(part, least):
            return least == 0 or _has_text(part, known, is_character=is_character)
    return is_character


is_empty = partial(_has_text, is_character=False)
"""Whether a node may be the empty text."""

has_end = partial(_has_text, is_character=True)
"""Whether a node has a text with an end."""


def without_recursion_at_ends(rules: Rules) -> dict[str, Node]:
    """Rules of the same meaning, of which as few as possible begin or end with themselves."""
    found, empty, users = dict(rules), least(rules, is_empty), _users(rules)
    for name in rules:
        options = list(islice(_told_apart(found[name], name, found, _leading_to(name, users)), _N_OPTIONS + 1))
        if len(options) > _N_OPTIONS:
            continue
        looped = _looped(name, [half for option in options for half in _halves(option, name, empty)])
        if looped and sum(map(size, looped.values())) <= 2 * size(found[name]) + _N_MORE:
            found |= looped
            users = _users(found)
    return found


def _users(rules: Rules) -> Mapping[str, set[str]]:
    """The rules that end with each."""
    users = defaultdict[str, set[str]](set)
    for name, node in rules.items():
        for last in _last_rules(node):
            users[last].add(name)
    return users


def _leading_to(name: str, users: Mapping[str, set[str]]) -> set[str]:
    """The rules that may end with a rule, itself included."""
    found, waiting = {name}, [name]
    while waiting:
        new = users[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def _looped(name: str, options: list[tuple[Node, ...]]) -> dict[str, Node]:
    """A rule of some alternatives without itself at its ends, perhaps with a rule for what stands between others.

    Its texts are operands with operators between them; an operand has prefixes, a text of another alternative, and suffixes.
    """
    kinds: dict[tuple[bool, bool], list[Node]] = {(first, last): [] for first in (False, True) for last in (False, True)}
    for option in options:
        is_first, is_last = (bool(option) and _is_rule(option[at], name) for at in (0, -1))
        if len(option) > 1 or not is_first:
            kinds[is_first, is_last].append(Sequence(option[is_first : len(option) - is_last]))
    others, prefixes, suffixes, operators = kinds.values()
    if not others or not (prefixes or suffixes or operators):
        return {}
    operand = Sequence((*_any_of(prefixes), _one_of(others), *_any_of(suffixes)))
    if not operators:
        return {name: operand}
    part = Reference(f"{name} operand", 0)  # which no rule of a grammar is named
    return {part.name: operand, name: Sequence((part, Repetition(Sequence((_one_of(operators), part)), 0, None)))}


def _any_of(options: list[Node]) -> tuple[Node, ...]:
    return (Repetition(_one_of(options), 0, None),) if options else ()


def _one_of(options: Iterable[Node]) -> Node:
    parts = tuple(options)
    return parts[0] if len(parts) == 1 else Alternatives(parts) if parts else Sequence(())


def _is_rule(node: Node, name: str) -> bool:
    return isinstance(node, Reference) and node.name == name


def _last_rules(node: Node) -> set[str]:
    """The rules that a node may end with, as far as they are told apart."""
    match node:
        case Reference(name):
            return {name}
        case Sequence((*_, last)):
            return _last_rules(last)
        case Alternatives(options):
            return set[str]().union(*map(_last_rules, options))
        case Repetition(part, 0, 1):
            return _last_rules(part)
    return set()


def _told_apart(node: Node, name: str, rules: Rules, leading: set[str]) -> Iterator[tuple[Node, ...]]:
    """The alternatives that a node is, as parts; at its end also those of rules that lead to the rule of that name."""
    match node:
        case Alternatives(options):
            for option in options:
                yield from _told_apart(option, name, rules, leading)
        case Sequence((*before, last)) if _last_rules(last) & leading:
            for parts in _told_apart(last, name, rules, leading):
                yield (*before, *parts)
        case Sequence(parts):
            yield parts
        case Repetition(part, 0, 1) if _last_rules(part) & leading:
            yield ()
            yield from _told_apart(part, name, rules, leading)
        case Reference(other) if other != name and other in leading:
            yield from _told_apart(rules[other], name, rules, leading - {other})
        case _:
            yield (node,)


def _halves(option: tuple[Node, ...], name: str, empty: set[str]) -> Iterator[tuple[Node, ...]]:
    """An alternative; of one with the rule between parts that may be empty, the rule after and before them instead."""
    at = next((at for at, part in enumerate(option) if _is_rule(part, name)), None)
    if at is not None and all(is_empty(part, empty) for part in (*option[:at], *option[at + 1 :])):
        yield option[: at + 1]
        option = option[at:]
    yield option


class Loops:
    """Joins the characters among the alternatives of each repetition without an end."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._empty = least(rules, is_empty)
        self._simple = {name for name, node in rules.items() if self._is_simple(node)}

    def prepared(self, node: Node) -> Node:
        """A tree of the same meaning, of which no node is another's."""
        match node:
            case Sequence(parts):
                return Sequence(tuple(map(self.prepared, parts)))
            case Alternatives(options):
                return Alternatives(tuple(map(self.prepared, options)))
            case Repetition(part, least, None) if least <= 1:
                return Repetition(self._joined(part), 0 if is_empty(part, self._empty) else least, None)
            case Repetition(part, least, most) if 0 < least <= _N_UNROLLED and _is_text(self._resolved(part)):
                rest = Repetition(part, 0, None if most is None else most - least)
                return Sequence((*(self.prepared(part) for _ in range(least)), self.prepared(rest)))
            case Repetition(part):
                return evolve(node, part=self.prepared(part))
        return evolve(self._resolved(node))

    def _joined(self, part: Node) -> Node:
        """What is repeated without an end, with its characters as one alternative."""
        options = tuple(self._options(part))
        ranges = [each for option in options if isinstance(option, Characters) and _is_text(option) for each in option.ranges]
        loop = (Characters(tuple(sorted(ranges)), repeats=True),) if ranges else ()
        return _one_of((*loop, *(self.prepared(option) for option in options if not _is_text(option))))

    def _resolved(self, node: Node) -> Node:
        """What a node is: for a rule of one character that character."""
        if isinstance(node, Reference) and isinstance(found := self._rules[node.name], Characters):
            return found
        return node

    def _is_simple(self, node: Node) -> bool:
        """Whether a node refers to no rules but those of one character."""
        found = self._resolved(node)
        return not isinstance(found, Reference) and all(map(self._is_simple, children(found)))

    def _options(self, node: Node) -> Iterator[Node]:
        """The alternatives of what is repeated; those that may be empty are left out alone, so `(a* | b? c*)*` has a, b, c."""
        match self._resolved(node):
            case Alternatives(parts):
                pass
            case Sequence(parts) if all(is_empty(part, self._empty) for part in parts):
                pass
            case Repetition(part, 0 | 1, most) if most != 0:
                parts = (part,)
            case Reference(name) if name in self._simple:
                parts = (self._rules[name],)
            case found:
                yield found
                return
        for part in parts:
            yield from self._options(part)


def _is_text(node: Node) -> bool:
    return isinstance(node, Characters) and node.token is None
