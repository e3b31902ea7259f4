"""Metadata that a user puts in place of a model file's own."""

import pytest
from hypothesis import given, strategies as st

from augury.errors import OptionError
from augury.files.gguf import ModelFile
from augury.files.gguf_writer import gguf_file
from augury.files.override import Untyped, parse_overrides

OWN = {"x.text": "old", "x.count": 7, "x.scale": 0.5, "x.flag": True}
scalars = (
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("override") / "m.gguf"
    with gguf_file(path) as writer:
        writer.add_string("general.architecture", "x")
        writer.add_string("x.text", OWN["x.text"])
        writer.add_uint32("x.count", OWN["x.count"])
        writer.add_float32("x.scale", OWN["x.scale"])
        writer.add_bool("x.flag", OWN["x.flag"])
        writer.add_array("x.few", [1, 2])
    return path


def opened(path, *texts):
    return ModelFile.open(path, {key: value for text in texts for key, value in parse_overrides(text)})


def spelled(key, value):
    kind = type(value).__name__
    item = f"{key}={kind}:{str(value).lower() if kind == 'bool' else value}"
    return '"' + item.replace('"', '""') + '"' if set(item) & set(',"\r\n') else item


@given(values=st.dictionaries(st.sampled_from(["a", "a.b", "tokenizer.ggml.pre"]), scalars, min_size=1))
def test_what_is_spelled_is_read(values):
    assert dict(parse_overrides(",".join(spelled(key, value) for key, value in values.items()))) == values


def test_values_take_the_place_of_the_file_s_own(path):
    file = opened(path, "x.text=str:new,x.count=int:-3", "x.scale=int:2", "x.new=bool:true", "x.count=int:9")
    assert {**OWN, "x.text": "new", "x.count": 9, "x.scale": 2.0, "x.new": True}.items() <= file.metadata.items()
    assert file.get("x.scale", float) == 2.0
    own = ModelFile.open(path)
    assert OWN.items() <= own.metadata.items()
    assert file.digest != own.digest == ModelFile.open(path).digest


def test_a_key_that_begins_with_a_dot_is_one_of_the_file_s_architecture(path):
    file = opened(path, ".count=8,.rope.scaling.factor=float:4")
    assert (file.metadata["x.count"], file.metadata["x.rope.scaling.factor"]) == (8, 4.0)
    assert file.digest == opened(path, "x.count=8,x.rope.scaling.factor=float:4").digest
    with pytest.raises(OptionError, match=r"there is no metadata key 'x\.cont'; did you mean 'x\.count'"):
        opened(path, ".cont=8")


def test_a_value_without_a_type_is_read_as_what_the_file_has(path):
    file = opened(path, "x.text=12,x.count=12,x.scale=12,x.flag=false")
    assert [file.metadata[key] for key in OWN] == ["12", 12, 12.0, False]
    assert parse_overrides("a=/x:y") == [("a", Untyped("/x:y"))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x.text", "'x.text' was expected to be KEY=TYPE:VALUE"),
        ("=int:3", "'=int:3' was expected to be KEY=TYPE:VALUE"),
        ("x.text=string:new", "has the type 'string', expected int, float, bool, str, as in x.text=str:string:new"),
        ("x.count=int:3.5", "override of x.count is '3.5', expected a whole number"),
        ("x.count=many", "override of x.count is 'many', expected a whole number"),
        ("x.flag=bool:yes", "override of x.flag is 'yes', expected true or false"),
        ("x.scale=float:nan", "override of x.scale is 'nan', expected a number"),
        ("x.count=str:3", "'x.count' is a whole number; it cannot be overridden by '3', a text"),
        ("x.flag=int:1", "'x.flag' is true or false; it cannot be overridden by 1, a whole number"),
        ("x.few=int:3", "'x.few' is an array; only single values can be overridden"),
        ("x.tekst=new", r"no metadata key 'x.tekst'; did you mean 'x.text'\?; to add it, .* x.tekst=str:new"),
    ],
)
def test_what_does_not_fit_is_an_option_error(path, text, message):
    with pytest.raises(OptionError, match=message):
        opened(path, text)


def test_other_values_are_refused(path):
    with pytest.raises(OptionError, match=r"override of x.text is \[\], expected"):
        ModelFile.open(path, {"x.text": []})
