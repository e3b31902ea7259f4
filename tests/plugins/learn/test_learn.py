"""`augury learn` on a tiny model: its heads are often right, load as others do, and do not depend on interruptions."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from attrs import evolve
from gguf import GGMLQuantizationType
from oracles.drafts import draft_file, parted, target_of
from oracles.models import tiny_file, tiny_model
from support.commands import run
from support.head_rig import REGISTRY, Rig

from augury import Engine, extras
from augury.batch import Batch
from augury.cli import Prompt
from augury.errors import AuguryError, UnsupportedError
from augury.files.gguf import ModelFile
from augury.files.models import open_model
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.plugins.learn import command, losses, training
from augury.plugins.learn.corpus import answered, cut_texts, distinct, encoded, mixed, most_tokens, n_piece_of, read_prompts
from augury.plugins.learn.head import N_ROW, N_STEPS, HeadSizes, Sample, TargetTensors, draft_vocabulary, write_head
from augury.plugins.learn.hidden_states import Piece, cut, read_rows, write_rows
from augury.plugins.learn.recorded import Recorded
from augury.plugins.published_heads import export
from augury.testing.tiny_model import write_tiny_model
from augury.text.chat_template import ChatTemplate

N_PROMPTS, N_DRAFTED = 24, 200
UNTOLD = "hrm_text-dense"  # its layers tell no hidden states


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learn")
    write_tiny_model(folder / "model.gguf")
    rng = np.random.default_rng(1)
    with (folder / "prompts.jsonl").open("w") as out:
        for seed in range(N_PROMPTS):
            sampling = {"max_tokens": 180, "temperature": 0.8, "seed": seed, "ignore_eos": True}
            out.write(json.dumps({"tokens": rng.integers(0, 260, 12).tolist(), **sampling}) + "\n")
    return folder


def learning(model, head, epochs=2, source=("--prompts", "prompts.jsonl")):
    """The words of a command."""
    flag, *files = source
    words = [
        "learn",
        "-m",
        model / "model.gguf",
        flag,
        *(model / each for each in files),
        "-o",
        head,
        "-t",
        1,
        "-c",
        512,
        "-np",
        1,
    ]
    return [*map(str, words), "--draft-vocabulary", str(N_DRAFTED), "--epochs", str(epochs)]


def ones(sizes):
    """A sample of features that are alike."""
    return Sample(np.ones((1, 3 * sizes.n_embd), np.float32), np.zeros(1, np.int32))


@pytest.fixture
def learn(capsys, model):
    def learn(head, *more, **how):
        return run(capsys, *learning(model, head, **how), *more)

    return learn


def accepted(model, head):
    """Of 100 tokens of an answer, those that a draft of the head had right; and the answer."""
    how = {"draft_model": head, "spec_type": "draft-eagle3", "spec_fixed": True, "draft_max": 3}
    with Engine.load(model / "model.gguf", threads=1, n_ctx=512, **how) as engine:
        result = engine.generate(list(range(60, 72)), max_tokens=100, temperature=0.0, ignore_eos=True)
        plain = engine.generate(list(range(60, 72)), max_tokens=100, temperature=0.0, ignore_eos=True, speculative=False)
    assert result.tokens == plain.tokens
    return result.stats.n_accepted, result.tokens


@pytest.mark.sample(0)  # of 20 s: an epoch that drafts a token more is compiled anew
def test_a_learnt_head_is_often_right_where_an_untrained_one_is_not_and_changes_nothing(model, learn, tmp_path):
    code, out, err = learn(tmp_path / "head.gguf", epochs=24)
    assert code == 0, err
    assert out.split() == ["augury", "run", "-m", str(model / "model.gguf"), "-md", str(tmp_path / "head.gguf")]
    page = (Path(__file__).parents[3] / "docs/learn.md").read_text()
    shown = re.search(r"--epochs 6\n(.*?)^augury run", page, re.MULTILINE | re.DOTALL)[1]
    written, expected = ({re.sub(r"\d[\d.]*", "N", line) for line in text.splitlines()} for text in (err, shown))
    assert expected <= written
    assert not (tmp_path / "head.gguf.learn").exists()
    with ModelFile.open(model / "model.gguf") as file, ModelFile.open(tmp_path / "head.gguf") as head:
        plan, tokens = plan_of(file, REGISTRY), head.integers("d2t", (N_DRAFTED,), 264)
        sizes, target = HeadSizes.for_target(file, plan, "it", N_DRAFTED), TargetTensors(file, plan)
        first = sizes.first_weights(target, ones(sizes), 1)
        write_head(tmp_path / "untrained.gguf", sizes, file, tokens, first, target.output(tokens))
        of_tokenizer = {key for key in file.metadata if key.startswith("tokenizer.")}
        assert of_tokenizer <= head.metadata.keys()
    trained, _ = accepted(model, tmp_path / "head.gguf")
    untrained, _ = accepted(model, tmp_path / "untrained.gguf")
    assert untrained < 10
    assert trained > 40


def interrupted(method, n):
    """The method, but Ctrl-C comes before its call n."""
    calls = iter(range(n))

    def called(self, *arguments):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return method(self, *arguments)

    return called


@pytest.mark.sample(0)
def test_an_interrupted_training_goes_on_to_the_same_head(model, learn, tmp_path, monkeypatch):
    whole, resumed = tmp_path / "whole.gguf", tmp_path / "resumed.gguf"
    assert learn(whole)[0] == 0
    monkeypatch.setattr(training, "_SAVE_EVERY_S", 0.0)
    for cls, name, n, kept in (
        (Recorded, "add_answers", 2, "answers.jsonl"),
        (Recorded, "add_rows", 9, "*.npy"),
        (training.Trainer, "step", 8, "checkpoint.npz"),  # in the second epoch
    ):
        with monkeypatch.context() as patch:
            patch.setattr(cls, name, interrupted(getattr(cls, name), n))
            assert learn(resumed)[0] == 130
        assert resumed.exists() == (name == "step"), "the best so far is there"
        assert list((tmp_path / "resumed.gguf.learn").glob(kept))
    checkpoint = tmp_path / "resumed.gguf.learn" / "checkpoint.npz"
    before = checkpoint.stat().st_mtime_ns
    with subprocess.Popen([sys.executable, "-m", "augury", *learning(model, resumed)], stderr=subprocess.DEVNULL) as process:
        while checkpoint.stat().st_mtime_ns == before and process.poll() is None:  # until the epoch is over
            sleep(0.002)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    code, _, err = learn(resumed, epochs=3)
    assert code == 1
    assert "holds the beginning of another training" in err
    code, _, err = learn(resumed)
    assert code == 0, err
    assert whole.read_bytes() == resumed.read_bytes()


@pytest.mark.sample(0)  # of 16 s, in which JAX compiles
def test_training_drafts_as_the_drafter_does(tmp_path):
    """Of a greedy text as many drafts are right by JAX's account as the drafter writes right, position by position."""
    name = "eagle3-llama"
    with Engine.load(tiny_model(target_of(name)), backend="reference", threads=1, spec_type="none") as engine:
        text = [3, 7, *engine.generate([3, 7], max_tokens=40, temperature=0.0, ignore_eos=True).tokens]
    file = tiny_file(target_of(name))
    plan = plan_of(file, REGISTRY)
    sizes, target = HeadSizes.for_target(file, plan, name, plan.n_vocab), TargetTensors(file, plan)
    tokens = np.arange(0, plan.n_vocab, dtype=np.int32)

    def trainer(weights):
        return training.Trainer(sizes, weights, target.output(tokens), target, 3e-3, 30, losses.rounded_product)

    first = sizes.first_weights(target, ones(sizes), 1)
    write_head(tmp_path / "first.gguf", sizes, file, tokens, first, target.output(tokens))
    rig = Rig(name, "reference", model=tmp_path / "first.gguf")
    told = rig._model.forward(Batch.chain(text[:-1], features=("output", *sizes.features)))
    features = np.hstack([told.features(each) for each in sizes.features])[None]
    embedded, is_there = target.embedding(np.int32(text[1:-1]))[None], np.ones((1, len(text) - 2), bool)
    outputs, texts = told.features("output")[None, 1:], is_there.astype(np.int32)
    batch = losses.TrainingBatch(features[:, :-1], embedded, outputs, texts, is_there, is_there)
    rig.loader.close()
    learning = trainer(first)
    while learning.n_steps < 30:
        learning.step(batch, N_STEPS)
    write_head(tmp_path / "head.gguf", sizes, file, tokens, learning.weights, target.output(tokens))
    with ModelFile.open(tmp_path / "head.gguf") as head:  # as it is stored
        weights = {name: TargetTensors.values(head, name) for name in sizes.shapes}
        output = TargetTensors.values(head, "output.weight")
        n, *right = training.Trainer(sizes, weights, output, target, 3e-3, 30, losses.rounded_product).accepted(batch).tolist()
    rig = Rig(name, "reference", model=tmp_path / "head.gguf")
    drafted = np.zeros(N_STEPS, int)
    history = np.int32(text)
    for end in range(1, len(text) - 3):
        rig.feed(0, end, text=history[:-1])
        draft = rig.draft(history[: end + 1], N_STEPS)
        drafted += np.cumprod(np.equal(draft, text[end + 1 : end + 1 + N_STEPS]))
    rig.loader.close()
    assert n == len(text) - 4
    assert drafted.tolist() == right
    assert right[0] > right[2] > 5


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["-f", "prompts.jsonl", "--prompts", "prompts.jsonl"], 2, "both of -f and --prompts"),
        ([], 2, "neither of -f and --prompts"),
        (["-f", "none.txt"], 1, "none.txt: No such file"),
        (["-f", "empty"], 1, "-f: there is no text in it"),
        (["--prompts", "bad.jsonl"], 1, "bad.jsonl:1: not JSON"),
        (["-f", "short.jsonl"], 1, "expected at least 2, one of which is held out; give more text"),
        (["-f", "foreign.jsonl"], 2, "foreign.jsonl:1: tokens from 1 to 9999, expected ids below 264"),
        (["-f", "half.jsonl"], 2, "half.jsonl:2: the text holds "),
    ],
)
def test_what_cannot_be_learnt_from_is_refused(model, capsys, tmp_path, words, code, told):
    (model / "empty").mkdir(exist_ok=True)
    (model / "bad.jsonl").write_text("{\n")
    (model / "short.jsonl").write_text('{"tokens": [1, 2, 3]}\n')
    (model / "foreign.jsonl").write_text('{"tokens": [1, 9999]}\n')
    (model / "half.jsonl").write_text('{"tokens": [1, 2]}\n{"prompt": "\\ud800"}\n')
    named = [each if each.startswith("-") else model / each for each in words]
    found, _, err = run(capsys, "learn", "-m", model / "model.gguf", *named, "-o", tmp_path / "head.gguf", "-t", 1)
    assert found == code
    assert told in err
    assert not list(tmp_path.iterdir()), "or the next training there would be another one"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("eagle3-gpt-oss-wide", "drafts for another one"),
        ("dflash-qwen3", "as in draft models that borrow it"),
        ("mtp-qwen35", "it has layers that predict further tokens and none of the model's others"),
        (None, "there is no such file"),
    ],
)
def test_what_is_no_model_of_its_own_has_no_head(model, capsys, tmp_path, name, told):
    path = model / "none.gguf" if name is None else draft_file(name)
    path = parted(path)[1] if name == "mtp-qwen35" else path
    words = ["learn", "-m", path, "--prompts", model / "prompts.jsonl", "-o", tmp_path / "head.gguf", "-t", 1]
    code, _, err = run(capsys, *words)
    assert code == 1
    assert told in err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_no_training_s_is_left_as_it_is(learn, tmp_path):
    (tmp_path / "head.gguf.learn").mkdir()
    (tmp_path / "head.gguf.learn" / "mine").write_text("text")
    code, _, err = learn(tmp_path / "head.gguf")
    assert code == 1
    assert "remove the folder, or name another file with -o" in err
    assert (tmp_path / "head.gguf.learn" / "mine").read_text() == "text"


