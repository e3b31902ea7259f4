"""Whatever a script accepts, rejects, branches and edits: a slot's whole state is that of a fresh run over its text."""

import functools
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from oracles.models import RECURRENT, tiny_file

from augury import AuguryError, Registry
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.options import build
from augury.testing.memory import DrivenMemory, Guess
from augury.testing.toy_model import ToyModel, ToyRecurrentModel
from augury.types import Draft, ModelOptions

REGISTRY = Registry.discover()
N_CTX, BLOCK = 48, 16  # keys of so many positions may lie together
TOYS = {
    "KV cache": ToyModel,
    "recurrent": ToyRecurrentModel,
    "hybrid": partial(ToyRecurrentModel, is_hybrid=True),
    "recurrent, nothing aside": partial(ToyRecurrentModel, can_keep_aside=False),
    "hybrid, nothing aside": partial(ToyRecurrentModel, can_keep_aside=False, is_hybrid=True),
}
MANAGERS = {
    "contiguous": ("contiguous", {}),
    "checkpoints": ("checkpoints", {}),
    "every copy": ("checkpoints", {"checkpoint_min_step": 0}),
    "few copies": ("checkpoints", {"checkpoint_min_step": 0, "ctx_checkpoints": 2}),
    "no copies": ("checkpoints", {"ctx_checkpoints": 0}),
    "restored": ("checkpoints", {"use_checkpoints": "on", "checkpoint_min_step": 5}),
}
PAIRS = [(kind, name) for kind in TOYS for name in MANAGERS if (kind == "KV cache") == (name == "contiguous")]


def real(backend, name, n_slots):
    kind, file = REGISTRY.backends[backend], tiny_file(name)
    options = ModelOptions(n_slots, N_CTX, threads=1, draft_max=8)
    return kind(kind.options_class()).load(file, plan_of(file, REGISTRY), options, Progress())


class Played(DrivenMemory):
    """States are compared at the end, instead of logits on the way."""

    def __init__(self, model, manager):
        name, options = MANAGERS[manager]
        cls = REGISTRY.memory_managers[name]
        super().__init__(partial(cls, build(cls.options_class, options, name)), model, manager)
        self.model = model

    def _compare(self, rows, texts):
        pass

    def play(self, script):
        for i, step in script:
            if len(self.texts) <= i:
                self.open([i, 1, 2, 3, 4], may_reuse=True, chunk=3)
            slot = sorted(self.texts)[min(i, len(self.texts) - 1)]
            if isinstance(step, Guess):
                self.round({slot: step})
            elif step == "together":
                self.round({each: Guess(Draft([1, 2, 3]), each, 5) for each in self.texts})
            elif isinstance(step, int):  # the text goes on otherwise from there
                text = self.texts[slot]
                self.end(slot)
                self.open([*text[:step], 9, 8, *range(step % 3)], may_reuse=True, chunk=64)
            else:
                getattr(self, step)(slot)

    def state(self, slot):
        """Everything that a slot holds of its text, to whose end some tokens are added."""
        n = len(self.texts[slot])
        added = [self.texts[slot][-1], *range(-n % BLOCK)]
        feed = self._context.prepare(slot, np.array(added, np.int32))
        self._context.forward([feed])
        self._context.commit(feed)
        return [array.tobytes() for array in self.model.slot_memory(slot, n - 1 + len(added))]


def compare(played, fresh):
    for slot in sorted(played.texts):
        if len(text := played.texts[slot]) <= N_CTX:
            fresh.open(text[:-1] or text, may_reuse=False, chunk=N_CTX)
            (own,) = fresh.texts
            fresh.texts[own] = text
            assert played.state(slot) == fresh.state(own), f"slot {slot}, {text}"
            fresh.end(own)


def drafts(tokens):
    return st.builds(
        Draft, st.just(tokens), st.none() | st.tuples(*(st.integers(-1, i - 1) for i in range(len(tokens)))).map(list)
    )


