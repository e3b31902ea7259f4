"""`augury serve --learn`: heads are trained while nobody asks, in a process that stops at once when somebody does."""

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.commands import here, run
from support.servers import serving

from augury import Engine, extras
from augury.cli.command_line import make_parser
from augury.errors import AuguryError
from augury.files.gguf import ModelFile
from augury.loader import plan_of
from augury.plugins.learn.head import columns_of, write_first_head
from augury.plugins.learn.hidden_states import STATES, HiddenStates
from augury.plugins.server import command, learner
from augury.plugins.server.collection import Collection
from augury.plugins.server.learner import Learner
from augury.registry import Registry
from augury.testing.tiny_model import write_tiny_model

REGISTRY = Registry.discover()

STAND_IN = """#!{python}
import sys, time
words = dict(zip(sys.argv[4::2], sys.argv[5::2]))
with open(words["-o"] + ".asked", "w") as out:
    out.write(" ".join(sys.argv[3:]))
if "--slowly" in sys.argv:
    time.sleep(60)
if "--fails" in sys.argv:
    sys.exit("first line\\naugury: no room")
open(words["-o"], "w").close()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Requests to learn from, where a stand-in is `augury learn`."""
    program = tmp_path / "python"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(learner, "sys", SimpleNamespace(executable=str(program)))
    monkeypatch.setattr(learner, "_LEAST_BYTES", 100)
    kept = tmp_path / "kept"
    (kept / STATES).mkdir(parents=True)
    (kept / STATES / "a.npy").write_bytes(b"states")
    (kept / "requests.jsonl").write_text(json.dumps({"tokens": [1] * 50}))
    return kept


@asynccontextmanager
async def learning(folder, *words, n_hours=1):
    taken = []
    made = Learner(folder, words, n_hours, Path.touch)
    made.take_over = taken.append
    assert made.draft_model() == str(made.newest or folder / ".heads/0.gguf")
    made.rest(0.0)
    try:
        yield made, taken
    finally:
        await made.close()


