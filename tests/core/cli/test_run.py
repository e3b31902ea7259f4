"""`augury run` on JSON lines, of which some are bad, and on standard input."""

import gc
import io
import json
import re
import sys

import pytest
from support.commands import here, run
from support.more_toys import registry_with_toys

from augury.cli.prompts import Prompt, prompts_of_lines
from augury.cli.run import _submitted
from augury.engine.engine import Engine
from augury.registry import Registry

GREEDY = [*here(), "-c", "64", "--temp", "0", "-n", "3"]
BAD = {
    "{": "not JSON",
    "[" * 100_000: "not JSON",
    "5": 'one of "prompt"',
    '{"id": "none", "text": "a"}': 'one of "prompt"',
    '{"id": "ids", "tokens": ["a"]}': "expected a list of token ids",
    '{"id": "kind", "prompt": 5}': "expected a text",
    '{"id": "null", "prompt": null}': "prompt is None, expected a text",
    '{"id": "key", "tokens": [1], "sed": 1}': "'sed'; did you mean 'seed'?",
    '{"id": "value", "tokens": [1], "temperature": -1}': "temperature",
    '{"id": "bias", "tokens": [1], "logit_bias": [1]}': "logit_bias",
    '{"id": "vocabulary", "tokens": [99999]}': "the vocabulary has tokens",
    json.dumps({"id": "long", "tokens": [1] * 65}): "65 tokens",
    '{"id": "no tokenizer", "prompt": "a"}': "no tokenizer",
}


def written(tmp_path, *lines):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(lines))
    return str(file)


def test_bad_lines_are_named_and_fail_alone(capsys, tmp_path):
    file = written(tmp_path, '{"id": "first", "tokens": [1, 2]}', *BAD, "", '{"id": 7, "tokens": [3], "max_tokens": 2}')
    code, out, err = run(capsys, "run", *GREEDY, "-f", file, "--json")
    told = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert (told[0]["id"], len(told[0]["tokens"])) == ("first", 3)
    assert (told[-1]["id"], len(told[-1]["tokens"])) == (7, 2)
    said = [line.removeprefix("augury: ") for line in err.splitlines() if line.startswith("augury: ")]
    assert [each["error"] for each in told[1:-1]] == said
    for number, line, expected, each in zip(range(2, 99), BAD, BAD.values(), told[1:-1], strict=False):
        assert each["error"].startswith(f"{file}:{number}: ")
        assert expected in each["error"]
        assert each["id"] == (json.loads(line)["id"] if '"id"' in line else None)


def test_an_id_of_a_line_is_the_request_s_in_the_log_too(capsys, tmp_path):
    file = written(tmp_path, '{"id": "first", "tokens": [1]}', '{"id": 7, "tokens": [2]}', '{"tokens": [3]}')
    code, out, err = run(capsys, "run", *GREEDY, "-np", "1", "-v", "-f", file, "--json")
    told = [json.loads(line)["id"] for line in out.splitlines()]
    logged = re.findall(r"event=\"request done\" id=(\S+)", err)
    assert (code, told[:2], logged[0]) == (0, ["first", 7], "first")
    assert all(each.startswith("req-") for each in logged[1:])
    assert told[2] == logged[2]
    assert "requests 3 finished, 0 failed, 0 cancelled | 9 rounds, " in err
    assert "prompt tokens 3 processed, 0 reused" in err


def test_template_kwargs_are_for_conversations_and_a_line_s_own_come_first(capsys, tmp_path):
    own = {"a": 3}
    lines = [
        {"prompt": "x"},
        {"messages": [{}]},
        {"messages": [{}], "chat_template_kwargs": own},
        {"messages": [], "chat_template_kwargs": 5},
    ]
    prompts = [prompt.with_kwargs({"a": 1, "b": 2}) for prompt in prompts_of_lines("\n".join(map(json.dumps, lines)), "")]
    assert [prompt.params.get("chat_template_kwargs") for prompt in prompts] == [None, {"a": 1, "b": 2}, {"a": 3, "b": 2}, 5]
    code, _, err = run(capsys, "run", *GREEDY, "-p", "x", "--chat-template-kwargs", "[1]")
    assert code != 0
    assert 'expected a JSON object, such as {"enable_thinking": false}' in err


