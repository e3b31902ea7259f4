import pytest
import vocabularies
from hypothesis import given
from hypothesis import strategies as st

from augury.text.stream import StreamDecoder


@pytest.mark.parametrize("name", vocabularies.NAMES)
@given(data=st.data(), skip_special=st.booleans(), continues=st.booleans())
def test_pieces_joined_are_the_whole_decoded_for_any_tokens(name, data, skip_special, continues):
    tokenizer = vocabularies.tokenizer(name)
    ids = data.draw(st.lists(st.integers(0, min(tokenizer.n_vocab, 600) - 1) | st.integers(0, tokenizer.n_vocab - 1)))
    decoder = StreamDecoder(tokenizer, skip_special=skip_special, continues=continues)
    pieces = [*map(decoder.push, ids), decoder.flush()]
    assert "".join(pieces) == tokenizer.decode(ids, skip_special=skip_special, continues=continues)
    shown = [token for token in ids if not (skip_special and tokenizer.is_special(token))]
    raw = b"".join(map(tokenizer.piece, shown)).decode(errors="replace")
    assert "".join(pieces) in (raw, raw.removeprefix(" "))  # the space that encoding puts in front


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "user-defined"])
@given(text=st.text(st.characters(exclude_characters="\ufffd▁", exclude_categories=["Cs"])))
def test_half_a_character_is_never_shown(name, text):
    tokenizer = vocabularies.tokenizer(name)
    decoder = StreamDecoder(tokenizer, continues=False)
    pieces = [decoder.push(token) for token in tokenizer.encode(text)]
    assert "\ufffd" not in "".join(pieces)
    assert decoder.flush() == ""
    assert "".join(pieces) == text


def test_the_bytes_of_an_emoji_come_out_together():
    tokenizer = vocabularies.tokenizer("gpt-2")
    ids = tokenizer.encode("👩‍👧")
    decoder = StreamDecoder(tokenizer)
    assert len(ids) > 3
    assert [piece for piece in map(decoder.push, ids) if piece] == ["👩", "\u200d", "👧"]


def test_a_character_that_is_never_completed_shows_at_the_end():
    tokenizer = vocabularies.tokenizer("llama-spm")
    decoder = StreamDecoder(tokenizer)
    assert decoder.push(3 + 0xF0) == ""
    assert decoder.push(3 + 0x9F) == ""
    assert decoder.flush() == "\ufffd"
