from types import SimpleNamespace

import attrs
import pytest
from hypothesis import given, settings, strategies as st
from oracles.models import tiny_model
from oracles.suffixes import longest_match
from support.toys import as_history, drafted

from augury.drafters.suffix import Suffix, SuffixOptions
from augury.engine.engine import Engine
from augury.errors import ModelFileError, OptionError
from augury.interfaces import Ask, Pace
from augury.options import build, options_of


def drafter_of(**options):
    return Suffix(SuffixOptions(**{"factor": 1.0} | options), None)


def test_a_draft_is_as_long_as_the_ending_that_occurred_before():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert drafted(drafter_of(), [*text, 1]) == [2]
    assert drafted(drafter_of(), [*text, 1, 2, 3]) == [4, 5, 6]
    assert drafted(drafter_of(factor=2.0), [*text, 1, 2]) == [3, 4, 5, 6]
    assert drafted(drafter_of(offset=1.0), [*text, 1, 2]) == [3, 4, 5]
    assert drafted(drafter_of(offset=-2.0), [*text, 1, 2]) == []
    assert drafted(drafter_of(max_depth=2), [*text, 1, 2, 3]) == [4, 5]
    assert drafted(drafter_of(), [*text, 0]) == []


def test_of_several_ways_on_the_more_frequent_is_taken_as_far_as_it_is_probable():
    text = [1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 6, 9, 1, 2, 7, 8, 1, 2]
    assert drafted(drafter_of(offset=3.0), text, 3)[:2] == [3, 4]
    assert drafted(drafter_of(offset=3.0, min_prob=0.5), text) == [3, 4]
    assert drafted(drafter_of(offset=3.0, min_prob=0.9), text) == []


def test_a_token_just_as_probable_as_asked_for_is_drafted():
    text = [1, 2, 3, 4, 5, 0, 1, 2, 7, 8, 9, 1, 2]  # of two ways on the latest: its first token among others, the rest alone
    for min_prob, expected in ((0.5, [7, 8, 9]), (0.500001, [])):
        assert drafted(drafter_of(offset=1.0, min_prob=min_prob), text) == expected


def test_a_shorter_ending_is_taken_where_it_promises_more():
    # 5 1 2 went on in three ways, 1 2 mostly in one
    text = [*[1, 2, 3, 4] * 6, 6, 5, 1, 2, 7, 5, 1, 2, 8, 5, 1, 2, 0, 5, 1, 2]
    assert drafted(drafter_of(), text) == [3, 4]


def test_a_longer_ending_is_taken_where_it_promises_more():
    # 5 1 2 went on in one way, for three tokens; 1 2 mostly in another, for two
    text = [*[1, 2, 3, 4] * 6, 6, 5, 1, 2, 7, 8, 9, 5, 1, 2]
    assert drafted(drafter_of(), text) == [7, 8, 9]


def test_token_0_is_one_like_others():
    assert drafted(drafter_of(), [1, 2, 0, 5, 1, 2, 0, 6, 1, 2, 7, 1, 2])[0] == 0


texts = st.integers(1, 4).flatmap(lambda v: st.lists(st.integers(0, v), min_size=1, max_size=100))


@settings(max_examples=150)
@given(texts, st.integers(1, 6), st.floats(0.1, 1.0), st.integers(0, 9), st.data())
def test_drafts_of_any_text_follow_earlier_occurrences_within_their_bounds(text, depth, min_prob, limit, data):
    drafter = drafter_of(max_depth=depth, min_prob=min_prob)
    length = data.draw(st.integers(1, len(text)))
    if data.draw(st.booleans(), label="begin is called"):
        drafter.begin(as_history(text[:length]), 0)
    while length <= len(text):
        longest, _ = longest_match(text[:length], depth)
        draft = drafted(drafter, text[:length], limit)
        assert len(draft) <= min(longest, limit)
        if draft:
            seen = text[:length]
            assert any(seen[i : i + 1 + len(draft)] == [seen[-1], *draft] for i in range(length))
        if limit:  # a single occurrence leaves no choice, so the draft is what follows it
            assert draft or not longest or min_prob > 0.1
        length += data.draw(st.integers(1, 12))


