"""`augury batch`: an answer for each line, whatever happens between its runs."""

import asyncio
import fcntl
import json
import resource
import signal
import subprocess
import sys

import pytest
from oracles.models import tiny_model
from support.commands import here, run

from augury import Engine
from augury.errors import AuguryError
from augury.plugins.server.batch.answers import Answers, Row, Tally, answer_all, seed_of
from augury.plugins.server.batch.rows import RowFile, read_lines

FLAGS = [*here(), "-c", "64", "-n", "3"]
PROMPTS = [{"id": f"p{i}", "tokens": [i + 1, 2 * i + 3]} for i in range(5)]


def written(path, *lines):
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def request(name, body, url="/v1/completions", method="POST"):
    return {"custom_id": name, "method": method, "url": url, "body": body}


def test_texts_are_those_of_a_run_with_the_seed_of_the_id(capsys, tmp_path):
    lines = [*PROMPTS, {"tokens": [7]}, {"id": 5.5, "tokens": [8], "seed": 9, "max_tokens": 2}]
    source, out = written(tmp_path / "in.jsonl", *lines), tmp_path / "out.jsonl"
    assert run(capsys, "batch", source, out, *FLAGS, "-np", 2)[0] == 0
    rows = {row["id"]: row for row in rows_of(out)}
    assert rows.keys() == {*(f"p{i}" for i in range(5)), 6, 7}  # those without an id have their line's number
    seeded = [{**line, "seed": line.get("seed", seed_of(line.get("id", 6)))} for line in lines]
    _, told, _ = run(capsys, "run", *FLAGS, "--json", "-f", written(tmp_path / "seeded.jsonl", *seeded))
    for id_, line, alone in zip(rows, seeded, map(json.loads, told.splitlines()), strict=True):
        row = rows[{5.5: 7, None: 6}.get(line.get("id"), line.get("id"))]
        assert (row["tokens"], row["finish_reason"], row["seed"]) == (alone["tokens"], alone["finish_reason"], line["seed"])
        assert id_ in rows


def test_a_bad_line_is_a_row_that_says_why(capsys, tmp_path):
    bad = ["no json", {"id": "kind", "prompt": 5}, {"id": "value", "tokens": [1], "temperature": -1}]
    bad += [{"id": "long", "tokens": [1] * 65}, request("url", {}, "/v1/nothing"), request("get", {}, method="GET")]
    bad += [
        request("body", 3),
        request("stream", {"prompt": [1], "stream": True}),
        request("fields", {"prompt": [1], "best": 3}),
    ]
    bad += [request("text", {"prompt": "a"})]  # which this model has no tokenizer for
    source, out = written(tmp_path / "in.jsonl", *bad, PROMPTS[0]), tmp_path / "out.jsonl"
    code, _, err = run(capsys, "batch", source, out, *FLAGS, "--ordered")
    assert code == 1
    assert "11 of 11 lines | " in err
    assert "| 10 errors" in err
    *failed, good = rows_of(out)
    said = [json.dumps(row.get("error") or row["response"]["body"]) for row in failed]
    expected = ["not JSON", "expected a text", "temperature", "65 tokens", "expected one of /v1/chat", 'expected \\"POST\\"']
    for text, part in zip(
        said, [*expected, "expected an object", "leave stream out", "no field 'best'", "no tokenizer"], strict=True
    ):
        assert part in text
    assert [row.get("custom_id", row.get("id")) for row in failed[:5]] == [1, "kind", "value", "long", "url"]
    assert len(good["tokens"]) == 3


def test_a_line_that_is_no_text_is_a_row_that_says_why_and_the_others_are_answered(capsys, tmp_path):
    source, out = written(tmp_path / "in.jsonl", PROMPTS[0]), tmp_path / "out.jsonl"
    source.write_bytes(b'{"id": "latin", "prompt": "\xe4"}\n' + source.read_bytes())
    assert run(capsys, "batch", source, out, *FLAGS, "--ordered")[0] == 1
    latin, good = rows_of(out)
    assert latin == {"id": "latin", "error": f"{source}:1: not text in UTF-8"}
    assert len(good["tokens"]) == 3


