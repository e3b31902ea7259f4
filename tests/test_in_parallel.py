"""Pure and hybrid models, toys and tiny real ones: prompts one after another and all at once."""

import itertools

import pytest
from in_parallel import differences
from oracles.models import RECURRENT, tiny_model
from support.more_toys import registry_with_toys

from augury.engine.engine import Engine
from augury.testing.toys import TINY_DRAFT, TINY_TARGET

REGISTRY = registry_with_toys()
TOYS = {
    "pure": ("toy", "auto"),
    "recurrent": ("toy-recurrent", "auto"),
    "hybrid": ("toy-recurrent:is_hybrid=true", "checkpoints:checkpoint_min_step=4"),
    "restored": ("toy-recurrent:is_hybrid=true,keeps_aside=false", "auto"),
}
SPECS = [f"draft-model:model={TINY_DRAFT},tree=2x3", "ngram-map-k:n=1,m=5;ngram-simple:n=1,m=4", "toy-period;suffix"]
MANAGERS = ("auto", "checkpoints:use_checkpoints=on")
MODELS = [  # the reference, which is slow, with either manager in turn
    *(("numba-cpu", name, memory) for name, memory in itertools.product(RECURRENT, MANAGERS)),
    *(("reference", name, memory) for name, memory in zip(RECURRENT, itertools.cycle(MANAGERS), strict=False)),
    *((backend, "llama-dense", "auto") for backend in ("numba-cpu", "reference")),
]


def loader(model, backend, memory="auto"):
    how = {"registry": REGISTRY, "n_ctx": 192, "spec_fixed": True, "draft_max": 4, "threads": 1}
    return lambda **more: Engine.load(model, backend=backend, memory=memory, **how, **more)


@pytest.mark.sample(1)
@pytest.mark.parametrize("toy", TOYS)
def test_toys_answer_in_parallel_as_one_by_one(toy):
    told = []
    assert list(differences(loader(TINY_TARGET, *TOYS[toy]), SPECS, tell=told.append)) == []
    assert len(told) == 24
    assert not any(line.endswith(" 0 drafted tokens accepted") for line in told if "none" not in line)


@pytest.mark.sample(1, rest=8)
@pytest.mark.parametrize(("backend", "name", "memory"), MODELS)
def test_models_answer_in_parallel_as_one_by_one(backend, name, memory):
    draft = tiny_model("llama-dense-q4_0" if name == "llama-dense" else name)
    specs = [f"draft-model:model={draft};ngram-simple:n=1,m=4"]
    assert list(differences(loader(tiny_model(name), backend, memory), specs, n=12 if backend == "reference" else 20)) == []


def test_a_model_whose_slots_mix_is_found_out():
    def load(**how):
        engine = loader(TINY_TARGET, "toy-recurrent")(**how)
        model = engine._loader.models[0]
        forward = model.forward

        def mixed(batch):
            logits = forward(batch)
            if len({*batch.slots.tolist()}) > 1:
                model.state[batch.slots[0]] = model.state[batch.slots[-1]]
            return logits

        model.forward = mixed
        return engine

    found = list(differences(load, ["toy-period"]))
    assert found
    assert all("in parallel" in line for line in found if line.startswith("none"))
