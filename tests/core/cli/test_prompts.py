"""Where prompts come from."""

from pathlib import Path

from augury.cli.prompts import Prompt, _from_file
from augury.plugins.bench.commands.items import _distinct
from augury.plugins.bench.workload import Item


def read(tmp_path, name, text):
    file = Path(tmp_path) / name
    file.write_text(text)
    return _from_file(file)


def test_a_text_file_is_one_prompt_without_its_last_line_end(tmp_path):
    assert read(tmp_path, "a.txt", "one\ntwo\n") == [Prompt(text="one\ntwo")]


def test_json_lines_are_known_by_what_they_hold(tmp_path):
    found = read(tmp_path, "a.txt", '{"prompt": "one"}\n{"messages": [{"role": "user", "content": "two"}], "seed": 3}\n')
    messages = [{"role": "user", "content": "two"}]
    first, second = (f"{tmp_path / 'a.txt'}:{number}" for number in (1, 2))
    assert found == [Prompt(text="one", where=first), Prompt(messages=messages, params={"seed": 3}, where=second)]


def test_a_text_that_starts_with_a_brace_is_a_text(tmp_path):
    assert read(tmp_path, "a.c", "{\n  return 1;\n}\n") == [Prompt(text="{\n  return 1;\n}")]
    assert read(tmp_path, "a.json", '{"name": 1}') == [Prompt(text='{"name": 1}')]


def test_parameters_of_a_line_go_with_its_prompt():
    assert Prompt(tokens=(1, 2), params={"seed": 3}).arguments() == {"prompt": [1, 2], "seed": 3}


def test_ids_that_occur_twice_are_numbered():
    items = [Item("1"), Item("a"), Item("1"), Item("1")]
    assert [item.id for item in _distinct(items)] == ["1", "a", "1 (2)", "1 (3)"]