def test_requests_in_openai_s_form_have_the_server_s_answers(capsys, tmp_path):
    lines = [
        request("a", {"model": "gpt", "prompt": [1, 2], "max_tokens": 4, "logprobs": 0}),
        request("b", {"prompt": [3], "seed": 4}),
    ]
    lines += [request("c", {"input": [1, 2]}, "/v1/embeddings")]
    source, out = written(tmp_path / "in.jsonl", *lines), tmp_path / "out.jsonl"
    assert run(capsys, "batch", source, out, *FLAGS, "--ordered")[0] == 0
    rows = rows_of(out)
    assert [row["custom_id"] for row in rows] == ["a", "b", "c"]
    assert all(row["error"] is None and row["response"]["status_code"] == 200 for row in rows)
    bodies = [row["response"]["body"] for row in rows]
    assert [body["object"] for body in bodies] == ["text_completion", "text_completion", "list"]
    assert [body["usage"]["completion_tokens"] for body in bodies[:2]] == [4, 3]
    with Engine.load(tiny_model("llama-dense"), backend="reference", n_ctx=64) as engine:
        alone = engine.generate([1, 2], seed=seed_of("a"), max_tokens=4, logprobs=0)
    found = bodies[0]["choices"][0]["logprobs"]["token_logprobs"]
    assert found == [piece.logprob for piece in alone.pieces]


def test_a_file_cut_off_anywhere_is_gone_on_with(tmp_path):
    rows = [{"id": 1, "text": "ä\u2028"}, {"id": "b", "n": 12}, {"custom_id": "c", "error": None}]
    whole = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    path = tmp_path / "out.jsonl"
    for n_bytes in range(len(whole) + 1):
        for rest in (b"", b"\0" * 5):  # as some file systems leave it after a loss of power
            path.write_bytes(whole[:n_bytes] + rest)
            with RowFile(path) as found:
                n_whole = sum(end <= n_bytes for end in ends)
                assert found.ids == {*[1, "b", "c"][:n_whole]}
                found.add("new", {"id": "new"})
            assert path.read_bytes() == whole[: [0, *ends][n_whole]] + b'{"id": "new"}\n'


def test_a_disk_that_is_full_is_told_of_by_the_file_and_the_next_run_goes_on(tmp_path):
    path, (soft, hard) = tmp_path / "out.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill():
        with RowFile(path) as found:
            found.add(1, {"id": 1})
            resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
            found.add(2, {"id": 2, "text": "long"})

    try:
        with pytest.raises(AuguryError, match=r"out.jsonl: File too large; what is written stays, and the next run goes on"):
            fill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with RowFile(path) as found:
        assert found.ids == {1}


def test_a_second_run_answers_what_the_first_did_not(capsys, tmp_path):
    source, out = written(tmp_path / "in.jsonl", *PROMPTS), tmp_path / "out.jsonl"
    assert run(capsys, "batch", source, out, *FLAGS)[0] == 0
    before = {row["id"]: row for row in rows_of(out)}
    lines = out.read_text().splitlines(keepends=True)
    out.write_text(lines[3] + lines[1] + lines[0][:-5])
    code, _, err = run(capsys, "batch", source, out, *FLAGS)
    assert (code, "2 of 5 lines have their answers already" in err, "5 of 5 lines" in err) == (0, True, True)
    assert len(rows_of(out)) == 5
    assert {row["id"]: row for row in rows_of(out)} == before
    code, _, err = run(capsys, "batch", source, out, "-m", "no-such-model")  # which nothing needs
    assert (code, err) == (0, "5 of 5 lines have their answers already\n")


def test_what_cannot_be_told_apart_is_refused_before_a_model_is_loaded(capsys, tmp_path):
    def refusal(source, out):
        code, _, err = run(capsys, "batch", source, out, "-m", "no-such-model")
        assert code in {1, 2}
        return err

    source, out = written(tmp_path / "in.jsonl", *PROMPTS), tmp_path / "out.jsonl"
    assert "two.jsonl:3 has the id 'a' of" in refusal(written(tmp_path / "two.jsonl", {"id": "a"}, {}, {"id": "a"}), out)
    assert "has no lines" in refusal(written(tmp_path / "empty.jsonl", ""), out)
    assert "No such file" in refusal(tmp_path / "missing.jsonl", out)
    assert "which is IN" in refusal(source, source)
    assert "no folder" in refusal(source, tmp_path / "none" / "out.jsonl")
    assert "answers 'other', which" in refusal(source, written(tmp_path / "other.jsonl", {"id": "other"}))
    strange = written(tmp_path / "strange.jsonl", "a letter", PROMPTS[0])
    assert "strange.jsonl:1 is no answer of a batch" in refusal(source, strange)
    assert strange.read_text().startswith("a letter\n")
    with out.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another process is writing it" in refusal(source, out)


