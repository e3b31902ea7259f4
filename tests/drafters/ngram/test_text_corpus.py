"""Corpora: bounds, files, and processes that share one."""

import multiprocessing
import os
import resource
import signal
import threading

import numpy as np
import pytest
from support.damage import disk_is_full
from support.toys import as_history
from xxhash import xxh3_128_digest

from augury.drafters.ngram import text_corpus
from augury.drafters.ngram.text_corpus import TextCorpus, vocabulary_digest
from augury.errors import ModelFileError, OptionError

VOCABULARY = vocabulary_digest(None, 100)


def corpus_of(path, n_max=1024, vocabulary=VOCABULARY):
    return TextCorpus(path, vocabulary, 4, n_max)


def texts(corpus):
    """The texts that a corpus holds."""
    tokens = corpus.texts.tokens
    return [part[1:].tolist() for part in np.split(tokens, np.flatnonzero(tokens < 0))[1:]]


def with_body(body):
    """A file with a right checksum."""
    return text_corpus._HEAD.pack(b"augury\0t", 1, xxh3_128_digest(body)) + body


def saved(path, *learnt, **options):
    corpus = corpus_of(path, **options)
    for text in learnt:
        corpus.learn(as_history(text))
    corpus.close()
    return corpus


def test_what_was_saved_is_there_at_the_next_start(tmp_path):
    path = tmp_path / "corpus"
    saved(path, [1, 2, 3], [4])
    saved(path)
    saved(path, [5, 6])
    assert texts(corpus_of(path)) == [[1, 2, 3], [4], [5, 6]]
    assert [entry.name for entry in tmp_path.iterdir()] == ["corpus"]


def test_its_owner_alone_may_read_it_unless_told_otherwise(tmp_path):
    path = tmp_path / "corpus"
    saved(path, [1, 2, 3])
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    saved(path, [4])
    assert path.stat().st_mode & 0o777 == 0o640
    assert texts(corpus_of(path)) == [[1, 2, 3], [4]]


def test_memory_and_file_are_bounded_and_the_newest_texts_stay(tmp_path):
    path = tmp_path / "corpus"
    corpus = corpus_of(path, n_max=1024)
    for i in range(100):
        corpus.learn(np.full(99, i, np.int32))
        assert len(corpus.texts) <= 1024
        corpus.close()
        assert path.stat().st_size <= 4 * 1024 + 64
    kept = texts(corpus_of(path))
    assert [text[0] for text in kept] == list(range(90, 100)), "whole texts, the last ones"
    assert texts(corpus_of(path, n_max=250))[-1] == kept[-1]
    corpus.learn(np.zeros(5000, np.int32))
    corpus.close()
    assert len(texts(corpus_of(path))[-1]) == 512


def test_a_long_run_is_saved_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(text_corpus, "_SAVED_EVERY", 10)
    path = tmp_path / "corpus"
    corpus = corpus_of(path)
    corpus.learn(as_history([1] * 5))
    assert not path.exists()
    corpus.learn(as_history([2] * 5))
    assert texts(corpus_of(path)) == [[1] * 5, [2] * 5]


def test_a_process_adds_to_what_others_have_saved(tmp_path):
    path = tmp_path / "corpus"
    first, second = corpus_of(path), corpus_of(path)
    first.learn(as_history([1]))
    second.learn(as_history([2]))
    first.close()
    second.close()
    first.learn(as_history([3]))
    first.close()
    assert texts(corpus_of(path)) == [[1], [2], [3]]


def _save_often(path, token, n):
    for _ in range(n):
        saved(path, [token] * 3)


