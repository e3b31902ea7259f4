from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings, strategies as st
from oracles import ngram_caches
from support.toys import as_history, drafted

from augury.drafters.ngram.lookup_file import Followers, NgramCorpus, NgramCounts, NgramPast, read_lookup, write_lookup
from augury.drafters.ngram_cache import NgramCache, NgramCacheOptions
from augury.engine.shared import Shared
from augury.errors import ModelFileError, OptionError
from augury.types import Verdict

DATA = Path(__file__).parents[1] / "data/lookup"
N_VOCAB = 50_000
UNUSED = Verdict(0, 0, 1, is_used=False)


class Slots:
    """Drafters that share what the slots of an engine share."""

    def __init__(self, n_slots=1, **options):
        shared = Shared()
        model = SimpleNamespace(n_vocab=N_VOCAB)
        session = SimpleNamespace(n_slots=n_slots, model=model, verify="match", shared=shared.get)
        self.drafters = [NgramCache(NgramCacheOptions(**options), session) for _ in range(n_slots)]
        self.close = shared.close


def generate(drafter, prompt, output):
    """A whole request, a token in each round."""
    drafter.begin(as_history(prompt + output[:1]), 0)
    for i in range(1, len(output)):
        drafter.accept(as_history(prompt + output[: i + 1]), UNUSED)
    drafter.end()


def save(path, texts, n_max=4):
    counts = NgramCounts(n_max)
    for text in texts:
        counts.extend(as_history(text), 0)
    write_lookup(path, counts.items())


texts = st.lists(st.integers(0, 3), min_size=1, max_size=30)


@settings(max_examples=150)
@given(st.data())
def test_drafts_are_those_of_the_definition(tmp_path_factory, data):
    n, m = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    corpus = data.draw(st.one_of(st.just([]), texts))
    static = tmp_path_factory.mktemp("corpus") / "static.bin"
    save(static, [corpus], n_max=data.draw(st.sampled_from([2, 4])))
    (drafter,) = Slots(n=n, m=m, static=str(static)).drafters
    past = []
    for _ in range(data.draw(st.integers(1, 3))):
        prompt, output = data.draw(texts), data.draw(texts)
        text = prompt + output[:1]
        drafter.begin(as_history(text), 0)
        while True:
            limit = data.draw(st.integers(0, 12))
            if data.draw(st.booleans()):
                assert drafted(drafter, text, limit) == ngram_caches.draft(text, past, corpus, n, min(m, limit))
            if len(text) == len(prompt) + len(output):
                break
            text = prompt + output[: len(text) - len(prompt) + data.draw(st.integers(1, 4))]
            drafter.accept(as_history(text), UNUSED)
        drafter.end()
        past.append((prompt + output, len(prompt)))


def test_what_mostly_followed_is_drafted():
    (drafter,) = Slots().drafters
    text = [1, 2, 3, 4, 5, 9, 9, 1, 2, 3]
    drafter.begin(as_history(text), 0)
    assert drafted(drafter, text) == [4, 5, 9, 9, 1, 2, 3, 4]  # m = 8
    assert drafted(drafter, text, 2) == [4, 5]


@pytest.mark.parametrize("n", [3, 4])
def test_a_long_ngram_counts_more_than_a_shorter_one_though_it_was_seen_once(n):
    (drafter,) = Slots(n=n).drafters
    key = [1, 2, 3, 4][-n:]
    text = [*key, 5, *[0, *key[1:], 6] * 3, *key]
    drafter.begin(as_history(text), 0)
    assert drafted(drafter, text, 1) == [5]


def test_a_text_without_repetition_gets_no_draft():
    (drafter,) = Slots().drafters
    drafter.begin(as_history(range(100)), 0)
    assert drafted(drafter, range(100)) == []


def test_past_generations_of_one_slot_serve_the_others():
    first, second = Slots(2).drafters
    for _ in range(2):
        generate(first, [7, 8], [1, 2, 3, 4, 5])
    second.begin(as_history([0, 2, 3, 4]), 0)
    assert drafted(second, [0, 2, 3, 4]) == [5]


def test_the_prompt_of_a_request_is_not_learnt_nor_is_a_request_that_goes_on():
    first, second = Slots(2).drafters
    for _ in range(3):
        generate(first, [1, 2, 3, 4, 5], [6])
    first.begin(as_history([7, 7, 7, 7, 7, 7]), 0)
    second.begin(as_history([0, 1, 2, 3, 4]), 0)
    assert drafted(second, [0, 1, 2, 3, 4]) == []
    assert drafted(second, [0, 1, 2, 3, 4, 5]) == [6]
    assert drafted(second, [7, 7, 7, 7]) == []


