"""The models of a server: who is loaded when, who waits, and who makes room."""

import asyncio
import json
import threading
from types import SimpleNamespace

import httpx
import pytest
from oracles.models import tiny_model

from augury import Engine
from augury.errors import AuguryError, CapacityError
from augury.plugins.server import event_stream, models as models_module
from augury.plugins.server.app import make_app
from augury.plugins.server.errors import RequestError
from augury.plugins.server.models import Models
from augury.plugins.server.server import Server, ServerOptions


class FakeEngine:
    """Is closed once."""

    load_s = 0.0

    def __init__(self):
        self.closed = threading.Event()

    def close(self):
        assert not self.closed.is_set()
        self.closed.set()


class Http:
    """A request whose client leaves when it is told to."""

    def __init__(self, **query):
        self.left, self.query_params = asyncio.Event(), query

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}


def a_server(*engines, name="a", idle_s=None, n_bytes=0):
    """A model whose engines are these, one after the other, or errors."""
    told = iter(engines)

    def load(_):
        found = next(told)
        if isinstance(found, Exception):
            raise found
        return found

    return Server(ServerOptions(names=(name,), sleep_idle_s=idle_s), load, measure=lambda _: n_bytes)


def several(*names, n_bytes=0, **how):
    """A server of models that load at once, as often as they are asked for."""
    return Models([Server(ServerOptions(names=(name,)), lambda _: FakeEngine(), lambda _: n_bytes) for name in names], **how)


def states(models):
    return " ".join(server.state for server in models.servers)


async def ask(models, name, http=None, until=None):
    """A request, which lasts until it is told to end."""
    async with models.using(models.find(name), http or Http()) as server:
        assert server.is_ready
        if until is not None:
            await until.wait()
        return server.name


async def soon(is_so):
    """Wait until something is so."""
    for _ in range(2000):
        if is_so():
            return
        await asyncio.sleep(0.005)
    pytest.fail("it never is")


def test_requests_that_come_together_load_a_model_once_and_keep_it():
    first, second = FakeEngine(), FakeEngine()

    async def both():
        models, may_end = Models([a_server(first, second, idle_s=0.01)], is_lazy=True), asyncio.Event()
        asking = [asyncio.create_task(ask(models, "a", until=may_end)) for _ in range(2)]
        await soon(lambda: models.servers[0].is_ready)
        await asyncio.sleep(0.1)  # as long as ten times the idle time; they hold it
        assert not first.closed.is_set()
        may_end.set()
        await asyncio.gather(*asking)
        await soon(first.closed.is_set)
        assert states(models) == "sleeping"
        assert models.servers[0].engine is first  # whose figures stay
        await ask(models, "a")
        await soon(second.closed.is_set)

    asyncio.run(both())


def test_a_model_that_is_asked_for_in_time_does_not_sleep():
    async def often():
        models = Models([a_server(FakeEngine(), idle_s=60.0)], is_lazy=True)
        for _ in range(3):
            await ask(models, "a")
        assert models.servers[0].timer.when() > asyncio.get_running_loop().time() + 50
        return states(models)

    assert asyncio.run(often()) == "loaded"


def test_a_model_whose_engine_cannot_be_closed_is_loaded_with_another(caplog):
    broken, whole = FakeEngine(), FakeEngine()
    broken.close = lambda: (_ for _ in ()).throw(RuntimeError("planted"))

    async def twice():
        models = Models([a_server(broken, whole, idle_s=0.01)], is_lazy=True)
        await ask(models, "a")
        await soon(lambda: "the model could not be unloaded cleanly" in caplog.text)
        await ask(models, "a")
        await soon(whole.closed.is_set)

    asyncio.run(twice())


@pytest.mark.parametrize(
    ("error", "status"),
    [(AuguryError("it has gone"), 500), (CapacityError("7 GiB"), 503), (RuntimeError("planted"), 500)],
)
def test_the_only_model_ends_the_server_if_it_cannot_be_loaded(error, status):
    async def once():
        models, is_told = Models([a_server(error)], is_lazy=True), []
        models.on_failure = lambda: is_told.append(True)
        with pytest.raises(RequestError) as refused:
            await ask(models, "a")
        assert (refused.value.status_code, is_told, states(models)) == (status, [True], "failed")
        assert str(error) in str(models.failure)

    asyncio.run(once())


def test_of_several_models_one_that_cannot_be_loaded_ends_its_own_requests_alone_and_may_be_tried_again():
    async def twice():
        models = Models([a_server(AuguryError("planted"), FakeEngine()), a_server(FakeEngine(), name="b")])
        with pytest.raises(RequestError, match="a cannot be loaded; the server's log says why"):
            await ask(models, "a")
        assert await ask(models, "b") == "b"
        assert (states(models), models.failure) == ("failed loaded", None)
        await ask(models, "a")

    asyncio.run(twice())