GUESSES = st.builds(Guess, st.lists(st.integers(0, 3), max_size=5).flatmap(drafts), st.integers(0, 5), st.integers(0, 3))
STEPS = st.one_of(
    GUESSES, GUESSES, st.integers(1, 30), st.sampled_from(["together", "ahead", "truncate", "save", "fail", "end"])
)
SCRIPTS = st.lists(st.tuples(st.integers(0, 2), STEPS), min_size=1, max_size=12)
ALL, NONE = Guess(Draft([1, 2, 3]), 3, 4), Guess(Draft(), 0, 5)
TREE = Guess(Draft([3, 4, 5, 6, 7], [-1, -1, 1, 1, 3]), 9, 8)
KILLERS = (  # an empty draft after an accepted one, an edit after a tree, a request after another's rejection
    [(0, ALL), (0, NONE), (0, NONE), (0, ALL)],
    [(0, TREE), (0, NONE), (0, TREE), (0, 7), (0, TREE)],
    [(0, Guess(Draft([1, 2]), 0, 4)), (1, ALL), (0, 6), (1, "together"), (0, NONE)],
    [(0, ALL), (0, "save"), (0, ALL), (0, "fail"), (0, 5), (0, NONE)],
)


def examples(test):
    for script in KILLERS:
        test = example(script=script)(test)
    return test


@pytest.mark.sample(10, rest=8)
@pytest.mark.parametrize("n_slots", [1, 3])
@pytest.mark.parametrize(("kind", "manager"), PAIRS)
def test_a_toy_s_state_is_that_of_a_fresh_run(kind, manager, n_slots):
    @examples
    @settings(max_examples=25)
    @given(script=SCRIPTS)
    def run(script):
        played = Played(TOYS[kind](n_slots=n_slots, n_ctx=N_CTX), manager)
        played.play([(slot % n_slots, step) for slot, step in script])
        compare(played, Played(TOYS[kind](n_ctx=N_CTX), manager))

    run()


@functools.cache
def models(backend, name):
    return real(backend, name, 3), real(backend, name, 1)


@pytest.mark.sample(3, rest=8)
@pytest.mark.parametrize("manager", ["checkpoints", "few copies", "restored"])
@pytest.mark.parametrize("backend", ["reference", "numba-cpu"])
@pytest.mark.parametrize("name", RECURRENT)
def test_a_model_s_state_is_that_of_a_fresh_run(name, backend, manager):
    @examples
    @settings(max_examples=5)
    @given(script=SCRIPTS)
    def run(script):
        model, other = models(backend, name)
        played = Played(model, manager)
        played.play(script)
        compare(played, Played(other, manager))

    run()


def another_slot_s_copy(played):
    save = played.model.save
    played.model.save = lambda slot, n: save(slot if n else (slot + 1) % 3, n)


def moved(by):
    def plant(played):
        keep = played._memory._keep
        played._memory._keep = lambda slot, n, data: keep(slot, n + by, data)

    return plant


def not_restored(played):
    played.model.restore = lambda slot, data: None


def convolution_left_behind(played):
    restore = played.model.restore

    def fault(slot, data):
        conv = played.model.conv[slot].copy()
        restore(slot, data)
        played.model.conv[slot] = conv

    played.model.restore = fault


def kept_beyond_a_cut(played):
    go_back, at = played._memory._go_back, played._memory._at

    def fault(slot, n):
        copies = at[slot].copies
        go_back(slot, n)
        at[slot].copies = copies

    played._memory._go_back = fault


def saved_of_another_slot(played):
    begin, saved = played.model._begin, played.model.saved

    def fault(batch):
        for slot in batch.restores.tolist() if batch.restores is not None else ():
            saved[slot] = saved.get((slot + 1) % 3, saved[slot])
        begin(batch)

    played.model._begin = fault


FAULTS = {
    "another slot's copy": ("every copy", another_slot_s_copy),
    "a copy one token late": ("every copy", moved(-1)),
    "a copy one token early": ("every copy", moved(1)),
    "a copy not restored": ("every copy", not_restored),
    "a copy's convolution left behind": ("every copy", convolution_left_behind),
    "copies kept beyond a cut": ("every copy", kept_beyond_a_cut),
    "another slot's saved state": ("restored", saved_of_another_slot),
}
SOME = Guess(Draft([1, 2, 3]), 1, 6)
EDITS = [
    *[(0, SOME), (1, SOME), (0, SOME), (1, ALL), (1, NONE), (0, NONE), (0, 9), (0, NONE), (1, 4), (0, 7), (0, 5), (1, ALL)],
    *[(0, 6), (0, SOME), (1, SOME), (0, NONE)],
]


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_shows(fault):
    manager, plant = FAULTS[fault]

    def run(*, is_planted):
        played = Played(TOYS["hybrid"](n_slots=3, n_ctx=N_CTX), manager)
        if is_planted:
            plant(played)
        played.play(EDITS)
        compare(played, Played(TOYS["hybrid"](n_ctx=N_CTX), manager))

    run(is_planted=False)
    with pytest.raises((AssertionError, AuguryError, LookupError)):
        run(is_planted=True)
