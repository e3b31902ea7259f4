"""Workloads: the built-in one, files, and copies of Spec-Bench."""

import json

import pytest

from augury.cli.prompts import Prompt
from augury.errors import AuguryError
from augury.plugins.bench.workload import _labelled, builtin_workload, digest, read_workload, with_answers


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


CHAT = [{"role": "user", "content": "a"}, {"role": "assistant"}, {"role": "user", "content": "b"}]


def test_answers_that_a_conversation_leaves_open_are_the_model_s():
    heard = []
    asked = [*CHAT, {"role": "assistant", "content": "given"}, {"role": "user", "content": "c"}, {"role": "assistant"}]
    filled = with_answers(asked, lambda before: heard.append(list(before)) or f"answer {len(heard)}")
    assert [message["content"] for message in filled] == ["a", "answer 1", "b", "given", "c", "answer 2"]
    assert heard == [filled[:1], filled[:5]]
    assert asked[1] == {"role": "assistant"}, "the workload itself stays as it is"
    called = [{"role": "assistant", "tool_calls": []}]
    assert with_answers(called, None) == called


QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Write.", "Shorter."], "reference": ["..."]},
    {"question_id": 121, "category": "coding", "turns": ["Sort."]},
    {"question_id": 161, "category": "translation", "turns": ["Translate German to English: Eins\u2028zwei"]},
    {"question_id": 241, "category": "summarization", "turns": ["Summarize: much"]},
    {"question_id": 321, "category": "qa", "turns": ["Who?"]},
    {"question_id": 401, "category": "math_reasoning", "turns": ["1 + 1?"]},
    {"question_id": 481, "category": "rag", "turns": ["Passages. Question?"]},
]


def test_a_copy_of_spec_bench_is_a_workload_of_six_categories(written):
    path = written(*(json.dumps(question, ensure_ascii=False) for question in QUESTIONS))
    prompts = read_workload(f"spec-bench:{path}")
    assert [(prompt.id, prompt.category) for prompt in prompts] == [
        ("spec-bench-81", "multi-turn"),
        ("spec-bench-81, turn 2", "multi-turn"),
        ("spec-bench-121", "multi-turn"),
        ("spec-bench-161", "translation"),
        ("spec-bench-241", "summarization"),
        ("spec-bench-321", "qa"),
        ("spec-bench-401", "math_reasoning"),
        ("spec-bench-481", "rag"),
    ]
    assert prompts[0].arguments() == {"messages": [{"role": "user", "content": "Write."}]}
    assert prompts[1].messages == [
        {"role": "user", "content": "Write."},
        {"role": "assistant"},
        {"role": "user", "content": "Shorter."},
    ]
    assert prompts[3].messages == [{"role": "user", "content": QUESTIONS[2]["turns"][0]}]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["{"], r"work.jsonl:1: not JSON.*expected data/spec_bench/question.jsonl of https://github.com/hemingkx/Spec-Bench"),
        (
            [json.dumps(QUESTIONS[0]), '{"prompt": "a"}'],
            r'work.jsonl:2: no question of Spec-Bench; expected an object with "quest',
        ),
        (['{"question_id": 1, "category": "qa", "turns": []}'], "work.jsonl:1: no question"),
        (['{"question_id": 1, "category": "qa", "turns": [1]}'], "work.jsonl:1: no question"),
        (
            ['{"question_id": 1, "category": "cooking", "turns": ["a"]}'],
            "work.jsonl:1: category is 'cooking', expected one of wr",
        ),
        (['{"question_id": 1, "category": ["qa"], "turns": ["a"]}'], r"work.jsonl:1: category is \['qa'\]"),
        (["[]"], "work.jsonl:1: no question"),
        ([], "there is no prompt in it"),
    ],
)
def test_what_is_no_copy_of_spec_bench_is_refused_with_what_was_expected(written, lines, expected):
    with pytest.raises(AuguryError, match=expected):
        read_workload(f"spec-bench:{written(*lines)}")


@pytest.mark.parametrize("name", ["spec-bench", "spec-bench:"])
def test_without_a_copy_of_spec_bench_it_says_where_to_get_one(name):
    told = "names no file; fetch data/spec_bench/question.jsonl of https://github.com/hemingkx/Spec-Bench and give --workload"
    with pytest.raises(AuguryError, match=told):
        read_workload(name)


def test_a_copy_of_spec_bench_that_is_not_there_is_named(tmp_path):
    with pytest.raises(AuguryError, match=r"absent.jsonl: No such file.*; expected data/spec_bench/question.jsonl of"):
        read_workload(f"spec-bench:{tmp_path}/absent.jsonl")