def test_the_model_that_has_been_idle_longest_makes_room():
    async def in_turn():
        models = several("a", "b", "c", n_most=2)
        for name in "aba":
            await ask(models, name)
        await ask(models, "c")
        return states(models)

    assert asyncio.run(in_turn()) == "loaded unloaded loaded"


def test_a_model_waits_until_one_is_idle_and_who_asked_first_is_served_first():
    async def queued():
        models, may_end, served = several("a", "b", "c", n_most=1), asyncio.Event(), []
        busy = asyncio.create_task(ask(models, "a", until=may_end))
        await soon(lambda: models.servers[0].is_ready)

        async def wait_for(name):
            served.append(await ask(models, name))

        waiting = []
        for name in "bbc":
            waiting.append(asyncio.create_task(wait_for(name)))
            await asyncio.sleep(0.02)
        assert (served, states(models)) == ([], "loaded loading loading")
        may_end.set()
        await asyncio.gather(busy, *waiting)
        return served, states(models)

    assert asyncio.run(queued()) == (["b", "b", "c"], "unloaded unloaded loaded")


def test_a_client_that_leaves_while_it_waits_costs_no_model_its_place():
    async def leaving():
        models, may_end, http = several("a", "b", n_most=1), asyncio.Event(), Http()
        busy = asyncio.create_task(ask(models, "a", until=may_end))
        await soon(lambda: models.servers[0].is_ready)
        waiting = asyncio.create_task(ask(models, "b", http))
        await soon(lambda: models._queued)
        http.left.set()
        with pytest.raises(RequestError):
            await waiting
        may_end.set()
        await busy
        await asyncio.sleep(0.05)
        assert states(models) == "loaded unloaded"
        await ask(models, "b")  # whoever comes next has it

    asyncio.run(leaving())


def test_memory_is_counted_before_a_model_is_loaded(monkeypatch):
    monkeypatch.setattr(models_module, "n_bytes_of_machine", lambda: 5 << 29)

    async def by_size():
        models = several("a", "b", "c", n_bytes=1 << 30, n_most=8)
        for name in "abc":
            await ask(models, name)
        models.servers[0].measure = lambda _: 3 << 30
        with pytest.raises(RequestError, match=r"a needs 3\.00 GiB with its context, this machine has 2\.50 GiB") as refused:
            await ask(models, "a")
        assert refused.value.status_code == 503
        return states(models)

    assert asyncio.run(by_size()) == "unloaded loaded loaded"


def test_a_model_that_loads_holds_up_no_request_for_another():
    may_load = threading.Event()

    async def beside():
        models = several("a", "b", n_most=2)
        models.servers[1].load = lambda _: may_load.wait() and FakeEngine()
        await ask(models, "a")
        waiting = asyncio.create_task(ask(models, "b"))
        await soon(lambda: models.servers[1].state == "loading")
        for _ in range(5):
            assert await asyncio.wait_for(ask(models, "a"), 10) == "a"
        assert not waiting.done()
        may_load.set()
        assert await waiting == "b"

    asyncio.run(beside())


def test_the_end_of_the_server_ends_loading_and_waiting():
    async def ending():
        models = several("a", "b", "c", n_most=1)
        is_held = asyncio.Event()
        busy = asyncio.create_task(ask(models, "a", until=is_held))
        await soon(lambda: models.servers[0].is_ready)
        waiting = [asyncio.create_task(ask(models, name)) for name in "bc"]
        await soon(lambda: len(models._queued) == 2)
        await models.end_requests()
        for each in waiting:
            with pytest.raises(RequestError, match="the server ends"):
                await each
        is_held.set()
        await busy

    asyncio.run(ending())


