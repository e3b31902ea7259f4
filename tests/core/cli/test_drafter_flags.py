"""Flags that come from other engines: `--draft-params`, `--spec-config`, `--spec-self`."""

import ast
import re
from argparse import Namespace
from itertools import chain
from pathlib import Path

import pytest
from support.commands import here, run

from augury import cli
from augury.cli.command_line import make_parser
from augury.cli.drafter_flags import (
    drafter_of_model,
    drafter_options,
    flag_of,
    leave_out_unused,
    memory_options,
    names_in_use,
    split_draft_limits,
)
from augury.drafters.draft_model import DraftModelOptions
from augury.errors import OptionError
from augury.options import options_of
from augury.registry import Registry

REGISTRY = Registry.discover()


def parsed(*words, command="run"):
    line = [*command.split(), *words]
    return make_parser(REGISTRY, line).parse_args(line)


GENERAL = {"-md", "--model-draft", "--draft-max", "--draft-min"}  # flags of their own, which some drafters' options are, too
VALUES = {int: "2", float: "0.5", bool: "true", str: "f16"}


def flags_given_to(drafter):
    return [flag_of(alias) for option in options_of(drafter.options_class).values() for alias in option.aliases]


def options(args, *in_use):
    return drafter_options(args, in_use)


# --draft-params


def test_a_draft_models_parameters_are_given_by_the_targets_flags():
    text = "--model 'my draft.gguf' -c 2048 -t 3 -ctk f32 --cache-type-v f16 --backend reference"
    args = parsed("--draft-params", text)
    assert args.model_draft == "my draft.gguf"
    given = {"ctx": 2048, "threads": 3, "cache_type_k": "f32", "cache_type_v": "f16", "backend": "reference"}
    assert options(args, "draft-model")["draft-model"] == given | {"model": "my draft.gguf"}


@pytest.mark.parametrize("command", ["run", "bench drafters"])
def test_the_short_flag_of_ik_llama_cpp_means_the_same(command):
    args = parsed("-draft", "-m small --p-min 0.25", command=command)
    assert args.model_draft == "small"
    assert options(args, "draft-model")["draft-model"]["p_min"] == 0.25


def test_llama_cpps_flags_of_a_draft_model_are_its_options():
    line = "--spec-draft-model x --spec-draft-threads 2 --spec-draft-type-k q8_0 --spec-draft-type-v f32 --spec-draft-p-min 0.5"
    args = parsed(*line.split())
    assert args.model_draft == "x"
    given = {"model": "x", "threads": 2, "cache_type_k": "q8_0", "cache_type_v": "f32", "p_min": 0.5}
    assert options(args, "draft-model") == {"draft-model": given}


def test_flags_that_drafters_share_go_to_those_in_use():
    args = parsed("--spec-ngram-size-n", "8", "--spec-ngram-size-m", "4", "--spec-ngram-min-hits", "2")
    assert options(args, "ngram-map-k4v") == {"ngram-map-k4v": {"n": 8, "m": 4, "min_hits": 2}}
    assert options(args, "ngram-mod")["ngram-mod"] == {"n_match": 8}


ALIASES = {
    flag: (option, [name for name, each in REGISTRY.drafters.items() if flag in flags_given_to(each)])
    for drafter in REGISTRY.drafters.values()
    for option in options_of(drafter.options_class).values()
    for flag in map(flag_of, option.aliases)
    if flag not in GENERAL
}


def test_an_alias_that_is_not_for_the_drafter_in_use_is_ignored_with_a_line_that_names_it(capsys):
    values = {flag: option.choices[0] if option.choices else VALUES[option.kind] for flag, (option, _) in ALIASES.items()}
    every = vars(parsed(*chain.from_iterable(values.items())))
    for drafter in REGISTRY.drafters:
        args = Namespace(**every)
        leave_out_unused(args, [drafter])
        others = ", ".join(flag for flag, (_, owners) in ALIASES.items() if drafter not in owners)
        assert capsys.readouterr().err == f"augury run: {others} are ignored: no drafter in use has such an option\n"
        leave_out_unused(args, [drafter])  # as when a server wakes
        assert capsys.readouterr().err == ""
        assert len(args.drafter_values) == sum(drafter in owners for _, owners in ALIASES.values())


