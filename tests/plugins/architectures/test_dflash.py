"""The plans of DFlash, DFlash2 and DSpark compute what llama.cpp does, on every backend."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.drafts import draft_file, runs, target_of
from oracles.models import altered, nmse, tiny_file
from support.cpu_backends import cpu_backends

from augury import Registry
from augury.batch import Batch
from augury.errors import ModelFileError, OptionError, UnsupportedError
from augury.files.gguf import ModelFile
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.testing.architecture import ARCHITECTURE_CHECKS, ArchitectureSubject
from augury.types import ModelOptions

REGISTRY = Registry.discover()
NAMES = ("dflash-llama-swa", "dflash-qwen3", "dflash-qwen35", "dspark-llama-bonus", "dspark-qwen3")
OPTIONS = ModelOptions(n_slots=2, n_ctx=128, threads=2, cache_type_k="f32", cache_type_v="f32")
NOBODY = np.empty(0, np.int32)


def opened(name, **changes):
    file = altered(ModelFile.open(draft_file(name)), **changes)
    file.borrow_from(tiny_file(target_of(name)))
    return file


class Head:
    """A target, its head with all plans, and the hidden states (T, E) of a text's tokens."""

    def __init__(self, backend, name):
        self.name, kind = name, REGISTRY.backends[backend]
        self.file, self.run = opened(name), runs(name)
        plans = REGISTRY.architectures["dflash"].plans(self.file)
        self.plan, self.block = plans["main"], plans["main"].block

        def load(file, plan):
            return kind(kind.options_class()).load(file, plan, OPTIONS, Progress())

        target = load(self.file.target, plan_of(self.file.target, REGISTRY))
        self.models = {of: load(self.file, plan) for of, plan in plans.items()} | {"target": target}
        self.text = self.run[0].text
        told = target.forward(Batch.chain(self.text, features=tuple(dict.fromkeys(self.plan.hidden_of))))
        features = np.hstack([told.features(each) for each in self.plan.hidden_of])
        nothing = np.zeros(len(self.text), np.int32)
        self.hidden = self.models["encoder"].forward(Batch.chain(nothing, hidden=features)).rows().copy()

    def inject(self, start, end, slot=0):
        given = {"hidden": self.hidden[start:end], "rows": NOBODY, "part": "inject"}
        self.models["main"].forward(Batch.chain(self.text[start:end], slot=slot, start=start, **given))

    def masked(self, token, k, **more):
        """The pass over a block after a token."""
        tokens = np.full(k + self.block.n_unread, self.block.mask, np.int32)
        tokens[0] = token
        return Batch.chain(tokens, **more)

    def draft(self, last, k):
        """Tokens, and the rows (n, V) of the block, as far as they predict with what DSpark adds."""
        rows = self.models["main"].forward(self.masked(self.text[last], k, start=last)).rows().copy()
        tokens = [int(self.text[last])]
        for i in range(self.block.n_unread, len(rows)):
            if "transitions" in self.models:
                rows[i] += self.models["transitions"].forward(Batch.chain(tokens[-1:])).rows()[0]
            tokens.append(int(rows[i].argmax()))
        return tokens[1:], rows


@pytest.fixture(scope="module", params=[(backend, name) for backend in cpu_backends(REGISTRY) for name in NAMES], ids=str)
def head(request):
    made = Head(*request.param)
    yield made
    for model in made.models.values():
        model.close()


def test_drafts_are_those_of_llama_cpp(head):
    errors = []
    for run, place in zip(head.run, (1, -1), strict=True):
        held = 0
        for last, drafts, logits in zip(run.last.tolist(), run.drafts.tolist(), run.logits, strict=True):
            if held < last:
                head.inject(held, last)
            held = last
            found, rows = head.draft(last, run.k)
            assert found == drafts
            is_there = np.isfinite(logits)
            assert np.array_equal(is_there, np.isfinite(rows[place]))
            errors.append(nmse(rows[place][is_there], logits[is_there]))
    assert max(errors) < 1e-11


