"""The page: what is in it, that it needs nothing from outside, and that no text of a model becomes markup."""

import re
from html.parser import HTMLParser

import pytest
from pairs import pair

from augury.bench.outcome import Outcome
from augury.bench.page import page
from augury.types import Token

VOID = {"meta"}


class Reader(HTMLParser):
    """Checks nesting; collects tags, attributes and texts."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def shown(*outcomes):
    return page({"model": "a <model>", "cpu": "some & other"}, outcomes)


def pieces(*texts):
    return [Token(number, text, drafter) for number, (text, drafter) in enumerate(texts)]


@pytest.fixture
def two():
    texts = pieces(("Once ", None), ("upon ", "ngram"), ("a ", "ngram"), ("time", None))
    return [
        Outcome("ngram:n=3", "cold", (pair(name="p", category="writing", pieces=texts), pair(name="q", category="code-edit"))),
        Outcome("draft", "warm", (pair(category="writing", rounds=((0, 0), (0, 0))),)),
    ]


def test_it_shows_speeds_by_category_and_drafter(two):
    texts = Reader(shown(*two)).texts
    for expected in ("writing", "code-edit", "ngram:n=3", "draft (warm)", "plain", "3.00x", "67%"):
        assert expected in texts


def test_it_shows_acceptance_by_position_and_draft_lengths(two):
    text = shown(*two)
    assert "token 3: 0% of 2" in text
    assert "token 2: 100% of 2" in text
    assert "It drafted nothing." in text
    assert "round 1: 3 drafted, 2 accepted" in text


def test_tokens_have_the_colour_of_their_drafter(two):
    text = shown(*two)
    (colour,) = re.findall(r'Once <span class="(c\d)" title="ngram">upon a </span>time', text)
    assert f'<span class="{colour}"><span class="box"></span> ngram</span>' in text


def test_it_needs_nothing_from_outside(two):
    text = shown(*two)
    read = Reader(text)
    assert not {"script", "link", "img", "iframe"} & set(read.tags)
    assert not [name for name, _ in read.attributes if name in {"src", "href", "srcset"} or name.startswith("on")]
    assert "http" not in text.replace("http-equiv", "")
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text


def test_whatever_was_written_is_escaped():
    evil = '<script>alert("1")</script>&amp;'
    texts = pieces((evil, None), (evil, evil))
    outcome = Outcome(evil, "cold", (pair(name=evil, category=evil, pieces=texts),))
    text = shown(outcome)
    assert "script" not in Reader(text).tags
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 5


def test_without_a_tokenizer_it_shows_token_ids():
    assert ">2 3 </span>4 " in shown(Outcome("x", "cold", (pair(),)))


def test_a_changed_output_is_not_hidden():
    text = shown(Outcome("x", "cold", (pair(tokens=(1, 2, 3, 9)),)))
    assert "A drafter changed the output" in text
    assert "differs from plain decoding" in text
    assert "changed the output" not in shown(Outcome("x", "cold", (pair(),)))


def test_more_drafters_than_colours_are_no_error():
    text = shown(*(Outcome(f"x:n={n}", "cold", (pair(),)) for n in range(20)))
    assert "x:n=19" in text
