"""Passes over trees, on every backend: each node's logits are, to the bit, those of its path as a chain."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import support.stand_in_tiles  # noqa: F401 - one more instruction set
from hypothesis import given, settings, strategies as st
from oracles.models import tiny_file
from oracles.passes import joined, run_of, tree_of
from support.cpu_backends import cpu_backends

from augury import Registry
from augury.backends.numba_cpu.kernels.isa import available_isas
from augury.errors import CapacityError, OptionError, UnsupportedError
from augury.interfaces import Progress
from augury.loader import make_backend, plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()
NAMES = ("llama-dense", "gemma3-dense", "jais-slopes", "granite_swa-pattern")  # with windows, slopes, sinks
N_CTX = 320
SPARE = 3  # a slot where chains are computed to compare with


@pytest.fixture(scope="module", params=[(name, threads) for name in cpu_backends(REGISTRY) for threads in (1, 2)], ids=str)
def load(request):
    """Loads a model, once for all tests of a backend and number of threads."""
    backend, loaded = REGISTRY.backends[request.param[0]], {}

    def get(name):
        if name not in loaded:
            file = tiny_file(name)
            options = ModelOptions(n_slots=4, n_ctx=N_CTX, threads=request.param[1])
            loaded[name] = backend(backend.options_class()).load(file, plan_of(file, REGISTRY), options, Progress())
        return loaded[name]

    get.is_fast = request.param[0] == "numba-cpu"
    yield get
    for model in loaded.values():
        model.close()


def some_tokens(n, seed):
    return np.random.default_rng(seed).integers(0, 128, n).astype(np.int32)


def rows(model, batch):
    return model.forward(batch).rows().copy()


def path_of(parents, node):
    path = []
    while node != -1:
        path.append(node)
        node = parents[node]
    return path[::-1]


def rows_of_paths(model, context, tokens, parents):
    """The logits of every node, computed in another slot, one path after the other as a chain."""
    if len(context):
        model.forward(run_of(context, slot=SPARE, rows=[]))
    found = {}
    for leaf in set(range(len(parents))) - set(parents):
        path = path_of(parents, leaf)
        logits = rows(model, run_of(tokens[path], slot=SPARE, start=len(context)))
        found |= dict(zip(path, logits, strict=True))
    return np.stack([found[node] for node in range(len(parents))])


def interleaved(batch, seed):
    """The same pass with the tokens of all slots mixed, each slot's in order, and where each of the old rows went."""
    rng = np.random.default_rng(seed)
    order = np.empty(len(batch.tokens), np.int64)
    places = rng.permutation(batch.slots)
    for slot in set(batch.slots.tolist()):
        order[places == slot] = np.flatnonzero(batch.slots == slot)
    at = np.empty(len(order) + 1, np.int32)
    at[order], at[-1] = np.arange(len(order)), -1
    parents = None if batch.parents is None else at[batch.parents[order]]
    mixed = attrs.evolve(
        batch,
        tokens=batch.tokens[order],
        slots=batch.slots[order],
        positions=batch.positions[order],
        rows=np.sort(at[batch.rows]),
        parents=parents,
    )
    return mixed, np.searchsorted(mixed.rows, at[batch.rows])


def trees(n):
    """Parents of up to n nodes, of any shape."""
    return st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=n).map(
        lambda shares: [-1] + [int(share * (i + 2)) - 1 for i, share in enumerate(shares[1:])]
    )