def test_a_block_does_not_depend_on_how_its_context_came_or_what_else_is_in_a_pass(head):
    head.inject(0, 40)
    whole = head.draft(40, 4)[1]
    for start, end in ((0, 1), (1, 3), (3, 40)):
        head.inject(start, end, slot=1)
    one, other = head.masked(head.text[40], 4, slot=1, start=40), head.masked(head.text[20], 3, start=20)
    columns = (np.concatenate([getattr(each, name) for each in (one, other)]) for name in ("tokens", "slots", "positions"))
    n = len(one.tokens)
    rows = head.models["main"].forward(Batch(*columns, np.arange(n, dtype=np.int32))).rows().copy()
    head.inject(0, 40)  # the block in slot 0 was written over what its context held
    again = head.models["main"].forward(head.masked(head.text[40], 4, start=40)).rows()
    assert np.array_equal(rows, again)
    if "transitions" not in head.models:
        assert np.array_equal(rows, whole)


def test_what_is_borrowed_is_in_memory_once(head):
    borrowed = {name for name in head.plan.shapes() if name.startswith("target/")}
    assert "target/token_embd.weight" in borrowed
    assert ("target/output.weight" in borrowed) == (head.name != "dflash-llama-swa")
    for name in borrowed:
        owner, own = head.file.owner(name)
        mine, theirs = (
            getattr(head.models[of]._weights, "_matrices", None) or head.models[of]._weights._arrays
            for of in ("main", "target")
        )
        assert owner is head.file.target
        assert mine[name] is theirs[own]
    (n_held,) = (line.n_bytes for line in head.models["main"].memory_table() if line.purpose == "weights")
    assert n_held < 1.1 * sum(head.file.tensor(name).n_bytes for name in head.plan.shapes() if name not in borrowed)


def test_a_pass_over_hidden_states_gives_no_features_of_layers(head):
    with pytest.raises(OptionError, match=r"feature 'layer\.0'"):
        head.models["main"].forward(Batch.chain(head.text[:2], hidden=head.hidden[:2], features=("layer.0",), part="inject"))


def test_a_model_without_layers_gives_what_its_output_reads(head):
    if "transitions" not in head.models:
        return
    passed = head.models["transitions"].forward(Batch.chain(head.text[:3], features=("output",)))
    tensor = head.file.tensor("markov_w1.weight")
    table = tensor.data.view(np.float32).reshape(tensor.shape)
    assert np.array_equal(passed.features("output"), table[head.text[:3]])


@pytest.mark.parametrize("name", ["dflash-llama-swa", "dflash2-qwen3"])
@pytest.mark.parametrize(("cache_type", "most"), [("f32", 1e-11), ("q8_0", 1e-6)])  # of codes a few differ by one
def test_backends_agree_on_blocks_far_into_a_text(name, cache_type, most):
    file, rows = opened(name), []
    options = ModelOptions(n_slots=2, n_ctx=640, threads=2, cache_type_k=cache_type, cache_type_v=cache_type)
    hidden = np.random.default_rng(3).normal(size=(520, 256)).astype(np.float32)
    for backend in cpu_backends(REGISTRY):
        kind = REGISTRY.backends[backend]
        model = kind(kind.options_class()).load(file, plan_of(file, REGISTRY), options, Progress())
        for n in (250, 510):  # blocks across ends of chunks of 256
            model.forward(Batch.chain(np.zeros(n, np.int32), hidden=hidden[:n], rows=NOBODY, part="inject"))
            rows.append(model.forward(Batch.chain(np.int32([3] + [127] * 8), start=n)).rows().copy())
        model.close()
    for found, right in zip(rows[:2], rows[2:], strict=True):
        there = np.isfinite(right)
        assert np.array_equal(there, np.isfinite(found))
        assert nmse(found[there], right[there]) < most


@pytest.mark.parametrize("name", ["dflash-llama-swa", "dflash2-qwen3"])
def test_a_slot_s_block_stays_in_one_pass_whatever_else_is_computed(name, monkeypatch):
    monkeypatch.setattr("augury.backends.numba_cpu.model.MAX_TOKENS", 10)
    file, kind = opened(name), REGISTRY.backends["numba-cpu"]
    model = kind(kind.options_class()).load(file, plan_of(file, REGISTRY), OPTIONS, Progress())
    tokens = np.int32([3] + [127] * 7)
    rows = [model.forward(Batch.chain(tokens, slot=slot)).rows().copy() for slot in (0, 1)]
    both = Batch(np.tile(tokens, 2), np.repeat(np.int32([0, 1]), 8), np.tile(np.arange(8, dtype=np.int32), 2), np.arange(16))
    assert np.array_equal(model.forward(both).rows(), np.concatenate(rows))
    with pytest.raises(UnsupportedError, match="a block of 11 tokens in slot 0, expected at most 10 in one pass"):
        model.forward(Batch.chain(np.zeros(11, np.int32)))
    model.close()


