"""EAGLE-3's plans compute what llama.cpp does, on every backend; what they borrow is the target's own."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from oracles.drafts import copying_head, draft_file, runs, target_of
from oracles.models import altered, nmse, tiny_file
from support.cpu_backends import cpu_backends

from augury import Registry
from augury.batch import Batch
from augury.errors import ModelFileError
from augury.files.gguf import ModelFile
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.types import ModelInfo, ModelOptions

REGISTRY = Registry.discover()
NAMES = [f"eagle3-{name}" for name in ("gpt-oss-wide", "llama", "qwen3-d2t", "qwen35-hybrid", "qwen3moe-shared")]
OPTIONS = ModelOptions(n_slots=2, n_ctx=128, threads=2, cache_type_k="f32", cache_type_v="f32")


class Head:
    """A target, its head and the head's encoder; `hidden` are the hidden states (T, E) of a text's tokens."""

    def __init__(self, backend, name):
        kind = REGISTRY.backends[backend]
        self.target_file, self.file = tiny_file(target_of(name)), ModelFile.open(draft_file(name))
        self.file.borrow_from(self.target_file)
        self.plan = plan_of(self.file, REGISTRY)
        asked = (self.target_file, "main"), (self.file, "main"), (self.file, "encoder")
        self.target, self.model, self.encoder = (
            kind(kind.options_class()).load(file, plan_of(file, REGISTRY, plan), OPTIONS, Progress()) for file, plan in asked
        )
        self.text, self.given_on = runs(name)[0].text, f"layer.{len(self.plan.layers) - 1}"
        told = self.target.forward(Batch.chain(self.text, features=tuple({*self.plan.hidden_of} - {""})))
        zeros = np.zeros((len(self.text), self.target.info.n_embd), np.float32)
        features = np.hstack([told.features(each) if each else zeros for each in self.plan.hidden_of])
        self.hidden = self.encoder.forward(Batch.chain(np.zeros(len(self.text), np.int32), hidden=features)).rows().copy()

    def predict(self, tokens, hidden, start=0, **more):
        """The last row (V,) of a pass, and what the layer gives on."""
        rows = np.int32([len(tokens) - 1])
        passed = self.model.forward(
            Batch.chain(tokens, start=start, hidden=hidden, rows=rows, features=(self.given_on,), **more)
        )
        return passed.rows()[0].copy(), passed.features(self.given_on)[-1:].copy()


@pytest.fixture(scope="module", params=[(backend, name) for backend in cpu_backends(REGISTRY) for name in NAMES], ids=str)
def head(request):
    made = Head(*request.param)
    made.name = request.param[1]
    yield made
    for model in (made.model, made.encoder, made.target):
        model.close()


def test_drafts_are_those_of_llama_cpp(head):
    errors = []
    for run in runs(head.name):
        held = 0  # pairs of a token and the hidden state before it, as far as they are certain
        for last, drafts, logits in zip(run.last.tolist(), run.drafts.tolist(), run.logits, strict=True):
            found, tokens, hidden = [], run.text[held + 1 : last + 1], head.hidden[held:last]
            for step in range(run.k):
                row, hidden = head.predict(tokens, hidden, held if step == 0 else last + step - 1)
                tokens = np.array([row.argmax()], np.int32)
                found += tokens.tolist()
            held = last
            assert found == drafts
            is_there = np.isfinite(logits)
            assert np.array_equal(is_there, np.isfinite(row))
            errors.append(nmse(row[is_there], logits[is_there]))
    assert max(errors) < 1e-9


def test_rows_do_not_depend_on_how_a_text_is_cut_or_what_else_is_in_a_pass(head):
    tokens, hidden = head.text[1:40], head.hidden[:39]
    whole, given_on = head.predict(tokens, hidden)
    for cuts in ([1, 2, 5, 39], [38, 39]):
        start = 0
        for end in cuts:
            row, given = head.predict(tokens[start:end], hidden[start:end], start, slot=0)
            start = end
        assert np.array_equal(row, whole)
        assert np.array_equal(given, given_on)
    one = Batch.chain(tokens, slot=1, hidden=hidden, rows=np.int32([38]))
    columns = [np.concatenate([getattr(one, name)] * 2) for name in ("tokens", "positions")]
    both = Batch(columns[0], np.repeat(np.int32([1, 0]), 39), columns[1], np.int32([38, 77]), hidden=np.tile(hidden, (2, 1)))
    for row in head.model.forward(both).rows():
        assert np.array_equal(row, whole)


def test_hidden_states_do_not_depend_on_what_else_is_in_a_pass(head):
    features = np.random.default_rng(5).normal(size=(9, head.encoder.features["output"])).astype(np.float32)
    tokens = np.zeros(9, np.int32)
    together = head.encoder.forward(Batch.chain(tokens, hidden=features)).rows().copy()
    alone = [head.encoder.forward(Batch.chain(tokens[:1], hidden=features[i : i + 1])).rows()[0].copy() for i in range(9)]
    assert np.array_equal(together, alone)


def test_what_is_borrowed_is_in_memory_once(head):
    borrowed = {name for name in head.plan.shapes() if name.startswith("target/")}
    assert bool(borrowed) == (head.name not in {"eagle3-gpt-oss-wide", "eagle3-qwen35-hybrid"})
    for name in borrowed:
        owner, own = head.file.owner(name)
        assert owner is head.target_file
        (held,) = {key: value for key, value in owner.in_memory.items() if key[1] == own}.values()
        mine, theirs = (
            getattr(model._weights, "_matrices", None) or model._weights._arrays for model in (head.model, head.target)
        )
        assert mine[name] is theirs[own] is held
    (n_held,) = (line.n_bytes for line in head.model.memory_table() if line.purpose == "weights")
    assert n_held < 1.1 * sum(head.file.tensor(name).n_bytes for name in head.plan.shapes() if name not in borrowed)


def opened(name="eagle3-qwen3-d2t", **changes):
    file = altered(ModelFile.open(draft_file(name)), **changes)
    file.borrow_from(tiny_file(target_of(name)))
    return file


def test_it_says_whose_hidden_states_it_needs_and_what_it_predicts():
    file = opened()
    plan = plan_of(file, REGISTRY)
    assert plan.hidden_of == ("embedding", "layer.0", "")
    info = ModelInfo.of(file, plan)
    assert (info.n_vocab, info.parts["main"].input, info.n_layers) == (128, plan.hidden_of, 2)


def test_the_number_after_the_last_layer_means_what_it_means_to_llama_cpp():
    def after(target):
        file = ModelFile.open(draft_file("eagle3-llama"))
        file.borrow_from(tiny_file(target))
        return plan_of(file, REGISTRY).hidden_of[-1]

    assert [after(f"{name}") for name in ("llama-dense", "qwen35-dense", "step35-moe", "gemma3-dense")] == [
        "",
        "output",
        "layer.1",
        "output",
    ]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"metadata": {"eagle3.block_count": 2}}, "blk.1.attn_q"),
        ({"metadata": {"eagle3.target_layers": np.int32([-1, 0, 1])}}, "target_layers"),
        ({"metadata": {"eagle3.target_hidden_size": 128}}, "fc.weight"),
        ({"arrays": {"d2t": np.arange(96, dtype=np.int32) + 33}}, "d2t.*holds 128"),
        ({"without": ("blk.0.attn_norm_2.weight",)}, "attn_norm_2"),
        ({"metadata": {"eagle3.norm_before_fc": True}}, "enc.output_norm"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(changes, match):
    with pytest.raises(ModelFileError, match=match):
        REGISTRY.architectures["eagle3"].plans(opened(**changes))


def test_a_file_without_a_target_says_what_it_lacks():
    with pytest.raises(ModelFileError, match=r"'token_embd\.weight' is missing, as in draft models that borrow it"):
        plan_of(ModelFile.open(draft_file("eagle3-llama")), REGISTRY)


def test_another_target_is_refused_by_its_width():
    file = ModelFile.open(draft_file("eagle3-llama"))
    target = tiny_file("llama-dense")
    narrow = np.zeros((128, 64), np.float32)
    file.borrow_from(altered(target, arrays={"token_embd.weight": narrow}))
    with pytest.raises(ModelFileError, match=r"token_embd\.weight"):
        plan_of(file, REGISTRY)


def test_an_output_that_serves_as_the_targets_embedding_is_the_heads_too():
    file = ModelFile.open(copying_head("codeshell-tied"))
    file.borrow_from(tiny_file("codeshell-tied"))
    plan = plan_of(file, REGISTRY)
    assert plan.embedding.weight == "target/output.weight"
    assert plan.shapes()["target/output.weight"] == file.target.tensor("output.weight").shape


def test_plans_do_not_depend_on_the_type_of_whole_numbers():
    file, tokens = opened(), opened().integers("d2t", (96,), 128)
    narrow = altered(file, arrays={"d2t": np.array(tokens)})
    narrow.borrow_from(file.target)
    assert np.array_equal(narrow.integers("d2t", (96,), 128), tokens)
    assert attrs.asdict(plan_of(narrow, REGISTRY).output) == attrs.asdict(plan_of(file, REGISTRY).output)