def test_the_dynamic_file_carries_what_was_learnt_to_the_next_engine(tmp_path):
    path = tmp_path / "past.bin"
    slots = Slots(dynamic=str(path))
    for _ in range(2):
        generate(slots.drafters[0], [9], [1, 2, 3, 4, 5])
    assert not path.exists()
    slots.close()
    slots = Slots(dynamic=str(path))
    assert drafted(slots.drafters[0], [9, 1, 2]) == [3, 4, 5]
    generate(slots.drafters[0], [9], [1, 2, 3, 4, 5])
    slots.close()
    table = read_lookup(path, N_VOCAB)
    counts = {
        tuple(table.values[start : start + size]): table.counts(start)
        for start, size in zip(table.starts.tolist(), table.sizes.tolist(), strict=True)
    }
    assert counts[1, 2, 3] == {4: 3}
    assert counts[9, 1, 2, 3] == {4: 3}
    assert [entry.name for entry in tmp_path.iterdir()] == ["past.bin"]


def test_a_file_is_left_alone_where_nothing_was_learnt(tmp_path):
    path = tmp_path / "past.bin"
    Slots(dynamic=str(path)).close()
    assert not path.exists()
    path.write_bytes((DATA / "dynamic.bin").read_bytes())
    before = path.stat().st_mtime_ns
    Slots(dynamic=str(path)).close()
    assert path.stat().st_mtime_ns == before


def test_a_file_that_cannot_be_saved_is_reported_and_the_old_one_kept(tmp_path, monkeypatch, caplog):
    path = tmp_path / "past.bin"
    path.write_bytes((DATA / "dynamic.bin").read_bytes())
    slots = Slots(dynamic=str(path))
    generate(slots.drafters[0], [9], [1, 2, 3])

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    slots.close()
    assert "No space left" in caplog.text
    assert path.read_bytes() == (DATA / "dynamic.bin").read_bytes()
    assert len(list(tmp_path.iterdir())) == 1


def test_llama_cpps_files_serve():
    # "the cat sat on the mat and the cat sat on the rug and the dog sat on the mat", by SmolLM2's vocabulary
    cat, sat, on, the, mat = 2644, 2643, 335, 260, 1171
    (drafter,) = Slots(static=str(DATA / "static.bin"), dynamic=str(DATA / "dynamic.bin")).drafters
    assert drafted(drafter, [cat, sat], 3) == [on, the, mat]


def test_pairs_that_a_corpus_does_not_have_are_not_kept():
    corpus = NgramCorpus(read_lookup(DATA / "static.bin", 49152))
    assert corpus.get(as_history([2644, 2643]).tobytes()).leader == 335
    assert all(corpus.get(as_history([pair, 2643]).tobytes()) is None for pair in range(100))
    assert len(corpus._found) == 1


def test_a_static_file_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(ModelFileError, match="there is no such lookup file"):
        Slots(static=str(tmp_path / "none.bin"))


def test_a_dynamic_file_in_a_folder_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(OptionError, match="no folder"):
        Slots(dynamic=str(tmp_path / "none" / "past.bin"))


def test_a_dynamic_file_that_could_not_be_saved_is_an_error_before_anything_is_learnt(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, _mode: path != tmp_path)
    with pytest.raises(OptionError, match="is not writable, so the lookup file could not be saved"):
        Slots(dynamic=str(tmp_path / "past.bin"))


def test_a_file_of_another_vocabulary_is_an_error(tmp_path):
    save(tmp_path / "other.bin", [[1, N_VOCAB, 3]])
    for option in ("static", "dynamic"):
        with pytest.raises(ModelFileError, match="names token 50000, but the model has 50000 tokens"):
            Slots(**{option: str(tmp_path / "other.bin")})


def test_beyond_a_million_ngrams_those_seen_least_are_forgotten(monkeypatch):
    monkeypatch.setattr("augury.drafters.ngram.lookup_file._N_MAX", 100)
    past = NgramPast(None, N_VOCAB)
    for _ in range(3):
        past.learn(as_history([1, 2, 3]), 0)
    for i in range(20):
        past.learn(as_history(range(1000 + 8 * i, 1008 + 8 * i)), 0)
    assert len(past.counts) <= 100
    assert past.counts.get(as_history([1, 2]).tobytes()).counts == {3: 3}
    assert past.counts.get(as_history([1000, 1001]).tobytes()) is None
    assert past.counts.get(as_history([1158, 1159])[:1].tobytes()).counts == {1159: 1}


def test_followers_lead_by_count_and_of_equals_the_lowest_does():
    followers = Followers.of({7: 2, 3: 2, 5: 1})
    assert followers.leader == 3
    followers.add(5)
    assert followers.leader == 3
    followers.add(7)
    assert (followers.leader, followers.n_seen) == (7, 7)
    assert followers.best({}, 100) == 7
    assert followers.best({5: 1}, 100) == 5
    assert followers.best({4: 9, 5: 1, 3: 1}, 100) == 3


def test_it_is_offered_under_its_names():
    assert (NgramCache.name, NgramCache.aliases, NgramCache.traits.scope) == ("ngram-cache", ("lookup",), "process")
