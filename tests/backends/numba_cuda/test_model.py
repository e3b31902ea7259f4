"""Whole models in the simulator: near the reference, the same to the bit in any company, and speculation changes nothing."""

import attrs
import numpy as np
import pytest
from oracles.models import nmse, tiny_file
from oracles.passes import joined, run_of, tree_of

from augury import Engine, Placement, Registry
from augury.backends.numba.lowering import Parts
from augury.backends.numba_cuda import NumbaCuda, NumbaCudaOptions, model as _loaded
from augury.backends.numba_cuda.kernels.activation import gate
from augury.backends.numba_cuda.kernels.inputs import FEW_TOKENS
from augury.backends.numba_cuda.lowering import size_of
from augury.backends.numba_cuda.passes import DevicePass, GatheredPass
from augury.backends.numba_cuda.tape import Tape
from augury.blocks import Block
from augury.drafters.draft_model import DraftModel
from augury.errors import UnsupportedError
from augury.files.gguf import ModelFile
from augury.interfaces import Model, Progress
from augury.loader import make_backend, plan_of
from augury.passes import ArrayPass
from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.planner import DraftPlanner
from augury.speculation.profiles import DrafterProfile
from augury.testing.backend import checks
from augury.testing.backend.checks import BACKEND_CHECKS, check_backend
from augury.testing.tiny_model import N_VOCAB, write_tiny_model
from augury.types import ModelOptions

REGISTRY = Registry.discover()
# biases, norms of heads, fused matrices, ropes that are scaled; what stands in the way of residual streams; two mixers
FAMILIES = (
    *("llama-dense", "llama-fused", "llama-yarn", "qwen2-dense", "qwen3-dense", "phi3-dense", "mistral3-dense", "gemma2-dense"),
    *("gemma4-e", "hrm_text-dense", "mpt-dense", "hy_v4-moe", "falcon-h1-dense"),
)
TOKENS = np.random.default_rng(1).integers(0, N_VOCAB, 9).astype(np.int32)


def loaded(file, backend, plan=None, **options):
    device = NumbaCuda(NumbaCudaOptions()) if backend == "numba-cuda" else make_backend(REGISTRY, backend)
    options = ModelOptions(**{"n_slots": 3, "n_ctx": 64, "threads": 1, **options})
    return device.load(file, plan or plan_of(file, REGISTRY), options, Progress())


def normalizers_of(passed):
    """Of each row, and of its first tokens."""
    return [each.log_normalizer(row) for row in range(len(TOKENS)) for each in (passed, passed.first(N_VOCAB - 5))]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("cuda") / "tiny.gguf"
    write_tiny_model(path, weight_type="Q4_0")
    return path


@pytest.mark.sample(0, rest=6)
@pytest.mark.parametrize("check", BACKEND_CHECKS, ids=lambda check: check.name)
def test_a_backend_keeps_its_contracts(check, monkeypatch):
    monkeypatch.setattr(checks, "_N_TEXT", 20)  # which tensor cores multiply; several passes below
    check_backend("numba-cuda", n_examples=2, checks=[check])  # for 15 the simulator takes minutes


@pytest.mark.sample(1, rest=1)
@pytest.mark.parametrize("pair", [("f16", "f16"), ("q8_0", "q4_0"), ("q4_0", "f16"), ("f16", "q8_0")], ids="-".join)
def test_a_token_depends_on_its_past_alone(tiny, pair):
    types = {"cache_type_k": pair[0], "cache_type_v": pair[1]}
    file = ModelFile.open(tiny)
    plan = plan_of(file, REGISTRY)
    layer = attrs.evolve(plan.layers[0], mixer=attrs.evolve(plan.layers[0].mixer, window=5))
    plan = attrs.evolve(plan, layers=(layer, plan.layers[1]))
    model = loaded(file, "numba-cuda", plan, **types)
    passed = model.forward(run_of(TOKENS))
    whole, normalizers = passed.rows().copy(), normalizers_of(passed)
    reference = loaded(file, "reference", plan, **types)
    assert nmse(whole, reference.forward(run_of(TOKENS)).rows()) < NumbaCuda.tolerance
    assert model.state_spec.n_bytes_per_position == reference.state_spec.n_bytes_per_position
    for cut in (1, 6):
        first = model.forward(run_of(TOKENS[:cut], slot=1)).rows().copy()
        beside = joined(run_of(TOKENS[::-1][:2], slot=2), run_of(TOKENS[cut:], slot=1, start=cut))
        assert np.array_equal(np.concatenate([first, model.forward(beside).rows()[2:]]), whole)
    model._n_most = 4  # a prompt that takes several passes
    passed = model.forward(run_of(TOKENS, slot=2))
    assert np.array_equal(passed.rows(), whole)
    assert normalizers_of(passed) == normalizers
    model.restore(0, model.save(2, 8))
    model.forward(run_of(TOKENS[::-1][:2], slot=1))
    model.copy(0, 1, 8)
    for slot in (0, 1):
        assert np.array_equal(model.forward(run_of(TOKENS[8:], slot=slot, start=8)).rows(), whole[8:])
    model._device.is_reversed = True  # in whatever order a block's threads run
    assert np.array_equal(model.forward(run_of(TOKENS, slot=2)).rows(), whole)