def test_a_command_line_with_flags_of_other_drafters_runs(capsys):
    line = "--spec-type ngram-mod --spec-draft-p-min 0.75 -ctkd q8_0 --prompt-tokens 1,2 -n 1"
    code, _, err = run(capsys, "run", *here(), *line.split())
    assert code == 0
    assert "augury run: --spec-draft-p-min, -ctkd are ignored: no drafter in use has such an option\n" in err


def test_a_draft_models_parameters_are_those_of_a_head_that_is_one():
    args = parsed("--draft-params", "-ctk q8_0 -c 100")
    assert options(args, "draft-eagle3") == {"draft-eagle3": {"cache_type_k": "q8_0"}}


def test_a_flag_that_names_a_drafter_that_is_not_in_use_is_refused():
    with pytest.raises(OptionError, match="--spec-ngram-mod-n-max is given, but ngram-mod is not in use"):
        leave_out_unused(parsed("--spec-ngram-mod-n-max", "3"), ["suffix", "recycle"])


def test_every_option_of_a_draft_model_can_be_given():
    for name, option in options_of(DraftModelOptions).items():
        value = VALUES[option.kind]
        args = parsed("--draft-params", f"--{name.replace('_', '-')} {value}")
        assert options(args, "draft-model")["draft-model"] == {name: option.convert(value, "test")}


def test_what_comes_later_counts():
    first = parsed("-md", "a", "-cd", "100", "--draft-params", "-m b -c 200")
    assert (first.model_draft, options(first, "draft-model")["draft-model"]["ctx"]) == ("b", 200)
    last = parsed("--draft-params", "-m b -c 200", "-md", "a", "-cd", "100")
    assert (last.model_draft, options(last, "draft-model")["draft-model"]["ctx"]) == ("a", 100)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("--control-vector x", "--control-vector: augury applies no control vectors"),
        ("-md x", "has no flag -md"),
        ("--ctx-sise 9", "did you mean '--ctx-size'"),
        ("2048", "'2048' was not expected here"),
        ("-c", "-c needs a value"),
        ("-c many", "ctx is 'many', expected a whole number"),
        ("-m 'x", "No closing quotation"),
    ],
)
def test_what_a_draft_model_cannot_be_told_is_refused(text, told):
    with pytest.raises(OptionError, match="--draft-params") as caught:
        parsed("--draft-params", text)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "text", ["-hf org/small --seed 1 -sm none -ts 1,1 -np 2 --temp 0", "-m hf:org/small -fa --no-mmap -ot exps=CPU"]
)
def test_what_means_nothing_for_a_draft_model_is_ignored_with_a_line(capsys, text):
    assert parsed("--draft-params", text).model_draft == "hf:org/small"
    lines = capsys.readouterr().err.splitlines()
    assert "--draft-params: -sm is ignored: GPUs compute whole layers" in lines[-1] or len(lines) == 3
    assert all(line.startswith("--draft-params: ") for line in lines)


# who is meant


def test_the_engines_own_choice_is_in_use_where_none_is_named():
    assert names_in_use(["auto"], REGISTRY) == ["suffix", "recycle", "draft-mtp"]
    assert drafter_of_model(REGISTRY) == "draft-model"
    assert drafter_of_model(Registry()) is None


# --spec-config


def test_spec_config_is_spec_type_by_another_name():
    args = parsed("--spec-config", "draft;ngram-cache:n=4,m=2", "--spec-type", "suffix")
    assert args.spec_type == ["draft;ngram-cache:n=4,m=2", "suffix"]
    assert names_in_use(args.spec_type, REGISTRY) == ["draft-model", "ngram-cache", "suffix"]