@pytest.mark.sample(0)
@settings(max_examples=50)
@given(data=st.data())
def test_a_node_sees_what_its_path_would_see_as_a_chain(load, data):
    model = load(data.draw(st.sampled_from(NAMES)))
    limit, size, edges = (290, 28, [15, 16, 240, 255, 256]) if load.is_fast else (40, 9, [0, 31])
    seed = data.draw(st.integers(0, 999))
    lengths = [data.draw(st.integers(0, limit) | st.sampled_from(edges)) for _ in range(2)]
    parents = [data.draw(trees(size)) for _ in range(2)]
    contexts = [some_tokens(n, seed + i) for i, n in enumerate(lengths)]
    tokens = [some_tokens(len(tree), seed + 10 + i) for i, tree in enumerate(parents)]
    right = [rows_of_paths(model, *given) for given in zip(contexts, tokens, parents, strict=True)]
    prompt = some_tokens(data.draw(st.integers(1, 20)), seed + 20)
    alone = rows(model, run_of(prompt, slot=SPARE))
    for slot, context in enumerate(contexts):
        if len(context):
            model.forward(run_of(context, slot=slot, rows=[]))

    parts = [tree_of(tokens[slot], parents[slot], slot=slot, start=lengths[slot]) for slot in (1, 0)]
    batch, order = interleaved(joined(*parts, tree_of(prompt, range(-1, len(prompt) - 1), slot=2)), seed)

    assert np.array_equal(rows(model, batch)[order], np.concatenate([right[1], right[0], alone]))


@pytest.mark.sample(2)
@settings(max_examples=40)
@given(data=st.data())
def test_a_path_that_was_moved_together_goes_on_as_a_chain(load, data):
    model = load(data.draw(st.sampled_from(NAMES)))
    seed, start = data.draw(st.integers(0, 999)), data.draw(st.integers(0, 270 if load.is_fast else 40))
    parents, later = data.draw(trees(20 if load.is_fast else 8)), data.draw(trees(9))
    path = path_of(parents, data.draw(st.integers(0, len(parents) - 1)))
    text, tokens, more = some_tokens(start, seed), some_tokens(len(parents), seed + 1), some_tokens(len(later), seed + 2)
    right = rows_of_paths(model, np.concatenate([text, tokens[path]]), more, later)
    if start:
        model.forward(run_of(text, slot=1, rows=[]))
    model.forward(tree_of(tokens, parents, slot=1, start=start))

    moves = np.array([(1, start + node, start + i) for i, node in enumerate(path) if node != i], np.int32).reshape(-1, 3)
    batch = attrs.evolve(tree_of(more, later, slot=1, start=start + len(path)), accepted=moves)

    assert np.array_equal(rows(model, batch), right)


@pytest.mark.parametrize("name", ["llama-dense", "gemma4-e"])  # of which the second has layers that share caches
def test_moves_are_made_in_order(load, name):
    model, tokens = load(name), some_tokens(8, 1)
    for slot in range(3):
        model.forward(run_of(tokens, slot=slot, rows=[]))
    ways = ([(2, 3), (3, 4)], [(2, 3), (2, 4)], [(3, 4), (2, 3)])
    moves = [(slot, *move) for slot, way in enumerate(ways) for move in way]

    after = rows(model, attrs.evolve(joined(*(run_of([9], slot=slot, start=8) for slot in range(3))), accepted=np.int32(moves)))

    assert np.array_equal(after[0], after[1])
    assert not np.array_equal(after[0], after[2])


def test_a_chain_with_parents_is_the_chain_without(load):
    model, tokens = load("gemma3-dense"), some_tokens(60, 1)
    alone = rows(model, run_of(tokens, slot=SPARE))

    assert np.array_equal(rows(model, tree_of(tokens, range(-1, 59))), alone)
    assert np.array_equal(rows(model, run_of([5], start=60)), rows(model, run_of([5], slot=SPARE, start=60)))