def test_a_second_run_is_refused_before_texts_and_model_are_read(capsys, tmp_path):
    head = tmp_path / "head.gguf"
    words = ["learn", "-m", tmp_path / "none.gguf", "--prompts", tmp_path / "none.jsonl", "-o", head]
    with Recorded(tmp_path / "head.gguf.learn"):
        code, _, err = run(capsys, *words)
    assert (code, "another augury learn is writing this head" in err) == (1, True)


@pytest.mark.parametrize("name", ["model.gguf", "prompts.jsonl"])
def test_no_head_takes_the_place_of_a_model_or_a_text(learn, model, name):
    before = (model / name).read_bytes()
    code, _, err = learn(model / name)
    assert code == 2
    assert f"-o: {model / name} exists and is no head; it is left as it is" in err
    assert (model / name).read_bytes() == before


def test_a_model_whose_layers_tell_nothing_is_refused(learn, capsys, model, tmp_path):
    words = ["learn", "-m", tiny_model(UNTOLD), "--prompts", model / "prompts.jsonl", "-o", tmp_path / "head.gguf"]
    code, _, err = run(capsys, *words)
    assert code == 1
    assert "its layers tell no hidden states" in err


def test_too_little_disk_or_memory_is_told_beforehand(learn, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2**20))
        code, _, err = learn(tmp_path / "head.gguf")
        assert code == 1
        assert "learning keeps up to" in err
        assert "1 MiB free; make room, lower --disk" in err
    monkeypatch.setattr(command, "n_bytes_of_machine", lambda: 2**20)
    code, _, err = learn(tmp_path / "head.gguf")
    assert code == 1
    assert "of memory, but there are 1 MiB; lower --draft-vocabulary" in err
    assert not list(tmp_path.iterdir())


