"""Flags of the system prompt and of the chat template."""

import json

import pytest
from support.commands import here, run

from augury.cli.chat_flags import add_system_flags, with_system
from augury.cli.parser import Parser
from augury.cli.prompts import add_prompt_flags, read_prompts
from augury.errors import OptionError

TEMPLATE = "{% for m in messages %}[{{ m.role }} {{ m.content }}]{% endfor %}"


def asked(*words):
    """The messages of each prompt of these words."""
    parser = Parser()
    add_prompt_flags(parser)
    add_system_flags(parser, "")
    return [prompt.messages for prompt in read_prompts(parser.parse_args([*map(str, words)]))]


def test_a_system_prompt_makes_a_text_a_question_and_a_line_s_own_comes_first(tmp_path):
    brief, question = ({"role": role, "content": text} for role, text in (("system", "Be brief."), ("user", "Who?")))
    assert asked("-sys", "Be brief.", "-p", "Who?") == [[brief, question]]
    (tmp_path / "system.txt").write_text("Be brief.\n")
    own = [{"role": "system", "content": "Be kind."}, question]
    (tmp_path / "lines.jsonl").write_text(f"{json.dumps({'messages': own})}\n{json.dumps({'messages': [question]})}\nnone")
    assert asked("-sysf", tmp_path / "system.txt", "-f", tmp_path / "lines.jsonl") == [own, [brief, question], None]
    with pytest.raises(OptionError, match="--system-prompt needs texts"):
        asked("-sys", "Be brief.", "--prompt-tokens", "1,2")


def test_a_system_prompt_takes_the_place_of_the_one_before():
    question = {"role": "user", "content": "Who?"}
    found = with_system(with_system([question], "a"), "b")
    assert found == [{"role": "system", "content": "b"}, question]
    assert with_system(found, "") == with_system([question], "") == [question]


def test_run_takes_a_system_prompt_and_a_template(capsys, tmp_path):
    words = ["-m", "smollm2", "-c", 64, "-t", 1, "-n", 1, "--temp", 0, "--json", "--echo", "-sys", "A", "-p", "B"]
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    for flags in (["--chat-template", TEMPLATE], ["--chat-template-file", tmp_path / "chat.jinja"]):
        code, out, _ = run(capsys, "run", *words, *flags)
        assert (code, json.loads(out)["prompt_text"]) == (0, "[system A][user B]")


def test_a_chat_template_is_no_name(capsys):
    for words in (["run", "-p", "x"], ["chat"], ["serve"]):
        code, _, err = run(capsys, *words, *here(), "--chat-template", "chatml")
        assert (code, "expected a Jinja template, none is known by name; --chat-template-file takes a file" in err) == (2, True)


def test_a_chat_template_that_is_broken_is_told_before_the_model_is_loaded(capsys, tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text("{% if")
    for flags, told in ((["--chat-template", "{% if"], ""), (["--chat-template-file", str(file)], f"-file {file}")):
        code, _, err = run(capsys, "chat", *here(), *flags)
        assert (code, f"--chat-template{told} is broken at line 1" in err) == (2, True)
    code, _, err = run(capsys, "serve", *here(), "--chat-template", "{{ messages[0].nothing.there }}")
    assert (code, "--chat-template fails: UndefinedError" in err) == (2, True)
