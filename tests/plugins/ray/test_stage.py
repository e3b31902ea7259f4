"""Layers and draft models on hosts of a cluster: to the bit what one process computes, whoever is killed meanwhile."""

import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from unittest.mock import MagicMock

import numpy as np
import pytest
from oracles.models import tiny_model
from support.drafter_specs import SPECS, WAYS, target_for

from augury import Engine, Placement, Registry
from augury.backends.remote import connection
from augury.errors import AuguryError, LostDeviceError, OptionError, UnsupportedError
from augury.plugins.ray.hooks import RayBackend

N_KILLS = int(os.environ.get("KILLS", "2"))  # in mid-work
REGISTRY = Registry.discover()
PROMPT = [3, 1, 4, 1, 5, 3, 1, 4, 1]
PLACES = {2: "ray:first,ray:second,CPU", 3: "ray:first,ray:second,ray:{}"}  # two layers and the output
KINDS = {  # of states: keys and values, some in a window, recurrent, latent
    "llama-dense": ("none", "suffix", "self-spec layers", "draft-model", "draft-eagle3"),
    "gemma3-dense": ("none", "suffix"),
    "qwen35-dense": ("none", "ngram-simple"),
    "deepseek2-moe": ("none", "suffix"),
}


@pytest.fixture(scope="module")
def hosts(nodes):
    """The cluster as the environment's, and one actor a host for all engines of the module: each takes seconds to start."""
    from augury.plugins.ray import stage

    class Kept(stage.ActorEndpoint):
        def close(self):
            pass

    made = stage.ActorEndpoint
    kept = {host: Kept(host) for host in ("first", "second", nodes.ids[0])}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", nodes.address)
        patch.setattr(stage, "ActorEndpoint", lambda host: kept.get(host) or made(host))
        yield nodes
    for each in kept.values():
        made.close(each)


def load(model, placement=None, spec_type="none", **how):
    how = {"n_ctx": 128, "threads": 1, "slots": 3, "spec_fixed": spec_type != "none", **how}
    return Engine.load(model, registry=REGISTRY, placement=placement, spec_type=spec_type, **how)


def texts(engine):
    """Greedy and sampled texts, some of them at once."""
    both = [WAYS["greedy"], WAYS["sampled"]]
    running = [engine.submit([*PROMPT, i], max_tokens=24, **how) for i, how in enumerate(both)]
    return [each.result().tokens for each in running]


@pytest.mark.ray
@pytest.mark.parametrize("n_actors", PLACES)
@pytest.mark.parametrize("name", KINDS)
def test_texts_are_those_of_one_process(hosts, name, n_actors):
    placement = Placement(PLACES[n_actors].format(hosts.ids[0]), tensor_split="1,1,1")
    for drafter in KINDS[name]:
        model, spec = target_for(drafter, name), SPECS.get(drafter, drafter)
        with load(model, spec_type=spec) as engine:
            right = texts(engine)
        with load(model, placement, spec) as engine:
            assert engine.config["backend"].count(" on ray:") == n_actors
            assert texts(engine) == right


@pytest.mark.ray
def test_requests_end_with_one_error_while_an_actor_is_gone_and_later_ones_are_answered(hosts, monkeypatch):
    monkeypatch.setattr(connection, "_BEAT_MS", 100)
    own, before = f"ray:{hosts.ids[1]}", hosts.workers("ray::NodeActor")
    with load(tiny_model("llama-dense"), Placement(f"CPU,{own},CPU"), lost_timeout=0) as engine:
        right = engine.generate(PROMPT, temperature=0, max_tokens=16).tokens
        (pid,) = {*hosts.workers("ray::NodeActor")} - {*before}
        os.kill(pid, signal.SIGSTOP)  # of one that is dead, Ray might start another before the last request is there
        running = [engine.submit([*PROMPT, i], max_tokens=100) for i in range(3)]
        for each in running:
            with pytest.raises(AuguryError, match=r"a device did not come back within 0 s \(lost_timeout\)"):
                each.result()
        hosts.kill(pid)
        found, end = None, time.monotonic() + 60
        while found is None and time.monotonic() < end:
            with suppress(AuguryError):
                found = engine.generate(PROMPT, temperature=0, max_tokens=16).tokens
    assert found == right
    end = time.monotonic() + 60
    while {*hosts.workers("ray::NodeActor")} - {*before} and time.monotonic() < end:
        time.sleep(0.05)
    assert not {*hosts.workers("ray::NodeActor")} - {*before}, "an actor ends with its engine"


