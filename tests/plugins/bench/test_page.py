"""The page: what is in it, that it needs nothing from outside, and that no text of a model becomes markup."""

import re
from html.parser import HTMLParser

import pytest
from attrs import evolve
from support.pairs import pair

from augury.plugins.bench.page import page
from augury.plugins.bench.pair_stats import DrafterResult
from augury.speculation.chances import Bucket
from augury.speculation.trials import Trial
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


def shown(*results):
    return page({"model": "a <model>", "cpu": "some & other"}, results)


def pieces(*texts):
    return [Token(number, text, drafter) for number, (text, drafter) in enumerate(texts)]


@pytest.fixture
def two():
    texts = pieces(("Once ", None), ("upon ", "ngram"), ("a ", "ngram"), ("time", None))
    first = pair(name="p", category="writing", pieces=texts)
    return [
        DrafterResult("ngram:n=3", "cold", (first, pair(name="q", category="code-edit"))),
        DrafterResult("draft", "warm", (pair(category="writing", rounds=((0, 0), (0, 0))),)),
    ]


def test_it_shows_speeds_by_category_and_drafter(two):
    texts = Reader(shown(*two)).texts
    for expected in ("writing", "code-edit", "ngram:n=3", "draft (warm)", "plain 1 tok/s", "3.00x", "67%", "A", "B"):
        assert expected in texts


def drawn(text):
    """Labels of the pictures in their order, with the drafter of each bar."""
    return re.findall(r'<svg[^>]* aria-label="([^"]*)"', text)


def test_it_opens_with_one_chart_of_speed_ups(two):
    text = shown(*two)
    assert drawn(text) == [
        "Speed-ups by category and drafter",
        *["Draft lengths, round by round"] * 3,
        "Acceptance by position of ngram:n=3",
    ]
    chart = text[text.index("<svg") : text.index("</svg>")]
    assert "<h2" not in text[: text.index("<svg")]
    assert re.findall(r"<title>(.*?), [\d.]+ instead", chart) == [
        "ngram:n=3, writing: 3.00x",
        "draft (warm), writing: 3.00x",
        "ngram:n=3, code-edit: 3.00x",
    ]


def test_bars_start_where_nothing_is_gained_and_end_at_the_speed_up():
    text = shown(DrafterResult("x", "cold", (pair(2.0, 1.0, category="a"), pair(1.0, 2.0, category="b"))))
    places = {
        mark: float(place) for place, mark in re.findall(r'<text class="faint middle" x="([\d.]+)%" y="\d+">([\d.]+)x<', text)
    }
    bars = re.findall(r'<rect class="own( slower)?" x="([\d.]+)%" y="\d+" width="([\d.]+)%" height="14"', text)
    assert [(slower, float(x), float(x) + float(width)) for slower, x, width in bars] == [
        ("", places["1"], pytest.approx(places["2"], abs=0.02)),
        (" slower", pytest.approx(places["0.5"], abs=0.02), pytest.approx(places["1"], abs=0.02)),
    ]


@pytest.mark.parametrize("drafted_s", [0.002, 0.2, 2.9, 3.0, 40.0])
def test_one_is_marked_at_any_scale(drafted_s):
    most = round(6.0 / drafted_s) + 1  # tokens a round, so that no plain run looks stalled
    text = shown(DrafterResult("x", "cold", (pair(3.0, drafted_s, rounds=((0, 0), (most, most)), tokens=range(most + 2)),)))
    marks = re.findall(r'y="\d+">([\d.]+)x</text>', text)
    assert "1" in marks
    assert 1 < len(marks) <= 8
    assert all(0 <= float(x) <= 100 for x in re.findall(r' x[12]?="([\d.]+)%"', text))


def test_the_first_text_is_open(two):
    text = shown(*two)
    assert re.findall(r"<details( open)?>", text) == [" open", "", ""]


def test_it_fits_a_narrow_screen(two):
    """Pictures are as wide as the page; only where there are many rounds they scroll."""
    read = Reader(shown(*two))
    assert ("name", "viewport") in read.attributes
    assert not [
        value for name, value in read.attributes if name in {"viewBox", "width"} and not value.endswith("%") and value != "16"
    ]


