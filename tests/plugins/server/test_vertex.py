"""Vertex AI's form: several requests in one, asked where environment variables say."""

import signal
import socket

import httpx
import pytest
from support.commands import here, run
from support.servers import serving, settled

PROMPT = {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0}


@pytest.fixture
def container(monkeypatch):
    """The variables of a container of Vertex AI, whose port is free."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("AIP_MODE", "PREDICTION")
    monkeypatch.setenv("AIP_HTTP_PORT", str(port))
    return port


def test_instances_are_answered_as_their_paths_answer_them_or_say_what_is_wrong(container, monkeypatch):
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/v1/endpoints/7:predict")
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/alive")
    asked = [
        {"@requestFormat": "completions", **PROMPT},
        {"@requestFormat": "/completion", "stream": True, **PROMPT},
        {"@requestFormat": "chatCompletions", "messages": []},
        {"@requestFormat": "nothing", **PROMPT},
        {"@requestFormat": ["completions"], **PROMPT},
        PROMPT,
        7,
    ]
    with serving(*here(), "-np", "2", "--api-key", "one", "--port", "1") as server:
        assert server.url == f"http://127.0.0.1:{container}"
        client, key = server.client, {"Authorization": "Bearer one"}
        assert client.get("/alive").json() == {"status": "ok"}
        assert client.post("/v1/endpoints/7:predict", json={"instances": []}).status_code == 401
        assert client.post("/predict", json={"instances": []}, headers=key).status_code == 404

        def predict(instances, **more):
            return client.post("/v1/endpoints/7:predict", json={"instances": instances} | more, headers=key)

        assert predict([], parameters={"any": 1}).json() == {"predictions": []}
        assert [predict(each).status_code for each in (None, PROMPT, [PROMPT] * 129)] == [400] * 3
        one, other, *wrong = predict(asked).json()["predictions"]
        assert one["object"] == "text_completion"
        assert one["usage"]["completion_tokens"] == 4
        assert other["tokens_predicted"] == 4
        told = ["messages has 0 items", "is 'nothing', expected", "is ['completions'], expected", "is None", "no JSON object"]
        assert all(text in each["error"]["message"] for text, each in zip(told, wrong, strict=True))


def test_a_client_that_leaves_ends_all_instances_quietly(container):
    endless = {"@requestFormat": "completion", "prompt": [1, 2, 3], "n_predict": -1, "ignore_eos": True}
    with serving(*here(), "-np", "2", "-c", "4096") as server:

        def n_running():
            return sum(slot["is_processing"] for slot in server.client.get("/slots").json())

        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/predict", json={"instances": [endless] * 2}, timeout=httpx.Timeout(5, read=1))
        assert settled(n_running, 0) == 0
        assert server.end() in (0, -signal.SIGTERM)
        assert "Traceback" not in server.output


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [("AIP_HTTP_PORT", "8080/tcp", "expected a port"), ("AIP_PREDICT_ROUTE", "/v1/models", "a meaning of its own")],
)
def test_what_cannot_be_asked_is_told_at_the_start(container, monkeypatch, capsys, name, value, told):
    monkeypatch.setenv(name, value)
    code, _, error = run(capsys, "serve", *here())
    assert (code, f"the variable {name} is" in error, told in error) == (2, True, True)


def test_without_the_mode_there_is_no_prediction(client):
    assert client.post("/predict", json={"instances": []}).status_code == 404
