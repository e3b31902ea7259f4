from hypothesis import given, strategies as st

from augury.text.special_token import Partition


def by_definition(text, tokens, strips_right):
    """Each token in turn, the longest first, in all pieces of text that are left."""
    parts = [text]
    for needle, token in sorted(tokens, key=lambda entry: (-len(entry[0].encode()), entry[1])):
        cut = []
        for part in parts:
            rest = part
            while isinstance(rest, str) and needle in rest:
                before, _, rest = rest.partition(needle)
                cut += [before, token]
                if token in strips_right:
                    rest = rest.lstrip(" \t\n\v\f\r")
            cut.append(rest)
        parts = cut
    return [part for part in parts if part != ""]


@given(
    text=st.text("ab<é \n"),
    needles=st.sets(st.text("ab<é \n", min_size=1, max_size=4), max_size=8),
    strips=st.sets(st.integers(0, 7)),
)
def test_text_is_cut_at_the_longest_tokens_first(text, needles, strips):
    tokens = [(needle, number) for number, needle in enumerate(sorted(needles))]
    assert Partition(tokens, strips_right=strips).cut(text) == by_definition(text, tokens, strips)


def test_thousands_of_tokens_are_looked_for_quickly():
    tokens = [(f"<unused{number}>", number) for number in range(6000)]
    text = "a line of text <unused5999>, 1 < 2, <ul>\n" * 10_000
    parts = Partition(tokens).cut(text)
    assert parts.count(5999) == 10_000
    assert len(parts) == 20_001
