"""States of sequences, on every backend: after any script of accepted, rejected and empty drafts they are a fresh run's."""

from __future__ import annotations

from functools import partial

import attrs
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from oracles.models import RECURRENT, altered, nmse, tiny_file
from oracles.passes import run_of
from oracles.states import CHAIN, SPARE, Text, assert_same_state, batch_of, memory, play

from augury import Registry
from augury.errors import AuguryError, CapacityError, OptionError
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()
N_CTX, DRAFT_MAX = 160, 9


MODELS = (*RECURRENT, "qwen4exp-moe")  # which keeps the tokens before, too
DEVICES = (("reference", 1), ("numba-cpu", 1), ("numba-cpu", 3))


def load(backend, threads, name, **more):
    kind, file = REGISTRY.backends[backend], tiny_file(name) if isinstance(name, str) else name
    options = ModelOptions(**{"n_slots": 4, "n_ctx": N_CTX, "threads": threads, "draft_max": DRAFT_MAX, **more})
    return kind(kind.options_class()).load(file, plan_of(file, REGISTRY), options, Progress())


@pytest.fixture(scope="module", params=[(*device, name) for name in MODELS for device in DEVICES], ids=str)
def model(request):
    loaded = load(*request.param)
    yield loaded
    loaded.close()


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
TREE = (-1, -1, 0, 1, 1)


@pytest.mark.sample(2)
@settings(max_examples=min(100, settings().max_examples))  # one takes 10 to 80 ms; what is seldom drawn is in the examples
@given(script=rounds, is_mixed=st.booleans())
@example(script=[((3, CHAIN, ALL), None, None), ((1, (), NONE), None, None), ((1, CHAIN, 2), None, None)], is_mixed=False)
@example(script=[((0, CHAIN, 3), (2, TREE, 4), None), ((0, CHAIN, ALL), (0, (-1, -1), 1), None)], is_mixed=True)
@example(script=[((2, TREE, 2), (1, CHAIN, 3), (3, TREE, 4)), ((1, TREE, 3), (0, CHAIN, 1), (0, TREE, 4))], is_mixed=False)
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


@pytest.mark.sample(8, rest=24)
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


@pytest.mark.parametrize("backend", ["reference", "numba-cpu"])
def test_slots_and_positions_that_there_are_not_are_neither_saved_nor_restored_nor_copied(backend):
    model, small = (load(backend, 1, RECURRENT[0], n_ctx=n_ctx) for n_ctx in (32, 16))
    for slot, n in ((-1, 1), (4, 1), (0, 33), (0, -1)):
        for call in (partial(model.save, slot, n), partial(model.copy, slot, 1, n), partial(model.copy, 1, slot, n)):
            with pytest.raises(CapacityError, match=f"{n} positions of slot .*, expected 32 at most, of 4 slots"):
                call()
    saved = model.save(0, 32)
    with pytest.raises(CapacityError, match="of slot 4"):
        model.restore(4, saved)
    with pytest.raises(CapacityError, match="32 positions of slot 0, expected 16"):
        small.restore(0, saved)
    for each in (model, small):
        each.close()
        with pytest.raises(AuguryError, match="is closed"):
            each.save(0, 1)


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


def test_decays_that_leave_nothing_of_a_state_after_a_few_tokens():
    file = tiny_file("qwen35-dense")
    decays = {name: np.full(each.shape, -9.0) for name, each in file.tensors.items() if name.endswith("ssm_a")}
    models = [load(backend, 1, altered(file, arrays=decays)) for backend in ("reference", "numba-cpu")]
    tokens = np.random.default_rng(5).integers(0, 128, 24).astype(np.int32)
    right, certain = (model.forward(run_of(tokens)).rows().copy() for model in models)
    drafted = attrs.evolve(run_of(tokens[:9], slot=1), is_drafted=np.arange(9) > 0)
    accepted = np.array([(1, i, i) for i in range(1, 9)], np.int32)
    rest = attrs.evolve(run_of(tokens[9:], slot=1, start=9), accepted=accepted)

    rows = [models[1].forward(batch).rows().copy() for batch in (drafted, rest)]

    assert nmse(certain, right) < 1e-10
    assert np.array_equal(np.concatenate(rows), certain)