def answers_while_killing(hosts, engine, how, victims):
    """The tokens of answers, three at a time, all of them again until `N_KILLS` actors were killed in mid-work.

    Args:
        victims: The actors' processes of which one may be killed now, given the answers since the last was.
    """
    found, n_before, is_over, rng = [], [0], threading.Event(), random.Random(4)

    def kill():
        while not is_over.is_set() and len(n_before) <= N_KILLS:
            if there := victims(found[n_before[-1] :]):
                time.sleep(rng.random())
                hosts.kill(rng.choice(there))
                n_before.append(len(found))
            time.sleep(0.05)

    def ask(each):
        running = engine.submit(PROMPT, **each)
        times = [time.monotonic() for _ in running]
        found.append(running.result())
        return found[-1].tokens, max(np.diff(times))

    answers = []
    with ThreadPoolExecutor(4) as pool:
        killer = pool.submit(kill)
        try:
            while not killer.done():
                answers += pool.map(ask, how)
        finally:
            is_over.set()
        killer.result()
    tokens, stalls = zip(*answers, strict=True)
    print(f"{len(tokens)} streams, {N_KILLS} kills, longest stalls {np.sort(stalls)[-N_KILLS:].round(3)} s")  # noqa: T201
    return [*tokens]


@pytest.mark.ray
def test_texts_go_on_to_the_bit_where_actors_are_killed(hosts):
    how = [{"seed": seed, "temperature": 0.9 * (seed % 2), "max_tokens": 100} for seed in range(20)]
    with load(tiny_model("qwen35-dense"), spec_type="suffix") as engine:
        right = [engine.generate(PROMPT, **each).tokens for each in how]
    placement = Placement(PLACES[2], tensor_split="1,1,1")

    def victims(answers):
        return hosts.workers("ray::NodeActor") if answers else []

    with load(tiny_model("qwen35-dense"), placement, "suffix") as engine:
        found = answers_while_killing(hosts, engine, how, victims)
        assert found == right * (len(found) // len(how))
        assert engine.generate(PROMPT, **how[0]).tokens == right[0]


@pytest.mark.ray
def test_a_drafter_whose_actor_is_killed_changes_no_text_and_drafts_again(hosts):
    how = [{"temperature": 0.7, "seed": seed, "max_tokens": 100} for seed in range(6)]
    with load(tiny_model("llama-dense")) as engine:
        right = [engine.generate(PROMPT, **each).tokens for each in how]
    spec = f"draft-model:model={tiny_model('llama-dense-q4_0')},device=ray:second"

    def victims(answers):
        return hosts.workers("ray::NodeActor", "second") if any(each.stats.n_drafted for each in answers) else []

    with load(tiny_model("llama-dense"), None, spec) as engine:
        found = answers_while_killing(hosts, engine, how, victims)
        assert found == right * (len(found) // len(how))
        end, n_drafted = time.monotonic() + 60, 0
        while not n_drafted and time.monotonic() < end:
            result = engine.generate(PROMPT, **how[0])
            assert result.tokens == right[0]
            n_drafted = result.stats.n_drafted
    assert n_drafted > 0


@pytest.mark.ray
def test_an_actor_whose_host_is_lost_is_placed_anew(monkeypatch):
    from ray.exceptions import ActorUnschedulableError

    from augury.plugins.ray import stage

    def lost(*_, **__):
        raise ActorUnschedulableError("the node is gone")

    monkeypatch.setattr(stage.ray, "get", lost)
    endpoint, placed = stage.ActorEndpoint("host"), []
    monkeypatch.setattr(endpoint, "_placed", lambda: placed.append(MagicMock()) or placed[-1])
    for n in (1, 2):
        with pytest.raises(LostDeviceError, match="ray:host: The actor is not schedulable: the node is gone"):
            endpoint.connect(0)
        assert len(placed) == n


@pytest.mark.ray
def test_a_host_that_is_none_or_several_is_said(hosts):
    with pytest.raises(OptionError, match=r"ray:nowhere is 0 nodes of the cluster, expected one of .*first \("):
        RayBackend.device("ray:nowhere")


def test_without_the_extra_ray_is_what_is_to_be_installed(monkeypatch):
    monkeypatch.setattr("augury.extras.find_spec", lambda _: None)
    with pytest.raises(
        UnsupportedError, match="device ray:host needs ray, not installed here; install the extra: pip install "
    ):
        RayBackend.device("ray:host")
