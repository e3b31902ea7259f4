"""Command lines of llama.cpp and ik_llama.cpp, pasted."""

import argparse
import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from support.commands import run

from augury.cli.command_line import make_parser
from augury.cli.foreign_flags import FOREIGN_FLAGS
from augury.cli.model_flags import overrides_of
from augury.cli.request_flags import request_params
from augury.errors import OptionError
from augury.registry import Registry
from augury.sampling import SAMPLERS

REGISTRY = Registry.discover()
STORED = json.loads((Path(__file__).parents[2] / "data" / "flags" / "flags.json").read_text())
N_VALUES = [(name, int(n)) for program in STORED.values() for n, names in program.items() for name in names]
COMMANDS = ("run", "chat", "bench drafters", "tune", "serve")


def parsed(*words, command="run"):
    line = [*command.split(), *words]
    return make_parser(REGISTRY, line).parse_args(line)


def parser_of(command):
    parser = make_parser(REGISTRY)
    for word in command.split():
        parser = next(action for action in parser._actions if action.nargs == argparse.PARSER).choices[word]
    return parser


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_of_the_other_programs_is_known(command):
    parser = parser_of(command)
    assert len(N_VALUES) > 900
    assert [name for name, _ in N_VALUES if name not in parser.flags and name not in parser.foreign] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_takes_as_many_values_as_there(command):
    parser = parser_of(command)
    differing = set()
    for name, n_values in N_VALUES:
        if (action := parser.flags.get(name)) is not None:
            found = n_values if action.nargs == "?" else int(action.nargs is None)  # one of which may be left out
        elif FOREIGN_FLAGS[name].is_value_optional or (FOREIGN_FLAGS[name].kind == "refused" and not FOREIGN_FLAGS[name].off):
            continue
        else:
            found = FOREIGN_FLAGS[name].n_values
        if found != n_values:
            differing.add(name)
    assert differing <= {"--lora-scaled"}  # whose scale is a word of its own in ik_llama.cpp, which is told to whoever types it


def test_an_ignored_flag_takes_its_value_and_nothing_more(capsys):
    line = "-sm none -mg 1 -cmoe -fa on -cb -ub 512 --mlock --no-mmap -lv 3 --no-warmup -no-cnv"
    args = parsed(*line.split(), "--no-context-shift", "-m", "x", "-p", "text", "--override-tensor=exps=CPU", "-n", "-2")
    assert (args.model, args.prompt, args.n_predict, args.file) == ("x", ["text"], -2, [])
    lines = capsys.readouterr().err.splitlines()
    assert "augury run: -sm, -mg are ignored: GPUs compute whole layers, those that --device names" in lines
    assert "augury run: --no-context-shift is ignored: a full context ends the text unless --context-shift is given" in lines
    assert sum(line.count(" ignored: ") for line in lines) == len(lines) == 9


