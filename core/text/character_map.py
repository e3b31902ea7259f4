"""SentencePiece's compiled maps from texts to their replacements, as Unigram vocabularies normalise with."""

from __future__ import annotations

import numpy as np

from augury.errors import ModelFileError

_N_NODES = 1 << 15  # at once: maps of Unicode's normal forms have 5000, and a damaged one could have endlessly many
_DAMAGED = "tokenizer.ggml.precompiled_charsmap is damaged: {}; convert the model again"


class CharacterMap:
    """A map from texts to their replacements, as SentencePiece compiles it.

    It is the length of a double-array trie (4 bytes, little-endian), the trie, and the texts that its values point to. A unit
    of the trie holds the byte that leads to it (bits 0 to 7), whether a value follows (8), and where its children are, to be
    combined with their bytes by exclusive or (10 to 30, in steps of 256 if bit 9 is set); a value has bit 31 set.

    Attributes:
        single: replacements of single characters, for `str.translate`.
        heads: characters that begin a longer text that is replaced.
        followers: characters that are second in one.

    Raises:
        ModelFileError: it is damaged.
    """

    def __init__(self, charsmap: bytes) -> None:
        n_bytes = int.from_bytes(charsmap[:4], "little")
        if len(charsmap) <= 4 + n_bytes or n_bytes < 4:
            raise ModelFileError(_DAMAGED.format(f"it has {len(charsmap)} bytes, expected more than {4 + n_bytes}"))
        self._units = np.frombuffer(charsmap, "<u4", n_bytes // 4, 4)
        self._texts = charsmap[4 + n_bytes :]
        root = _children_of(self._units[:1])
        firsts = self._characters(root)
        self.single = {ord(character): self._text(node) for character, node, has_value in firsts if has_value}
        nodes = np.array([node for _, node, _ in firsts], np.uint32)
        goes_on = np.any(self._step(nodes)[1], axis=1).tolist()
        self.heads = {character for (character, _, _), more in zip(firsts, goes_on, strict=True) if more}
        self.followers = {character for character, _, _ in self._characters(np.unique(nodes))}

    def longest(self, text: str, at: int) -> tuple[int, str]:
        """How many characters from here are replaced together, and by what; 0 if none."""
        node, found, end = int(_children_of(self._units[:1])[0]), (0, ""), at
        while end < len(text):
            for byte in text[end].encode():
                node ^= byte
                if byte == 0 or node >= len(self._units) or (unit := int(self._units[node])) & 0x800000FF != byte:
                    return found
                node ^= (unit >> 10) << ((unit & (1 << 9)) >> 6)
            end += 1
            if unit & (1 << 8):
                found = end - at, self._text(node)
        return found

    def _characters(self, nodes: np.ndarray) -> list[tuple[str, int, bool]]:
        """The characters that go on from these nodes, the nodes that they lead to, and whether these have a value."""
        found, starts = [], [b""] * len(nodes)
        for _ in range(4):
            children, leads = self._step(nodes)
            _check_width(int(np.count_nonzero(leads)))
            parents, steps = np.nonzero(leads)
            units = self._units[children[leads]]
            starts = [starts[parent] + bytes([step + 1]) for parent, step in zip(parents.tolist(), steps.tolist(), strict=True)]
            nodes = children[leads] ^ _children_of(units)
            is_whole = np.array([_is_character(start) for start in starts], bool)
            has_value = (units & (1 << 8)) != 0
            found += [
                (starts[which].decode(), int(nodes[which]), bool(has_value[which]))
                for which in np.flatnonzero(is_whole).tolist()
            ]
            starts = [start for start, whole in zip(starts, is_whole.tolist(), strict=True) if not whole]
            nodes = nodes[~is_whole]
        return found

    def _step(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the bytes 1 to 255 lead from nodes, (n, 255), and whether they are children."""
        _check_width(len(nodes))
        bytes_ = np.arange(1, 256, dtype=np.uint32)
        children = nodes[:, None] ^ bytes_
        is_inside = children < len(self._units)
        return children, is_inside & ((self._units[np.where(is_inside, children, 0)] & 0x800000FF) == bytes_)

    def _text(self, node: int) -> str:
        """The replacement that a node's value points to."""
        start = int(self._units[node]) & 0x7FFFFFFF if node < len(self._units) else len(self._texts)
        if (end := self._texts.find(b"\0", start)) < 0:
            raise ModelFileError(_DAMAGED.format("a replacement lies outside"))
        return self._texts[start:end].decode(errors="replace")


def _children_of(units: np.ndarray) -> np.ndarray:
    """Where the children of units are, relative to them."""
    return (units >> 10) << ((units & (1 << 9)) >> 6)


def _check_width(n: int) -> None:
    if n > _N_NODES:
        raise ModelFileError(_DAMAGED.format(f"its trie has more than {_N_NODES} branches"))


def _is_character(raw: bytes) -> bool:
    try:
        return len(raw.decode()) == 1
    except UnicodeDecodeError:
        return False