@pytest.mark.sample(0, rest=1)  # a block of tensor cores is 256 simulated threads
@pytest.mark.parametrize("name", ["llama-dense-q4_0", "qwen3moe-moe-q8_0", "minimax-01-moe-q8_0"])
def test_many_tokens_whom_tensor_cores_multiply_have_the_bits_of_few(name):
    file = tiny_file(name)
    plan = plan_of(file, REGISTRY)
    model = loaded(file, "numba-cuda", attrs.evolve(plan, layers=plan.layers[:1]))
    tokens = np.resize(TOKENS % 128, FEW_TOKENS + 1)
    many = model.forward(run_of(tokens)).rows()
    assert np.array_equal(many[:3], model.forward(run_of(tokens[:3], slot=1)).rows())


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["qwen2-dense", "starcoder2-dense", "gpt-oss-moe"])
def test_activations_after_products_have_the_bits_of_those_by_themselves(name, monkeypatch):
    file, found = tiny_file(name), []
    plan = plan_of(file, REGISTRY)
    plan = attrs.evolve(plan, layers=plan.layers[:1])
    for has_both in (True, False):
        model = loaded(file, "numba-cuda", plan)
        found.append(model.forward(run_of(TOKENS[:3] % 128)).rows().copy())
        n_gates = sum(
            getattr(step, "kernel", None) is gate for step in model._lowering.steps(size_of(3, 2), Parts((0, 1))).steps
        )
        assert n_gates == (0 if has_both else 1)
        monkeypatch.setattr(Tape, "multiply_gated", lambda *_: False)
    assert np.array_equal(*found)


def test_more_tokens_of_a_prompt_share_a_pass_than_may_have_logits(tiny, monkeypatch):
    model, spans = loaded(ModelFile.open(tiny), "numba-cuda", n_ctx=512), []

    def passed(batch, tree, span, *rest):
        spans.append((span.start, span.stop))
        return ArrayPass(np.zeros((sum(span.start <= row < span.stop for row in batch.rows), N_VOCAB), np.float32))

    monkeypatch.setattr(model, "_pass", passed)
    tokens = np.arange(300) % N_VOCAB
    model.forward(run_of(tokens, rows=[*range(236, 300)]))
    model.forward(run_of(tokens, rows=[*range(235, 300)]))
    assert spans == [(0, 256), (256, 300), *((start, min(300, start + 64)) for start in range(0, 300, 64))]


@pytest.mark.sample(0)  # of so many tokens
def test_a_pass_of_more_tokens_than_may_have_logits_gives_the_bits_of_several(tiny):
    tokens, found, file = np.arange(70) % N_VOCAB, [], ModelFile.open(tiny)
    plan = plan_of(file, REGISTRY)
    for n_most in (256, 64):
        model = loaded(file, "numba-cuda", attrs.evolve(plan, layers=plan.layers[:1]), n_ctx=80)
        model._n_most = n_most
        found.append(model.forward(run_of(tokens, rows=[0, 65, 69])).rows())
    assert np.array_equal(*found)


def test_a_prompt_of_several_passes_takes_what_all_of_them_take(tiny, monkeypatch):
    model = loaded(ModelFile.open(tiny), "numba-cuda")
    model._n_most = 4
    monkeypatch.setattr(model._device, "wait", lambda: 0.5)
    assert model.forward(attrs.evolve(run_of(TOKENS), rows=np.int32([8]))).wait() == 1.5
    assert model.forward(run_of(TOKENS[:4], slot=1)).wait() == 0.5


def test_paths_of_trees_are_chains_and_accepted_ones_move(tiny):
    model = loaded(ModelFile.open(tiny), "numba-cuda")
    model.forward(run_of(TOKENS[:4]))
    tree = model.forward(tree_of([5, 6, 7, 8], [-1, -1, 1, 1], start=4)).rows().copy()
    model.forward(run_of(TOKENS[:4], slot=1))
    chain = model.forward(run_of([6, 8, 9], slot=1, start=4)).rows().copy()
    assert np.array_equal(tree[[1, 3]], chain[:2])
    moves = np.array([[0, 5, 4], [0, 7, 5]], np.int32)
    moved = attrs.evolve(run_of([9], start=6), accepted=moves)
    assert np.array_equal(model.forward(moved).rows(), chain[2:])