def test_processes_that_save_at_once_lose_nothing(tmp_path):
    path, context = tmp_path / "corpus", multiprocessing.get_context("fork")
    processes = [context.Process(target=_save_often, args=(path, token, 8)) for token in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sorted(texts(corpus_of(path))) == sorted([token] * 3 for token in range(3) for _ in range(8))
    assert [entry.name for entry in tmp_path.iterdir()] == ["corpus"]


def _die_while_saving(path):
    os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    saved(path, [7, 7])


def test_a_process_that_is_killed_while_it_saves_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "corpus"
    saved(path, [1, 2])
    process = multiprocessing.get_context("fork").Process(target=_die_while_saving, args=(path,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert texts(corpus_of(path)) == [[1, 2]]
    saved(path, [3])
    assert texts(corpus_of(path)) == [[1, 2], [3]]


def _stop_while_saving(path):
    os.fsync = lambda _: os.kill(os.getpid(), signal.SIGSTOP)
    saved(path, [7, 7])


def test_a_process_that_is_stopped_while_it_saves_keeps_nobody_waiting(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(text_corpus, "_SAVED_EVERY", 2)
    monkeypatch.setattr(text_corpus, "_WAIT_S", 0.1)
    path = tmp_path / "corpus"
    corpus = saved(path, [1])
    process = multiprocessing.get_context("fork").Process(target=_stop_while_saving, args=(path,))
    process.start()
    late = threading.Timer(20, process.kill)
    late.start()
    try:
        os.waitpid(process.pid, os.WUNTRACED)
        corpus.learn(as_history([2, 2]))
        corpus.close()
        assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
        assert caplog.text.count("another process is writing this file") == 2
        assert "n_unsaved=3" in caplog.text
        assert texts(corpus_of(path)) == [[1]]
    finally:
        late.cancel()
        process.kill()
        process.join(60)
    corpus.learn(as_history([3]))
    assert texts(corpus_of(path)) == [[1], [2, 2], [3]]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "damaged corpus, its checksum is wrong; remove it"),
        (lambda data: data[:-4], "damaged corpus, its checksum"),
        (lambda data: data[:-1], "damaged corpus, its size is wrong; remove it"),
        (lambda data: with_body(data[28:-1]), "damaged corpus, its size"),
        (lambda data: with_body(b""), "damaged corpus, its size"),
        (lambda data: with_body(data[28:43]), "damaged corpus, its size"),
        (lambda data: data[:20], "no corpus of the drafter suffix"),
        (lambda data: b"", "no corpus of the drafter suffix; choose another name"),
        (lambda data: b"precious text" * 9, "no corpus of the drafter suffix"),
        (lambda data: data[:8] + b"\2" + data[9:], "version 2, expected 1"),
    ],
)
def test_what_is_no_corpus_is_refused_and_stays_as_it_is(tmp_path, change, expected, caplog):
    path = tmp_path / "corpus"
    running = saved(path, [1, 2, 3])
    path.write_bytes(changed := change(path.read_bytes()))
    with pytest.raises(ModelFileError, match=expected):
        corpus_of(path)
    running.learn(as_history([4]))
    running.close()
    assert "the corpus could not be saved" in caplog.text
    assert path.read_bytes() == changed
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("head", [b"", b"corpus"])
def test_a_huge_file_in_its_place_is_not_read(tmp_path, monkeypatch, head):
    path = tmp_path / "corpus"
    saved(path, [1, 2, 3])
    if not head:
        path.write_bytes(b"")
    os.truncate(path, 3 * 10**9)
    monkeypatch.setattr(text_corpus, "checksum", None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelFileError, match="its size is wrong" if head else "is no corpus"):
        corpus_of(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # KiB


def test_no_more_of_a_longer_corpus_is_read_than_is_kept(tmp_path, monkeypatch):
    path, read = tmp_path / "corpus", []
    saved(path, *[[i] * 255 for i in range(8)], n_max=2048)
    monkeypatch.setattr(text_corpus.np, "frombuffer", lambda data, kind: read.append(len(data)) or np.array([-1, 7], kind))
    assert texts(corpus_of(path, n_max=1024)) == [[7]]
    assert read == [4 * 1024]
    monkeypatch.undo()
    assert texts(corpus_of(path, n_max=1024)) == [[i] * 255 for i in range(4, 8)]


def test_a_corpus_of_another_vocabulary_is_refused(tmp_path):
    saved(tmp_path / "corpus", [1])
    with pytest.raises(ModelFileError, match="corpus of another vocabulary than this model's; choose another name"):
        corpus_of(tmp_path / "corpus", vocabulary=vocabulary_digest(None, 101))


def test_vocabularies_are_told_apart_by_every_text():
    class Texts(list):
        n_vocab = property(len)
        text = list.__getitem__

    digests = [vocabulary_digest(None, 2), vocabulary_digest(None, 3)]
    digests += [vocabulary_digest(Texts(each), 9) for each in (["a", "b"], ["ab"], ["a", "c"], ["b", "a"], ["a", "\udcff"])]
    assert len(set(digests)) == len(digests)
    assert vocabulary_digest(Texts(["a"]), 1) == vocabulary_digest(Texts(["a"]), 2), (
        "a model may have rows beyond the vocabulary"
    )


def test_a_place_that_takes_no_file_is_refused_at_once(tmp_path, monkeypatch):
    with pytest.raises(OptionError, match="there is no folder"):
        corpus_of(tmp_path / "none" / "corpus")
    with pytest.raises(ModelFileError, match="is not a file"):
        corpus_of(tmp_path)
    with pytest.raises(ModelFileError, match="the corpus could not be read: File name too long"):
        corpus_of(tmp_path / ("n" * 300))
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(OptionError, match="is not writable"):
        corpus_of(tmp_path / "corpus")


def test_a_full_disk_is_reported_and_the_old_file_stays(tmp_path, monkeypatch, caplog):
    path = tmp_path / "corpus"
    corpus = saved(path, [1])
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", disk_is_full)
    corpus.learn(as_history([2]))
    corpus.close()
    assert "No space left" in caplog.text
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_what_could_not_be_saved_is_saved_the_next_time(tmp_path, monkeypatch):
    monkeypatch.setattr(text_corpus, "_SAVED_EVERY", 10)
    path = tmp_path / "corpus"
    corpus = saved(path, [1])
    with monkeypatch.context() as full:
        full.setattr("os.fsync", disk_is_full)
        corpus.learn(as_history([2] * 9))
    corpus.learn(as_history([3]))
    assert texts(corpus_of(path)) == [[1]], "tried again after as many tokens, not with every answer"
    corpus.learn(as_history([4] * 7))
    assert texts(corpus_of(path)) == texts(corpus) == [[1], [2] * 9, [3], [4] * 7]
    corpus.close()
    assert texts(corpus_of(path)) == texts(corpus), "once"


def test_what_waits_for_room_on_the_disk_is_bounded(tmp_path, monkeypatch):
    path = tmp_path / "corpus"
    corpus = corpus_of(path, n_max=1024)
    with monkeypatch.context() as full:
        full.setattr("os.fsync", disk_is_full)
        for i in range(100):
            corpus.learn(np.full(999, i, np.int32))
            assert len(corpus._new) <= 1024
            corpus.close()
    corpus.close()
    assert [text[0] for text in texts(corpus_of(path))] == [99]
