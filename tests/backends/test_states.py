"""States of sequences, on every backend: after any script of accepted, rejected and empty drafts they are a fresh run's."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from oracles.models import RECURRENT, tiny_file
from oracles.passes import run_of

from augury import Registry
from augury.batch import Batch
from augury.errors import CapacityError, OptionError
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()
N_CTX, DRAFT_MAX, BLOCK = 160, 9, 16  # keys of so many positions lie together
SPARE = 3  # a slot where fresh runs are computed to compare with


DEVICES = (("reference", 1), ("numba-cpu", 1), ("numba-cpu", 3))


def load(backend, threads, name, **more):
    kind, file = REGISTRY.backends[backend], tiny_file(name)
    options = ModelOptions(**{"n_slots": 4, "n_ctx": N_CTX, "threads": threads, "draft_max": DRAFT_MAX, **more})
    return kind(kind.options_class()).load(file, plan_of(file, REGISTRY), options, Progress())


@pytest.fixture(scope="module", params=[(*device, name) for name in RECURRENT for device in DEVICES], ids=str)
def model(request):
    loaded = load(*request.param)
    yield loaded
    loaded.close()


class Text:
    """What a slot holds, what of its last draft is to be taken in, and what a manager would have it do next."""

    def __init__(self, slot, seed):
        self.slot = slot
        self.rng = np.random.default_rng(seed)
        self.tokens = np.empty(0, np.int32)
        self.accepted = []

    def share(self, n_certain, parents):
        """Tokens of a pass: certain ones, then a draft by its parents; and the texts that their rows follow."""
        start, n = len(self.tokens), n_certain + len(parents)
        tokens = self.rng.integers(0, 128, n).astype(np.int32)
        above = [*range(-1, n_certain - 1), *(n_certain + parent if parent >= 0 else n_certain - 1 for parent in parents)]
        paths = []
        for i, parent in enumerate(above):
            paths.append([*(paths[parent] if parent >= 0 else []), i])
        self.fed = tokens, above, paths, start, n_certain
        return tokens, np.array([start + len(path) - 1 for path in paths], np.int32), above, n_certain

    def expected(self, model):
        """The logits of the share's rows, by fresh runs over each path."""
        tokens, _, paths, start, _ = self.fed
        rows = {}
        for path in reversed(paths):
            if path[-1] not in rows:  # a leaf
                logits = model.forward(run_of([*self.tokens, *tokens[path]], slot=SPARE)).rows()[start:]
                rows |= dict(zip(path, logits.copy(), strict=True))
        return np.stack([rows[i] for i in range(len(paths))])

    def keep(self, which):
        """Accept a path to one of the share's nodes, or none of the draft."""
        tokens, _, paths, start, n_certain = self.fed
        path = [i for i in paths[n_certain + which] if i >= n_certain] if 0 <= which < len(tokens) - n_certain else []
        self.tokens = np.concatenate([self.tokens, tokens[:n_certain], tokens[path]])
        self.accepted = [(self.slot, start + i, start + n_certain + at) for at, i in enumerate(path)]


def batch_of(texts, shares, *, is_mixed=False):
    """One pass over shares of several texts."""
    columns, slots, parents, drafted, accepted, n = ([], []), [], [], [], [], 0
    for text, (tokens, positions, above, n_certain) in zip(texts, shares, strict=True):
        columns[0].append(tokens)
        columns[1].append(positions)
        slots += [text.slot] * len(tokens)
        parents += [n + parent if parent >= 0 else -1 for parent in above]
        drafted += [i >= n_certain for i in range(len(tokens))]
        accepted += text.accepted
        n += len(tokens)
    places = np.concatenate([np.arange(len(tokens)) for tokens, _, _, _ in shares])
    order = np.argsort(places, kind="stable") if is_mixed else np.arange(n)
    at = np.empty(n + 1, np.int32)
    at[order], at[-1] = np.arange(n), -1
    is_chain = all(above == list(range(-1, len(above) - 1)) for _, _, above, _ in shares)
    return Batch(
        np.concatenate(columns[0])[order],
        np.array(slots, np.int32)[order],
        np.concatenate(columns[1])[order],
        np.arange(n, dtype=np.int32),
        parents=None if is_chain else at[np.array(parents, np.int32)[order]],
        accepted=np.array(accepted, np.int32) if accepted else None,
        is_drafted=np.array(drafted)[order] if any(drafted) else None,
    ), order