def answers(path, backend, prompts, n, **params):
    """Tokens and their probabilities, and results."""
    with Engine.load(path, backend=backend, n_ctx=64, registry=REGISTRY, **params) as engine:
        results = engine.generate(prompts, max_tokens=n, temperature=0.0, logprobs=1, ignore_eos=True)
    assert all(drafter.failed is None for result in results for drafter in result.stats.drafters.values())
    return [(result.tokens, [piece.logprob for piece in result.pieces]) for result in results], results


def test_neither_chains_of_passes_nor_speculation_change_anything(tiny, monkeypatch):
    monkeypatch.setattr("augury.engine.round_pass.LONGEST_S", 1e6)  # the simulator's passes are long
    chains, chain = [], _loaded.CudaModel.forward_chain
    monkeypatch.setattr(_loaded.CudaModel, "forward_chain", lambda self, *told: (chains.append(told[1]), chain(self, *told))[1])
    prompts = [[20, 21, 22, 23, 20, 21], [183, 184, 185, 190, 183, 184]]  # the model counts up, mostly
    plain, _ = answers(tiny, "numba-cuda", prompts, 4, spec_type="none")
    assert {*chains} == {3}, "at least of the second text, as nobody waits for its slot"
    found, results = answers(tiny, "numba-cuda", prompts, 4, spec_type="ngram-simple:n=2,m=2", slots=2, spec_fixed=True)
    assert found == plain
    drafted, accepted = (sum(getattr(result.stats, name) for result in results) for name in ("n_drafted", "n_accepted"))
    assert drafted > accepted > 0, "the test must see right and wrong drafts"


@pytest.mark.sample(0)
def test_a_draft_model_that_feeds_itself_changes_nothing(tiny, tmp_path, monkeypatch):
    chains, chain = [], _loaded.CudaModel.forward_chain
    monkeypatch.setattr(_loaded.CudaModel, "forward_chain", lambda self, *told: (chains.append(told[1]), chain(self, *told))[1])
    write_tiny_model(tmp_path / "target.gguf", weight_type="F32")
    draft = {"draft_model": tiny, "spec_options": {"draft-model": {"backend": "numba-cuda"}}, "draft_max": 3}
    plain, _ = answers(tmp_path / "target.gguf", "reference", [[5], [65]], 7, spec_type="none")
    params = {"spec_type": "draft-model", "slots": 2, "spec_fixed": True, **draft}
    found, results = answers(tmp_path / "target.gguf", "reference", [[5], [65]], 7, **params)
    assert found == plain
    drafted, accepted = (sum(getattr(result.stats, name) for result in results) for name in ("n_drafted", "n_accepted"))
    assert drafted > accepted > 0, "the test must see right and wrong drafts"
    assert max(chains) == 3


def test_a_chain_that_does_not_fit_is_computed_pass_by_pass(tiny, monkeypatch):
    model, batch = loaded(ModelFile.open(tiny), "numba-cuda"), attrs.evolve(run_of(TOKENS), rows=np.int32([8]))
    monkeypatch.setattr(Model, "forward_chain", lambda *_: ArrayPass(np.zeros((2, N_VOCAB), np.float32)))
    monkeypatch.setattr(model, "_forward", lambda *_: "at once")
    assert [model.forward_chain(batch, n) for n in (2, 42)] == ["at once", "at once"]
    assert type(model.forward_chain(batch, 1)) is ArrayPass
    assert type(model.forward_chain(batch, 43)) is GatheredPass, "whose normalizers are the device's"
    model._n_most = 8
    assert type(model.forward_chain(batch, 2)) is GatheredPass
    assert loaded(tiny_file("jamba-dense"), "numba-cuda").chain_rows == 0, "a recurrent state is fed otherwise"