def test_pairs_that_stalled_are_marked():
    text = shown(DrafterResult("x", "cold", (evolve(pair(9.0, 1.0), n_repeated=3),)))
    assert "3 plain runs, slower than rounds that draft and verify, were repeated; 1 pairs stalled each time" in text
    assert "no speed" in text
    assert "1 stalled" in text


def test_it_shows_acceptance_by_position_and_draft_lengths(two):
    text = shown(*two)
    assert "token 3: 0% of 2" in text
    assert "token 2: 100% of 2" in text
    assert "It drafted nothing." in text
    assert "round 1: 3 drafted, 2 accepted" in text


def test_tokens_have_the_colour_of_their_drafter():
    texts = pieces(("Once ", None), ("upon ", "ngram"), ("a ", "ngram"), ("time", None))
    text = shown(DrafterResult("x", "cold", (pair(),)), DrafterResult("ngram:n=3", "cold", (pair(pieces=texts),)))
    (colour,) = re.findall(r'Once <span class="(c\d)" title="ngram">upon a </span>time', text)
    assert f'<span class="letter {colour}">B</span><span>ngram:n=3</span>' in text


def test_a_chain_s_drafters_have_the_colours_that_they_have_alone():
    chain = DrafterResult("a;b;c", "cold", (pair(pieces=pieces(("x", "b"), ("y", "c"), ("z", None))),))
    text = shown(chain, DrafterResult("b", "cold", (pair(pieces=pieces(("x", "b"), ("z", None))),)))
    assert '<span class="c1"><span class="box"></span> b</span>' in text
    assert '<span class="c2"><span class="box"></span> c</span>' in text
    assert text.count('<span class="c1" title="b">x</span>') == 2


def reliable(*trials, spec_type="a;b"):
    return DrafterResult(spec_type, "cold", (evolve(pair(), trials=trials),))


def test_it_shows_whether_chances_are_true():
    first, second = Bucket("evidence 0", 0.5), Bucket("confidence 0.3 to 0.4", 0.35)
    trials = [Trial(0.45, is_right, {"a": first}) for is_right in (True, False, False, False)]
    text = shown(reliable(*trials, Trial(0.35, True, {"b": second})))
    labels = [f"Right tokens by chance, a;b: {name}" for name in ("together", "a", "b")]
    assert drawn(text)[-3:] == labels
    assert text.count("chance 0.4 to 0.5, 0.45 on average: 0.25 of 4 tokens right") == 2
    chart = text[text.index(f'aria-label="{labels[1]}"') :]
    x, y, height = map(
        float, re.search(r'<rect class="own" x="([\d.]+)%" y="([\d.]+)" width="8.5%" height="([\d.]+)"', chart).groups()
    )
    assert (x, y, height) == (40, 85, 25), "a fourth of the height, in the fifth of ten columns"
    assert '<line class="mark" x1="40.0%" y1="65.0" x2="48.5%" y2="65.0"/>' in chart
    for row in ("<td>a</td><td>evidence 0</td><td>0.500</td><td>0.250</td><td>4</td>", "<td>confidence 0.3 to 0.4</td>"):
        assert row in text


def test_of_one_drafter_chances_are_shown_once():
    text = shown(reliable(Trial(0.45, True, {"a": Bucket("any", 0.5)}), spec_type="a"))
    assert drawn(text)[-1:] == ["Right tokens by chance, a: a"]
    assert "Nothing was proposed with a chance." in shown(reliable())


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
    result = DrafterResult(evil, "cold", (pair(name=evil, category=evil, pieces=texts),))
    text = shown(result)
    assert "script" not in Reader(text).tags
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 5


def test_without_a_tokenizer_it_shows_token_ids():
    assert ">2 3 </span>4 " in shown(DrafterResult("x", "cold", (pair(),)))


def test_a_changed_output_is_not_hidden():
    text = shown(DrafterResult("x", "cold", (pair(tokens=(1, 2, 3, 9)),)))
    assert "A drafter changed the output" in text
    assert "differs from plain decoding" in text
    assert "changed the output" not in shown(DrafterResult("x", "cold", (pair(),)))


def test_more_drafters_than_colours_are_no_error():
    text = shown(*(DrafterResult(f"x:n={n}", "cold", (pair(),)) for n in range(20)))
    assert "x:n=19" in text
