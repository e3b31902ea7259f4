"""`augury serve --collect`: answered requests are kept, within bounds, as texts that `augury learn` reads."""

import itertools
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.commands import here, run
from support.servers import serving

from augury import Engine
from augury.plugins.learn.corpus import collected, cut_texts, read_texts
from augury.plugins.learn.head import columns_of
from augury.plugins.learn.hidden_states import STATES, HiddenStates, Piece, read_rows
from augury.plugins.server import collection
from augury.plugins.server.collection import Collection


def kept(folder, name="requests.jsonl"):
    return [json.loads(line)["tokens"] for line in (folder / name).read_text().splitlines()]


def test_whole_answers_are_kept_unless_their_requests_say_no(tmp_path):
    asked = {"n_predict": 6, "return_tokens": True, "temperature": 1.0, "seed": 7}
    with serving(*here(), "-c", 4096, "-np", 2, "--collect", tmp_path) as server:

        def complete(**fields):
            answer = server.client.post("/completion", json=asked | fields)
            assert answer.status_code == 200, answer.text
            return answer

        expected = [[1, 2, *complete(prompt=[1, 2]).json()["tokens"]]]
        expected += [[3, 4, *each["tokens"]] for each in complete(prompt=[3, 4], n_cmpl=2).json()]
        events = complete(prompt=[5, 6], stream=True).text.splitlines()
        streamed = [json.loads(line.removeprefix("data: "))["tokens"] for line in events if '"tokens"' in line]
        expected.append([5, 6, *itertools.chain(*streamed)])
        complete(prompt=[7, 8], store=False)
        assert server.client.post("/completion", json=asked | {"prompt": [7, 99999]}).status_code == 400
        endless = {"prompt": [7, 9], "n_predict": 4000, "ignore_eos": True, "stream": True}
        with server.client.stream("POST", "/completion", json=asked | endless):
            pass  # a client that leaves
        body = {"prompt": [9, 8], "max_tokens": 4, "temperature": 0.0, "ignore_eos": True}
        answer = server.client.post("/v1/completions", json=body)
        assert answer.json()["choices"][0]["text"] == ""  # the prompt is kept, not told
        assert server.end() == 0
    found = kept(tmp_path)
    assert sorted(found)[:-1] == sorted(expected)
    assert max(found)[:2] == [9, 8]
    assert len(max(found)) == 6
    assert [list(text.tokens) for text in read_texts([tmp_path])] == found


def test_hidden_states_are_kept_of_what_is_computed_and_learnt_from(tmp_path):
    asked = {"n_predict": 6, "return_tokens": True, "temperature": 1.0, "seed": 7, "ignore_eos": True}
    with serving(*here(backend="numba-cpu"), "-c", 256, "-np", 1, "--collect", tmp_path) as server:
        turns, prompt = [], [1, 2, 3]
        for _ in range(3):
            answer = server.client.post("/completion", json=asked | {"prompt": prompt})
            turns.append([*prompt, *answer.json()["tokens"]])
            prompt = [*turns[-1], 4, 5, 6]
        server.client.post("/completion", json=asked | {"prompt": [9, 9], "store": False})
        server.client.post("/completion", json=asked | {"prompt": [8, 8], "lora": []})
        assert server.end() == 0
    texts = [np.int32(text) for text in kept(tmp_path)]
    with Engine.load(here()[1], threads=1, n_ctx=256, spec_type="none") as engine:
        names = columns_of(engine.info.n_layers)
        width = engine.info.n_embd * len(names)
        cuts, places = cut_texts(texts, 64, collected([tmp_path]), width)
        pieces = [piece for pieces in cuts for piece in pieces if piece.name in places]
        assert np.concatenate([piece.tokens[:-1] for piece in pieces][::-1]).tolist() == turns[-1][:-1]
        for piece in pieces:
            path, place = places[piece.name]
            states = HiddenStates(names, engine.info.n_embd)
            states.add(0, piece.text[:-1], engine.hidden_states(piece.text[:-1], [*dict.fromkeys(names)]))
            assert np.array_equal(read_rows(path, width)[place], states.of(piece.text, piece.start))
    assert len(places) == 3
    folder = tmp_path / STATES
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())} == {0o700, 0o600}
    assert len(read_texts([tmp_path])) == len(texts) == 4