@pytest.mark.parametrize(
    ("name", "changes", "error", "match"),
    [
        ("dflash-qwen3", {"metadata": {"dflash.block_size": 1}}, ModelFileError, "block_size"),
        ("dflash-qwen3", {"metadata": {"dflash.target_layers": np.int32([])}}, ModelFileError, "target_layers"),
        ("dflash-qwen3", {"metadata": {"dflash.hidden_act": "relu"}}, UnsupportedError, "known are silu and gelu"),
        ("dflash-qwen3", {"metadata": {"dflash.hyper_connection.count": 4}}, UnsupportedError, "residual streams"),
        ("dflash2-qwen3", {"metadata": {"dflash.conv_kernel_size": 2}}, ModelFileError, "attn_conv_base"),
        ("dflash2-qwen3", {"metadata": {"dflash.conv_group_size": 48}}, ModelFileError, "a divisor of 256"),
        ("dflash2-qwen3", {"metadata": {"dflash.selector_top_k": 0}}, ModelFileError, "selector_top_k"),
        ("dflash2-qwen3", {"without": ("selector_successor.weight",)}, ModelFileError, "selector_successor"),
        ("dflash-qwen3", {"metadata": {"tokenizer.ggml.mask_token_id": 128}}, ModelFileError, "a token below 128"),
        ("dflash-qwen3", {"without": ("tokenizer.ggml.mask_token_id",)}, ModelFileError, "mask_token_id"),
        ("dspark-qwen3", {"without": ("markov_w2.weight",)}, ModelFileError, "markov_w2"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(name, changes, error, match):
    with pytest.raises(error, match=match):
        plan_of(opened(name, **changes), REGISTRY)


@pytest.mark.parametrize("check", ARCHITECTURE_CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("name", ["dflash-qwen3", "dflash2-qwen3", "dspark-qwen3"])
def test_plans_keep_the_contracts_of_architectures(name, check):
    file = altered(
        ModelFile.open(draft_file(name)), arrays=dict.fromkeys(("token_embd.weight", "output.weight"), np.zeros((128, 256)))
    )
    check.run(ArchitectureSubject(REGISTRY.architectures["dflash"], file))


def test_numba_cpu_refuses_groups_of_channels_that_its_kernels_do_not_have():
    changed = {
        "metadata": {"dflash.conv_group_size": 8},
        "arrays": {f"blk.{i}.{part}_conv_proj.weight": np.zeros((192, 256)) for i in (0, 1) for part in ("attn", "ffn")},
    }
    kind = REGISTRY.backends["numba-cpu"]
    with pytest.raises(UnsupportedError, match="groups of 8 channels, expected a multiple of 16; use backend reference"):
        kind(kind.options_class()).state_spec(plan_of(opened("dflash2-qwen3", **changed), REGISTRY), OPTIONS)


def test_what_a_file_may_leave_out_or_add():
    file = opened("dspark-qwen3", without=("conf_proj.weight",), metadata={"dflash.sample_from_anchor": False})
    assert (plan_of(file, REGISTRY).block.has_confidence, plan_of(file, REGISTRY).block.n_unread) == (False, 1)
    norms = {f"blk.0.{name}.weight": np.ones(256, np.float32) for name in ("post_attention_norm", "post_ffw_norm")}
    scale = {"blk.0.layer_output_scale.weight": np.float32([0.5])}
    keys = {"dflash.embedding_scale": 2.0, "dflash.logit_scale": 0.5, "dflash.final_logit_softcapping": 30.0}
    plan = plan_of(opened("dflash-qwen3", without=("blk.0.attn_v.weight",), arrays=norms | scale, metadata=keys), REGISTRY)
    attention = plan.layers[0].mixer
    assert (attention.v, attention.v_norm.weight) == (attention.k, None)
    assert attention.post_norm.weight == "blk.0.post_attention_norm.weight"
    assert plan.layers[0].feed_forward.post_norm.weight == "blk.0.post_ffw_norm.weight"
    assert plan.layers[0].scale == 0.5
    assert (plan.embedding.scale, plan.output.weight.scale, plan.output.softcap) == (2.0, 0.5, 30.0)
    assert not plan.cuts()
