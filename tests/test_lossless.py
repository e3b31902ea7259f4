"""Speculation never changes the output: every drafter x backend x greedy or sampled x slots x threads, to the bit.

What is compared is plain decoding of one sequence on one thread with everything else, tokens and log-probabilities both.
Prompts repeat themselves, so that drafts are made, accepted, and rejected half-way.
"""

from __future__ import annotations

import functools
import itertools

import attrs
import numpy as np
import pytest
from oracles.drafts import HEADS, MTP, agreeing, assistance, predictable
from oracles.models import ORACLES, RECURRENT, tiny_file, tiny_model
from support.cpu_backends import cpu_backends
from support.drafter_specs import SPECS as DRAFTER_SPECS, WAYS as DRAFTER_WAYS, any_two, head_specs, target_for

from augury import Engine, Registry
from augury.drafters.model.model_drafter import ModelDrafter
from augury.loader import plan_of
from augury.testing.drafter.engines import output
from augury.types import CACHE_TYPES

REGISTRY = Registry.discover()
BACKENDS = cpu_backends(REGISTRY)
SPECS = DRAFTER_SPECS | {
    "a chain": f"ngram-simple:n=2,m=5;draft-model:model={tiny_model('llama-dense-q4_0')},tree=3x2;suffix",
}
WAYS = DRAFTER_WAYS | {
    "penalised": {"temperature": 0.9, "seed": 3, "repeat_penalty": 1.2, "frequency_penalty": 0.3, "repeat_last_n": 16},
}
N_CTX = 192
N_VOCAB = 128
N_TOKENS = {"numba-cpu": 60, "reference": 24}  # of an answer: among six are some hundred right and wrong drafts
LONGER = {  # ngram-mod learns by 32 tokens at a time, and of trees deep nodes are seldom accepted
    ("reference", "ngram-mod"): 48,
    ("numba-cpu", "draft-model in trees"): 120,
    ("numba-cpu", "a chain"): 120,
}
CASES = [
    (backend, drafter, *how, way)
    for backend in BACKENDS
    for i, drafter in enumerate(sorted({*REGISTRY.drafters, *SPECS} - {"draft-mtp"}))  # the model has no layers for it
    for j, how in enumerate([(1, 1, 16), (1, 2, 6), (4, 2, 6)])
    for k, way in enumerate(WAYS)
    if (i + j + k) % 3 == 0  # any two of the values; torture tries more at once
]


def prompts():
    rng = np.random.default_rng(11)
    phrases = [rng.integers(0, 128, 5).tolist() for _ in range(4)]
    return [phrases[i % 4] + phrases[(i + 1) % 4] + phrases[i % 4] * (1 + i % 3) for i in range(6)]


def answers(engine, n, way, asked=None):
    results = engine.generate(asked or prompts(), max_tokens=n, logprobs=1, ignore_eos=True, **WAYS[way])
    for result in results:
        assert all(drafter.failed is None for drafter in result.stats.drafters.values())
    return results


def load(backend, drafter=None, **how):
    # F32 weights, so that two backends of different numerics both find the text worth repeating
    return Engine.load(target_for(drafter), backend=backend, n_ctx=N_CTX, registry=REGISTRY, **how)


def plain(backend, n, way, drafter=None, cache_type="f16"):
    """The answers of a drafter's target without drafts."""
    return _plain(backend, n, way, drafter if drafter in HEADS else None, cache_type)


@functools.cache
def _plain(backend, n, way, drafter, cache_type):
    with load(backend, drafter, threads=1, spec_type="none", cache_type_k=cache_type, cache_type_v=cache_type) as engine:
        return output(answers(engine, n, way))


@pytest.mark.sample(7, rest=30)
@pytest.mark.parametrize(("backend", "drafter", "slots", "threads", "draft_max", "way"), CASES)
def test_output_is_that_of_plain_decoding(backend, drafter, slots, threads, draft_max, way):
    how = {"slots": slots, "threads": threads, "draft_max": draft_max}
    n = LONGER.get((backend, drafter), N_TOKENS[backend])
    with load(backend, drafter, spec_type=SPECS.get(drafter, drafter), spec_fixed=True, **how) as engine:
        results = answers(engine, n, way)
    assert output(results) == plain(backend, n, way, drafter)
    if drafter in SPECS:
        drafted, accepted = (sum(getattr(result.stats, name) for result in results) for name in ("n_drafted", "n_accepted"))
        assert accepted > 0 if way == "greedy" else drafted > accepted, "the test must see right and wrong drafts"


