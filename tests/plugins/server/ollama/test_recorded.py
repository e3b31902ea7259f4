"""Calls that clients of Ollama's were recorded to send, each of which is answered in the form that it asks for."""

import json

import pytest
from support.sources import ROOT

CALLS = [json.loads(line) for line in (ROOT / "tests" / "data" / "clients" / "ollama.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("call", CALLS, ids=[f"{call['client']} {call['path']}" for call in CALLS])
def test_a_recorded_call_is_answered(client, call):
    body, writes = call["body"], call["path"] in ("/api/chat", "/api/generate")
    if body is not None:
        body = body | {"name" if "name" in body else "model": "smollm2"}
    if writes:
        body["options"] = {"num_predict": 8} | body["options"]
    headers = {} if call["type"] is None else {"Content-Type": call["type"]}
    answer = client.request(call["method"], call["path"], content=body and json.dumps(body), headers=headers)
    assert answer.status_code == 200, answer.text
    *parts, last = [json.loads(line) for line in answer.text.splitlines()]
    if writes:
        assert (len(parts) > 0) == body["stream"]
        assert [each["done"] for each in (*parts, last)] == [False] * len(parts) + [True]
        assert (last["model"], last["done_reason"] in {"stop", "length"}, last["eval_count"] >= 1) == ("smollm2", True, True)
    elif call["path"] == "/api/embed":
        assert [len(each) > 1 for each in last["embeddings"]] == [True, True]
