"""Every plugin that is installed keeps its contracts, on both CPU backends: a check raises a `ContractError`, or it passed."""

import functools
import itertools

import pytest

from augury.testing.backend.suite import BACKEND_CHECKS, backend_subject
from augury.testing.constraint import CONSTRAINT_CHECKS, constraint_subject
from augury.testing.drafter.engine_checks import chained
from augury.testing.drafter.engines import WAYS
from augury.testing.drafter.suite import DRAFTER_CHECKS, drafter_subject
from augury.testing.memory.suite import MEMORY_CHECKS, memory_subject
from augury.testing.toys import TINY_DRAFT, registry_with_toys

REGISTRY = registry_with_toys()
BACKENDS = ("toy", *sorted(set(REGISTRY.backends) - {"toy"}), "toy-recurrent:is_hybrid=true")
OPTIONS = {  # with which a drafter drafts on short texts; one without an entry is checked as it is
    "ngram-simple": {"n": 3, "m": 8},
    "ngram-map-k": {"n": 3, "m": 8},
    "ngram-map-k4v": {"n": 3, "m": 4},
    "ngram-mod": {"n_match": 4, "n_min": 2, "n_max": 16},
    "draft-model": {"model": TINY_DRAFT},
    "draft-model in trees": {"model": TINY_DRAFT, "tree": "2x3"},
    "self-spec": {"draft_min": 3, "draft_max": 8},
    "self-spec in layers": {"mode": "layers", "layers": 2},
    "recurrent-checkpoint": {"inner": "ngram-map-k:n=3,m=8;ngram-simple:n=3,m=8"},
}
NAMES = sorted({*REGISTRY.drafters, *OPTIONS} - {"toy-period"})
PAIRS = list(
    itertools.combinations([name for name in sorted(REGISTRY.drafters) if name not in ("none", "forced", "toy-period")], 2)
)


@functools.cache
def subject(name):
    return drafter_subject(name.partition(" ")[0], OPTIONS.get(name), backends=BACKENDS, registry=REGISTRY)


@pytest.mark.sample(9)
@pytest.mark.parametrize("check", DRAFTER_CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("name", NAMES)
def test_a_drafter_keeps_its_contracts(name, check):
    check.run(subject(name))
    if check is DRAFTER_CHECKS[-1] and name not in ("none", "forced"):  # which needs a constraint
        assert subject(name).report.n_accepted > 0, "what declines every time proves nothing"


@pytest.mark.parametrize("name", NAMES)
def test_every_option_of_a_drafter_is_checked(
    name,
):  # what is allowed, docs/options.md says, which is compared with the classes
    DRAFTER_CHECKS[0].run(subject(name))


@pytest.mark.sample(9)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("i", "pair"), list(enumerate(PAIRS)), ids=[";".join(pair) for pair in PAIRS])
def test_a_chain_of_two_leaves_the_output_as_it_is(i, pair, backend):
    first, second = pair if i % 2 else reversed(pair)
    way = list(WAYS)[i % len(WAYS)]
    report = chained(subject(first), subject(second), backend, way, is_fixed=bool(i % 3))
    # a planner may decline throughout, and lookups of three tokens on short texts in which one in six is a surprise
    assert report.n_accepted > 0 or not i % 3 or backend.startswith("toy-recurrent"), "what declines every time proves nothing"


@pytest.mark.parametrize("check", CONSTRAINT_CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("name", sorted(REGISTRY.constraints))
def test_a_constraint_keeps_its_contracts(name, check):
    check.run(constraint_subject(name, registry=REGISTRY))


@pytest.mark.parametrize("check", MEMORY_CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("name", sorted(REGISTRY.memory_managers))
def test_a_memory_manager_keeps_its_contracts(name, check):
    check.run(memory_subject(name))


@pytest.mark.sample(8)
@pytest.mark.parametrize("check", BACKEND_CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("name", sorted(set(REGISTRY.backends) - {"toy", "toy-recurrent"}))
def test_a_backend_keeps_its_contracts(name, check):
    check.run(backend_subject(name))
