from hypothesis import given, strategies as st

from augury.text.text_stream import TextStream


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


def run(stream, tokens, n_early=0):
    shown = []
    for n, token in enumerate(tokens, start=1):
        shown.append(stream.push(token, may_stop=n > n_early))
        if stream.is_stopped:
            return shown
    shown.append(stream.flush(may_stop=len(tokens) > n_early))
    return shown


@given(
    st.lists(st.integers(0, 2), max_size=20),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.integers(0, 5),
)
def test_the_text_is_cut_at_the_first_stop_string_and_nothing_of_it_is_ever_shown(tokens, stops, n_early):
    text = "".join("abc"[token] for token in tokens)
    stream = stream_of(*stops)
    shown = "".join(run(stream, tokens, n_early))
    # the first token with which any stop is complete ends it, but for the early ones; the earliest beginning counts
    ends = [n for n in range(n_early + 1, len(text) + 1) if text[:n].endswith(tuple(stops))]
    if ends:
        seen = text[: ends[0]]
        assert stream.is_stopped
        assert shown == seen[: -max(len(stop) for stop in stops if seen.endswith(stop))]
    else:
        assert not stream.is_stopped
        assert shown == text


def test_text_is_held_back_only_while_it_may_become_a_stop_string():
    stream = stream_of("bc")
    assert [stream.push(token) for token in (0, 1, 0, 1, 2)] == ["a", "", "ba", "", ""]
    assert stream.is_stopped
    assert stream.flush() == ""


def test_the_end_of_a_false_beginning_may_be_the_true_one():
    stream = stream_of("abc")
    assert [stream.push(token) for token in (0, 1, 0, 1, 2)] == ["", "", "ab", "", ""]
    assert stream.is_stopped


def test_an_early_stop_string_is_shown_as_soon_as_it_cannot_be_the_beginning_of_another():
    stream = stream_of("bc", "cc")
    assert [stream.push(token, may_stop=False) for token in (1, 2, 0, 1)] == ["", "b", "ca", ""]
    assert [stream.push(2), stream.is_stopped] == ["", True]


def test_half_a_character_is_never_shown():
    assert run(stream_of(), [98, 99, 0]) == ["", "é", "a", ""]


def test_without_a_tokenizer_there_is_no_text():
    stream = TextStream(None, ())
    assert (stream.push(5), stream.flush(), stream.is_stopped) == ("", "", False)
