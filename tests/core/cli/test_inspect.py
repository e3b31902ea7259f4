"""`augury inspect`, called as the command line calls it."""

import json

import numpy as np
import pytest

from augury.cli import Parser
from augury.cli.models import add_parsers
from augury.errors import ModelFileError
from augury.files.gguf_writer import gguf_file
from augury.registry import Registry

CATALOGUE = Registry.discover().sources["catalogue"]
TEMPLATE = "{% for m in messages %}\n{{ m.content }}\x1b[31m{% endfor %}"


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.gguf"
    with gguf_file(path) as writer:
        writer.add_token_list([f"token{i}" for i in range(1000)] + [b"\xff"])
        writer.add_token_types([1] * 1001)
        writer.add_float32("x.odd", float("nan"))
        writer.add_string("x.evil", "a\x1b]0;b\x07")
        writer.add_array("x.few", [1, 2, 3])
        writer.add_chat_template(TEMPLATE)
        writer.add_tensor("a", np.zeros((4, 32), np.float32))
        writer.add_tensor("b", np.zeros((2, 3, 32), np.float16))
        writer.add_tensor("c", np.zeros(32, np.float32))
    return path


def run(*words):
    parser = Parser()
    add_parsers(parser.add_subparsers(), Registry.discover())
    args = parser.parse_args(["inspect", *map(str, words)])
    return args.run(args)


def test_metadata_types_and_chat_template_are_shown(model, capsys):
    assert run(model) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert str(model) in out
    assert ["general.architecture", "'llama'"] in lines
    assert ["x.few", "[1,", "2,", "3]"] in lines
    assert "(1,001 items)" in out
    assert "token999" not in out
    assert ["F32", "2", "160", "640", "bytes"] in lines
    assert ["F16", "1", "192", "384", "bytes"] in lines
    assert ["all", "3", "352", "1.0", "KiB"] in lines
    assert "    {{ m.content }}\\x1b[31m{% endfor %}" in out.splitlines()
    assert all(letter.isprintable() or letter == "\n" for letter in out)
    assert ["a", "F32", "4", "x", "32", "512"] not in lines


def test_tensors_are_listed_where_asked_for(model, capsys):
    run(model, "--tensors")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["a", "F32", "4", "x", "32", "512"] in lines
    assert ["b", "F16", "2", "x", "3", "x", "32", "384"] in lines


def test_json_is_one_object_without_what_json_does_not_know(model, capsys):
    assert run(model, "--json") == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1

    def refuse(constant):
        raise AssertionError(constant)

    told = json.loads(out, parse_constant=refuse)
    assert told["files"] == [str(model)]
    assert told["n_bytes"] == model.stat().st_size
    assert told["n_parameters"] == 352
    assert told["types"]["F16"] == {"n_tensors": 1, "n_parameters": 192, "n_bytes": 384}
    assert told["tensors"][1] == {"name": "b", "type": "F16", "shape": [2, 3, 32], "n_bytes": 384}
    assert told["metadata"]["x.few"] == [1, 2, 3]
    assert told["metadata"]["x.odd"] == "nan"
    assert told["metadata"]["tokenizer.ggml.tokens"] == {"n": 1001, "first": [f"token{i}" for i in range(8)]}
    assert told["chat_template"] == TEMPLATE


def test_overridden_metadata_is_shown(model, capsys):
    run(model, "--override-kv", "general.architecture=str:other,x.more=float:0.5")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["general.architecture", "'other'"] in lines
    assert ["x.more", "0.5"] in lines


def test_a_model_is_named_as_other_commands_name_it(model, monkeypatch, capsys):
    for name in ("find", "fetch"):
        monkeypatch.setattr(CATALOGUE, name, lambda *_: model)
    assert run("smollm2") == 0
    assert str(model) in capsys.readouterr().out


def test_a_model_that_is_not_here_is_not_downloaded(monkeypatch):
    monkeypatch.setattr(CATALOGUE, "find", lambda *_: None)
    monkeypatch.setattr(CATALOGUE, "fetch", None)
    with pytest.raises(ModelFileError, match="smollm2 is not on this machine; augury pull smollm2 downloads it"):
        run("smollm2")


@pytest.mark.parametrize(("name", "message"), [("absent.gguf", "there is no such file"), ("smolm2", "did you mean 'smollm2'")])
def test_what_is_no_model_is_an_error(name, message):
    with pytest.raises(ModelFileError, match=message):
        run(name)


def test_a_file_that_holds_no_model_is_an_error(tmp_path):
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(ModelFileError, match="GGUF"):
        run(tmp_path / "text.gguf")