def test_of_hidden_states_the_newest_are_kept(tmp_path, caplog):
    def told(n):
        states = HiddenStates(("output",), 2)
        states.add(0, np.full(9, n, np.int32), {"output": np.full((9, 2), n, np.float32)})
        return [n] * 10, states

    one = 9 * 2 * 2 + 144
    for n in range(5):
        Collection(tmp_path, 3 * one).add(*told(n))
        os.utime(tmp_path / STATES / f"{Piece(np.int32([n] * 10)).name}.npy", ns=(n, n))
        (tmp_path / STATES / ".part").write_bytes(b"of a server that was killed")
    (tmp_path / STATES / ".part").unlink()
    found = sorted(read_rows(path, 2)[0, 0] for path in (tmp_path / STATES).iterdir())
    assert found == [2, 3, 4]
    Collection(tmp_path, one - 1).add(*told(7))
    Collection(tmp_path, 0).add(*told(8))
    assert list((tmp_path / STATES).iterdir()) == []
    assert len(kept(tmp_path)) == 7
    (tmp_path / STATES).rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / STATES).symlink_to("elsewhere")
    Collection(tmp_path, 3 * one).add(*told(9))
    assert not list((tmp_path / "elsewhere").iterdir())
    assert "requests cannot be kept" in caplog.text


def test_no_more_is_kept_than_is_said_and_the_owner_alone_may_read_it(tmp_path, monkeypatch):
    monkeypatch.setattr(collection, "_N_BYTES", 1000)
    requests = [[i] * 20 for i in range(100, 150)]
    for request in requests:
        Collection(tmp_path).add(request)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["requests-before.jsonl", "requests.jsonl"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert 500 < sum(file.stat().st_size for file in files) <= 1000
    newest = [*kept(tmp_path, "requests-before.jsonl"), *kept(tmp_path)]
    assert newest == requests[-len(newest) :]


def test_several_threads_and_servers_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(collection, "_N_BYTES", 20000)
    requests = [[i] * 9 for i in range(300)]
    folders = [Collection(tmp_path) for _ in range(3)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda i: folders[i % 3].add(requests[i]), range(300)))
    assert sorted([*kept(tmp_path, "requests-before.jsonl"), *kept(tmp_path)]) == requests


def test_a_disk_that_refuses_costs_the_request_and_no_other(tmp_path, monkeypatch, caplog):
    kept_here, write = Collection(tmp_path), collection.os.open
    kept_here.add([1, 2])
    monkeypatch.setattr(collection.os, "open", lambda path, *more, **at: write("/dev/full" if at else path, *more, **at))
    kept_here.add([98765, 4])
    kept_here.add([98765, 4])
    monkeypatch.undo()
    kept_here.add([5, 6])
    assert kept(tmp_path) == [[1, 2], [5, 6]]
    assert caplog.text.count("requests cannot be kept") == 1
    assert "98765" not in caplog.text


@pytest.mark.parametrize("name", ["requests.jsonl", "requests-before.jsonl"])
@pytest.mark.parametrize("put", ["symlink_to", "hardlink_to"])
def test_no_link_in_the_folder_is_followed(tmp_path, monkeypatch, caplog, name, put):
    monkeypatch.setattr(collection, "_N_BYTES", 40)
    mine, folder = tmp_path / "mine", tmp_path / "kept"
    mine.write_text("of value")
    folder.mkdir()
    getattr(folder / name, put)(mine)
    for _ in range(3):
        Collection(folder).add([1, 2])
    assert mine.read_text() == "of value"
    assert ("requests cannot be kept" in caplog.text) == (name == "requests.jsonl")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_folder_in_place_of_the_file_keeps_nobody_waiting(tmp_path, caplog, make):
    make(tmp_path / "requests.jsonl")
    Collection(tmp_path).add([1, 2])
    assert "requests cannot be kept" in caplog.text
    reader = os.open(tmp_path / "requests.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    Collection(tmp_path).add([1, 2])
    assert make is os.mkdir or os.read(reader, 9) == b""
    os.close(reader)


def test_a_folder_that_became_a_link_is_not_followed(tmp_path, caplog):
    (tmp_path / "kept").mkdir()
    kept_here = Collection(tmp_path / "kept")
    (tmp_path / "kept").rename(tmp_path / "elsewhere")
    (tmp_path / "kept").symlink_to("elsewhere")
    kept_here.add([1, 2])
    assert "requests cannot be kept" in caplog.text
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("flag", ["--collect", "--slot-save-path"])
def test_the_folder_must_exist(capsys, tmp_path, flag):
    code, _, err = run(capsys, "serve", *here(), "--port", 0, flag, tmp_path / "none")
    assert code == 2
    assert f"{flag} is {tmp_path}/none, expected a folder that exists" in err


@pytest.mark.parametrize("flags", [("--spec-synth-rates", "0.9,0.8"), ("--spec-synth-len", "2")])
def test_answers_that_are_not_the_model_s_are_not_kept(capsys, tmp_path, flags):
    code, _, err = run(capsys, "serve", *here(), "--port", 0, "--collect", tmp_path, "--spec-type", "ngram-mod", *flags)
    assert code == 2
    assert "--collect keeps answers to learn from, but with synthetic acceptance" in err
    assert not list(tmp_path.iterdir())
