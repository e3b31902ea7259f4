"""Which replica gets a request: by session, by the longest shared prefix, against load."""

import asyncio
from collections import Counter
from itertools import count
from types import SimpleNamespace

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`")]  # by Serve

N_SLOTS = 2
NAMES = map(str, count())
REPLICAS = [SimpleNamespace(replica_id=name) for name in "abc"]


@pytest.fixture
def router():
    from augury.plugins.ray.routing import Router

    found = Router.__new__(Router)  # Serve's own part needs a cluster
    found.initialize_state(n_slots=N_SLOTS)
    return found


def request(tokens, session=""):
    metadata = SimpleNamespace(call_method="answer", session_id=session, internal_request_id=next(NAMES))
    return SimpleNamespace(args=[tokens], metadata=metadata, routing_context=SimpleNamespace(should_backoff=False))


def best(router, *asked):
    (first,), *_ = asyncio.run(router.choose_replicas(REPLICAS, request(*asked)))
    return first.replica_id


def route(router, name, *asked, is_over=True):
    routed = request(*asked)
    router.on_request_routed(routed, name, None)
    if is_over:
        router.on_request_completed(name, routed.metadata.internal_request_id)


def test_the_longest_shared_prefix_wins(router):
    route(router, "a", range(64))
    route(router, "b", range(32))
    route(router, "c", [*range(32), *range(40, 72)])
    assert best(router, [*range(64), 1, 2]) == "a"
    assert best(router, [*range(32), *range(40, 80)]) == "c"


def test_what_nobody_holds_goes_to_the_least_loaded_and_ties_are_drawn(router):
    assert {best(router, [i]) for i in range(60)} == {"a", "b", "c"}
    route(router, "a", range(16), is_over=False)
    assert {best(router, [i] * 16) for i in range(60)} == {"b", "c"}


def test_ends_of_what_was_not_routed_make_no_replica_look_idle(router):
    for i in range(100):  # as of metrics, which all replicas that there are are asked for
        router.on_request_completed("a", f"metrics {i}")
    assert {best(router, [i]) for i in range(60)} == {"a", "b", "c"}


def test_a_request_that_ends_before_it_is_told_of_is_no_load(router):
    routed = request([1])
    router.on_request_completed("a", routed.metadata.internal_request_id)
    router.on_request_routed(routed, "a", None)
    assert {best(router, [i]) for i in range(60)} == {"a", "b", "c"}


def test_a_prefix_is_worth_a_wait_for_as_long_as_it_would_take(router):
    route(router, "a", range(320))
    for i in range(N_SLOTS):
        assert best(router, range(320)) == "a"
        route(router, "a", [i], is_over=False)
    assert best(router, range(320)) == "a"  # one waits: 128 tokens, and two beside it
    route(router, "a", [7], is_over=False)
    assert best(router, range(320)) != "a"


def test_a_session_stays_where_it_is(router):
    route(router, "b", [1], "alice")
    assert best(router, range(500, 532), "alice") == "b"
    assert Counter(best(router, range(500, 532), "bob") for _ in range(60)).keys() == {"a", "b", "c"}
