"""Heads, and layers that predict further tokens: they draft what llama.cpp does, with the same bits in any company."""

import itertools

import attrs
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from oracles.drafts import DRAFTS, MTP, draft_file, runs, target_of
from oracles.models import tiny_file, tiny_model
from oracles.passes import hidden_states, joined, mtp
from support.head_rig import HALVES, REGISTRY, rounds

from augury import Engine
from augury.backends.numba_cuda import NumbaCuda, NumbaCudaOptions
from augury.batch import Batch
from augury.blocks import Linear
from augury.errors import UnsupportedError
from augury.files.gguf import ModelFile
from augury.files.tensor_type import TensorType
from augury.interfaces import Model, Progress
from augury.loader import plan_of
from augury.stages import Stage, StagedBackend

ROUNDS = slice(1, 3)  # of 20 or more, one after a token that was accepted: the simulator takes a second for each
N_TOKENS = 20  # which tensor cores multiply


@pytest.mark.sample(1, rest=6)
@pytest.mark.parametrize("name", [*DRAFTS, *MTP])
def test_first_drafts_are_those_of_llama_cpp(name):
    for found, right, error in rounds(name, "numba-cuda", ROUNDS, target="reference"):
        assert found == right
        assert error < NumbaCuda.tolerance


def quantised(name):
    """A tiny model that drafts, and its plan, with matrices of bytes."""
    file = ModelFile.open(draft_file(name))
    if name not in MTP:
        file.borrow_from(tiny_file(target_of(name)))
    plan = plan_of(file, REGISTRY)
    own = {part.weight for part in plan.tensors() if isinstance(part, Linear)} & file.tensors.keys()
    for each in own:
        tensor = file.tensors[each]
        data = quantize(tensor.data.view(np.float32).reshape(tensor.shape), GGMLQuantizationType.Q8_0)
        file.tensors = {**file.tensors, each: attrs.evolve(tensor, type=TensorType.Q8_0, data=data.reshape(-1))}
    return file, plan


def loaded(name):
    return NumbaCuda(NumbaCudaOptions()).load(*quantised(name), attrs.evolve(HALVES, threads=1), Progress())


@pytest.mark.sample(0, rest=2)
@pytest.mark.parametrize("name", ["eagle3-llama", "mtp-deepseek4", "mtp-glm4moe"])
def test_a_token_has_the_same_bits_in_any_company(name):
    model, n, rng = loaded(name), N_TOKENS, np.random.default_rng(2)
    n_layers, is_mtp = model.info.n_layers, name in MTP
    given = model.info.parts["mtp.0" if is_mtp else "main"].width
    hidden, tokens = rng.normal(size=(n, given)).astype(np.float32), rng.integers(0, 128, n)
    layer = n_layers if is_mtp else n_layers - 1
    params = {"part": "mtp.0"} if is_mtp else {}

    def computed(*spans):
        parts = [Batch.chain(tokens[a:b], start=a, slot=slot, hidden=hidden[a:b]) for slot, a, b in spans]
        columns = {each: np.concatenate([getattr(part, each) for part in parts]) for each in ("tokens", "slots", "positions")}
        rows, given = np.arange(sum(map(len, (part.tokens for part in parts))), dtype=np.int32), [part.hidden for part in parts]
        batch = Batch(**columns, rows=rows, hidden=np.concatenate(given), features=(f"layer.{layer}",), **params)
        passed = model.forward(batch)
        return np.hstack([passed.rows(), passed.features(f"layer.{layer}")])

    whole = computed((0, 0, n))
    assert np.array_equal(computed((1, 0, 1)), whole[:1])
    assert np.array_equal(computed((1, 1, 5)), whole[1:5])
    assert np.array_equal(computed((0, 0, 3), (1, 5, n))[3:], whole[5:])


@pytest.mark.sample(0, rest=1)
@pytest.mark.parametrize("name", ["mtp-deepseek4", "mtp-glm4moe"])
def test_the_last_stage_predicts_further_tokens(name):
    (file, plan), found, text = quantised(name), [], runs(name)[0].text[:4]
    for ends in ((), (plan.cuts()[-1],)):  # the output alone, and these layers, are a stage
        cuts = [0, *ends, len(plan.layers) + 1]
        stages = [Stage(NumbaCuda(NumbaCudaOptions()), *span) for span in itertools.pairwise(cuts)]
        device = StagedBackend(stages) if ends else stages[0].backend
        model = device.load(file, plan, attrs.evolve(HALVES, threads=1), Progress())
        hidden = hidden_states(model, text)
        found.append([hidden, *mtp(model, text, 0, hidden[:4]), *mtp(model, text[:1], 4, hidden[4:])])
        model.close()
    assert all(map(np.array_equal, *found))


