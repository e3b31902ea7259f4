"""Every promise that a backend may break is found out."""

import contextlib
import re

import attrs
import numpy as np
import pytest

from augury.backends.reference import Reference
from augury.batch import Batch
from augury.errors import ModelFileError, PluginError, UnsupportedError
from augury.interfaces import Backend, Model
from augury.passes import ArrayPass
from augury.testing import ContractError, check_backend
from augury.testing.backend.checks import BACKEND_CHECKS
from augury.types import ModelOptions


def is_mtp(batch):
    return batch.part.startswith("mtp.")


class Altered(Model):
    """The reference's model with something wrong."""

    def __init__(self, model, options, wrong):
        self.model, self.options, self.wrong = model, options, wrong
        self.info, self.state_spec, self.features = model.info, model.state_spec, model.features
        self.chain_rows = wrong.get("chain_rows", 0)

    def forward(self, batch):
        if "spills" in self.wrong and is_mtp(batch):
            self.model.forward(Batch.chain(batch.tokens, start=int(batch.positions[0])))
        changed = self.wrong.get("batch", lambda batch, n_ctx: batch)(batch, self.state_spec.n_ctx)
        passed = self.model.forward(changed)
        rows = self.wrong.get("rows", lambda rows, batch, options: rows)(passed.rows(), batch, self.options)
        features = {name: passed.features(name) for name in changed.features}
        features = self.wrong.get("features", lambda features, batch: features)(features, batch)
        return self.wrong.get("logits", ArrayPass)(rows, features)

    def forward_chain(self, batch, n_passes):
        return self.wrong.get("chain", Model.forward_chain)(self, batch, n_passes)

    def save(self, slot, n):
        if "cache types" in self.wrong:  # they are left out of what identifies a slot
            self.model.options = ModelOptions()
        return self.model.save(slot, n)

    def restore(self, slot, data):
        self.wrong.get("restore", type(self.model).restore)(self.model, slot, data)

    def memory_table(self):
        return self.wrong.get("table", list)(self.model.memory_table())

    def close(self):
        if "stays open" not in self.wrong:
            self.model.close()


def backend_with(**wrong):
    class Mutant(Backend):
        name = "mutant"
        computes_mtp = True

        def state_spec(self, plan, options):
            if wrong.get("cache_types") and options.cache_type_k not in ("f16", "f32"):
                raise ValueError(options.cache_type_k)
            spec = Reference(None).state_spec(plan, options)
            return wrong.get("spec", lambda spec: spec)(spec)

        def load(self, file, plan, options, progress):
            return Altered(Reference(None).load(file, plan, options, progress), options, wrong)

    return Mutant


class NoArgmax(ArrayPass):
    def argmax(self):
        return super().argmax() * 0


class NoOrder(ArrayPass):
    def top_k(self, rows, k):
        ids, values = super().top_k(rows, k)
        return ids[:, ::-1], values[:, ::-1]


class NoRefusal(ArrayPass):
    def argmax(self):
        return np.maximum(super().argmax(), 0)


class Misnamed(ArrayPass):
    def first(self, n):
        return ArrayPass(self.rows()[:, 1 : n + 1])


def mistaken(rows, batch, _):
    return rows if batch.vocabulary is None else np.where(np.arange(rows.shape[1]) == batch.vocabulary[-1] + 1, 0, rows)


def misplaced(rows, batch, _):
    return rows if batch.vocabulary is None else np.roll(rows, 1, axis=1)


def standing_still(model, batch, n_passes):
    return ArrayPass(np.tile(model.forward(batch).rows(), (n_passes, 1)))


def forgetting(model, batch, n_passes):
    passed = Model.forward_chain(model, batch, n_passes)
    model.forward(Batch.chain([7], start=5))
    return passed


class Coarse(ArrayPass):
    """Its sums are those of smaller numbers."""

    def log_normalizer(self, row):
        return float(np.float32(super().log_normalizer(row)))


def summing(model, batch, n_passes):
    return Coarse(Model.forward_chain(model, batch, n_passes).rows())


def without(name):
    return lambda batch, n_ctx: attrs.evolve(batch, **{name: None})


def trusting(model, slot, data):
    with contextlib.suppress(ModelFileError):
        model.restore(slot, data)


def clipped(batch, n_ctx):
    return attrs.evolve(batch, tokens=np.clip(batch.tokens, 0, 263))


def with_error(changed):
    return lambda features, _: {name: values * 1.1 if name == changed else values for name, values in features.items()}


