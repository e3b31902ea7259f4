import math
from string import ascii_lowercase, digits

import pytest
from attrs import frozen
from hypothesis import given, strategies as st

from augury.errors import OptionError
from augury.options import Spec, build, option, options_of, parse_specs


@frozen
class Options:
    n: int = option(12, help="length", ge=1, le=99, aliases=("size-n",))
    p: float = option(0.5, help="probability", ge=0.0, le=1.0, per_request=True)
    mode: str = option("a", help="kind", choices=("a", "b"))
    fast: bool = option(False, help="hurry")
    model: str | None = option(None, help="path")
    seed: int = option(0, help="number", le=2**64 - 1)


def test_options_carry_what_the_three_doors_need():
    found = options_of(Options)
    assert list(found) == ["n", "p", "mode", "fast", "model", "seed"]
    assert (found["n"].kind, found["n"].aliases, found["n"].range) == (int, ("size-n",), "1 to 99")
    assert found["p"].is_per_request
    assert not found["n"].is_per_request
    assert found["model"].is_optional


def test_an_alias_is_a_key_too():
    assert build(Options, {"size_n": "3"}, "here") == build(Options, {"size-n": 3}, "here") == Options(n=3)
    with pytest.raises(OptionError, match="size_n is another name of n, which is given, too"):
        build(Options, {"n": 3, "size_n": 4}, "here")


def test_texts_and_json_values_build_the_same():
    texts = build(Options, {"n": "3", "p": "0.25", "mode": "b", "fast": "true", "model": "x.gguf"}, "here")
    assert texts == build(Options, {"n": 3, "p": 0.25, "mode": "b", "fast": True, "model": "x.gguf"}, "here")
    assert build(Options, {}, "here") == Options()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"m": 1}, "there is no option 'm'"),
        ({"modell": "x"}, "did you mean 'model'"),
        ({"n": 0}, "n is 0, expected 1 to 99"),
        ({"n": "x"}, "n is 'x', expected a whole number"),
        ({"n": 2.5}, "n is 2.5, expected a whole number"),
        ({"n": True}, "n is True"),
        ({"seed": 2**64}, "seed is 18446744073709551616, expected at most 18446744073709551615"),
        ({"n": math.inf}, "n is inf, expected a whole number"),
        ({"p": "nan"}, "p is 'nan'"),
        ({"mode": "c"}, "expected one of a, b"),
        ({"fast": "perhaps"}, "expected true or false"),
        ({"model": 3}, "expected a text"),
    ],
)
def test_wrong_values_say_where_what_and_what_instead(values, message):
    with pytest.raises(OptionError, match=message) as caught:
        build(Options, values, "here")
    assert str(caught.value).startswith("here: ")


@given(
    st.lists(
        st.builds(
            Spec,
            st.builds(str.__add__, st.sampled_from(ascii_lowercase), st.text(f"{ascii_lowercase}{digits}-", max_size=8)),
            st.lists(
                st.tuples(
                    st.text(f"{ascii_lowercase}_", min_size=1, max_size=5).filter("inner".__ne__),  # it is written first
                    st.text(st.characters(categories=["L", "N"], include_characters="_./-"), min_size=1, max_size=8),
                ),
                max_size=4,
            ).map(tuple),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_configuration_strings_survive_the_round_trip(specs):
    assert parse_specs(";".join(map(str, specs))) == tuple(specs)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a(b)", [Spec("a", (("inner", "b"),))]),
        ("a(b:k=v,l=w;c):n=1;d", [Spec("a", (("inner", "b:k=v,l=w;c"), ("n", "1"))), Spec("d")]),
        ("a(b(c:k=v);d), e", [Spec("a", (("inner", "b(c:k=v);d"),)), Spec("e")]),
        ("a()", [Spec("a", (("inner", ""),))]),
        ("a:file=/x(1),n=2", [Spec("a", (("file", "/x(1)"), ("n", "2")))]),
        ("a:file=/x(1;b", [Spec("a", (("file", "/x(1"),)), Spec("b")]),
    ],
)
def test_what_is_in_parentheses_is_an_option_of_the_name_before_them(text, expected):
    assert list(parse_specs(text)) == expected
    assert parse_specs(";".join(map(str, expected))) == tuple(expected)


def test_a_drafter_after_another_ones_options_is_told_to_take_a_semicolon():
    with pytest.raises(OptionError, match="'b' is not key=value; after options, ';' separates"):
        parse_specs("a:n=1,b")


@pytest.mark.parametrize("text", ["", ";", "a:n", "a:=3", ":n=3", "a;;b", "a b", "a:n=1;,"])
def test_malformed_configuration_strings_are_refused(text):
    with pytest.raises(OptionError):
        parse_specs(text)


@pytest.mark.parametrize(("text", "found"), [("", "''"), ("toy;a b", "'toy;a b': 'a b'")])
def test_what_is_no_name_is_told_with_the_kind_of_plugin(text, found):
    with pytest.raises(OptionError, match=f"^{found} is not the name of a memory manager; expected name, or name:key=value"):
        parse_specs(text, "memory manager")


@pytest.mark.parametrize(("text", "state"), [("a(b", "closed"), ("a(b:k=v", "closed"), ("x;ab)", "opened")])
def test_a_missing_bracket_is_named(text, state):
    with pytest.raises(OptionError, match=f"has a bracket that is not {state}; expected name"):
        parse_specs(text)


def test_brackets_in_values_need_no_partner():
    assert parse_specs("regex:pattern=[(]") == (Spec("regex", (("pattern", "[(]"),)),)