def test_a_constraint_is_a_flag_and_a_line_s_own_comes_first(capsys, tmp_path, monkeypatch):
    toys = registry_with_toys()
    monkeypatch.setattr(Registry, "discover", lambda: toys)
    file = written(tmp_path, '{"tokens": [1]}', '{"tokens": [1], "constraint": {"toy-residues": {"modulus": 7, "stretch": 0}}}')
    code, out, _ = run(capsys, "run", *GREEDY, "--constraint", "toy-residues:modulus=5,stretch=0", "-f", file, "--json")
    told = [
        [token % modulus for token in json.loads(line)["tokens"]]
        for line, modulus in zip(out.splitlines(), (5, 7), strict=True)
    ]
    assert (code, told) == (0, [[0, 1, 2]] * 2)
    code, _, err = run(capsys, "run", *GREEDY, "--constraint", "toy-residue", "--prompt-tokens", "1")
    assert (code, "did you mean 'toy-residues'" in err) == (2, True)


def test_texts_of_the_other_lines_are_written(capsys, tmp_path):
    file = written(tmp_path, '{"tokens": [1, 2]}', '{"tokens": [99999]}', '{"tokens": [3]}')
    code, out, err = run(capsys, "run", *GREEDY, "-f", file)
    assert (code, [len(line.split()) for line in out.splitlines()]) == (1, [3, 3])
    assert f"augury: {file}:2: " in err


def test_a_file_without_a_good_line_loads_no_model(capsys, tmp_path):
    code, out, err = run(capsys, "run", "-m", "no-such-model", "-f", written(tmp_path, "{"))
    assert (code, out) == (1, "")
    assert "prompts.jsonl:1: not JSON" in err


def test_a_line_may_hold_what_elsewhere_ends_lines(capsys, tmp_path):
    file = written(tmp_path, '{"id": "a\u2028b\x85c", "tokens": [1]}')
    code, out, _ = run(capsys, "run", *GREEDY, "-f", file, "--json")
    assert code == 0
    assert json.loads(out)["id"] == "a\u2028b\x85c"


@pytest.mark.parametrize("words", [["-f", "-"], []])
def test_standard_input_is_read_as_a_file(capsys, monkeypatch, words):
    monkeypatch.setattr(sys, "stdin", io.StringIO('{\n{"id": 1, "tokens": [1, 2]}\n'))
    code, out, err = run(capsys, "run", *GREEDY, *words, "--json")
    assert (code, [json.loads(line)["id"] for line in out.splitlines()]) == (1, [None, 1])
    assert "augury: standard input:1: not JSON" in err


def test_input_that_is_no_text_is_an_error_of_one_line(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    assert run(capsys, "run", *GREEDY) == (1, "", "augury: standard input: not text in UTF-8\n")


def test_json_survives_a_terminal_without_its_letters(capsys, tmp_path, monkeypatch):
    told = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(told, encoding="ascii"))
    assert run(capsys, "run", *GREEDY, "-f", written(tmp_path, '{"id": "é", "tokens": [1]}'), "--json")[0] == 0
    assert json.loads(told.getvalue())["id"] == "é"


def test_prompts_are_echoed_in_json_alone(capsys):
    words = ["run", *GREEDY, "--prompt-tokens", "1,2", "--echo"]
    assert json.loads(run(capsys, *words, "--json")[1])["prompt"] == [1, 2]
    code, out, err = run(capsys, *words)
    assert (code, out, err) == (2, "", "augury: --echo tells prompts beside their answers in JSON; add --json\n")


