"""Models with a state per sequence, through the engine: speculation changes no bit, whatever drafts and whatever rolls back."""

from __future__ import annotations

import functools

import pytest
from oracles.drafts import HEADS
from oracles.models import RECURRENT, tiny_model
from support.drafter_specs import SPECS as DRAFTER_SPECS, WAYS as DRAFTER_WAYS, head_specs, target_for

from augury import Engine, Registry
from augury.testing.drafter.engines import output

REGISTRY = Registry.discover()
BACKENDS = ("numba-cpu", "reference")
WAYS = {way: DRAFTER_WAYS[way] for way in ("greedy", "sampled")}
N_CTX = 192


def specs(target):
    itself, other = tiny_model(target), tiny_model("llama-dense-q4_0")
    return {
        **{name: spec for name, spec in DRAFTER_SPECS.items() if "draft-model" not in name},
        **head_specs(target),
        "draft-model, hybrid": f"draft-model:model={itself}",
        "draft-model, hybrid, in trees": f"draft-model:model={itself},tree=3x2",
        "draft-model, pure": f"draft-model:model={other}",
        "a chain": f"self-spec:mode=layers,layers=1,p_min=0.1;ngram-simple:n=2,m=5;draft-model:model={itself},tree=2x3",
    }


DRAFTERS = sorted(specs(RECURRENT[0]))
# Where drafts are often right, all combinations on the backend that people use; of the others any two of the values.
CASES = [
    (target, backend, drafter, slots, memory)
    for i, target in enumerate(RECURRENT)
    for j, backend in enumerate(BACKENDS)
    for k, drafter in enumerate(DRAFTERS)
    for s, slots in enumerate((1, 3))
    for m, memory in enumerate(("auto", "checkpoints:use_checkpoints=on"))
    if (j, s, m) == ((i + k) % 2, (i // 2 + k) % 2, (i + k // 2) % 2)
    or (backend == "numba-cpu" and ("hybrid" in drafter or drafter == "a chain"))
]


def prompts():
    return [[7, 8, 9] * 6, [1, 2, 3, 4], [5] * 30, [9, 7, 5, 9, 7, 5, 9]]


def load(target, backend, drafter=None, **how):
    return Engine.load(target_for(drafter, target), backend=backend, n_ctx=N_CTX, registry=REGISTRY, **how)


def answers(engine, n, *ways):
    """One way after the other: the later ones find slots as the first left them."""
    asked = [engine.generate(prompts(), max_tokens=n, logprobs=1, ignore_eos=True, **WAYS[way]) for way in ways]
    results = [result for each in asked for result in each]
    return results, output(results)


def plain(target, backend, n, drafter=None):
    """The answers of a drafter's target without drafts."""
    return _plain(target, backend, n, drafter if drafter in HEADS else None)


@functools.cache
def _plain(target, backend, n, drafter):
    with load(target, backend, drafter, threads=1, spec_type="none") as engine:
        return answers(engine, n, *WAYS)[1]


@pytest.mark.sample(10, rest=30)
@pytest.mark.parametrize(("target", "backend", "drafter", "slots", "memory"), CASES)
def test_output_is_that_of_plain_decoding(target, backend, drafter, slots, memory):
    n = 40 if backend == "numba-cpu" else 16
    how = {"spec_type": specs(target)[drafter], "spec_fixed": True, "slots": slots, "memory": memory}
    how |= {"draft_max": 5, "threads": 2 if (slots, memory) == (3, "auto") else 1}  # longer drafts only have more to reject
    with load(target, backend, drafter, **how) as engine:
        results, found = answers(engine, n, *WAYS)
    assert found == plain(target, backend, n, drafter)
    assert all(each.failed is None for result in results for each in result.stats.drafters.values())
    drafted, accepted = (sum(getattr(result.stats, name) for result in results) for name in ("n_drafted", "n_accepted"))
    assert drafted > accepted
    if "hybrid" in drafter:
        assert accepted > 0
    if drafter in HEADS:
        assert 0.15 < accepted / drafted < 0.75


@pytest.mark.sample(4)
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("target", RECURRENT)
def test_a_pure_target_takes_a_hybrid_draft_model(target, slots):
    how = {"spec_type": f"draft-model:model={tiny_model(target)}", "spec_fixed": True, "draft_max": 5}
    with load("llama-dense", "numba-cpu", slots=slots, threads=1, **how) as engine:
        results, found = answers(engine, 40, "greedy")
    assert found == plain("llama-dense", "numba-cpu", 40)[: len(found)]
    assert sum(result.stats.n_drafted for result in results) > 0


@pytest.mark.parametrize(("target", "longest"), [(RECURRENT[0], 3), ("llama-dense", 4)])
def test_a_request_that_asks_for_longer_drafts_gets_what_there_is_room_for(target, longest):
    how = {"spec_type": f"draft-model:model={tiny_model(RECURRENT[0])}", "spec_fixed": True, "draft_max": 3}
    with load(target, "numba-cpu", **how) as engine:
        (result,) = engine.generate([prompts()[0]], max_tokens=20, ignore_eos=True, temperature=0.0, speculative={"n_max": 9})
    assert max(result.stats.draft_lengths) == longest  # a draft model feeds all of a draft but its last token
