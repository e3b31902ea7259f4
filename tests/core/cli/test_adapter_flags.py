"""The flags of adapters, in llama.cpp's words."""

import pytest
from oracles import adapters
from oracles.models import tiny_model

from augury.cli.command_line import make_parser
from augury.cli.model_flags import adapters_of, load_engine, loaded_model
from augury.errors import OptionError
from augury.registry import Registry


def parsed(*words):
    words = ["run", *map(str, words)]
    return make_parser(Registry.discover(), words).parse_args(words)


def test_each_adapter_has_its_scale_and_commas_separate_them(tmp_path):
    (odd := tmp_path / "a,b:2").touch()
    args = parsed("--lora", "a.gguf", "--lora", "b.gguf:0.5,c.gguf:-1", "--lora-scaled", "d.gguf:2", "--lora", odd)
    assert adapters_of(args) == [("a.gguf", 1), ("b.gguf", 0.5), ("c.gguf", -1), ("d.gguf", 2), (str(odd), 1)]
    args = parsed("--lora", "a.gguf:3", "--lora-init-without-apply")
    assert adapters_of(args) == [("a.gguf", 0)]
    with pytest.raises(OptionError, match="--lora is 'x', expected"):
        adapters_of(parsed("--lora", "a.gguf:x"))


def test_a_scale_that_is_a_word_of_its_own_is_no_prompt():
    with pytest.raises(OptionError, match=r"--lora-scaled is 'a.gguf', expected FILE:SCALE"):
        parsed("--lora-scaled", "a.gguf", "0.5")


def test_a_model_is_loaded_with_the_adapters_of_the_flags():
    file = adapters.adapter("llama-dense", 0)
    args = parsed("-m", tiny_model("llama-dense"), "--backend", "reference", "-c", 32, "--lora", f"{file}:0.5")
    with load_engine(args, ("none",), None) as engine:
        assert [(each.path, scale) for each, scale in zip(engine.adapters.loaded, engine.adapters.scales, strict=True)] == [
            (file, 0.5)
        ]


def test_a_command_that_measures_a_model_alone_refuses_adapters():
    args = parsed("-m", tiny_model("llama-dense"), "--lora", "a.gguf")
    with pytest.raises(OptionError, match="--lora: this command measures a model without adapters"), loaded_model(args, 32):
        pass