async def until(is_so):
    for _ in range(2000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it does not come to that")


def facts_of(pid):
    """The system's of a process: first its state, T where it is stopped; none where it is gone."""
    path = Path(f"/proc/{pid}/stat")
    return path.read_text().rpartition(")")[2].split() if path.exists() else []


def test_each_head_goes_on_from_the_one_before_once_there_is_enough_to_learn(folder):
    async def learn():
        async with learning(folder, "-m", "it") as (made, taken):
            await until(lambda: taken)
            asked = (folder / ".heads/1.gguf.asked").read_text().split()
            assert asked == ["learn", "-f", f"{folder}/.heads/texts", "-o", f"{folder}/.heads/1.gguf", "-m", "it"]
            await until(made._task.done)
            made.rest(0.0)
            await asyncio.sleep(0.05)
            assert made._process is None  # nothing new was asked
            (folder / "requests.jsonl").write_text(json.dumps({"tokens": [1] * 150}))
            made.rest(0.0)
            await until(lambda: len(taken) == 2)
            await until(made._task.done)
            assert f"--from {taken[0]}" in (folder / ".heads/2.gguf.asked").read_text()
            assert not (folder / ".heads/texts").exists()
            assert made.draft_model() == str(taken[1]) == str(folder / ".heads/2.gguf")
        assert (folder / ".heads").stat().st_mode & 0o777 == 0o700

    asyncio.run(learn())


def test_it_stops_while_somebody_asks_and_ends_with_the_server(folder):
    async def learn():
        async with learning(folder, "--slowly", "60") as (made, taken):
            await until((folder / ".heads/1.gguf.asked").exists)
            copies = folder / ".heads/texts"
            assert (copies / STATES / "a.npy").read_bytes() == b"states"
            assert (copies / "requests.jsonl").read_text() == (folder / "requests.jsonl").read_text()
            pid = made._process.pid
            assert facts_of(pid)[16] == "19"  # nice
            for _ in range(2):
                made.pause()
                await until(lambda: facts_of(pid)[0] == "T")
                made.rest(0.0)
                await until(lambda: facts_of(pid)[0] != "T")
            made._left_s = 0.0  # of this day
            made.pause()
            made.rest(0.0)
            await asyncio.sleep(0.05)
            assert facts_of(pid)[0] == "T"
            assert not taken
        assert facts_of(pid) == []
        async with learning(folder) as (made, taken):  # later servers go on with the texts that it began with
            (folder / ".heads/1.gguf.learn").mkdir()
            (folder / "requests.jsonl").write_text("")
            made._n_learnt = -1000
            await until(lambda: taken)

    asyncio.run(learn())


@pytest.mark.parametrize(("words", "told"), [(("--fails", "1"), "augury: no room"), ((), "head 1 is damaged")])
def test_without_a_new_head_the_one_before_stays(folder, capsys, words, told):
    def refuse(head):
        raise AuguryError("head 1 is damaged")

    async def learn():
        async with learning(folder, *words) as (made, _):
            made.take_over = refuse
            await until(lambda: made._task is not None and made._task.done())
            assert made.draft_model() == str(folder / ".heads/0.gguf")
            assert not (folder / ".heads/1.gguf").exists()

    asyncio.run(learn())
    assert f"no head was trained on the requests that are kept: {told}\n" in capsys.readouterr().err


@pytest.mark.sample(0)  # of a minute, in which JAX compiles
def test_one_user_s_answers_are_drafted_better_by_the_head_that_learnt_from_them(tmp_path, monkeypatch):
    monkeypatch.setattr(learner, "_LEAST_BYTES", 100)
    monkeypatch.setattr("os.setpriority", lambda *_: None)  # beside other tests it would wait for minutes
    write_tiny_model(model := tmp_path / "model.gguf")
    (kept := tmp_path / "kept").mkdir()
    words = ["-m", str(model), "-t", "1", "-c", "512", "-np", "1", "--draft-vocabulary", "200", "--epochs", "24"]
    rng, collection = np.random.default_rng(1), Collection(kept, 10**8)

    def write_first(path):
        with ModelFile.open(model) as file:
            write_first_head(path, file, plan_of(file, REGISTRY), "it")

    def accepted(engine):
        way = {"max_tokens": 100, "temperature": 0.0, "ignore_eos": True}
        result = engine.generate(list(range(60, 72)), **way)
        assert result.tokens == engine.generate(list(range(60, 72)), speculative=False, **way).tokens
        return result.stats.n_accepted

    async def learn():
        made = Learner(kept, words, 1, write_first)
        how = {"draft_model": made.draft_model(), "spec_type": "draft-eagle3", "spec_fixed": True, "draft_max": 3}
        with Engine.load(model, threads=1, n_ctx=512, **how) as engine:
            made.take_over, before = engine.replace_draft_model, accepted(engine)
            for seed in range(24):
                states = HiddenStates(columns_of(engine.info.n_layers), engine.info.n_embd)
                way = {"max_tokens": 180, "temperature": 0.8, "seed": seed, "ignore_eos": True, **states.asked}
                prompt = rng.integers(0, 260, 12).tolist()
                collection.add([*prompt, *engine.generate(prompt, **way).tokens], states)
            made.rest(0.0)
            await asyncio.sleep(0.1)
            await made._task
            assert made.newest is not None
            assert accepted(engine) > max(2 * before, 40)
        await made.close()

    asyncio.run(learn())


def test_the_command_that_trains_is_one(tmp_path):
    flags = ["--collect", str(tmp_path), "--learn", "-c", "64", "--override-kv", "general.name=str:it"]
    made = command._learner(make_parser(REGISTRY).parse_args(["serve", *here(), *flags]))
    words = ["learn", "-f", "texts", "-o", "head.gguf", "--from", "before.gguf", *made._words]
    args = make_parser(REGISTRY, words).parse_args(words)
    assert (args.ctx_size, args.threads, args.disk, args.override_kv) == (64, 1, 4, ["general.name=str:it"])


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ((), "--learn learns from what --collect keeps; name a folder with --collect"),
        (("--collect", "here", "-md", "head.gguf"), "--learn makes the head itself, and -md names one"),
        (("--collect", "here", "--collect-disk", 0), "--learn needs hidden states; raise --collect-disk"),
        (("--collect", "here"), "--learn needs jax and optax, not installed here; install the extra: "),
    ],
)
def test_what_it_needs_is_said_at_the_start(capsys, tmp_path, monkeypatch, flags, told):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in {"jax", "optax"} else name)
    words = [tmp_path if word == "here" else word for word in flags]
    code, _, err = run(capsys, "serve", *here(), "--port", 0, "--learn", *words)
    assert code in {1, 2}
    assert told in err


def test_a_head_that_has_learnt_nothing_drafts_for_those_alone_who_ask_for_it(tmp_path):
    asked = {"prompt": [5, 6, 7], "n_predict": 8, "temperature": 0.0, "return_tokens": True, "ignore_eos": True}
    with serving(*here(), "-c", 64, "-np", 1, "--collect", tmp_path, "--learn", "--spec-fixed") as server:
        found = []
        for more in ({}, {"speculative": {"type": "draft-eagle3"}}):
            answer = server.client.post("/completion", json=asked | more)
            assert answer.status_code == 200, answer.text
            found.append(answer.json())
        assert server.end() == 0
    assert found[0]["tokens"] == found[1]["tokens"]
    assert found[0]["timings"].get("draft_n", 0) < found[1]["timings"]["draft_n"]
    assert (tmp_path / ".heads/0.gguf").exists()


def test_a_head_whose_training_has_not_ended_is_none_yet(folder):
    made = Learner(folder, (), 1, Path.touch)
    made.draft_model()
    for number in (1, 2):
        (folder / f".heads/{number}.gguf").touch()
    assert made.newest == folder / ".heads/2.gguf"
    (folder / ".heads/2.gguf.learn").mkdir()
    assert made.newest == folder / ".heads/1.gguf"


def test_a_later_server_goes_on_with_a_training_that_was_begun(folder):
    async def learn():
        async with learning(folder) as (made, taken):
            await until(lambda: taken)
            await until(made._task.done)
        for name in ("2.gguf.learn", "texts"):
            (folder / ".heads" / name).mkdir()
        asked = folder / ".heads/2.gguf.asked"
        async with learning(folder):  # without a new request
            await until(lambda: asked.exists() and asked.read_text())
        assert asked.read_text().endswith(f"--from {folder}/.heads/1.gguf")

    asyncio.run(learn())
