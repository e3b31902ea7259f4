"""Flags of the system prompt and of the chat template."""

import argparse
import json
import tomllib
from pathlib import Path

import pytest
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from support.commands import here, run

from augury import cli
from augury.cli.parser import Parser
from augury.cli.prompts import add_prompt_flags, read_prompts
from augury.cli.request_flags import add_system_flags, named_template, template_of, with_system
from augury.errors import OptionError
from augury.text.chat_template import ChatTemplate

TURNS = (("user", "How?"), ("assistant", " So. "), ("user", "Why?"))
# by llama.cpp's llm_chat_apply_template, with the system prompt "s" and without; yandex, of which it drops the system prompt,
# with that before the question
NAMED = json.loads((Path(__file__).parents[2] / "data/templates/named.json").read_text(encoding="utf-8"))
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


def test_a_chat_template_of_an_unknown_name_is_refused(capsys):
    for words in (["run", "-p", "x"], ["chat"], ["serve"]):
        code, _, err = run(capsys, *words, *here(), "--chat-template", "chatxl")
        assert (code, "is 'chatxl', expected Jinja or one of chatml, phi3, " in err) == (2, True)


def test_a_text_with_spaces_is_a_template():
    args = argparse.Namespace(chat_template="This is the prompt, whatever is asked", chat_template_file=None)
    assert template_of(args) == args.chat_template


@pytest.mark.parametrize("name", ["chatml", "gemma"])
def test_a_chat_template_may_be_a_name(name):
    template = ChatTemplate(template_of(argparse.Namespace(chat_template=name, chat_template_file=None)))
    messages = [{"role": role, "content": text} for role, text in (("system", "s"), *TURNS)]
    try:
        assert template.render(messages) == NAMED[name][0]
        assert template.render([*messages[:2], {"role": "assistant", "content": "Wh"}]).endswith("Wh")
    finally:
        template.close()


def test_named_chat_templates_write_what_llama_cpp_writes():
    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)  # as transformers has it
    sandbox.globals["raise_exception"] = lambda text: (_ for _ in ()).throw(TemplateError(text))
    turns = [{"role": role, "content": text} for role, text in TURNS]
    known = tomllib.loads((Path(cli.__file__).parent / "chat_templates.toml").read_text(encoding="utf-8"))
    assert known.keys() == NAMED.keys()
    for name, (with_system_prompt, without) in NAMED.items():
        template = sandbox.from_string(named_template(name))
        told = {"add_generation_prompt": True, "eos_token": "<|endoftext|>"}
        assert template.render(messages=turns, **told) == without, name
        try:
            text = template.render(messages=[{"role": "system", "content": "s"}, *turns], **told)
        except TemplateError:  # as `TemplateHabits` does
            text = template.render(messages=[{"role": "user", "content": "s\n\nHow?"}, *turns[1:]], **told)
        assert text == with_system_prompt, name


def test_named_chat_templates_write_answers_of_tools():
    sandbox = ImmutableSandboxedEnvironment()
    for name, text in (
        ("kimi-k2", "tool<|im_middle|>9<|im_end|>"),
        ("exaone4", "[|tool|]9[|endofturn|]"),
        ("vicuna", "USER: 9"),
    ):
        assert text in sandbox.from_string(named_template(name)).render(messages=[{"role": "tool", "content": "9"}]), name


def test_a_chat_template_that_is_broken_is_told_before_the_model_is_loaded(capsys, tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text("{% if")
    for flags, told in ((["--chat-template", "{% if"], ""), (["--chat-template-file", str(file)], f"-file {file}")):
        code, _, err = run(capsys, "chat", *here(), *flags)
        assert (code, f"--chat-template{told} is broken at line 1" in err) == (2, True)
    code, _, err = run(capsys, "serve", *here(), "--chat-template", "{{ messages[0].nothing.there }}")
    assert (code, "--chat-template fails: UndefinedError" in err) == (2, True)
