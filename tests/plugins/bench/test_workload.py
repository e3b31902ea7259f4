"""Workloads: the built-in one, and files."""

import pytest

from augury.errors import AuguryError
from augury.plugins.bench.workload import builtin_workload, digest, read_workload


@pytest.fixture
def written(tmp_path):
    def write(*lines):
        path = tmp_path / "work.jsonl"
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    return write


def test_the_built_in_workload_has_texts_that_repeat_and_texts_that_do_not():
    items = builtin_workload()
    assert {"code-edit", "summarization", "writing"} <= {item.category for item in items}
    assert len({item.id for item in items}) == len(items) == 10
    for item in items:
        ((role, content),) = [(message["role"], message["content"]) for message in item.arguments["messages"]]
        assert role == "user"
        assert content.strip()


def test_a_line_is_an_item_with_the_arguments_of_its_request(written):
    path = written(
        '{"id": "a", "category": "writing", "prompt": "Once", "seed": 3}',
        "",
        '{"messages": [{"role": "user", "content": "Hi"}]}',
        '{"id": "c", "tokens": [1, 2]}',
    )
    named, plain, ids = read_workload(path)
    assert (named.id, named.category, named.arguments) == ("a", "writing", {"prompt": "Once", "seed": 3})
    assert (plain.id, plain.category) == ("3", "all")
    assert ids.arguments == {"prompt": [1, 2]}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["nonsense"], "work.jsonl:1: not JSON"),
        (['{"id": "a"}'], "work.jsonl:1: expected an object with one of"),
        (['{"prompt": "a", "tokens": [1]}'], "expected an object with one of"),
        (["[1]"], "expected an object"),
        (['{"id": 7, "prompt": "a"}'], "id is 7"),
        (['{"prompt": 5}'], "work.jsonl:1: prompt is 5, expected a text"),
        (['{"tokens": "x"}'], "work.jsonl:1: tokens is 'x', expected a list of token ids"),
        (['{"tokens": [1, true]}'], "expected a list of token ids"),
        (['{"messages": ["Hi"]}'], "messages is ..Hi.., expected a list of"),
        (['{"category": "", "prompt": "a"}'], "category is ''"),
        (['{"id": "a", "prompt": "a"}', '{"id": "a", "prompt": "b"}'], "work.jsonl:2: the id 'a' occurs twice"),
        ([], "no prompt"),
    ],
)
def test_what_is_no_workload_is_refused_with_its_line(written, lines, expected):
    with pytest.raises(AuguryError, match=expected):
        read_workload(written(*lines))


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(AuguryError, match="absent"):
        read_workload(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(AuguryError, match="UTF-8"):
        read_workload(tmp_path / "binary")


def test_a_digest_tells_workloads_apart(written):
    first = digest(read_workload(written('{"prompt": "a"}')))
    assert first == digest(read_workload(written('{"prompt": "a"}')))
    assert first != digest(read_workload(written('{"prompt": "b"}')))
