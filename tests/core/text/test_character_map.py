"""Maps of characters, whole and damaged; that they do what llama.cpp does is tested with the tokenizers that have one."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support import vocabularies

from augury.errors import ModelFileError
from augury.text.unigram import CharacterMap

WHOLE = bytes(vocabularies.read("unigram")["tokenizer.ggml.precompiled_charsmap"])
TEXT = "A\u030a\u0301e\u0302\u0301C\u0327か\u3099x"


def test_the_longest_text_is_replaced():
    found = CharacterMap(WHOLE)
    assert (found.single[ord("…")], found.single[0xFB01]) == ("...", "fi")
    assert found.longest(TEXT, 0) == (3, "Ǻ")
    assert found.longest(TEXT, 3) == (3, "ế")
    assert found.longest(TEXT, len(TEXT) - 1) == (0, "")
    assert {"A", "e"} <= found.heads
    assert {"\u030a", "\u0302"} <= found.followers
    assert "x" not in found.heads


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=40), st.integers(0, len(WHOLE)))
def test_a_damaged_map_is_an_error_or_another_map(changes, size):
    raw = bytearray(WHOLE)
    for at, byte in changes:
        raw[at] = byte
    with suppress(ModelFileError):
        found = CharacterMap(bytes(raw[:size]))
        for at in range(len(TEXT)):
            found.longest(TEXT, at)


def test_a_trie_that_branches_everywhere_is_refused():
    units = np.zeros(512, "<u4")
    units[0] = 256 << 10
    units[256:] = [byte << 10 | byte for byte in range(256)]  # whatever byte comes, the same 255 come after it
    raw = len(units.tobytes()).to_bytes(4, "little") + units.tobytes() + b"x\0"
    with pytest.raises(ModelFileError, match="precompiled_charsmap is damaged: its trie has more than 32768 branches"):
        CharacterMap(raw)
