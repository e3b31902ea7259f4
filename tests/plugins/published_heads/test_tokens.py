"""Tokens are read from SentencePiece's files as its trainer writes them."""

from io import BytesIO

import pytest
from sentencepiece import SentencePieceTrainer

from augury.errors import ModelFileError
from augury.plugins.published_heads.folder import Folder


def tokens_of(path, content):
    (path / "config.json").write_text("{}")
    (path / "tokenizer.model").write_bytes(content)
    return Folder(path).tokens()


def test_the_texts_of_tokens_are_in_their_order(tmp_path):
    written = BytesIO()
    texts = ["the cat sat on the mat", "a cat, the mat"]
    more = {
        "vocab_size": 280,
        "hard_vocab_limit": False,
        "byte_fallback": True,
        "user_defined_symbols": ["<tool>"],
        "minloglevel": 2,
    }
    SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=written, model_type="bpe", **more)
    found = tokens_of(tmp_path, written.getvalue())
    assert found[:6] == ["<unk>", "<s>", "</s>", "<tool>", "<0x00>", "<0x01>"]
    assert {"\u2581the", "at", "\u2581"} <= set(found[260:])


@pytest.mark.parametrize("content", [b"", b"\x0a\x7fx", b"\xff", b"PK\x03\x04"])
def test_what_is_no_such_file_is_refused(tmp_path, content):
    with pytest.raises(ModelFileError, match=r"tokenizer.model: it has no tokens by id .*remove it"):
        tokens_of(tmp_path, content)