def test_trees_and_long_prompts_share_a_pass_that_is_cut(load):
    if not load.is_fast:
        return
    model, prompt = load("llama-dense"), some_tokens(N_CTX, 1)
    parents = [[-1, 0, 0, 1, 2, 2], [*range(-1, 29), 5, 30], [-1, *[0] * 250]]
    texts = [some_tokens(20, 2), some_tokens(1, 3), some_tokens(4, 4)]
    tokens = [some_tokens(len(tree), 5) for tree in parents]
    right = [rows_of_paths(model, *given) for given in zip(texts, tokens, parents, strict=True)]
    alone = rows(model, run_of(prompt, slot=SPARE))
    for slot, text in enumerate(texts):
        model.forward(run_of(text, slot=slot, rows=[]))

    whole = joined(
        tree_of(prompt, range(-1, N_CTX - 1), slot=SPARE),
        *(tree_of(tokens[slot], parents[slot], slot=slot, start=len(texts[slot])) for slot in range(3)),
    )
    batch, order = interleaved(whole, 6)

    assert len(batch.tokens) > 512
    assert np.array_equal(rows(model, batch)[order], np.concatenate([alone, *right]))


@pytest.mark.parametrize(
    ("parents", "positions"),
    [([-1, 1], [4, 5]), ([-1, -2], [4, 5]), ([-1, 0], [4, 6]), ([-1, 0, 0], [4, 5, 6]), ([-1, -1], [4, 5]), ([1, -1], [4, 4])],
)
def test_what_is_no_tree_is_refused(load, parents, positions):
    batch = attrs.evolve(tree_of([1] * len(parents), [-1] * len(parents)), parents=np.int32(parents))

    with pytest.raises(OptionError, match=r"has parent -?\d; expected an earlier token of its slot"):
        load("llama-dense").forward(attrs.evolve(batch, positions=np.int32(positions)))


def test_a_parent_of_another_slot_is_refused(load):
    batch = joined(run_of([1], slot=0), run_of([2], slot=1, start=1))

    with pytest.raises(OptionError, match="token 1 of a tree, at position 1 of slot 1, has parent 0"):
        load("llama-dense").forward(attrs.evolve(batch, parents=np.int32([-1, 0])))


def test_a_tree_that_does_not_fit_is_refused(load):
    with pytest.raises(CapacityError, match=f"a tree needs {N_CTX + 1} cells of its slot, which has {N_CTX}"):
        load("llama-dense").forward(tree_of([1, 2, 3], [-1, 0, 0], start=N_CTX - 2))


@pytest.mark.parametrize("move", [(4, 0, 0), (0, N_CTX, 0), (0, 0, N_CTX), (0, -1, 0)])
def test_a_move_outside_the_slots_is_refused(load, move):
    with pytest.raises(CapacityError, match=f"a token moves from cell {move[1]} to position {move[2]} of slot {move[0]}"):
        load("llama-dense").forward(attrs.evolve(run_of([1]), accepted=np.int32([(0, 1, 2), move])))


@pytest.mark.sample(1)
@pytest.mark.parametrize("isa", available_isas())
def test_every_instruction_set_honours_trees(isa, monkeypatch):
    monkeypatch.setenv("AUGURY_CPU_ISA", isa)
    file = tiny_file("llama-dense-q4_0")
    model = make_backend(REGISTRY, "numba-cpu").load(
        file, plan_of(file, REGISTRY), ModelOptions(n_slots=4, n_ctx=N_CTX, threads=2), Progress()
    )
    context, tokens, parents = some_tokens(250, 1), some_tokens(30, 2), [-1, *[i // 2 for i in range(29)]]
    right = rows_of_paths(model, context, tokens, parents)
    model.forward(run_of(context, rows=[]))

    assert np.array_equal(rows(model, tree_of(tokens, parents, start=250)), right)
    model.close()


def test_a_tree_larger_than_a_pass_of_the_cpu_backend_is_refused():
    file = tiny_file("llama-dense")
    model = make_backend(REGISTRY, "numba-cpu").load(
        file, plan_of(file, REGISTRY), ModelOptions(n_ctx=1024, threads=1), Progress()
    )

    assert rows(model, tree_of(some_tokens(512, 1), [-1, *[0] * 511])).shape == (512, 128)
    with pytest.raises(UnsupportedError, match="a tree of 513 tokens in slot 0, expected at most 512"):
        model.forward(tree_of(some_tokens(513, 1), [-1, *[0] * 512]))
    model.close()
