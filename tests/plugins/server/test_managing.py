"""Models that clients download, remove and rename, and what they are told of that, by a server over a Hub of its own."""

import asyncio
import json
import threading
from pathlib import Path

import httpx
import ollama
import pytest
from support import local_hub
from support.servers import serving

from augury.testing.tiny_model import write_tiny_model

REPO = "owner/tiny-GGUF"
SHORT = {"num_predict": 3, "temperature": 0}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def hub(home):
    with pytest.MonkeyPatch.context() as patch, local_hub.serving(patch, home / "hub") as hub:
        for name in ("f32", "F16"):
            write_tiny_model(home / "tiny.gguf", weight_type=name.upper())
            hub.repositories.setdefault(REPO, {})[f"tiny-{name}.gguf"] = (home / "tiny.gguf").read_bytes()
        values = {"HF_ENDPOINT": hub.address, "HF_HUB_CACHE": home / "hub", "HF_HUB_DISABLE_XET": 1, "XDG_CACHE_HOME": home}
        for name, value in {**values, "OLLAMA_MODELS": home / "none", "HOME": home}.items():
            patch.setenv(name, str(value))
        yield hub


@pytest.fixture(scope="module")
def server(hub, home):
    words = "--manage-models --backend reference --spec-type none -t 1 -np 1 -c 256 --no-ui"
    with serving(*words.split(), "-m", home / "tiny.gguf", "--alias", "given") as found:
        yield found


@pytest.fixture(scope="module")
def client(server):
    with ollama.Client(server.url) as found:
        yield found


def names(client):
    return {each.model for each in client.list().models}


def test_ollama_s_client_pulls_copies_and_deletes(server, client, home):
    assert httpx.head(server.url).status_code == 200
    steps = [*client.pull(f"{REPO}:f32", stream=True)]
    assert (steps[0].status, steps[-1].status) == ("pulling manifest", "success")
    assert all(each.completed <= each.total for each in steps[1:-1])
    name = f"{REPO}:F32"
    assert names(client) == {"given:latest", name}
    assert client.generate(f"hf.co/{name}", "a", options=SHORT, raw=True).eval_count == 3  # by another name of the same file
    client.copy(name, "short")
    client.copy("short", "second:1")
    assert json.loads((home / "augury/models/aliases.json").read_text()) == {"short": name, "second:1": name}
    first = client.generate("short", "a", options=SHORT, raw=True)
    assert (first.model, first.load_duration) == ("short", 0)
    with pytest.raises(ollama.ResponseError, match="is also called short, second:1; delete these names first"):
        client.delete(name)
    for each in ("short", "second:1", name):
        client.delete(each)
    assert names(client) == {"given:latest"}
    assert not [*(home / "hub").rglob("*f32.gguf")]


@pytest.mark.parametrize(
    ("call", "status", "told"),
    [
        (lambda client: client.pull("owner/other"), 500, "the Hub does not give it"),
        (lambda client: client.pull("../../etc/passwd"), 403, "is not fetched for clients"),
        (lambda client: client.pull("pypi:anything==1.0"), 403, "is not fetched for clients"),
        (lambda client: client.pull("smolm"), 404, "smollm2"),
        (lambda client: client.delete("other"), 404, "this server has given"),
        (lambda client: client.delete("given"), 403, "the operator alone may remove it"),
        (lambda client: client.copy("other", "name"), 404, "this server has given"),
        (lambda client: client.copy("given", "../name"), 400, "is no name"),
        (lambda client: client.copy("given", "given"), 400, "there is a model 'given' already"),
    ],
)
def test_what_is_not_a_client_s_is_refused(client, call, status, told):
    with pytest.raises(ollama.ResponseError, match=told) as refused:
        call(client)
    assert refused.value.status_code == status
    assert str(Path.home()) not in str(refused.value)


def test_a_stream_tells_what_went_wrong_in_its_last_line(client):
    with pytest.raises(ollama.ResponseError, match="the Hub does not give it"):
        [*client.pull("owner/other", stream=True)]


def test_several_asynchronous_clients_wait_for_one_download(server, hub):
    async def both():
        async with ollama.AsyncClient(server.url) as client:
            asked = [client.pull(f"{REPO}:F16") for _ in range(2)]
            assert [each.status for each in await asyncio.gather(*asked)] == ["success"] * 2
            assert [each.status async for each in await client.pull(f"{REPO}:F16", stream=True)] == ["success"]
            await client.delete(f"{REPO}:F16")

    hub.asked.clear()
    asyncio.run(both())
    assert hub.names("GET") == ["tiny-F16.gguf"]


def test_llama_cpp_s_clients_download_load_and_remove_and_are_told(server):
    name, told, is_listening = f"{REPO}:F16", [], threading.Event()

    def listen():
        with httpx.stream("GET", f"{server.url}/models/sse", timeout=60) as stream:
            for line in stream.iter_lines():
                is_listening.set()
                if line.startswith("data: "):
                    told.append(json.loads(line.removeprefix("data: ")))
                    if told[-1]["event"] == "model_remove":
                        return

    def wait_for(event, **data):
        while not any(
            (each["model"], each["event"]) == (name, event) and data.items() <= each["data"].items() for each in told
        ):
            assert listener.is_alive()
            threading.Event().wait(0.01)

    listener = threading.Thread(target=listen)
    listener.start()
    assert is_listening.wait(60)
    ask = server.client
    assert ask.post("/models", json={"model": name}).json() == {"success": True}
    wait_for("download_progress")
    wait_for("download_finished")
    assert ask.post("/models", json={"model": name}).status_code == 400
    found = {each["id"]: each for each in ask.get("/models").json()["data"]}
    assert (found[name]["can_remove"], found["given"]["can_remove"]) == (True, False)
    assert ask.post("/models/load", json={"model": name}).json() == {"success": True}
    wait_for("model_status", status="loading")
    wait_for("model_status", status="loaded")
    assert ask.post("/models/unload", json={"model": name}).json() == {"success": True}
    wait_for("model_status", status="unloaded", exit_code=0)
    assert ask.delete("/models", params={"model": "given"}).status_code == 403
    assert ask.delete("/models", params={"model": name}).json() == {"success": True}
    listener.join(60)
    assert told[-1]["model"] == name
    assert ask.post("/models/unload", json={"model": name}).status_code == 404
