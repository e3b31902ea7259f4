from hypothesis import given
from hypothesis import strategies as st

from augury.text import TextStream


class Letters:
    """A tokenizer for which token i is the letter i, or the two halves of one character for tokens 98 and 99."""

    halves = "é".encode()

    def piece(self, token):
        return self.halves[token - 98 : token - 97] if token >= 98 else chr(97 + token).encode()

    def is_special(self, token):
        return False


class Decoder:
    def __init__(self):
        self.held = b""

    def push(self, token):
        self.held += Letters().piece(token)
        try:
            text = self.held.decode()
        except UnicodeDecodeError:
            return ""
        self.held = b""
        return text

    def flush(self):
        return self.held.decode(errors="replace")


def stream_of(*stops):
    stream = TextStream(None, stops)
    stream._decoder = Decoder()
    return stream


def run(stream, tokens):
    shown = []
    for token in tokens:
        shown.append(stream.push(token))
        if stream.is_stopped:
            return shown
    shown.append(stream.flush())
    return shown


@given(
    st.lists(st.integers(0, 2), max_size=20),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_the_text_is_cut_at_the_first_stop_string_and_nothing_of_it_is_ever_shown(tokens, stops):
    text = "".join("abc"[token] for token in tokens)
    stream = stream_of(*stops)
    shown = "".join(run(stream, tokens))
    # the first token with which any stop is complete ends it; the earliest beginning counts
    ends = [n for n in range(len(text) + 1) if any(stop in text[:n] for stop in stops)]
    if ends:
        seen = text[: ends[0]]
        assert stream.is_stopped
        assert shown == seen[: min(seen.find(stop) for stop in stops if stop in seen)]
    else:
        assert not stream.is_stopped
        assert shown == text


def test_text_is_held_back_only_while_it_may_become_a_stop_string():
    stream = stream_of("bc")
    assert [stream.push(token) for token in (0, 1, 0, 1, 2)] == ["a", "", "ba", "", ""]
    assert stream.is_stopped
    assert stream.flush() == ""


def test_half_a_character_is_never_shown():
    assert run(stream_of(), [98, 99, 0]) == ["", "é", "a", ""]


def test_without_a_tokenizer_there_is_no_text():
    stream = TextStream(None, ())
    assert (stream.push(5), stream.flush(), stream.is_stopped) == ("", "", False)