def memory(model, slot, n):
    return [array.copy() for array in model.slot_memory(slot, n // BLOCK * BLOCK)]


def assert_same_state(model, text):
    play(model, [text], [(1, (), -1)])  # takes in what is accepted
    model.forward(run_of(text.tokens, slot=SPARE))
    n = len(text.tokens)
    for found, right in zip(memory(model, text.slot, n), memory(model, SPARE, n), strict=True):
        assert np.array_equal(found, right)


def play(model, texts, played, *, is_mixed=False):
    """One pass over the shares of those texts that have a move, whose logits are those of fresh runs."""
    moves = [(text, move) for text, move in zip(texts, played, strict=True) if move is not None and move[0] + len(move[1])]
    if not moves:
        return
    some = [text for text, _ in moves]
    shares = [text.share(n_certain, parents) for text, (n_certain, parents, _) in moves]
    batch, order = batch_of(some, shares, is_mixed=is_mixed)
    found = model.forward(batch).rows().copy()
    assert np.array_equal(found, np.concatenate([text.expected(model) for text in some])[order])
    for text, (_, _, which) in moves:
        text.keep(which)


chains = st.integers(0, DRAFT_MAX).map(lambda n: tuple(range(-1, n - 1)))
trees = st.integers(1, DRAFT_MAX).flatmap(lambda n: st.tuples(*(st.integers(-1, i - 1) for i in range(n))))
drafts = st.one_of(chains, trees)
rounds = st.lists(
    st.tuples(  # by slot: certain tokens, a draft, which of its tokens is accepted
        *[st.none() | st.tuples(st.integers(0, 4), drafts, st.integers(-1, DRAFT_MAX)) for _ in range(3)]
    ),
    min_size=1,
    max_size=5,
)
ALL, NONE = 8, -1
CHAIN = tuple(range(-1, 8))


@pytest.mark.sample(4)
@given(script=rounds, is_mixed=st.booleans())
@example(script=[((3, CHAIN, ALL), None, None), ((1, (), NONE), None, None), ((1, CHAIN, 2), None, None)], is_mixed=False)
@example(script=[((0, CHAIN, 3), (2, (-1, -1, 0, 1, 1), 4), None), ((0, CHAIN, ALL), (0, (-1, -1), 1), None)], is_mixed=True)
def test_a_slot_is_as_after_a_fresh_run(model, script, is_mixed):
    texts = [Text(slot, slot) for slot in range(3)]
    for played in script:
        play(model, texts, played, is_mixed=is_mixed)
    for text in texts:
        assert_same_state(model, text)


def with_accepted(change):
    return lambda batch: batch if batch.accepted is None else attrs.evolve(batch, accepted=change(batch.accepted))


def one_early(batch):
    if batch.is_drafted is None:
        return batch
    return attrs.evolve(batch, is_drafted=batch.is_drafted & (np.arange(len(batch.tokens)) != batch.is_drafted.argmax()))


FAULTS = {
    "taken in twice": with_accepted(lambda accepted: np.repeat(accepted, 2, axis=0)),
    "left out": with_accepted(lambda accepted: accepted[1:]),
    "one late": with_accepted(lambda accepted: accepted[:-1]),
    "in another order": with_accepted(lambda accepted: accepted[::-1]),
    "another slot's": with_accepted(lambda accepted: accepted ^ np.int32([1, 0, 0])),
    "one early": one_early,
}


@pytest.mark.sample(20)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_shows(model, fault, monkeypatch):
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda batch: forward(FAULTS[fault](batch)))
    texts = [Text(slot, slot) for slot in range(2)]

    def run():
        for which in (3, 0, 2):
            play(model, texts, [(2, CHAIN[:5], which)] * 2)
        assert_same_state(model, texts[0])

    with pytest.raises(AssertionError):
        run()


@pytest.mark.parametrize("n_saved", range(5))
def test_a_saved_state_comes_back_and_goes_on_with_what_is_replayed(model, n_saved):
    text, tokens = some_tokens(11, 1), some_tokens(4, 2)
    model.forward(run_of(text))
    model.forward(attrs.evolve(run_of(tokens, start=11), saves=np.int32([(0, n_saved)])))
    model.forward(run_of([5, 6, 7], start=15))
    left = tokens[n_saved:]

    replayed = attrs.evolve(run_of([*left, 9], start=11 + n_saved), restores=np.int32([0]), saves=np.int32([(0, len(left))]))
    found = model.forward(replayed).rows()[-1].copy()
    again = model.forward(attrs.evolve(run_of([9], start=15), restores=np.int32([0]))).rows()[0].copy()

    right = model.forward(run_of([*text, *tokens, 9], slot=SPARE)).rows()[-1]
    assert np.array_equal(found, right)
    assert np.array_equal(again, right)
    assert all(map(np.array_equal, memory(model, 0, 16), memory(model, SPARE, 16)))


@pytest.mark.parametrize("layers", [(0, 1), None])
def test_what_was_accepted_is_taken_in_whatever_layers_the_next_pass_goes_through(model, layers):
    text = Text(0, 5)
    for move in ((3, CHAIN, 4), (1, (-1, -1, 0), 2)):
        batch, _ = batch_of([text], [text.share(*move[:2])])
        model.forward(batch)
        text.keep(move[2])
    draft = some_tokens(3, 6)
    first = run_of(draft, start=len(text.tokens))
    model.forward(attrs.evolve(first, layers=layers, is_drafted=np.ones(3, bool), accepted=np.int32(text.accepted)))
    text.accepted = []

    assert_same_state(model, text)


def test_what_does_not_fit_aside_is_refused_and_certain_tokens_are_a_chain(model):
    batch = run_of([1] * 12)
    for is_drafted, error, told in (
        ([False] * 2 + [True] * 10, CapacityError, "10 drafted tokens of a slot, expected at most 9"),
        ([False, True] * 6, OptionError, "a certain token comes after a drafted one"),
    ):
        with pytest.raises(error, match=told):
            model.forward(attrs.evolve(batch, is_drafted=np.array(is_drafted)))
    tree = attrs.evolve(batch, parents=np.int32([-1, 0, 1, 0, *range(3, 11)]), positions=np.int32([0, 1, 2, *range(1, 10)]))
    for n_certain in (12, 3):  # a branch of certain tokens, and of a draft from before the last of them
        with pytest.raises(OptionError, match="expected a chain"):
            model.forward(attrs.evolve(tree, is_drafted=np.arange(12) >= n_certain))


@pytest.mark.parametrize("n", [505, 511, 512])
def test_a_draft_may_begin_in_one_part_of_a_pass_and_end_in_another(n):
    model, text = load("numba-cpu", 2, RECURRENT[0], n_ctx=1024), Text(0, 3)
    batch, _ = batch_of([text], [text.share(n, CHAIN)])
    right = text.expected(model)
    assert np.array_equal(model.forward(batch).rows(), right)
    text.keep(6)
    assert_same_state(model, text)


def test_the_memory_of_states_and_of_what_is_kept_aside_is_in_the_table():
    small, large = (load("numba-cpu", 1, RECURRENT[0], draft_max=n) for n in (1, 101))
    tables = [{line.purpose: line.n_bytes for line in each.memory_table()} for each in (small, large)]
    n_fed = sum(state.n_fed for block in plan_of(tiny_file(RECURRENT[0]), REGISTRY).blocks() for state in block.states())
    assert tables[1]["drafted tokens kept aside"] - tables[0]["drafted tokens kept aside"] == 100 * 4 * 4 * n_fed
    assert tables[0]["states"] == tables[1]["states"] >= 4 * small.state_spec.n_bytes_per_sequence


def some_tokens(n, seed):
    return np.random.default_rng(seed).integers(0, 128, n).astype(np.int32)