@settings(max_examples=80)
@given(texts, texts, st.data())
def test_a_reused_prefix_is_known_whether_or_not_it_is_given_again(first, second, data):
    n_shared = data.draw(st.integers(0, len(first)))
    second = first[:n_shared] + second
    drafter = drafter_of(max_depth=3)
    drafter.begin(as_history(first), 0)
    drafter.end()
    drafter.begin(as_history(second), n_shared)
    known = [*first, -1, *second]
    draft = drafted(drafter, second)
    longest, _ = longest_match(second, 3)
    assert draft or not longest
    assert not draft or any(known[i : i + 1 + len(draft)] == [second[-1], *draft] for i in range(len(known)))


def test_a_conversation_is_learnt_once_however_many_turns_it_has():
    drafter, text = drafter_of(max_depth=4), list[int]()
    for turn in range(1, 8):
        text += range(10 * turn, 10 * turn + 10)
        drafter.begin(as_history(text), 0)
        drafter.end()
        assert len(drafter._texts) <= len(text) + (4 + 1) * turn + 1  # anew: what is looked up at most, and a mark
    assert drafted(drafter, [*text, 13, 14, 15]) == [16, 17, 18]


def test_a_slot_remembers_earlier_requests_and_slots_do_not_know_each_other():
    first, second = drafter_of(), drafter_of()
    first.begin(as_history([1, 2, 3, 4, 5]), 0)
    assert drafted(first, [1, 2, 3, 4, 5, 6]) == []
    first.end()
    first.begin(as_history([9, 2, 3]), 0)
    assert drafted(first, [9, 2, 3]) == [4, 5]
    assert drafted(second, [9, 2, 3]) == []


def test_tokens_that_a_request_without_drafts_left_in_the_slot_are_learnt():
    drafter = drafter_of(max_depth=1)
    drafter.begin(as_history([1, 2, 3, 4, 5, 6]), 0)
    drafter.begin(as_history([11, 12, 13, 14, 15, 11]), 4)
    assert drafted(drafter, [11, 12, 13, 14, 15, 11]) == [12]


def test_a_draft_ends_where_the_text_that_it_follows_ends():
    drafter = drafter_of(offset=9.0)
    drafter.begin(as_history([1, 2, 3]), 0)
    drafter.begin(as_history([7, 8, 1]), 0)
    assert drafted(drafter, [7, 8, 1]) == [2, 3]


def test_a_request_may_bring_bounds_of_its_own():
    options = options_of(SuffixOptions)
    assert {name for name, option in options.items() if option.is_per_request} == {
        "factor",
        "offset",
        "min_prob",
        "corpus_learns",
    }
    drafter = drafter_of()
    text = [1, 2, 3, 4, 5, 1, 2]
    drafter.options = attrs.evolve(drafter.options, factor=0.5)
    assert drafted(drafter, text) == [3]


def test_lengths_that_never_draft_are_an_error():
    with pytest.raises(OptionError, match="leave no token to draft"):
        build(SuffixOptions, {"factor": 0, "offset": 0}, "suffix")
    with pytest.raises(OptionError, match="max_depth 4"):
        build(SuffixOptions, {"factor": 1, "offset": -4, "max_depth": 4}, "suffix")


def test_an_empty_path_of_a_corpus_is_an_error():
    with pytest.raises(OptionError, match="corpus is empty text, expected a file's path"):
        build(SuffixOptions, {"corpus": ""}, "suffix")


def branched(text, limit=16, depth=16, **options):
    drafter = drafter_of(**options)
    drafter.begin(as_history(text), 0)
    (found,) = drafter.draft_together([Ask(drafter, as_history(text), limit, pace=Pace(depth))])
    return found


def paths(draft):
    found = []
    for token, parent in zip(draft.tokens.tolist(), draft.above.tolist(), strict=True):
        found.append([*(found[parent] if parent >= 0 else ()), token])
    return found