@pytest.mark.sample(0)
def test_a_head_that_feeds_itself_gives_what_it_is_fed_one_by_one():
    model, rng = loaded("eagle3-qwen3-d2t"), np.random.default_rng(2)
    hidden, tokens = rng.normal(size=(5, model.info.n_embd)).astype(np.float32), rng.integers(0, 128, 5)
    parts = [Batch.chain(tokens[:3]), Batch.chain(tokens[3:], slot=1)]
    batch = attrs.evolve(joined(*parts), rows=np.int32([2, 4]), hidden=hidden, features=(f"layer.{model.info.n_layers - 1}",))
    right, kept = Model.forward_chain(model, batch, 3), model.slot_memory(0, 5)
    rows, made = right.rows().copy(), right.features(*batch.features).copy()
    found = model.forward_chain(batch, 3)
    assert np.array_equal(found.rows(), rows)
    assert np.array_equal(found.argmax(), rows.argmax(axis=1))
    assert np.array_equal(found.features(*batch.features), made)
    assert all(map(np.array_equal, model.slot_memory(0, 5), kept))


@pytest.mark.sample(0, rest=1)
@pytest.mark.parametrize("name", ["dflash2-qwen3", "dflash-llama-swa"])
def test_a_block_has_the_same_bits_in_any_company(name, monkeypatch):
    model, rng = loaded(name), np.random.default_rng(2)
    starts = {0: 9, 1: 7}  # more than few tokens, so tensor cores multiply
    hidden, block = rng.normal(size=(9, model.info.n_embd)).astype(np.float32), np.int32([3, 127, 127, 127, 127])
    for slot, start in starts.items():
        given = {"hidden": hidden[:start], "rows": np.empty(0, np.int32)}
        model.forward(Batch.chain(np.zeros(start, np.int32), slot=slot, **given))

    def computed(*slots):
        tokens, rows = np.tile(block[:, None], len(slots)).reshape(-1), np.arange(5 * len(slots), dtype=np.int32)
        positions = np.arange(5)[:, None] + [starts[slot] for slot in slots]
        batch = Batch(tokens, np.tile(np.int32(slots), 5), positions.reshape(-1).astype(np.int32), rows, features=("output",))
        passed = model.forward(batch)
        return np.hstack([passed.rows(), passed.features("output")])

    alone = [computed(slot) for slot in starts]
    together = computed(*starts)  # in turns
    assert all(np.array_equal(together[i::2], each) for i, each in enumerate(alone))
    monkeypatch.setattr(model, "_n_most", 7)
    assert np.array_equal(computed(*starts), together)
    with pytest.raises(UnsupportedError, match="a block of 8 tokens in slot 1, expected at most 7 in one pass"):
        model.forward(Batch.chain(np.zeros(8, np.int32), slot=1))


def test_what_a_target_lends_is_in_memory_once():
    file, plan = quantised("dflash-qwen3")
    borrowed = {name for name in plan.shapes() if name.startswith("target/")}
    assert borrowed == {"target/token_embd.weight", "target/output.weight"}
    backend, options = NumbaCuda(NumbaCudaOptions()), attrs.evolve(HALVES, threads=1)
    alone = backend.memory_needed(file, plan, options)[0].n_bytes
    target, head = (backend.load(each, plan_of(each, REGISTRY), options, Progress()) for each in (file.target, file))
    theirs, mine = (
        {part.weight: model._lowering._weights.matrix(part).words for part in model._plan.tensors() if isinstance(part, Linear)}
        for model in (target, head)
    )
    for name in borrowed:
        assert mine[name] is theirs[name.removeprefix("target/")]
    n_borrowed = sum(file.tensor(name).n_bytes for name in borrowed)
    assert backend.memory_needed(file, plan, options)[0].n_bytes == alone - n_borrowed


@pytest.mark.sample(0, rest=1)
@pytest.mark.parametrize(("spec", "head"), [("draft-eagle3", "eagle3-llama"), ("draft-dflash", "dflash-llama-swa")])
def test_drafts_change_nothing(spec, head):
    target, found = tiny_model(target_of(head)), []
    for params in ({"spec_type": "none"}, {"spec_type": spec, "draft_model": draft_file(head), "spec_fixed": True}):
        with Engine.load(target, backend="numba-cuda", n_ctx=64, draft_max=3, registry=REGISTRY, **params) as engine:
            (result,) = engine.generate([runs(head)[0].text[:12].tolist()], max_tokens=6, temperature=0.0, ignore_eos=True)
        found.append(result)
    assert found[0].tokens == found[1].tokens
    assert found[1].stats.n_drafted > 0