def test_without_jax_the_extra_is_named(learn, tmp_path, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    code, _, err = learn(tmp_path / "head.gguf")
    assert code == 1
    assert "[learn]" in err


@pytest.fixture
def texts(model, tmp_path):
    """The name of a folder of the model's with three texts and a picture."""
    rng, folder = np.random.default_rng(2), model / tmp_path.name
    (folder / "inner").mkdir(parents=True)
    for i in range(3):
        (folder / "inner" / f"{i}.txt").write_text(" ".join(rng.choice(["the", "in", "an"], 40).tolist()))
    (folder / "image.png").write_bytes(b"\x89\xff\x00")
    return folder.name


def test_texts_are_files_folders_and_lines(learn, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(training.Trainer, "__init__", interrupted(training.Trainer.__init__, 0))
    code, _, err = learn(tmp_path / "head.gguf", source=("-f", texts))
    assert code == 130, err
    assert "left out:" in err
    assert "3 pieces of text" in err


@pytest.mark.sample(0)
def test_a_head_is_learnt_from_texts(learn, model, texts, tmp_path):
    code, _, err = learn(tmp_path / "head.gguf", epochs=1, source=("-f", texts))
    assert code == 0, err
    assert accepted(model, tmp_path / "head.gguf")[1]
    more = ("--from", str(tmp_path / "head.gguf"), "--export", str(tmp_path / "folder"))
    code, _, err = learn(tmp_path / "better.gguf", *more, epochs=1, source=("-f", texts))
    assert code == 0, err
    assert "before: " in err
    assert (tmp_path / "folder" / "config.json").exists()
    code, _, err = learn(tmp_path / "head.gguf", *more[:2], source=("-f", texts))
    assert code == 2
    assert "--from and -o are both" in err


def test_a_training_goes_on_from_heads_of_its_kind_alone(tmp_path):
    file = tiny_file(target_of("eagle3-llama"))
    plan = plan_of(file, REGISTRY)
    sizes, target = HeadSizes.for_target(file, plan, "it", 96), TargetTensors(file, plan)
    other = evolve(sizes, n_ff=64, n_heads=1, n_kv_heads=1, layers=(0, 1, 2), rope_base=500.0)
    weights = other.first_weights(target, ones(sizes), 1)
    tokens = np.arange(96, dtype=np.int32)
    write_head(tmp_path / "head.gguf", other, file, tokens, weights, target.output(tokens))
    head = ModelFile.open(tmp_path / "head.gguf")
    assert sizes.of_head(head, file, plan) == other
    assert all(found.shape == other.shapes[name] for name, found in other.weights_of(head, {}, target).items())
    export.write_folder(tmp_path / "folder", head)
    assert sizes.of_head(open_model(tmp_path / "folder", REGISTRY, Progress()), file, plan) == other
    for metadata, tensors, match in (
        ({"eagle3.embedding_length": 8}, {}, "embedding_length is 8, expected 256 to go on"),
        ({"eagle3.norm_before_fc": False}, {}, "norm_before_fc is False, expected True"),
        ({"eagle3.vocab_size": 9}, {}, "the size of the vocabulary is 9, expected 128"),
        ({"eagle3.target_layers": np.int32([0, 1, 99])}, {}, "a hidden state that the model has not is layer.98"),
        ({"eagle3.feed_forward_length": 96}, {}, r"the shape of blk\.0\.ffn_gate\.weight is \(64, 256\)"),
        ({}, {"blk.0.attn_q_norm.weight": head.tensors["output_norm.weight"]}, r"a further tensor is blk\.0\.attn_q_norm"),
        ({"general.architecture": "dflash"}, {}, "the architecture is dflash, expected eagle3"),
    ):
        changed = evolve(head, metadata={**head.metadata, **metadata}, tensors={**head.tensors, **tensors})
        with pytest.raises(UnsupportedError, match=match):
            sizes.of_head(changed, file, plan)


def test_a_conversation_is_written_by_the_template_with_its_tools_and_variables(model):
    source = "{% for each in tools %}<{{ each.function.name }}>{% endfor %}{{ mood }}"
    source += "{% for each in messages %}|{{ each.content }}{% endfor %}"
    messages = [{"role": "user", "content": "the"}, {"role": "assistant", "content": "an in"}]
    tool = {"type": "function", "function": {"name": "on"}}
    with Engine.load(model / "model.gguf", threads=1, n_ctx=512, spec_type="none") as engine:
        with pytest.raises(UnsupportedError, match="a:1: this model has no chat template"):
            list(encoded(engine, [Prompt(messages=messages, where="a:1")]))
        engine.chat_template = ChatTemplate(source, engine.tokenizer)
        params = {"tools": [tool], "chat_template_kwargs": {"mood": "er"}}
        (ids,) = encoded(engine, [Prompt(messages=messages, params=params)])
        assert engine.tokenizer.decode(ids.tolist()) == "<on>er|the|an in"


@pytest.mark.parametrize("spec_type", ["none", "ngram-simple:n=1,m=4"])
def test_what_answers_are_made_of_is_kept_and_is_that_of_a_second_pass(model, tmp_path, monkeypatch, spec_type):
    monkeypatch.setattr("augury.plugins.learn.corpus._N_PIECE", 80)
    with ModelFile.open(model / "model.gguf") as file:
        sizes = HeadSizes.for_target(file, plan_of(file, REGISTRY), "it", N_DRAFTED)
    prompts, n_most = read_prompts(model / "prompts.jsonl"), 7 * 192 - 5
    how = {"threads": 1, "n_ctx": 512, "slots": 3, "spec_type": spec_type, "spec_fixed": True}
    with Engine.load(model / "model.gguf", **how) as engine, Recorded(tmp_path / "head.gguf.learn") as recorded:
        recorded.take_up(sizes, {})
        texts = answered(engine, prompts, {}, recorded, lambda n: n >= n_most, lambda *told: None)
        assert [len(text) for text in texts] == [192] * 7
        again = answered(engine, prompts, {}, recorded, lambda n: n >= n_most, lambda *told: None)
        assert [*map(list, again)] == [*map(list, recorded.answers())] == [*map(list, texts)]
        pieces = [piece for text in texts for piece in cut(text, n_piece_of(engine))]
        assert [len(piece.tokens) for piece in pieces[:3]] == [80, 80, 32]
        for piece, rows in zip(pieces, command._rows(engine, sizes, pieces), strict=True):
            assert recorded.has_rows(piece)
            assert np.array_equal(recorded.window(piece, 0, 100), rows)


def test_a_text_that_another_begins_with_is_left_out():
    turns = [np.arange(n, dtype=np.int32) for n in (10, 50, 30)]
    other = np.int32([0, 1, 2, 3, 4, 5, 6, 7, 9, 8])
    texts = distinct(map(Piece, [*turns, other, turns[1]]))
    assert sorted((len(whole.text), whole.start, end) for whole, end in texts) == [(10, 0, 10), (50, 0, 50)]
    assert {whole.text[9] for whole, _ in texts} == {8, 9}


def test_of_collected_turns_each_token_is_learnt_from_once(tmp_path):
    known, turns = {}, [np.arange(n, dtype=np.int32) for n in (30, 70, 90)]
    others = [np.arange(100, 100 + n, dtype=np.int32) for n in (20, 25)]
    for text, start in ((turns[0], 0), (turns[1], 26), (turns[2], 69), (others[0], 0), (others[1], 0)):
        known[Piece(text).name] = path = tmp_path / f"{text[-1]}.npy"
        with path.open("w+b") as out:
            write_rows(out, text[start:-1, None].astype(np.float16))
    cuts, places = cut_texts([*turns, *others, np.int32([7] * 50)], 40, known, 1)
    found = {tuple(piece.tokens.tolist()) for pieces in cuts for piece in pieces}
    expected = [range(27), range(26, 66), range(66, 70), range(69, 90), range(100, 125), [7] * 40, [7] * 10]
    assert found == {*map(tuple, expected)}
    for pieces in cuts:
        for piece in pieces:
            if piece.tokens[0] == 7:
                assert (piece.start, piece.name in places) == (0, False)
            else:
                path, place = places[piece.name]
                assert np.array_equal(read_rows(path, 1)[place, 0], piece.tokens[:-1])
    (tmp_path / "29.npy").write_bytes(b"damaged")
    again = [piece for pieces in cut_texts(turns[:1], 40, known, 1)[0] for piece in pieces]
    assert [piece.tokens.tolist() for piece in again] == [[*range(30)]]


def test_the_draft_vocabulary_is_of_the_most_frequent_tokens():
    texts = [np.int32([5, 5, 5, 2, 2, 7]), np.int32([7, 9])]
    assert draft_vocabulary(texts, 12, 3).tolist() == [2, 5, 7]
    assert draft_vocabulary(texts, 12, 5).tolist() == [0, 2, 5, 7, 9]


def test_pieces_are_whole_texts_in_parts_within_the_budget():
    texts = [np.arange(1000, dtype=np.int32), np.arange(2000, 2300, dtype=np.int32), np.arange(5, dtype=np.int32)]
    cuts = [cut(text, 400) for text in texts]
    pieces = mixed(cuts, 1, 10**6)
    assert sorted(len(piece.tokens) for piece in pieces) == [200, 300, 400, 400]
    assert np.array_equal(np.sort(np.concatenate([piece.tokens for piece in pieces])), np.sort(np.concatenate(texts[:2])))
    assert sum(len(piece.tokens) for piece in mixed(cuts, 1, 800)) <= 800
    assert [(piece.start, len(piece.text)) for piece in cut(texts[1], 200, 50)] == [(50, 250), (250, 300)]
    assert len({piece.name for piece in [*cut(texts[0], 400), *cut(texts[0], 1000), *cut(texts[0], 400, 1)]}) == 3 + 1 + 3
    with pytest.raises(AuguryError, match="0 tokens in 0 pieces, expected at least 2"):
        mixed(cuts, 1, 100)


def test_texts_have_no_more_tokens_than_is_said(model):
    with Engine.load(model / "model.gguf", threads=1, n_ctx=512, spec_type="none") as engine:
        for text in ("the in an", "\u00e9\u4e2d\u6587", "<|endoftext|>"):
            assert len(engine.tokenizer.encode(text)) + 7 <= most_tokens([Prompt(text=text)], 7)


def test_batches_are_of_full_rows_and_judge_second_halves_by_what_the_head_drafts(monkeypatch):
    monkeypatch.setattr(training, "N_ROW", 4)
    pieces = [Piece(np.int32(text)) for text in ([1, 2, 3, 4, 5, 6], [7, 8, 9, 8, 7, 8, 9, 8], [8, 8, 5, 9])]
    recorded = SimpleNamespace(
        sizes=SimpleNamespace(n_embd=1),
        window=lambda piece, start, n: (
            np.tile(piece.tokens[:-1][start : start + n, None], 4) + np.float16([0, 0.25, 0.5, 0.75])
        ),
    )
    corpus = training.Corpus(recorded, SimpleNamespace(embedding=lambda ids: ids[..., None]), pieces, 1, np.int32([5, 8, 9]))
    assert corpus.held_out == [[(0, 0, 4)]]
    assert corpus.rows == [[(1, 0, 4)], [(1, 4, 2), (2, 0, 2)]]
    batch = corpus.batch(corpus.rows[1:])
    assert batch.features.shape == (training.N_BATCH, 4, 3)
    assert batch.features[0, 1].tolist() == [8, 8.25, 8.5]
    assert batch.embedded[0, :, 0].tolist() == [8, 9, 8, 5]
    assert batch.outputs[0, :, 0].tolist() == [8.75, 9.75, 8.75, 5.75]
    assert batch.texts.tolist() == [[1, 1, 2, 2], *[[0] * 4] * 3]
    assert np.array_equal(batch.is_there, batch.texts > 0)
    assert batch.is_drafted[0].tolist() == [True, True, True, True]
    judged = corpus.batch(corpus.held_out, is_learnt=False)
    assert judged.is_there[0].tolist() == [False, False, True, True]
    assert judged.is_drafted[0].tolist() == [False, False, True, False]


def test_features_come_to_one_scale():
    sizes = HeadSizes(32, 8, 16, 4, 4, head_dim=2, n_rot=2, n_layers=1, n_ctx=64, layers=(0, 1, 2), n_drafted=20)
    kept = np.random.default_rng(3).normal(0, np.geomspace(0.01, 100, 32), (40, 32)).astype(np.float16)
    kept[0] = 1000  # of a first token
    recorded = SimpleNamespace(sizes=sizes, window=lambda piece, start, n: kept[start : start + n])
    corpus = training.Corpus(recorded, None, [Piece(np.zeros(41, np.int32))] * 2, 1, np.int32([0]))
    weights = sizes.first_weights(SimpleNamespace(norm=np.ones(8, np.float32)), corpus.sample(), 1)
    read = kept[8:, :24].astype(np.float32)
    read *= weights["enc.output_norm.weight"] / np.sqrt((read**2).mean(axis=1, keepdims=True))
    assert np.sqrt((read**2).mean(axis=0)) == pytest.approx(1, rel=1e-3)


def test_a_position_attends_to_itself_at_first():
    sizes = HeadSizes(32, 512, 64, 4, 4, head_dim=128, n_rot=128, n_layers=1, n_ctx=64, layers=(0, 1, 2), n_drafted=20)
    target = SimpleNamespace(norm=np.ones(512, np.float32))
    weights = sizes.first_weights(target, ones(sizes), 1)
    read = np.random.default_rng(4).standard_normal((12, 1024), np.float32)
    query, key = ((read @ weights[f"blk.0.attn_{each}.weight"].T).reshape(12, 4, 128) for each in "qk")
    assert (np.einsum("phd,shd->hps", query, key).argmax(axis=-1) == np.arange(12)).all()


@pytest.mark.parametrize(("n_bytes", "kind"), [(150, "Q4_0"), (170, "Q8_0")])  # of 200 weights
def test_a_head_is_stored_as_coarsely_as_its_target(tmp_path, n_bytes, kind):
    sizes = HeadSizes(32, 64, 64, 4, 4, head_dim=16, n_rot=16, n_layers=1, n_ctx=64, layers=(0, 1, 2), n_drafted=20)
    tensors = {"one": SimpleNamespace(n_bytes=n_bytes, shape=(20, 10))}
    target = SimpleNamespace(tensors=tensors, metadata={}, get=lambda key, cls, default: default, path=tmp_path)
    weights = {name: np.ones(shape, np.float32) for name, shape in sizes.shapes.items()}
    write_head(tmp_path / "head.gguf", sizes, target, np.arange(20), weights, np.ones((20, 64), np.float32))
    with ModelFile.open(tmp_path / "head.gguf") as head:
        stored = {each.name: GGMLQuantizationType(each.type).name for each in head.tensors.values()}
        assert head.get("eagle3.attention.sliding_window", int) == N_ROW  # it drafts as it was trained
    assert stored["output.weight"] == stored["fc.weight"] == kind
    assert stored["output_norm.weight"] == "F32"


@pytest.fixture
def trained():
    """Fits a trainer that counts its batches to shares of right drafts, from a head or not; what was learnt, told and kept."""

    def trained(shares, n_rows, n_epochs, **how):
        saved, learnt, told, kept, shares = {}, [], [], [], iter(shares)
        trainer = SimpleNamespace(n_steps=0, weights={"n": 0}, saved=dict)

        def step(batch, n_unrolled):
            trainer.n_steps += 1
            trainer.weights = {"n": trainer.n_steps}
            learnt.append(n_unrolled)

        trainer.step = step
        corpus = SimpleNamespace(rows=[[]] * n_rows, batch=list, accepted=lambda trainer: [next(shares)])
        recorded = SimpleNamespace(load=saved.get, save=saved.__setitem__)
        how = {"n_batches": n_epochs * -(-n_rows // 4), "n_stages": N_STEPS} | how
        training.fit(trainer, recorded, corpus, 1, lambda *told: None, told.append, kept.append, **how)
        return learnt, told, [weights["n"] for weights in kept]

    return trained


def test_each_third_of_the_epochs_learns_to_draft_a_token_more(trained):
    learnt, _, kept = trained(range(7), 5, 7)
    assert learnt == [1] * 6 + [2] * 4 + [3] * 4
    assert kept == [2, 4, 6, 8, 10, 12, 14], "the head is there after each epoch that made it better"


def test_it_ends_after_two_epochs_without_progress_with_the_best_weights(trained):
    _, told, kept = trained([0.3, 0.5, 0.4, 0.5, 0.4, 0.45, 0.9], 1, 20)  # as good as the best counts as progress
    assert len(told) == 6
    assert kept == [1, 2, 4]


def test_a_head_learns_to_draft_three_tokens_at_once_and_stays_where_nothing_is_better(trained):
    learnt, told, kept = trained([0.5, 0.4, 0.3, 0.9], 1, 20, is_head=True)
    assert learnt == [3, 3]
    assert told[0].startswith("before: 50 %")
    assert kept == [0]


def test_products_that_round_are_exact_where_nothing_is_to_be_rounded():
    rng = np.random.default_rng(6)
    x, rows, wanted = (rng.integers(-9, 10, shape).astype(np.float32) for shape in ((2, 3, 8), (5, 8), (2, 3, 5)))

    def loss(product):
        return lambda x, rows: (product(x, rows) * wanted).sum()

    rounded, exact = (jax.grad(loss(each), (0, 1))(x, rows) for each in (losses.rounded_product, lambda x, rows: x @ rows.T))
    assert np.array_equal(losses.rounded_product(x, rows), x @ rows.T)
    for found, expected in zip(rounded, exact, strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("is_quicker", [True, False])
def test_the_quicker_products_are_those_of_the_whole_training(is_quicker, tmp_path, monkeypatch):
    times = {losses.rounded_product: 1.0 if is_quicker else 1.4, losses.exact_product: 1.5}
    monkeypatch.setattr(training, "_seconds", lambda compute, *_: times[compute.__wrapped__])
    expected = losses.rounded_product if is_quicker else losses.exact_product
    sizes = HeadSizes(32, 8, 16, 4, 2, head_dim=2, n_rot=2, n_layers=1, n_ctx=64, layers=(0, 1, 2), n_drafted=20)
    with Recorded(tmp_path / "head.gguf.learn") as recorded:
        recorded.take_up(sizes, {})
        assert training.quicker_product(recorded) is expected
        assert recorded.is_fresh
        recorded.save("answers", {})
        for _ in range(2):
            assert training.quicker_product(recorded) is expected
            times.update({each: -seconds for each, seconds in times.items()})  # as when other programs run


@pytest.mark.sample(0)
def test_texts_that_share_a_row_are_learnt_as_in_rows_of_their_own():
    rng, n_embd, lengths = np.random.default_rng(5), 8, (9, 2, 13)
    sizes = HeadSizes(32, n_embd, 16, 4, 2, head_dim=2, n_rot=2, n_layers=1, n_ctx=64, layers=(0, 1, 2), n_drafted=20)
    weights = {name: rng.standard_normal(shape, np.float32) for name, shape in sizes.shapes.items()}
    output = rng.standard_normal((sizes.n_drafted, n_embd), np.float32)
    kinds = {"features": (3 * n_embd,), "embedded": (n_embd,), "outputs": (n_embd,), "is_drafted": ()}
    texts = [{kind: rng.standard_normal((n, *rest), np.float32) for kind, rest in kinds.items()} for n in lengths]

    def learnt(rows):
        """What is right of rows of texts, their loss, and its gradients."""
        arrays = {kind: np.zeros((len(rows), 24, *rest), np.float32) for kind, rest in kinds.items()}
        owners = np.zeros((len(rows), 24), np.int32)
        for i, row in enumerate(rows):
            at = 0
            for text in row:
                here = (i, slice(at, at + len(text["features"])))
                for kind, values in text.items():
                    arrays[kind][here] = values
                owners[here] = owners[i].max() + 1
                at = here[1].stop
        arrays["is_drafted"] = arrays["is_drafted"] > 0
        trainer = training.Trainer(sizes, weights, output, SimpleNamespace(softcap=None), 1e-2, 2, losses.exact_product)
        batch = losses.TrainingBatch(**arrays, texts=owners, is_there=owners > 0)
        right = trainer.accepted(batch)
        loss = trainer.step(batch, N_STEPS)
        return right.tolist(), loss, {name: values for name, values in trainer.saved().items() if ".mu" in name}

    together, apart = learnt([texts]), learnt([[text] for text in texts])
    assert together[0] == apart[0]
    assert together[0][0] == sum(n - 2 for n in lengths)
    assert together[1] == pytest.approx(apart[1], rel=1e-6)
    assert together[2].keys() == apart[2].keys() != set()
    for name, gradient in together[2].items():
        assert np.abs(gradient - apart[2][name]).max() < 1e-4 * np.abs(gradient).max()