def test_where_a_planner_asks_the_other_ways_on_are_branches():
    text = [1, 2, 3, 4, 1, 2, 5, 6, 9, 1, 2, 3, 7, 1, 2]
    found = branched(text)
    chain = drafted(drafter_of(), text, 16)
    assert found.tokens[: len(chain)].tolist() == chain
    assert {tuple(path) for path in paths(found)} >= {(3,), (3, 7), (3, 4), (5,), (5, 6)}
    assert found.evidence[len(chain) :].min() >= 21 > found.evidence[: len(chain)].max()
    assert branched(text, limit=3).tokens.tolist() == found.tokens[:3].tolist()
    assert branched(text, depth=1).depth == 1


@settings(max_examples=60)
@given(text=st.lists(st.integers(0, 3), min_size=2, max_size=60), limit=st.integers(0, 20), depth=st.integers(1, 20))
def test_every_branch_follows_an_earlier_occurrence(text, limit, depth):
    found = branched(text, limit, depth)
    assert len(found) <= limit
    assert found.depth <= depth
    followed = {(text[i], *text[i + 1 : i + 1 + n]) for i in range(len(text)) for n in range(depth + 1)}
    assert all((text[-1], *path) in followed for path in paths(found))
    assert len({tuple(path) for path in paths(found)}) == len(found)  # no branch twice
    assert not len(found) or 0 <= min(found.evidence) <= max(found.evidence) < len(Suffix.traits.evidence_chances)


class Slots:
    """Slots of an engine with a corpus; the file is saved when it is closed."""

    def __init__(self, path, n_slots=1, n_vocab=100, **options):
        self._shared = {}
        self.options = SuffixOptions(**{"factor": 1.0, "corpus": str(path)} | options)
        model = SimpleNamespace(n_vocab=n_vocab)
        shared = lambda key, make: self._shared.setdefault(key, make())
        session = SimpleNamespace(model=model, tokenizer=None, verify="match", shared=shared)
        self.drafters = [Suffix(self.options, session) for _ in range(n_slots)]

    def answer(self, prompt, answer, slot=0, **options):
        """A request from its beginning to its end; returns what is drafted after its prompt."""
        drafter = self.drafters[slot]
        drafter.options = attrs.evolve(self.options, **options)
        text = [*prompt, *answer]
        drafter.begin(as_history(text[: len(prompt) + 1]), 0)
        found = drafted(drafter, text[: len(prompt) + 1])
        drafter.accept(as_history(text), None)
        drafter.end()
        return found

    def close(self):
        for each in self._shared.values():
            each.close()


def test_with_a_corpus_slots_learn_from_each_other_and_from_earlier_processes(tmp_path):
    path = tmp_path / "corpus"
    slots = Slots(path, n_slots=2)
    assert slots.answer([1, 2], [3, 4, 5, 6]) == []
    assert slots.answer([1, 2], [3, 4, 5], slot=1) == [4, 5, 6], "what the prompt ended with tells where an answer began"
    slots.close()
    assert Slots(path).answer([7, 1, 2], [3, 4]) == [4, 5, 6]
    assert [entry.name for entry in tmp_path.iterdir()] == ["corpus"]


def test_without_a_corpus_nobody_learns_from_others():
    assert SuffixOptions().corpus is None
    assert Suffix.traits.scope == "slot"


def test_prompts_are_not_learnt_but_for_what_answers_are_found_by(tmp_path):
    slots = Slots(tmp_path / "corpus", n_slots=2, max_depth=2)
    slots.answer([1, 2, 3, 4, 5, 6, 7], [8, 9])
    assert slots.answer([1, 2], [3], slot=1) == []
    assert slots.answer([6], [7], slot=1) == [8, 9]


def test_a_request_may_keep_its_answer_to_itself(tmp_path):
    slots = Slots(tmp_path / "corpus", n_slots=2)
    slots.answer([1, 2], [3, 4, 5, 6], corpus_learns=False)
    assert slots.answer([1, 2], [3], slot=1) == []
    slots = Slots(tmp_path / "corpus", corpus_learns=False)
    slots.answer([1, 2], [3, 4, 5, 6])
    slots.close()
    assert not list((tmp_path).glob("*")), "nothing was learnt, nothing is saved"