@pytest.mark.parametrize("words", [["-fa"], ["-fa", "auto"], ["-fa=1"], ["--color"]])
def test_a_value_that_may_be_missing_is_no_prompt(capsys, words):
    assert parsed(*words, "-p", "on").prompt == ["on"]
    assert capsys.readouterr().err.count("ignored") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-fa", "text", "and", "more"], "'more' was not expected"),
        (["--mlock", "text", "and", "more"], "'more' was not expected"),
        (["-ub", "-p", "text"], "-ub needs a value, but -p is a flag"),
        (["--mlock=1"], "--mlock takes no value"),
        (["-ngl99"], "put a space before the value: -ngl 99"),
        (["--port", "8080"], "--port: it is for a server: augury serve"),
        (["--tfs", "0.5"], "--tfs: augury knows no such sampler"),
        (["-cnv"], "-cnv: augury chat holds conversations"),
        (["--models-dir", "x"], "it is for a server: augury serve"),
        (["--ui"], "it is for a server: augury serve"),
    ],
)
def test_what_cannot_be_done_is_an_error_of_usage(capsys, words, told):
    code, out, err = run(capsys, "run", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert told in err


@pytest.mark.parametrize(
    "words", [["--tfs", "1"], ["--adaptive-target", "-1.0"], ["--reasoning", "auto"], ["--rope-freq-base", "0.0"]]
)
def test_what_is_switched_off_is_ignored(capsys, words):
    parsed(*words)
    assert f"{words[0]} is ignored: that is off anyway" in capsys.readouterr().err


def test_flags_of_rotary_positions_override_the_file():
    line = "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 2048 --rope-freq-base 5e5 --yarn-ext-factor -1"
    args = parsed(*line.split())
    assert overrides_of(args) == {
        ".rope.scaling.type": "yarn",
        ".rope.scaling.factor": 4.0,
        ".rope.scaling.original_context_length": 2048,
        ".rope.freq_base": 5e5,
    }


def test_flags_of_conversations_mean_something_else_in_chat(capsys):
    parsed("-cnv", "-mli", command="chat")
    assert "augury chat: -cnv is ignored: chat is a conversation" in capsys.readouterr().err
    for words, told in ((["-no-cnv"], "augury run continues"), (["-p", "x"], "augury run")):
        with pytest.raises(OptionError, match=told):
            parsed(*words, command="chat")


def test_a_server_takes_what_is_for_servers(capsys):
    words = "--embedding --reranking --ui --threads-http 4 --reasoning-budget 9 -rea off"
    args = parsed(*words.split(), command="serve")
    assert (args.reasoning_budget, args.reasoning) == (9, "off")
    assert capsys.readouterr().err.count("ignored") == 4
    with pytest.raises(OptionError, match="--reasoning-format none"):
        parsed("--skip-chat-parsing", command="serve")
    with pytest.raises(OptionError, match="--constraint reasoning-budget:tokens=N"):
        parsed("--reasoning-budget", "9")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-hf", "org/repo:Q4_0"], {"model": "hf:org/repo:Q4_0"}),
        (["-hfd", "org/repo"], {"model_draft": "hf:org/repo"}),
        (["--spec-default"], {"spec_type": ["ngram-mod"]}),
        (["--spec-type", "suffix", "--spec-self", "1"], {"spec_type": ["suffix", "self-spec"]}),
        (["--spec-self", "0"], {"spec_type": []}),
        (["--spec-draftless", "ngram-simple"], {"spec_type": ["ngram-simple"]}),
        (["--spec-draft-model", "x"], {"model_draft": "x"}),
        (["--top_k", "3", "--log-verbose", "-st"], {"top_k": 3, "verbose": 1, "chat": True}),
    ],
)
def test_another_name_means_the_same(words, expected):
    args = vars(parsed(*words))
    assert {key: args[key] for key in expected} == expected


def test_flags_of_vllm_are_told_by_what_augury_calls_them(capsys):
    line = "--max-model-len 2048 --max-num-seqs 8 --served-model-name x --enable-prefix-caching --dtype auto -tp 1"
    args = parsed(*line.split(), command="serve")
    assert (args.ctx_size, args.parallel, args.alias) == (2048, 8, "x")
    assert capsys.readouterr().err.count(" is ignored: ") == 3
    with pytest.raises(OptionError, match="--speculative-config: choose drafters with --spec-type"):
        parsed("--speculative-config", '{"method": "ngram"}', command="serve")


def test_variables_that_give_flags_to_llama_cpp_are_named(capsys, monkeypatch):
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "512")
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    assert parsed("-m", "x", command="serve").ctx_size is None
    why = "augury reads no environment variables of llama.cpp; give the flags"
    assert capsys.readouterr().err == f"augury serve: LLAMA_API_KEY, LLAMA_ARG_CTX_SIZE are ignored: {why}\n"


def test_the_page_has_two_names():
    flags = parser_of("serve").flags
    assert flags["--no-webui"] is flags["--no-ui"]


