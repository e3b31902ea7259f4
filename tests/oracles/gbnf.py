"""What a grammar describes, found by trying everything: the oracle of what becomes of GBNF.

A node is a tuple: `("one", characters)`, `("other", characters)`, `("any",)`, `("rule", name)`, `("all", *nodes)`,
`("either", *nodes)`, or `("times", node, least, most)` with None for no end.
"""

import json

_ESCAPES = {"\n": r"\n", "\\": r"\\", "]": r"\]", "[": r"\[", "-": r"\-", "é": r"\u00E9", "😀": r"\U0001F600"}


def describes(rules, text):
    """Whether the rule `root` describes the whole text; left recursion is no matter."""
    ends, n = {(name, start): set() for name in rules for start in range(len(text) + 1)}, -1
    while n != (n := sum(map(len, ends.values()))):
        for (name, start), found in ends.items():
            found.update(_ends(rules[name], text, start, ends))
    return len(text) in ends["root", 0]


def _ends(node, text, start, known):
    """Where a node may end that begins at `start`."""
    kind, *rest = node
    if kind in ("one", "other", "any"):
        fits = start < len(text) and (kind == "any" or (text[start] in rest[0]) == (kind == "one"))
        return {start + 1} if fits else set()
    if kind == "rule":
        return known[rest[0], start]
    if kind == "either":
        return set().union(*(_ends(each, text, start, known) for each in rest))
    if kind == "all":
        found = {start}
        for each in rest:
            found = {end for before in found for end in _ends(each, text, before, known)}
        return found
    part, least, most = rest
    found, now = {start} if least == 0 else set(), {start}
    for n in range(1, (least + len(text) + 1 if most is None else most) + 1):
        now = {end for before in now for end in _ends(part, text, before, known)}
        found |= now if n >= least else set()
    return found


def written(node):
    """A node as GBNF."""
    kind, *rest = node
    if kind in ("one", "other"):
        return f"[{'^' * (kind == 'other')}{''.join(_ESCAPES.get(each, each) for each in rest[0])}]"
    if kind in ("any", "rule"):
        return rest[0] if rest else "."
    if kind == "either":
        return f"({' | '.join(map(written, rest))})"
    if kind == "all":
        if rest and all(each[0] == "one" and len(each[1]) == 1 for each in rest):
            return json.dumps("".join(each[1] for each in rest), ensure_ascii=False)
        return f"({' '.join(map(written, rest))})"
    part, least, most = rest
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    return written(part) + short.get((least, most), f"{{{least},{'' if most is None else most}}}")