def test_the_help_begins_with_both_files(capsys):
    assert run(capsys, "batch", "--help")[1].startswith("usage: augury batch IN OUT [FLAG ...]\n")


class Slow:
    """Answers the first line last; `fails` is the line at which the engine ends."""

    def __init__(self, fails=None):
        self.n_running, self.most, self.fails = 0, 0, fails

    async def answer(self, line):
        self.n_running += 1
        self.most = max(self.most, self.n_running)
        await asyncio.sleep(0.02 if line.id == "p0" else 0)
        self.n_running -= 1
        if line.id == self.fails:
            raise AuguryError("the engine has ended")
        return Row(line.id, {"id": line.id}, 1, is_error=False)


@pytest.mark.parametrize("is_ordered", [False, True])
def test_rows_come_in_the_order_of_lines_where_that_is_asked_for(tmp_path, is_ordered):
    source, answers = written(tmp_path / "in.jsonl", *PROMPTS), Slow()
    with RowFile(tmp_path / "out.jsonl") as rows:
        answer_all(read_lines(source), answers, rows, Tally(0, 5), n_ahead=2, is_ordered=is_ordered)
    ids = [row["id"] for row in rows_of(tmp_path / "out.jsonl")]
    assert sorted(ids) == [line["id"] for line in PROMPTS]
    assert (ids == sorted(ids), answers.most) == (is_ordered, 2)


def test_an_engine_that_ends_ends_the_run_and_fails_no_line(tmp_path):
    source = written(tmp_path / "in.jsonl", *PROMPTS)
    with RowFile(tmp_path / "out.jsonl") as rows, pytest.raises(AuguryError, match="the engine has ended"):
        answer_all(read_lines(source), Slow(fails="p2"), rows, Tally(0, 5), n_ahead=1, is_ordered=True)
    assert [row["id"] for row in rows_of(tmp_path / "out.jsonl")] == ["p0", "p1"]
    with Engine.load(tiny_model("llama-dense"), backend="reference", n_ctx=64) as engine:
        engine.close()
        with pytest.raises(AuguryError, match="closed"):
            asyncio.run(Answers(engine, {}).answer(next(iter(read_lines(source)))))


ENDS_AFTER_ROWS = """
import os, sys
from augury.__main__ import main
from augury.plugins.server.batch.rows import RowFile

add, (number, n) = RowFile.add, map(int, sys.argv[1:3])
del sys.argv[1:3]


def add_and_end(rows, *row):
    add(rows, *row)
    if len(rows.ids) == n:
        os.kill(os.getpid(), number)


RowFile.add = add_and_end
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_killed_is_gone_on_with(capsys, tmp_path, number):
    lines = [{"id": i, "tokens": [i + 1], "max_tokens": 40} for i in range(12)]
    source, out, right = written(tmp_path / "in.jsonl", *lines), tmp_path / "out.jsonl", tmp_path / "right.jsonl"
    words = [sys.executable, "-c", ENDS_AFTER_ROWS, str(int(number)), "3", "batch", source, out, *FLAGS]
    killed = subprocess.run(words, stderr=subprocess.DEVNULL, check=False)
    assert killed.returncode == {signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 128 + signal.SIGINT}[number]
    assert len(rows_of(out)) == 3 if number == signal.SIGKILL else 3 <= len(rows_of(out)) < 12
    assert run(capsys, "batch", source, out, *FLAGS)[0] == 0
    assert run(capsys, "batch", source, right, *FLAGS)[0] == 0
    found = rows_of(out)
    assert sorted(row["id"] for row in found) == [*range(12)]
    assert {row["id"]: row["tokens"] for row in found} == {row["id"]: row["tokens"] for row in rows_of(right)}
