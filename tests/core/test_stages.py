"""Models in stages: to the bit what the whole model is on the same backend, and lossless where stages have several."""

import attrs
import numpy as np
import pytest
from oracles.drafts import MTP, mtp_file, runs
from oracles.models import file_for_plans, tiny_file
from oracles.passes import all_that_passes_tell, hidden_states, mtp, run_of, tree_of
from oracles.states import Text, assert_same_state, play

from augury import Registry
from augury.backends.numba.lowering import Parts
from augury.errors import OptionError, UnsupportedError
from augury.interfaces import Progress
from augury.loader import make_backend, plan_of
from augury.stages import Stage, StagedBackend
from augury.types import ModelOptions

REGISTRY = Registry.discover()
# a dense one, a hybrid, a mixture; later layers read keys of earlier ones and what is embedded; each embeds again
CUTS = {
    "llama-dense": (1, 2),
    "jamba-dense": (1, 2),
    "qwen3moe-moe": (1, 2),
    "gemma4-e": (1, 2, 3, 4, 11, 12),
    "talkie-dense": (1, 2),
    "hrm_text-dense": (),
    "kimi-k3-moe": (),
}
STREAMS = {"deepseek4-moe": (1, 2, 3, 4), "hy_v4-moe": (2,), "glm5-next-moe": (1, 2), "qwen4exp-moe": (1, 2, 3)}


def staged(name, *backends, at=(1,), **options):
    """A tiny model whose first layers, to before `at`, the first backend computes, and so on."""
    file = mtp_file(name) if name in MTP else tiny_file(name)
    plan = plan_of(file, REGISTRY)
    ends = (0, *at, len(plan.layers) + 1)  # the output counts
    stages = [Stage(make_backend(REGISTRY, each), *ends[i : i + 2]) for i, each in enumerate(backends)]
    device = stages[0].backend if len(stages) == 1 else StagedBackend(stages)
    options = ModelOptions(**{"n_slots": 4, "n_ctx": 64, "threads": 2, "draft_max": 9, **options})
    model = device.load(file, plan, options, Progress())
    assert model.state_spec == device.state_spec(plan, options)
    return model


def check_stages(name, backend, cuts):
    """See that a model in two stages is the whole model."""
    whole = staged(name, backend)
    right = [array.copy() for array in all_that_passes_tell(whole)]
    whole.close()
    for at in [*((cut,) for cut in cuts), cuts[:2]]:
        model = staged(name, *[backend] * (len(at) + 1), at=at)
        for found, expected in zip(all_that_passes_tell(model), right, strict=True):
            assert np.array_equal(found, expected)
        model.close()


@pytest.mark.parametrize("backend", ["reference", "numba-cpu"])
@pytest.mark.parametrize("name", [name for name, cuts in CUTS.items() if cuts])
def test_stages_of_one_backend_are_the_whole_model_to_the_bit(name, backend):
    check_stages(name, backend, CUTS[name])


@pytest.mark.sample(1)
@pytest.mark.parametrize("backend", ["reference", "numba-cpu"])
@pytest.mark.parametrize("name", STREAMS)
def test_several_residual_streams_go_from_stage_to_stage(name, backend):
    check_stages(name, backend, STREAMS[name])


def all_that_mtp_tells(name, model):
    """Logits, and hidden states for a token more, of all layers that predict further tokens, beside passes of the model."""
    text = runs(name)[0].text[:14]
    hidden, first = hidden_states(model, text[:12]), int("assistant" in model.info.heads)
    for layer in range(len(model.info.heads)):
        yield from mtp(model, text[first:12], first, hidden[first:12], layer=layer)
    drafted = model.state_spec.n_bytes_per_sequence and {"is_drafted": np.arange(4) > 0}
    tree = attrs.evolve(tree_of([text[12], 5, text[13], 7], [-1, 0, 0, 2], start=12), **(drafted or {}))
    (name,) = next(iter(model.info.heads.values())).input
    made = model.forward(attrs.evolve(tree, features=(name,)))
    hidden = np.concatenate([hidden[12:], made.features(name)[[0, 2]]])
    model.forward(attrs.evolve(run_of([9], start=14), accepted=np.int32([[0, 14, 13]])))
    yield from mtp(model, text[12:], 12, hidden[:2])
    model.restore(1, model.save(0, 14))
    yield from mtp(model, [8], 14, hidden[2:], slot=1)