def test_few_of_many_prompts_wait_in_the_engine():
    class Engine:
        n = 0

        def submit(self, **_):
            self.n += 1
            return self.n

    engine = Engine()
    prompts = [Prompt(tokens=(1,))] * 100
    for done, (_, running) in enumerate(_submitted(engine, prompts, {}, n_ahead=4), start=1):
        assert running == done
        assert engine.n <= done + 4
    assert done == 100


def test_the_trained_context_is_used_to_its_end_and_more_is_warned_of_once(capsys):
    words = ["run", *here(), "--prompt-tokens", "1", "--temp", "0", "--ignore-eos", "--json"]
    code, out, err = run(capsys, *words, "-c", "0", "-n", "-1")
    told = json.loads(out)
    assert (code, told["finish_reason"], len(told["tokens"])) == (0, "context", 256)
    assert "trained" not in err
    assert run(capsys, *words, "-c", "300", "-n", "1")[2].count("the context is longer than the model was trained for") == 1


def test_a_prompt_cache_is_taken_up_and_written_back(capsys, tmp_path):
    file, prompt = tmp_path / "cache", ",".join(["5", "6", "7"] * 8)
    words = ["run", *GREEDY, "--json", "--prompt-cache", str(file), "--prompt-tokens"]
    told = [json.loads(run(capsys, *words, text)[1]) for text in (prompt, prompt, f"{prompt},9", f"5,6,{prompt}")]
    assert [each["memory"]["reused"] for each in told] == [0, 23, 24, 2]
    assert told[0]["tokens"] == told[1]["tokens"]
    before = file.read_bytes()
    run(capsys, *words[:-1], "--prompt-cache-ro", "--prompt-tokens", prompt)
    assert file.read_bytes() == before
    run(capsys, *words, prompt)
    assert file.read_bytes() != before


def test_a_prompt_cache_is_for_one_prompt_and_a_damaged_one_is_an_error(capsys, tmp_path):
    file = tmp_path / "cache"
    for more in (["--prompt-tokens", "1,2"], ["-np", "2"]):
        code, _, err = run(capsys, "run", *GREEDY, "--prompt-cache", str(file), "--prompt-tokens", "1", *more)
        assert (code, "--prompt-cache is for one prompt" in err) == (2, True)
    code, out, err = run(capsys, "run", *GREEDY, "--prompt-cache", str(file / "x"), "--prompt-tokens", "1")
    assert (code, out, f"--prompt-cache: there is no folder {file}" in err) == (1, "", True)
    file.write_bytes(b"damaged")
    code, out, err = run(capsys, "run", *GREEDY, "--prompt-cache", str(file), "--prompt-tokens", "1")
    assert (code, out) == (1, "")
    assert f"{file}: is no saved slot" in err
    assert file.read_bytes() == b"damaged"


def test_nothing_looks_for_garbage_in_a_model_while_it_is_loaded_or_runs(capsys, monkeypatch):
    is_looked_for, load = [], Engine.load
    monkeypatch.setattr(Engine, "load", lambda *words, **flags: is_looked_for.append(gc.isenabled()) or load(*words, **flags))
    n_before = gc.get_freeze_count()
    assert run(capsys, "run", *GREEDY, "--prompt-tokens", "1")[0] == 0
    assert is_looked_for == [False]
    assert gc.isenabled()
    assert gc.get_freeze_count() > n_before


def test_metadata_of_the_model_is_overridden(capsys):
    code, _, err = run(capsys, "run", *GREEDY, "--override-kv", "general.architecture=nope", "--prompt-tokens", "1")
    assert code == 1
    assert "architecture 'nope' is not supported" in err
    code, _, err = run(capsys, "run", *GREEDY, "-okv", "general.architecture=text:nope", "--prompt-tokens", "1")
    assert code == 2
    assert "the override of general.architecture has the type 'text'" in err
