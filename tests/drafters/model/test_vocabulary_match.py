import re

import pytest
from attrs import evolve, field, frozen

from augury.drafters.model.translation import size_difference, tokenizer_difference


@frozen
class Tokens:
    texts: tuple = tuple(f"t{i}" for i in range(300))
    kind: str = "gpt2"
    bos: int | None = 1
    eos: int | None = 2
    add_bos: bool = True
    add_eos: bool = False
    n_vocab: int = field(init=False)

    def __attrs_post_init__(self):
        object.__setattr__(self, "n_vocab", len(self.texts))

    def text(self, token):
        return self.texts[token]


TARGET = Tokens()


@pytest.mark.parametrize(
    "draft",
    [
        TARGET,
        evolve(TARGET, texts=TARGET.texts[:-128]),
        evolve(TARGET, texts=TARGET.texts + tuple(f"<pad{i}>" for i in range(128))),
        evolve(TARGET, texts=("<a>", "<b>", "<c>", "<d>", "<e>", *TARGET.texts[5:])),
        evolve(TARGET, eos=7),  # never added to a text
    ],
    ids=["the same", "less padding", "more padding", "control tokens", "another eos"],
)
def test_vocabularies_that_mean_the_same_match(draft):
    assert tokenizer_difference(TARGET, draft) is None
    assert tokenizer_difference(draft, TARGET) is None


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (evolve(TARGET, kind="llama"), "kind 'gpt2', the draft model's 'llama'"),
        (evolve(TARGET, bos=3), r"bos token is 1 \('t1'\), the draft model's 3 \('t3'\)"),
        (evolve(TARGET, add_bos=False), r"bos token is 1 \('t1'\), the draft model's none"),
        (evolve(TARGET, add_eos=True), r"eos token is none, the draft model's 2 \('t2'\)"),
        (evolve(TARGET, texts=TARGET.texts[:171]), "300 tokens and the draft model 171"),
        (evolve(TARGET, texts=(*TARGET.texts[:5], "x", "y", *TARGET.texts[7:])), "token 5 is 't5' to the target and 'x'"),
        (evolve(TARGET, texts=(*TARGET.texts[:299], "x")), "token 299 is 't299' to the target and 'x'"),
    ],
    ids=["kind", "bos", "add_bos", "add_eos", "size", "first of two", "last"],
)
def test_the_first_difference_is_reported(draft, message):
    assert re.search(message, tokenizer_difference(TARGET, draft))


def test_sizes_may_differ_by_padding_alone():
    assert size_difference(1000, 1128) is None
    assert size_difference(1128, 1000) is None
    assert "1000 tokens and the draft model 1129" in size_difference(1000, 1129)
