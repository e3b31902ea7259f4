"""Tokens are read from SentencePiece's files as these are defined."""

import pytest

from augury.errors import ModelFileError
from augury.plugins.published_heads.folder import Folder


def number(value):
    """A number as protocol buffers store it."""
    low, more = value & 127, value >> 7
    return bytes([low | 128]) + number(more) if more else bytes([low])


def field(name, content):
    return number(name << 3 | 2) + number(len(content)) + content


def written(path, content):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text("{}")
    (path / "tokenizer.model").write_bytes(content)
    return Folder(path)


def test_the_texts_of_tokens_are_in_their_order(tmp_path):
    texts = ["<unk>", "\u2581the", "<0x0A>", "x" * 300]
    score, kind = number(2 << 3 | 5) + bytes(4), number(3 << 3) + number(6)
    made = b"".join(field(1, score + field(1, text.encode()) + kind) for text in texts)
    assert written(tmp_path / "head", made + field(2, field(1, b"a setting"))).tokens() == texts


@pytest.mark.parametrize("content", [b"\x0a\x7fx", b"\xff", b"PK\x03\x04", field(1, field(1, b"\xff"))])
def test_what_is_no_such_file_is_refused(tmp_path, content):
    with pytest.raises(ModelFileError, match=r"tokenizer.model: no tokens by id .*remove it"):
        written(tmp_path / "head", content).tokens()