@pytest.mark.parametrize(
    ("texts", "rest", "limits"),
    [
        (["draft:n_max=4,p_min=0.0"], ["draft:p_min=0.0"], {"draft_max": 4}),
        (
            ["ngram-map-k4v:n_max=64,n_min=2,ngram_size_n=8"],
            ["ngram-map-k4v:ngram_size_n=8"],
            {"draft_max": 64, "draft_min": 2},
        ),
        (["ngram-mod:n_max=64,n_min=48"], ["ngram-mod:n_max=64,n_min=48"], {}),
        (["suffix", "draft"], ["suffix", "draft"], {}),
        ([], [], {}),
    ],
)
def test_limits_in_ik_llama_cpps_spec_type_are_those_of_all_drafts(texts, rest, limits):
    assert split_draft_limits(texts, REGISTRY) == (rest, limits)


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["ngram-simple:n_max=8;draft"], "ngram-simple has no n_max of its own; --draft-max limits all drafters"),
        (["draft:n_min=x"], "--spec-type draft:n_min is 'x', expected a whole number of at least 0"),
    ],
)
def test_limits_that_cannot_be_had_are_refused(texts, told):
    with pytest.raises(OptionError, match=told):
        split_draft_limits(texts, REGISTRY)


# --spec-self


def test_draft_min_and_draft_max_are_what_it_looks_up_and_copies():
    args = parsed("--spec-self", "1", "--draft-min", "8", "--draft-max", "32")
    assert options(args, "self-spec") == {"self-spec": {"draft_min": 8, "draft_max": 32}}
    assert (args.draft_min, args.draft_max) == (8, 32)
    assert options(args, "ngram-simple") == {}
    assert options(parsed("--spec-self", "1"), "self-spec") == {}


def test_an_option_of_its_own_counts_more_than_the_general_one():
    args = parsed("--spec-self", "1", "--spec-self-spec-draft-min", "5", "--draft-min", "8")
    assert options(args, "self-spec")["self-spec"]["draft_min"] == 5


@pytest.mark.parametrize("words", [["--draft-params", "-m x"], ["--spec-config", "draft"], ["--spec-self", "1"]])
def test_the_help_shows_the_options_of_the_drafter_that_is_meant(words, capsys):
    with pytest.raises(SystemExit):
        parsed(*words, "--help-all")
    shown = capsys.readouterr().out
    assert ("--spec-self-spec-draft-min" if "--spec-self" in words else "--spec-draft-model-ctx") in shown


@pytest.mark.parametrize("path", sorted(Path(cli.__path__[0]).glob("*.py")), ids=lambda path: path.stem)
def test_no_drafter_backend_or_memory_manager_is_named_but_in_the_table_of_other_programs_flags(path):
    kinds = {"drafter", "backend", "memory"}
    names = {record.name for record in REGISTRY.records if record.kind in kinds} - {"none"}  # which is a word of --spec-type
    texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
    named = re.findall(
        rf"(?<![\w-])(?:{'|'.join(names)})(?![\w-])", "\n".join(filter(lambda text: isinstance(text, str), texts))
    )
    assert len(names) > 8
    assert path.stem == "foreign_flags" or not named


# Memory managers


def test_llama_cpps_flags_of_checkpoints_are_the_managers_options():
    line = "-ctxcp 4 -cms 64 --mem-budget 8 --spec-use-checkpoints on --memory-checkpoints-ckpt-num-tries 2"
    args = parsed(*line.split())
    values = {"ctx_checkpoints": 4, "checkpoint_min_step": 64, "mem_budget": 8, "use_checkpoints": "on", "ckpt_num_tries": 2}
    assert memory_options(args) == {"checkpoints": values}
    assert memory_options(parsed()) == {}