@pytest.mark.sample(3, rest=7)
@pytest.mark.parametrize(
    ("drafter", "slots", "way"), any_two(["auto", "suffix", "draft-model", *HEADS, "self-spec layers", "a chain"], [1, 4], WAYS)
)
def test_output_is_that_of_plain_decoding_whatever_the_planner_chooses(drafter, slots, way):
    draft_model = tiny_model("llama-dense-q4_0") if drafter == "auto" else None
    how = {"spec_type": SPECS.get(drafter, drafter), "draft_model": draft_model, "slots": slots, "threads": 1}
    with load("numba-cpu", drafter, **how) as engine:
        results = answers(engine, 120, way)
    assert output(results) == plain("numba-cpu", 120, way, drafter)


@pytest.mark.sample(2)
@pytest.mark.parametrize("way", ["greedy", "sampled", "penalised"])
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("backend", BACKENDS)
def test_passes_of_the_first_layers_leave_what_a_tree_left_to_be_moved(backend, slots, way, monkeypatch):
    # layers are asked first; a draft of one token is too short for draft_min, and a tree is verified in its place. What was
    # accepted of its branches then lies where the layers' next pass stores
    n = N_TOKENS[backend]
    layers, trees = "self-spec:mode=layers,layers=1,p_min=0.1", f"draft-model:model={tiny_model('llama-dense-q4_0')},tree=3x3"
    how = {"spec_type": f"{layers};{trees}", "spec_fixed": True, "draft_min": 2, "slots": slots, "threads": 2}
    with load(backend, **how) as engine:
        (model, _), batches = engine._loader.models, []
        forward = model.forward
        monkeypatch.setattr(model, "forward", lambda batch: batches.append(batch) or forward(batch))
        results = answers(engine, n, way)
    assert output(results) == plain(backend, n, way)
    assert any(batch.layers is not None and batch.accepted is not None for batch in batches)
    for name in ("self-spec", "draft-model"):
        stats = [result.stats.drafters[name] for result in results]
        assert sum(each.drafted for each in stats) >= sum(each.accepted for each in stats) > 0


