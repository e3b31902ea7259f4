"""A head's tokens are compared with its target's, where both name them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from augury.errors import UnsupportedError
from augury.files.gguf import ModelFile
from augury.files.mtp_file import TOKENS, check_tokens

TEXTS = [f"t{i}" for i in range(20)]


def a_file(tokens, **metadata):
    return ModelFile(Path("head.gguf"), (), 0, {TOKENS: tokens, **metadata}, {}, (), b"")


TYPES = np.array([1] * 5 + [3, 4, 5] + [6] * 12)
TARGET = a_file(TEXTS, **{"tokenizer.ggml.token_type": TYPES})


@pytest.mark.parametrize("head", [TEXTS, [], TEXTS[:9], [*TEXTS, "more"], [*TEXTS[:9], "", *TEXTS[10:]]])
def test_the_same_tokens_and_those_without_a_text_fit(head):
    check_tokens(TARGET, a_file(head))


@pytest.mark.parametrize("token", [0, 4, 8, 19])
def test_the_first_token_of_another_text_is_named(token):
    texts = [*TEXTS[:token], *(f"other {i}" for i in range(token, 20))]
    with pytest.raises(UnsupportedError, match=rf"head\.gguf: token {token} is 't{token}' .* 'other {token}' to the head"):
        check_tokens(TARGET, a_file(texts))
    with pytest.raises(UnsupportedError, match=r"\(it was trained for someone/model\)"):
        check_tokens(TARGET, a_file(texts, **{"general.base_model.0.name": "someone/model"}))


def test_control_tokens_may_have_other_names():
    check_tokens(TARGET, a_file([*TEXTS[:5], "<a>", "<b>", "<c>", *TEXTS[8:]]))
    with pytest.raises(UnsupportedError, match="token 5 is 't5'"):
        check_tokens(a_file(TEXTS), a_file([*TEXTS[:5], "<a>", *TEXTS[6:]]))
