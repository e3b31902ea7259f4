"""Workloads: the built-in one, and files."""

import pytest

from augury.cli.prompts import Prompt
from augury.errors import AuguryError
from augury.plugins.bench.workload import _labelled, builtin_workload, digest, read_workload


@pytest.fixture
def written(tmp_path):
    def write(*lines):
        path = tmp_path / "work.jsonl"
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    return write


def test_the_built_in_workload_has_texts_that_repeat_and_texts_that_do_not():
    prompts = builtin_workload()
    assert {"code-edit", "summarization", "writing"} <= {prompt.category for prompt in prompts}
    assert len({prompt.id for prompt in prompts}) == len(prompts) == 10
    for prompt in prompts:
        ((role, content),) = [(message["role"], message["content"]) for message in prompt.messages]
        assert role == "user"
        assert content.strip()


def test_a_line_is_a_prompt_with_a_label_and_the_parameters_of_its_request(written):
    path = written(
        '{"id": "a", "category": "writing", "prompt": "Once", "seed": 3}',
        "",
        '{"messages": [{"role": "user", "content": "Hi"}]}',
        '{"id": 7, "tokens": [1, 2]}',
    )
    named, plain, ids = read_workload(path)
    assert (named.id, named.category, named.arguments()) == ("a", "writing", {"prompt": "Once", "seed": 3})
    assert (plain.id, plain.category) == ("2", "all")
    assert (ids.id, ids.arguments()) == ("7", {"prompt": [1, 2]})


def test_ids_that_occur_twice_are_numbered():
    prompts = [Prompt(text="", id=name) for name in ("1", "a", 1, "", None)]
    assert [prompt.id for prompt in _labelled(prompts)] == ["1", "a", "1 (2)", "4", "5"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (['{"prompt": "a"}', "nonsense"], "work.jsonl:2: not JSON"),
        (['{"tokens": "x"}'], "work.jsonl:1: tokens is 'x'"),
        ([], "no prompt"),
    ],
)
def test_what_is_no_workload_is_refused_with_its_line(written, lines, expected):
    with pytest.raises(AuguryError, match=expected):
        read_workload(written(*lines))


def test_a_digest_tells_workloads_apart(written):
    first = digest(read_workload(written('{"prompt": "a"}')))
    assert first == digest(read_workload(written('{"prompt": "a"}')))
    assert first != digest(read_workload(written('{"prompt": "b"}')))