@pytest.mark.sample(4)
@pytest.mark.parametrize("cache_type", CACHE_TYPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_output_is_that_of_plain_decoding_in_every_cache_type(backend, cache_type):
    n = N_TOKENS[backend]
    how = {"spec_type": SPECS["ngram-simple"], "spec_fixed": True, "slots": 4, "threads": 2}
    with load(backend, cache_type_k=cache_type, cache_type_v=cache_type, **how) as engine:
        results = answers(engine, n, "greedy")
    assert output(results) == plain(backend, n, "greedy", cache_type=cache_type)
    assert sum(result.stats.n_accepted for result in results) > 0


EVENTFUL = {**{name: ("llama-dense", spec) for name, spec in DRAFTER_SPECS.items()}, "mtp-deepseek2": (), "mtp-qwen35": ()}


def eventful(engine, folder, monkeypatch):
    """Answers that share a prompt, in a context that is cut, after a cancelled one, with a failing drafter, and elsewhere."""
    asked = {"logprobs": 1, "ignore_eos": True, **WAYS["sampled"]}
    one, other, third = prompts()[:3]
    yield from (running.result() for running in engine.submit(one, n=3, max_tokens=20, **asked))
    yield engine.generate(one, max_tokens=90, context_shift=True, n_keep=3, **asked)
    given_up = engine.submit(other, max_tokens=40, **asked)
    next(iter(given_up))
    given_up.cancel()
    yield engine.generate(other, max_tokens=20, **asked)
    target, model = engine._loader.models[0], engine._loader.models[:2][-1]
    forward, calls = model.forward, itertools.count()

    def failing(batch):
        if (model is not target or batch.layers is not None or batch.part != "main") and next(calls) >= 2:
            raise ValueError("planted")
        return forward(batch)

    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", failing)
        yield engine.generate(third, max_tokens=20, **asked)
    yield engine.generate(third, max_tokens=20, **asked)
    slot = engine.generate(one, max_tokens=20, **asked).stats.slot
    text = engine.save_slot(slot, folder / "slot").tokens
    engine.load_slot(1 - slot, folder / "slot")
    yield engine.generate(text, slot=1 - slot, max_tokens=20, **asked)


@pytest.mark.sample(4, rest=8)
@pytest.mark.parametrize("drafter", EVENTFUL)
def test_so_is_that_of_requests_that_share_go_on_end_and_fail(drafter, tmp_path, monkeypatch, caplog):
    name, spec = EVENTFUL[drafter] or (drafter, "draft-mtp")
    path, found = agreeing(drafter) if name == drafter else target_for(drafter), []
    how = {"backend": "numba-cpu", "slots": 2, "n_ctx": 64, "threads": 1, "registry": REGISTRY, "draft_max": 4}
    for drafts in ({"spec_type": spec, "spec_fixed": True}, {"spec_type": "none"}):
        with Engine.load(path, **how, **drafts) as engine:
            found.append(list(eventful(engine, tmp_path, monkeypatch)))
    assert output(found[0]) == output(found[1])
    shifted, after, elsewhere = (found[0][i] for i in (3, 6, 7))
    assert shifted.stats.n_shifts > 1
    assert elsewhere.stats.n_reused + elsewhere.stats.n_recomputed == found[1][7].stats.n_reused == 34  # for hidden states
    fails = {"draft-model", "draft-mtp", "self-spec layers", *HEADS, "draft-model in trees"}
    assert ("planted" in caplog.text) == (drafter in fails or spec in fails)
    assert after.stats.n_drafted > 0 or "planted" not in caplog.text


@pytest.mark.sample(1, rest=16)
@pytest.mark.parametrize(  # threads that wait for each other's Python cost as much as all the rest
    ("name", "drafter", "threads"),
    list(zip(ORACLES, itertools.cycle(sorted(SPECS)), itertools.cycle([1, 1, 2, 1, 1]), strict=False)),
)
def test_seven_hundred_tokens_of_every_model_are_those_of_plain_decoding(name, drafter, threads):
    """A long text alone, then five together: other tests show, for every model, that rows do not depend on each other."""
    plan = plan_of(tiny_file(name), REGISTRY)
    specs = {key: spec for key, spec in SPECS.items() if key not in HEADS} | head_specs(name)
    if drafter not in HEADS and plan.n_vocab != N_VOCAB:  # no tokenizers that could translate
        drafter = "suffix"
    drafter = drafter if drafter in specs else "suffix"

    def run(**how):
        with Engine.load(target_for(drafter, name), backend="numba-cpu", n_ctx=224, registry=REGISTRY, **how) as engine:
            results = [each for asked in (prompts()[:1], prompts()[1:]) for each in answers(engine, 120, "sampled", asked)]
        return output(results)

    how = {"slots": 3, "threads": threads, "draft_max": 4}  # longer drafts only have more that is rejected
    assert run(spec_type=specs[drafter], spec_fixed=True, **how) == run(spec_type="none", threads=1, slots=5)


# keys and values, windows, chunks, latent vectors; convolutions, delta nets, state spaces of both kinds, lightning attention
KINDS = ("llama-dense", "gemma2-dense", "llama4-moe", "deepseek2-moe", *RECURRENT)


@pytest.mark.sample(0)
@pytest.mark.parametrize(("name", "restores"), [*((name, False) for name in KINDS), (RECURRENT[0], True)])
def test_three_thousand_tokens_with_every_drafter_in_turn_are_those_of_plain_decoding(name, restores):
    """Requests on two slots follow each other, each with another drafter, so that none finds a slot as it left it.

    Rejected drafts are undone by restoring states, or else drafted tokens are kept aside.
    """
    n_vocab = plan_of(tiny_file(name), REGISTRY).n_vocab
    drafters = {key: drafter for key, drafter in DRAFTER_SPECS.items() if " " not in key}
    drafters |= {
        "draft-model": f"draft-model:model={predictable(name)}",
        **head_specs(name),
    }
    rng = np.random.default_rng(5)
    asked = [rng.integers(0, n_vocab, 4).tolist() * 5 for _ in range(2 * len(drafters))]

    def run(drafters, **how):
        with Engine.load(predictable(name), backend="numba-cpu", n_ctx=256, registry=REGISTRY, **how) as engine:
            runnings = [
                engine.submit(prompt, max_tokens=125, logprobs=0, ignore_eos=True, **WAYS[way], **given)
                for prompt, given, way in zip(asked, drafters, itertools.cycle(WAYS), strict=False)
            ]
            pieces = [running.result().pieces for running in runnings]
            return [[(piece.token, piece.logprob) for piece in each] for each in pieces], {p.drafter for p in sum(pieces, ())}

    types = itertools.cycle([{"speculative": {"type": drafter}} for drafter in drafters])
    how = {"spec_type": ";".join(drafters.values()), "spec_fixed": True, "slots": 2, "threads": 1}
    how |= {"memory": "checkpoints:use_checkpoints=on"} if restores else {}
    drafted, accepted = run(types, draft_max=6, **how)  # longer drafts only have more that is rejected
    plain, _ = run(itertools.repeat({}), spec_type="none", threads=1, slots=3)
    assert drafted == plain
    assert accepted >= {None, "draft-model", "ngram-map-k", "ngram-mod", "recycle", "suffix"}


@pytest.mark.sample(4)  # what it tells of the tiny models seldom changes
@pytest.mark.parametrize("drafter", [*HEADS, *MTP])
def test_a_head_is_right_in_half_of_the_cases(drafter):
    """What is accepted is tested as much as what is rejected, where tokens are drawn as well, and at all depths."""
    if drafter in HEADS:
        path, how = target_for(drafter), {"spec_type": SPECS[drafter]}
    else:
        path, how = agreeing(drafter), {"spec_type": "draft-mtp", **assistance(drafter)}
    how |= {"n_ctx": N_CTX, "threads": 1, "slots": 2, "draft_max": 3, "spec_fixed": True, "registry": REGISTRY}
    with Engine.load(path, backend="numba-cpu", **how) as engine:
        for way in ("greedy", "sampled"):
            stats = [result.stats for result in answers(engine, 40, way)]
            assert 0.25 < sum(each.n_accepted for each in stats) / sum(each.n_drafted for each in stats) < 0.75
            n_deep = 2 if drafter == "mtp-step35" else 3  # it has two layers for further tokens
            by_position = np.sum([np.resize([*each.accepted_by_position, 0, 0, 0], 3)[:n_deep] for each in stats], axis=0)
            assert min(by_position) > 5


MTP_CASES = [
    (name, backend, memory, *how, way)
    for i, (name, memory) in enumerate(
        [
            *(("mtp-deepseek2", "auto"), ("mtp-gemma4-e", "auto"), ("mtp-qwen35", "auto")),
            ("mtp-qwen35", "checkpoints:use_checkpoints=on"),
        ]
    )
    for backend in ("numba-cpu", "reference")
    for j, how in enumerate([(1, 1, 6), (1, 2, 2), (4, 2, 6)])
    for k, way in enumerate(WAYS)
    if (i + j + k) % (5 if backend == "reference" else 3) == 0
] + [
    (name, "numba-cpu", "auto", 2, 1, 4, way)
    for name in ("mtp-bailingmoe3", "mtp-nemotron_h_moe", "mtp-qwen4exp", "mtp-step35")
    for way in ("greedy", "sampled")
]


@functools.cache
def plain_mtp(name, backend, n, way):
    how = {**assistance(name), "draft_model": None, "n_ctx": N_CTX, "threads": 1, "registry": REGISTRY}
    with Engine.load(agreeing(name), backend=backend, spec_type="none", **how) as engine:
        return output(answers(engine, n, way))


@pytest.mark.sample(5, rest=10)
@pytest.mark.parametrize(("name", "backend", "memory", "slots", "threads", "draft_max", "way"), MTP_CASES)
def test_layers_that_predict_further_tokens_leave_the_output_as_it_is(name, backend, memory, slots, threads, draft_max, way):
    how = {"slots": slots, "threads": threads, "draft_max": draft_max, "memory": memory, "n_ctx": N_CTX, "registry": REGISTRY}
    how |= assistance(name)
    with Engine.load(agreeing(name), backend=backend, spec_type="draft-mtp", spec_fixed=True, **how) as engine:
        results = answers(engine, N_TOKENS[backend], way)
    assert output(results) == plain_mtp(name, backend, N_TOKENS[backend], way)
    drafted, accepted = (sum(getattr(result.stats, name) for result in results) for name in ("n_drafted", "n_accepted"))
    assert accepted > 0 if way == "greedy" else drafted > accepted > 0, "the test must see right and wrong drafts"


@pytest.mark.sample(2, rest=8)
@pytest.mark.parametrize(
    ("name", "slots", "way"), any_two(["mtp-deepseek2", "mtp-deepseek4", "mtp-gemma4-e", "mtp-qwen35"], [1, 3], WAYS)
)
def test_so_do_their_trees(name, slots, way, monkeypatch):
    def branching(drafter, ask):
        request = ModelDrafter.request(drafter, ask)
        return attrs.evolve(request, limit=min(2, request.limit), n_candidates=min(3, request.limit))

    monkeypatch.setattr("augury.drafters.draft_mtp.DraftMtp.request", branching)
    how = {"slots": slots, "threads": 1, "n_ctx": N_CTX, "registry": REGISTRY, "backend": "numba-cpu", "draft_max": 6}
    how |= assistance(name)
    with Engine.load(agreeing(name), spec_type="draft-mtp", spec_fixed=True, **how) as engine:
        results = answers(engine, 60, way)
    assert output(results) == plain_mtp(name, "numba-cpu", 60, way)
    stats = [result.stats.drafters["draft-mtp"] for result in results]
    assert sum(each.drafted for each in stats) > 2 * sum(each.used for each in stats), "no tree was verified"
    assert sum(each.accepted for each in stats) > 0


@pytest.mark.sample(1, rest=5)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["mtp-deepseek2", "mtp-gemma4-e", "mtp-qwen35"])
def test_so_do_they_beside_lookups_whatever_the_planner_chooses(name, way):
    how = {"slots": 2, "threads": 1, "n_ctx": N_CTX, "registry": REGISTRY, "backend": "numba-cpu", **assistance(name)}
    with Engine.load(agreeing(name), **how) as engine:
        results = answers(engine, 100, way)
    assert output(results) == plain_mtp(name, "numba-cpu", 100, way)
    assert all("draft-mtp" in result.stats.drafters for result in results)