def with_company(changed):
    def company(features, batch):
        added = np.float32(1e-4) * len(batch.tokens)
        return {name: values + added if name == changed else values for name, values in features.items()}

    return company


MUTANTS = {
    "Logits are the reference backend's": {"rows": lambda rows, *_: rows * np.float32(1.1)},
    "F32, 1 layers: error": {"batch": without("layers")},
    "what shares its pass": {"rows": lambda rows, batch, _: rows + np.float32(1e-4) * len(batch.tokens)},
    "with 1 threads": {"rows": lambda rows, _, options: rows + np.float32(1e-4) * options.threads},
    "embedding: error": {"features": with_error("embedding")},
    "layer.0: error": {"features": with_error("layer.0")},
    "embedding beside another slot": {"features": with_company("embedding")},
    "layer.0 beside another slot": {"features": with_company("layer.0")},
    "from layer 1 on, given hidden states": {"rows": lambda rows, batch, _: rows if batch.hidden is None else -rows},
    "logits: error": {"rows": lambda rows, batch, _: rows * np.float32(1.1) if is_mtp(batch) else rows},
    "what is given on: error": {
        "features": lambda features, batch: with_error("output")(features, batch) if is_mtp(batch) else features
    },
    "of some tokens, after a draft": {"rows": lambda rows, batch, _: rows if batch.vocabulary is None else -rows},
    "of the model after a draft of such a layer": {"spills": True},
    "of a tree with parents": {"batch": without("parents")},
    "after path": {"batch": without("accepted")},
    "other logits of a chain": {"chain": standing_still},
    "other logits after a chain": {"chain": forgetting},
    "other logits of a chain's sums": {"chain": summing, "chain_rows": 8},
    "that were restored into slot 2": {"restore": lambda *_: None},
    "taken for a slot": {"restore": trusting},
    "what a model with cache_type_k=bf16 saved, by one with f16, taken for a slot": {"cache types": True},
    "argmax of row": {"logits": NoArgmax},
    "top_k of row": {"logits": NoOrder},
    "other logits of tokens [0, 1": {"rows": misplaced},
    "other logits beside a vocabulary": {"rows": mistaken},
    "other logits of the first tokens": {"logits": Misnamed},
    "a best token where F32 weights give no numbers": {"logits": NoRefusal},
    "token 264 at position 0 of slot 0 was taken": {"batch": clipped},
    "a pass after close was taken": {"stays open": True},
    "ValueError: q9, at cache_type_k=q9": {"cache_types": True},
    "bytes held, 0 in the table": {"table": lambda table: []},
    "n_bytes_per_position=7": {"spec": lambda spec: attrs.evolve(spec, n_bytes_per_position=7)},
}


CHECKS = (
    ["logits"] * 2
    + ["company"] * 2
    + ["in parts"] * 5
    + ["further"] * 4
    + ["trees"] * 2
    + ["chooses itself"] * 3
    + ["saved"] * 3
    + ["truth"] * 2
    + ["vocabulary"] * 3
    + ["no numbers"]
)
CHECKS += ["exist"] * 3 + ["memory"] * 2


def test_a_pass_that_is_none_is_told_of():
    check = next(check for check in BACKEND_CHECKS if "the reference's" in check.name)
    with pytest.raises(ContractError, match="forward returned a NoneType"):
        check_backend(backend_with(logits=lambda *_: None), checks=[check])


@pytest.mark.sample(10)
@pytest.mark.parametrize(("told", "name"), list(zip(MUTANTS, CHECKS, strict=True)))
def test_a_broken_promise_is_found_out(told, name):
    (check,) = (check for check in BACKEND_CHECKS if name in check.name)
    with pytest.raises(ContractError, match=re.escape(told)) as found:
        check_backend(backend_with(**MUTANTS[told]), checks=[check])
    assert str(found.value).startswith("mutant: ")


def test_a_tolerance_may_be_given():
    with pytest.raises(ContractError, match="tolerance 1e-30"):
        check_backend("numba-cpu", tolerance=1e-30)


def test_a_backend_that_is_missing_or_cannot_run_is_an_error():
    class Absent(Reference):
        @classmethod
        def unavailable_reason(cls):
            return "there is no GPU"

    with pytest.raises(UnsupportedError, match="there is no GPU"):
        check_backend(Absent)
    with pytest.raises(PluginError, match="did you mean 'reference'"):
        check_backend("referense")