@pytest.mark.parametrize(
    ("words", "params"),
    [
        (["--keep", "4"], {}),
        (["--context-shift"], {"context_shift": True, "n_keep": 0}),
        (["--context-shift", "on", "--keep", "-1"], {"context_shift": True, "n_keep": -1}),
        (["--context-shift=off"], {}),
        (["--dry-sequence-breaker", "a", "--dry-sequence-breaker", "b"], {"dry_sequence_breakers": ["a", "b"]}),
        (["--dry-sequence-breaker", "none"], {"dry_sequence_breakers": []}),
        (
            ["--mirostat", "2", "--mirostat-ent", "3", "--mirostat-lr", "0.2"],
            {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2},
        ),
        (["--top-nsigma", "1", "--dynatemp-exp", "2"], {"top_n_sigma": 1.0, "dynatemp_exponent": 2.0}),
    ],
)
def test_flags_of_sampling_are_parameters_of_requests(words, params):
    names = ("context_shift", "n_keep", "dry_sequence_breakers", "mirostat", "mirostat_tau", "mirostat_eta")
    found, plain = request_params(parsed(*words)), request_params(parsed())
    assert {name: value for name, value in found.items() if plain.get(name) != value} == params
    assert not plain.keys() & set(names[:3])


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--samplers", "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"], SAMPLERS),
        (["--sampler-seq", "edskypmxt"], SAMPLERS),
        (["--samplers", "top_k;infill"], ("top_k", "infill")),
        (["--sampler-seq", "ki"], ("top_k", "infill")),
        (["--samplers", "top_k;adaptive_p"], ("top_k",)),
        (["--samplers", "temp;top-k;nucleus;typical"], ("temperature", "top_k", "top_p", "typ_p")),
        (["--sampling-seq", "tk"], ("temperature", "top_k")),
        (["--samplers", ""], ()),
        ([], None),
    ],
)
def test_samplers_come_in_the_order_that_is_typed(capsys, words, names):
    args = parsed(*words)
    assert args.samplers == names
    assert request_params(args).get("samplers") == names
    assert capsys.readouterr().err.count("augury knows no such sampler") == ("adaptive_p" in str(words))


@pytest.mark.parametrize("words", [["--samplers", "top_k;imfill"], ["--sampler-seq", "kz"]])
def test_a_sampler_that_does_not_exist_is_refused(words):
    with pytest.raises(OptionError, match=f"{words[0]} names '(imfill|z)', expected some of"):
        parsed(*words)


@pytest.mark.parametrize("words", [["-h"], ["--usage"], ["-ngl", "99", "--help"]])
def test_help_goes_to_standard_output_alone(capsys, words):
    code, out, err = run(capsys, "run", *words)
    assert (code, err) == (0, "")
    assert out.startswith("usage: augury run")


def test_no_flag_of_augury_is_ignored_or_refused_where_it_exists():
    flags = parser_of("run").flags
    both = "-p --prompt -f --file -np --parallel -st --single-turn --prompt-cache --prompt-cache-ro"
    both += " --chat-template --chat-template-file --chat-template-kwargs"
    both += " -sys --system-prompt -sysf --system-prompt-file -spf"
    assert {name for name in FOREIGN_FLAGS if name in flags} == set(both.split())


def test_a_text_that_looks_like_a_flag_can_be_given():
    assert parsed("-p=-ngl", "-p", "-unknown", "-p", "").prompt == ["-ngl", "-unknown", ""]
    with pytest.raises(OptionError, match="given as -p=-ngl"):
        parsed("-p", "-ngl")


RUN = parser_of("run")
WORDS = st.sampled_from(
    ["-", "--", "", "-1", "0", "x", "1,2", "on", "text", "-unknown", "--unknown=1", "=", "nan", "-m x", "'"]
)
FLAGS = st.sampled_from([*RUN.flags, *RUN.foreign])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.one_of(WORDS, FLAGS, st.builds("{}={}".format, FLAGS, WORDS)), max_size=6))
def test_any_command_line_is_parsed_or_refused(words):
    code = 0
    try:
        RUN.parse_args(words)
    except OptionError as error:
        code = error.exit_code
    except SystemExit as ended:  # help, and argparse's own errors
        code = ended.code
    assert code in {0, 2}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--temprature", "--temperature"),
        ("--top_kk", "--top-k"),
        ("-promt", "--prompt"),
        ("--top-k=3 --sede", "--seed"),
        ("--frobnicate", None),
        ("--debug", None),
        ("--foo", None),
        ("-q", None),
        ("--no-mmapp", None),  # one that is ignored would be no help
    ],
)
def test_an_unknown_flag_is_told_what_it_was_meant_to_be_only_if_that_is_likely(typed, meant):
    with pytest.raises(OptionError) as caught:
        parsed(*typed.split(), "1")
    assert str(caught.value).partition("; ")[2] == (f"did you mean '{meant}'?" if meant else "see --help")


@pytest.mark.parametrize(("command", "kept"), [("serve", (8192, None)), ("chat", (8192, None)), ("run", (0, 0))])
def test_prompts_are_kept_where_conversations_are_held(command, kept):
    args = parsed(command=command)
    assert (args.cache_ram, args.cache_disk) == kept
    args = parsed("-cram", "-1", command=command)
    assert args.cache_ram == (-1 if command != "run" else 0), "the flag is ignored where there is no cache"