@pytest.mark.sample(3, rest=10)
@pytest.mark.parametrize("backend", ["numba-cpu", "reference"])
@pytest.mark.parametrize("name", MTP)
def test_layers_that_predict_further_tokens_are_of_the_last_stage(name, backend):
    whole = staged(name, backend)
    right = [array.copy() for array in all_that_mtp_tells(name, whole)]
    whole.close()
    for cut in plan_of(mtp_file(name), REGISTRY).cuts():
        model = staged(name, backend, backend, at=(cut,))
        for found, expected in zip(all_that_mtp_tells(name, model), right, strict=True):
            assert np.array_equal(found, expected)
        model.close()


@pytest.mark.parametrize("name", [*CUTS, *STREAMS])
def test_a_model_is_cut_where_residual_streams_are_all_that_goes_on(name):
    assert plan_of(file_for_plans(name), REGISTRY).cuts() == (CUTS | STREAMS)[name]


@pytest.mark.parametrize("name", [*CUTS, *STREAMS])
def test_a_stage_that_would_lack_a_stream_or_a_choice_is_refused(name):
    plan, cuts = plan_of(file_for_plans(name), REGISTRY), (CUTS | STREAMS)[name]
    n = len(plan.layers)
    for cut in {*range(1, n + 1)} - {*cuts}:
        for first, end in ((0, cut), (cut, n + 1)):
            with pytest.raises(
                UnsupportedError, match=f"layers {first} to {end}, but .* cannot be cut before layer {cut}, expected"
            ):
                plan.stage(first, end)
    assert all(plan.stage(0, cut).layers == plan.layers[:cut] for cut in (*cuts, n + 1))


@pytest.mark.parametrize("name", ["llama-dense", "jamba-dense"])  # of which one stage has a state per sequence
@pytest.mark.parametrize("backends", [("reference", "numba-cpu"), ("numba-cpu", "reference", "numba-cpu")], ids="-".join)
def test_drafts_leave_no_trace_in_stages_of_several_backends(name, backends):
    model = staged(name, *backends, at=(1, 2)[: len(backends) - 1])
    texts = [Text(slot, slot) for slot in range(3)]
    for played in [
        ((5, (), -1), (3, (-1, 0), 1), None),
        ((1, (-1, 0, 1), 0), (1, (-1, -1, 1), 2), (4, (), -1)),
        ((1, (), -1), (1, (-1, 0), -1), (1, (-1, 0, 1, 2), 8)),
    ]:
        play(model, texts, played, is_mixed=True)
    for text in texts:
        assert_same_state(model, text)
    model.close()


def test_a_stage_wants_hidden_states_and_has_no_logits():
    plan, options = plan_of(tiny_file("llama-dense"), REGISTRY), ModelOptions(n_ctx=16, threads=1)
    for name in ("reference", "numba-cpu"):
        first, last = (
            make_backend(REGISTRY, name).load(tiny_file("llama-dense"), plan.stage(*ends), options, Progress())
            for ends in ((0, 1), (1, 3))
        )
        assert first.forward(run_of([1])).rows().shape == (1, 0)
        for program in [first._lowering.program(n, Parts((0, 1), ("layer.0",))) for n in (1, 3)] if name == "numba-cpu" else ():
            assert program.records[program.starts[-1] + 1], "a barrier ends every pass, or the next one would overtake threads"
        assert list(first.features) == ["embedding", "layer.0"]
        with pytest.raises(OptionError, match="hidden states for a pass from layer 0 on are missing"):
            last.forward(run_of([1]))


def test_a_stage_that_cannot_be_loaded_closes_those_before(monkeypatch):
    backends = [make_backend(REGISTRY, "reference") for _ in range(2)]
    loaded, load = [], backends[0].load
    monkeypatch.setattr(backends[0], "load", lambda *how: loaded.append(load(*how)) or loaded[0])

    def refuse(*_):
        raise UnsupportedError("no")

    monkeypatch.setattr(backends[1], "load", refuse)
    file = tiny_file("llama-dense")
    with pytest.raises(UnsupportedError, match="no"):
        StagedBackend([Stage(backends[0], 0, 1), Stage(backends[1], 1, 3)]).load(
            file, plan_of(file, REGISTRY), ModelOptions(n_ctx=16), Progress()
        )
    with pytest.raises(Exception, match="closed"):
        loaded[0].forward(run_of([1]))


def test_a_pass_takes_the_time_of_all_stages(monkeypatch):
    model = staged("llama-dense", "reference", "reference")
    last = model._stages[-1][1]
    passed = model.forward(run_of([1]))
    assert passed.wait() is None, "what a stage without a clock of its own took, the caller's clock tells"
    forward = last.forward
    monkeypatch.setattr(last, "forward", lambda batch: timed(forward(batch)))
    assert 2.0 < model.forward(run_of([1])).wait() < 60.0


def timed(passed):
    passed.wait = lambda: 2.0
    return passed