@pytest.mark.sample(0)
def test_a_draft_model_on_the_cpu_drafts_between_the_beginning_and_the_end_of_a_pass(tiny, monkeypatch):
    class Planner(DraftPlanner):
        def n_ahead(self, choices, able, n_others, begun_s):
            return [2 for _ in able]  # what a simulator begins is over, so the planner would have no time left

    def logged(name, call):
        def log(*arguments, **keywords):
            log_of.append(name if name != "draft" or not len(arguments[0][0].guess) else "ahead")
            return call(*arguments, **keywords)

        return log

    flat, log_of, found = PassCosts([PassTime(1, 0, 1e3), PassTime(9, 0, 1e3)], 9), list[str](), []
    monkeypatch.setattr(
        "augury.engine.engine.planner_for", lambda _, chain, *__, **___: Planner(flat, map(DrafterProfile.of, chain))
    )
    monkeypatch.setattr(_loaded.CudaModel, "forward", logged("begin", _loaded.CudaModel.forward))
    monkeypatch.setattr(DevicePass, "wait", logged("wait", DevicePass.wait))
    monkeypatch.setattr(DraftModel, "draft_together", logged("draft", DraftModel.draft_together))
    draft = {"draft_model": tiny, "spec_options": {"draft-model": {"backend": "reference"}}}
    for params in ({"spec_type": "none"}, {"spec_type": "draft-model", **draft}):
        with Engine.load(tiny, backend="numba-cuda", n_ctx=64, draft_max=2, registry=REGISTRY, **params) as engine:
            results = engine.generate([[208]], max_tokens=7, temperature=0.0, logprobs=1, ignore_eos=True)
        found.append([(result.tokens, [piece.logprob for piece in result.pieces]) for result in results])
    assert found[0] == found[1]
    assert sum(result.stats.drafters["draft-model"].ahead_used for result in results) > 0
    at = [i for i, each in enumerate(log_of) if each == "ahead"]
    assert [(log_of[i - 1], log_of[i + 1]) for i in at] == [("begin", "wait")] * len(at)


@pytest.mark.sample(1)
@pytest.mark.parametrize("n_layers", [1, 2])
def test_the_cpu_computes_the_other_layers_with_drafts_and_without(tiny, n_layers):
    found, at = [], Placement(gpu_layers=n_layers)
    for spec_type in ("none", "ngram-simple:n=2,m=2"):
        params = {"spec_type": spec_type, "spec_fixed": spec_type != "none", "placement": at, "registry": REGISTRY}
        with Engine.load(tiny, n_ctx=64, **params) as engine:
            assert engine.config["backend"] == f"numba-cpu on CPU from layer 0 + numba-cuda on CUDA0 from layer {4 - n_layers}"
            assert {line.device for line in engine.memory_table()} == {"CPU", "CUDA0"}
            result = engine.generate([5, 6, 7, 8, 5, 6], max_tokens=4, temperature=0.0, logprobs=1, ignore_eos=True)
        found.append((result.tokens, [piece.logprob for piece in result.pieces]))
    assert found[0] == found[1]
    assert result.stats.n_drafted > result.stats.n_accepted > 0


@pytest.mark.parametrize("name", ["llama-dense-q4_k", "qwen3moe-moe-q8_0", "jamba-dense"])
def test_what_a_model_will_hold_is_known_before(name):
    file = tiny_file(name)
    plan, options = plan_of(file, REGISTRY), ModelOptions(n_slots=3, n_ctx=64, threads=1)
    told = {line.purpose: line.n_bytes for line in NumbaCuda(NumbaCudaOptions()).memory_needed(file, plan, options)}
    held = {line.purpose: line.n_bytes for line in loaded(file, "numba-cuda").memory_table()}
    weights = held.pop("weights")
    assert 0 <= weights - told.pop("weights") < 0.02 * weights + (1 << 17), (
        "tables of ropes, small tensors that are there twice"
    )
    assert 0 < held.pop("scratch") - told.pop("scratch") < 1 << 18, "what chooses tokens is small, and left out"
    assert told == held


@pytest.mark.sample(1, rest=4)
@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_near_the_reference(name):
    file = tiny_file(name)
    tokens = TOKENS[:6] % 128
    found, right = (loaded(file, backend).forward(run_of(tokens)) for backend in ("numba-cuda", "reference"))
    assert nmse(found.rows(), right.rows()) < NumbaCuda.tolerance
    assert np.array_equal(found.argmax(), found.rows().argmax(axis=1))


def test_what_has_no_kernels_is_refused():
    def refused(told, name="llama-dense", plan=None, **options):
        with pytest.raises(UnsupportedError, match=told):
            loaded(tiny_file(name), "numba-cuda", plan, **options)

    plan = plan_of(tiny_file("llama-dense"), REGISTRY)
    odd = attrs.evolve(plan.layers[0], mixer=Block())
    refused("block Block does not say how it is computed", plan=attrs.evolve(plan, layers=(odd,)))
    mixer = plan.layers[0].mixer
    v, o = attrs.evolve(mixer.v, n_out=20 * mixer.n_kv_heads), attrs.evolve(mixer.o, n_in=20 * mixer.n_heads)
    odd = attrs.evolve(plan.layers[0], mixer=attrs.evolve(mixer, value_dim=20, v=v, o=o))
    refused("heads of 20 values, backend numba-cuda computes multiples of 8 up to 512", plan=attrs.evolve(plan, layers=(odd,)))
    refused("is IQ2_S, which backend numba-cuda has no kernels for; it has some for F32, F16", "llama-dense-iq2_s")
    refused("cache_type_k is 'f32', which backend numba-cuda does not keep; choose one of f16, q8_0, q4_0", cache_type_k="f32")