def test_a_corpus_that_learns_nothing_may_be_in_a_read_only_folder(tmp_path, monkeypatch):
    path = tmp_path / "corpus"
    slots = Slots(path)
    slots.answer([1, 2], [3, 4, 5, 6])
    slots.close()
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(OptionError, match=r"is not writable, .* or read it alone with corpus_learns=false"):
        Slots(path)
    assert Slots(path, corpus_learns=False).answer([7, 1, 2], [3, 4]) == [4, 5, 6]


def test_where_more_of_the_ending_occurred_the_draft_goes_on_from_there(tmp_path):
    slots = Slots(tmp_path / "corpus", n_slots=2)
    slots.answer([1, 2, 3], [4, 5, 6])
    slots.answer([9, 3], [4, 8], slot=1)  # now its own text has 3 4 8, the corpus 1 2 3 4 5
    assert slots.answer([3, 4, 8, 1, 2, 3], [4], slot=1) == [5, 6]
    assert slots.answer([1, 2, 3, 4, 7, 7, 1, 2, 3], [4], slot=1)[:1] == [7], "of equals its own"


def test_what_a_corpus_says_has_buckets_of_its_own(tmp_path):
    slots = Slots(tmp_path / "corpus", n_slots=2)
    for answer in ([3, 4, 5], [3, 4, 6], [3, 4, 6]):
        slots.answer([1, 2], answer)
    drafter, text = slots.drafters[1], [4, 9, 1, 2, 3, 4]
    n = len(Suffix.traits.evidence_chances)
    assert drafter.traits.scope == "process"
    assert drafter.traits.evidence_chances == 2 * Suffix.traits.evidence_chances
    drafter.begin(as_history(text), 0)
    (found,) = drafter.draft_together([Ask(drafter, as_history(text), 16, pace=Pace(8))])
    by_path = {tuple(path): int(bucket) for path, bucket in zip(paths(found), found.evidence, strict=True)}
    assert by_path[6,] >= n, "from the corpus"
    assert by_path[9,] < n, "from its own text"
    assert n + 21 <= by_path[5,] < 2 * n, "a branch of the corpus"
    alone = drafter.draft(as_history(text), 16)
    assert alone.parents is None
    assert alone.tokens[0] == 6


PROMPT = [3, 1, 4, 1, 5]


def load(path, **how):
    spec = {"spec_type": "suffix", "spec_options": {"suffix": {"corpus": str(path)}}, "spec_fixed": True}
    return Engine.load(tiny_model("llama-dense"), backend="reference", threads=1, n_ctx=128, **spec, **how)


def test_a_corpus_changes_no_token_and_saves_rounds_after_a_restart(tmp_path):
    path, params = tmp_path / "corpus", {"max_tokens": 48, "temperature": 0}
    with load(path) as engine:
        plain = engine.generate(PROMPT, speculative={"type": "none"}, **params)
        first = engine.generate(PROMPT, **params)
    with load(path, slots=2) as engine:
        again = engine.generate(PROMPT, **params)
        sampled = [
            engine.generate(PROMPT, max_tokens=48, temperature=1.0, seed=3, speculative=how) for how in ({}, {"type": "none"})
        ]
    assert plain.tokens == first.tokens == again.tokens
    assert again.stats.n_rounds < first.stats.n_rounds / 2
    assert sampled[0].tokens == sampled[1].tokens


def test_ctrl_c_loses_nothing_that_was_learnt(tmp_path):
    path = tmp_path / "corpus"

    def interrupted():
        with load(path) as engine:
            engine.generate(PROMPT, max_tokens=24, temperature=0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with load(path) as engine:
        assert engine.generate(PROMPT, max_tokens=24, temperature=0).stats.n_accepted > 12


def test_a_corpus_that_is_damaged_refuses_the_start(tmp_path):
    path = tmp_path / "corpus"
    path.write_text("precious")
    with pytest.raises(ModelFileError, match="is no corpus of the drafter suffix"):
        load(path)
    assert path.read_text() == "precious"