def over_http(models):
    """A client of an app that never starts, and loads what it is asked for."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(make_app(models)), base_url="http://server")


def test_models_are_loaded_and_unloaded_as_llama_cpp_s_router_does_it():
    async def by_name():
        models = several("a", "b")
        async with over_http(models) as client:

            async def state(name):
                found = (await client.get("/models")).json()["data"]
                return next(each["status"]["value"] for each in found if each["id"] == name)

            async def post(path, name):
                answer = await client.post(f"/models/{path}", json={"model": name})
                return answer.status_code, answer.json()

            assert await post("load", "a") == (200, {"success": True})
            await soon(lambda: models.servers[0].is_ready)
            models.servers[0]._engine.info = SimpleNamespace(n_ctx_train=8, n_vocab=4, n_embd=2, n_bytes=9, architecture="none")
            models.servers[0]._engine.config = {"n_ctx": 4, "spec_type": "none"}
            assert (await state("a"), await state("b")) == ("loaded", "unloaded")
            assert (await post("load", "a"))[0] == (await post("unload", "b"))[0] == 400
            assert await post("unload", "a") == (200, {"success": True})
            await soon(lambda: not models.servers[0].has_figures)
            assert await state("a") == "unloaded"
            code, told = await post("load", "other")
            assert (code, told["error"]["message"]) == (404, "model 'other' not found; this server has a, b")

    asyncio.run(by_name())


@pytest.mark.parametrize(("names", "is_strict", "status"), [("a", False, 501), ("a", True, 404), ("ab", False, 404)])
def test_a_server_of_one_model_answers_to_any_name_unless_it_is_strict(names, is_strict, status):
    async def other():
        async with over_http(several(*names, is_lazy=True, is_strict=is_strict)) as client:
            return [(await client.post("/props", params=query, json={})).status_code for query in ({"model": "other"}, {})]

    assert asyncio.run(other()) == [status, 501]  # a request that names none is for the first


def test_a_server_of_several_models_is_healthy_before_any_is_loaded_and_says_what_it_is():
    async def look():
        async with over_http(several("a", "b", n_most=3)) as client:
            assert (await client.get("/health")).json() == {"status": "ok"}
            assert (await client.get("/slots", params={"model": "b"})).json() == []
            return (await client.get("/props", params={"model": "b:latest"})).json()

    found = asyncio.run(look())
    assert (found["role"], found["max_instances"], found["model_alias"], found["is_sleeping"]) == ("router", 3, "b", True)


def test_requests_load_nothing_where_they_are_not_to():
    async def by_hand():
        models = several("a", "b", loads=False)
        with pytest.raises(RequestError, match="a is not loaded, and no request loads it here; ask POST /models/load to"):
            await ask(models, "a")
        assert await ask(models, "a", Http(autoload="true")) == "a"
        assert await ask(models, "a") == "a"
        with pytest.raises(RequestError, match="b is not loaded"):
            await ask(several("a", "b"), "b", Http(autoload="false"))

    asyncio.run(by_hand())


def test_models_that_are_as_they_were_stay_loaded_when_others_are_looked_for():
    def made(name, *aliases, key=None):
        return Server(ServerOptions(names=(name, *aliases)), lambda _: FakeEngine(), key=key or name)

    async def twice():
        found = [made("a", "x"), made("b", key="other flags"), made("c")]
        models = Models([made("a"), made("b"), made("d")], n_most=3, find=lambda: found)
        models.servers[0].is_hidden, may_end = True, asyncio.Event()
        busy = [asyncio.create_task(ask(models, name, until=may_end)) for name in "abd"]
        await soon(lambda: states(models) == "loaded loaded loaded")
        before = models.servers
        with models.events.listening() as events:
            await models.reload()
            told = [events.get_nowait() for _ in range(events.qsize())]
        assert [(each["model"], each["event"]) for each in told if each["event"] != "model_status"] == [
            ("b", "model_remove"),
            ("d", "model_remove"),
            ("*", "models_reload"),
        ]
        assert (models.names, states(models)) == (["a", "x", "b", "c"], "loaded unloaded unloaded")
        assert models.servers[0] is before[0]
        assert before[1].is_ready  # it still answers
        may_end.set()
        await asyncio.gather(*busy)
        await soon(lambda: not before[1].is_ready and not before[2].is_ready)
        await models.close()

    asyncio.run(twice())


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/completion", {"prompt": [1, 2, 3], "n_predict": 3}, None),
        ("/v1/chat/completions", {"messages": []}, "a cannot be loaded"),
        ("/api/chat", {"messages": [{"role": "user", "content": "a"}]}, "a cannot be loaded"),
        ("/api/generate", {"prompt": "a"}, "a cannot be loaded"),
    ],
)
def test_a_stream_tells_how_far_its_model_is_until_the_answer_comes(monkeypatch, path, body, error):
    monkeypatch.setattr(event_stream, "_SOON_S", 0.2)
    monkeypatch.setattr(event_stream, "_EVERY_S", 0.05)

    def load(progress):
        progress("load weights", 3, 4)
        threading.Event().wait(1.0)
        if error is not None:
            raise AuguryError("planted")
        return Engine.load(tiny_model("llama-dense"), backend="reference", spec_type=["none"], n_ctx=64)

    async def streamed():
        models = Models([Server(ServerOptions(names=("a",)), load), *several("b").servers])
        async with over_http(models) as client:
            answer = await client.post(path, json={**body, "model": "a", "stream": True})
        await models.close()
        return answer

    answer = asyncio.run(streamed())
    told = f"a is being loaded: {'load weights 75 %'}"
    first, *_, last = answer.text.strip().split("\n" if path.startswith("/api") else "\n\n")
    assert (answer.status_code, error is not None) == (200, error is not None and error in last)
    if path.startswith("/api"):
        parts = [json.loads(line) for line in answer.text.splitlines()[:-1]]
        assert {each["status"] for each in parts} >= {told}
        assert {str(each.get("response", each.get("message", {}).get("content"))) for each in parts} == {""}
    else:
        assert f": {told}" in answer.text
        assert first.startswith(":")
        assert json.loads(last.removeprefix("data: "))
